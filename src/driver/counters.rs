//! Counts of the slow path; the hot path counts in its lane.

use super::Source;
use crate::sync::{Ordering, SharedNumber};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Counters {
    sources: [SharedNumber; Source::COUNT],
    pub(crate) growths: SharedNumber,
    pub(crate) chunks_created: SharedNumber,
    pub(crate) remaps: SharedNumber,
    pub(crate) device_waits: SharedNumber,
    pub(crate) released: SharedNumber,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            sources: std::array::from_fn(|_| SharedNumber::new(0)),
            growths: SharedNumber::new(0),
            chunks_created: SharedNumber::new(0),
            remaps: SharedNumber::new(0),
            device_waits: SharedNumber::new(0),
            released: SharedNumber::new(0),
        }
    }

    pub(crate) fn count(&self, source: Source) {
        add(&self.sources[source as usize], 1);
    }

    pub(crate) fn hits(&self, source: Source) -> u64 {
        read(&self.sources[source as usize])
    }
}

pub(crate) fn add(number: &SharedNumber, count: u64) {
    number.fetch_add(count, Ordering::Relaxed);
}

pub(crate) fn read(number: &SharedNumber) -> u64 {
    number.load(Ordering::Relaxed)
}
