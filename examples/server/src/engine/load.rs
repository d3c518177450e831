//! The sequences of a worker, by tenant.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weirpool::Tag;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Load {
    by_tenant: Mutex<HashMap<Tag, usize>>,
}

impl Load {
    pub(super) fn add(&self, tenant: Tag) {
        *self.counts().entry(tenant).or_default() += 1;
    }

    /// Removes a sequence that was [added](Self::add).
    pub(super) fn remove(&self, tenant: Tag) {
        let mut counts = self.counts();
        if let Some(count) = counts.get_mut(&tenant) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&tenant);
            }
        }
    }

    /// Returns the number of sequences of a tenant.
    pub(super) fn of(&self, tenant: Tag) -> usize {
        self.counts().get(&tenant).copied().unwrap_or_default()
    }

    /// Returns the number of sequences.
    pub(super) fn all(&self) -> usize {
        self.counts().values().sum()
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Tag, usize>> {
        self.by_tenant
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
