//! Streams by the names and objects that the backend has for them, for work that brings those and no
//! registration. [Nothing](super) where no backend has any.

use super::Registration;
use crate::device::{Device, DeviceStream, RawStream};
use crate::sync::Arc;
use crate::sync::plain::{self, Mutex, Weak};
use std::any::Any;

/// The backend's own object of a stream.
#[derive(Debug)]
pub(crate) struct Native(Option<plain::Arc<dyn Any + Send + Sync>>);

impl Native {
    /// As whoever registers the stream has it, or as the device does.
    pub(super) fn of(stream: &dyn DeviceStream, device: &dyn Device) -> Self {
        let own = stream.native();
        Self(own.or_else(|| device.native_stream(stream.raw())))
    }

    pub(crate) fn get(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.0.as_deref()
    }
}

/// A pool's registrations by the names of their streams, which they keep: the name is no other's while they live. Of
/// external streams that is not so.
#[derive(Debug, Default)]
pub(crate) struct Roll(Mutex<Vec<(RawStream, Weak<Registration>)>>);

impl Roll {
    pub(super) fn enter(&self, registration: &Arc<Registration>) {
        if registration.lane.is_external {
            return;
        }
        let mut all = self.0.lock();
        all.retain(|(_, registration)| registration.strong_count() > 0);
        all.push((registration.lane.raw, Arc::downgrade(registration)));
    }

    pub(crate) fn find(&self, raw: RawStream) -> Option<Arc<Registration>> {
        let all = self.0.lock();
        let mut all = all.iter().filter(|(name, _)| *name == raw);
        all.find_map(|(_, registration)| registration.upgrade())
    }
}
