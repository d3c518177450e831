//! Links to the pool that can be cut.

use crate::{Arc, ForeignOption, Guards};

/// The service that a waker or a future acts on, until the link is cut. A waker that outlives its use keeps no pool alive.
#[derive(Debug)]
pub struct Link<T>(Arc<ForeignOption<Arc<T>>>);

impl<T> Clone for Link<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Link<T> {
    /// Links to a service.
    pub fn new(service: &Arc<T>) -> Self {
        let service = Some(service.clone());
        Self(Arc::new(ForeignOption::new(Guards::Registry, service)))
    }

    /// Returns the service, until the link is cut.
    #[inline]
    pub fn service(&self) -> Option<Arc<T>> {
        self.0.read(|service| service.cloned())
    }

    /// Returns the service that the link kept alive. The caller drops it with no lock held.
    pub fn cut(&self) -> Option<Arc<T>> {
        self.0.take()
    }
}
