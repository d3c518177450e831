//! The sequences of a worker, by tenant.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weirpool::Tag;

/// The part of a new time in the average of the times of steps.
const NEW: u64 = 8;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Load {
    by_tenant: Mutex<HashMap<Tag, usize>>,
    /// The time of a step in nanoseconds, on average of the last ones; 0 before the first.
    step: AtomicU64,
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

    /// Returns what the workers are compared by for a request of a tenant: its sequences, so that it has its share of each
    /// worker; and all sequences.
    pub(super) fn rank(&self, tenant: Tag) -> (usize, usize) {
        let counts = self.counts();
        let own = counts.get(&tenant).copied().unwrap_or_default();
        (own, counts.values().sum())
    }

    /// Notes the time that a step took. Called by the worker alone.
    pub(super) fn note_step(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let average = match self.step.load(Ordering::Relaxed) {
            0 => took,
            known => known - known / NEW + took / NEW,
        };
        self.step.store(average, Ordering::Relaxed);
    }

    /// Returns the time of a step.
    pub(super) fn step(&self) -> Duration {
        Duration::from_nanos(self.step.load(Ordering::Relaxed))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_with_fewer_sequences_of_the_tenant_is_first() {
        let [one, other] = ["one", "other"].map(Tag::new);
        let [full, light] = [(); 2].map(|()| Load::default());
        (0..5).for_each(|_| full.add(other));
        light.add(one);
        assert!(full.rank(one) < light.rank(one));
        assert!(light.rank(other) < full.rank(other));
        full.add(one);
        assert!(
            light.rank(one) < full.rank(one),
            "among equals, the one with the fewest"
        );
        full.remove(one);
        full.remove(other);
        assert_eq!((full.all(), full.rank(one)), (4, (0, 4)));
        (0..4).for_each(|_| full.remove(other));
        assert!(
            full.counts().is_empty(),
            "nothing is kept of tenants without sequences"
        );
    }
}
