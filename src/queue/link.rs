//! A link to the pool that can be cut.

use super::Service;
use crate::sync::{Arc, Guards, Mutex};

/// What reclaimers, the stand-in and the keeper act on, until the link is cut: a waker that the device or a dead runtime
/// still holds must not keep the pool alive.
#[derive(Clone, Debug)]
pub(super) struct Link(Arc<Mutex<Option<Arc<Service>>>>);

impl Link {
    pub(super) fn new(service: &Arc<Service>) -> Self {
        let service = Some(service.clone());
        Self(Arc::new(Mutex::new(Guards::Registry, service)))
    }

    pub(super) fn service(&self) -> Option<Arc<Service>> {
        self.0.lock().clone()
    }

    /// Returns what the link kept alive, to be dropped where that can do no harm.
    pub(super) fn cut(&self) -> Option<Arc<Service>> {
        self.0.lock().take()
    }
}
