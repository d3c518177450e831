//! What handles share: those of a pool, of a stream, of a reservation and of memory for graphs, with their blocks.
//!
//! | file | contents |
//! |---|---|
//! | this file | [`Presence`]: what handles of a pool and its registrations share |
//! | `registration` | what a stream's handles, blocks and futures share |
//! | `native`, `roll` | a stream's object of the backend; registrations by the backend's names |
//! | `reserved` | what a reservation and the blocks drawn from it share |
//! | `share` | what handles of the memory for graphs, the captures that allocate from it, and the graphs share |
//! | `route` | where streams allocate while they are being captured |
//! | `uses` | what a graph uses besides, and its launches |
//! | `clock`, `captured_point` | the order of a capture's streams, and a point in one of them |
//! | `observers` | observers of each block's life |
//! | `fills` | filling blocks when they are granted and freed |

mod captured_point;
mod clock;
mod fills;
mod native;
mod observers;
mod registration;
mod reserved;
mod roll;
mod route;
mod share;
mod uses;

pub(crate) use captured_point::CapturedPoint;
pub(crate) use clock::CaptureClock;
pub(crate) use observers::{Caller, Ending, Granted, Observers};
pub(crate) use registration::Registration;
pub(crate) use reserved::{Held, Reserved, ReservedHandle};
pub(crate) use route::Route;
pub(crate) use share::{Allocated, FromPart, GraphShare};
pub(crate) use uses::{GraphUses, HostAccess};

use crate::device::Explain;
use crate::error::AllocError;
use crate::queue::Service;
use crate::sync::{Arc, plain};
use roll::Roll;
use route::Routes;
use std::fmt;
use std::panic::Location;

/// What handles of the pool and its registrations share. Dropping the last of them ends lasting reclaimers.
pub(crate) struct Presence {
    pub(crate) service: Arc<Service>,
    /// The pool's name, if it has one.
    pub(crate) name: Option<plain::Arc<str>>,
    pub(crate) roll: Roll,
    routes: Routes,
    /// Told about the life of each block, if there are any.
    pub(crate) observers: Option<plain::Arc<Observers>>,
}

impl fmt::Debug for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = f.debug_struct("Presence");
        all.field("name", &self.name).finish_non_exhaustive()
    }
}

impl Presence {
    pub(crate) fn new(service: Arc<Service>, name: Option<plain::Arc<str>>) -> Self {
        Self {
            observers: Observers::of(&service.engine),
            service,
            name,
            roll: Roll::default(),
            routes: Routes::default(),
        }
    }

    /// # Errors
    /// Returns an error if the stream was registered with another pool.
    ///
    /// # Panics
    /// On a device that checks orderings, with a violation that was found where no caller could be told.
    #[inline]
    pub(crate) fn expect_own(
        &self,
        registration: &Registration,
        call: &'static Location<'static>,
    ) -> Result<(), AllocError> {
        if !std::ptr::eq(&*registration.presence, self) {
            return Err(AllocError::ForeignStream);
        }
        if let Some(observers) = registration.observers.as_deref() {
            observers.call_out(call);
        }
        Ok(())
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.service.orphan();
    }
}

impl Explain for Presence {
    fn explain(&self) -> Option<String> {
        self.service.explain(self.name.as_deref())
    }
}
