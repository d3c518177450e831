//! Counts of the slow path; the hot path counts in its lane.

use super::Rung;
use crate::sync::{Ordering, SharedNumber};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Tally {
    rungs: [SharedNumber; Rung::COUNT],
    pub(crate) growths: SharedNumber,
    pub(crate) handles_created: SharedNumber,
    pub(crate) remaps: SharedNumber,
    pub(crate) device_waits: SharedNumber,
    pub(crate) released: SharedNumber,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            rungs: std::array::from_fn(|_| SharedNumber::new(0)),
            growths: SharedNumber::new(0),
            handles_created: SharedNumber::new(0),
            remaps: SharedNumber::new(0),
            device_waits: SharedNumber::new(0),
            released: SharedNumber::new(0),
        }
    }

    pub(crate) fn count(&self, rung: Rung) {
        add(&self.rungs[rung as usize], 1);
    }

    pub(crate) fn hits(&self, rung: Rung) -> u64 {
        read(&self.rungs[rung as usize])
    }
}

pub(crate) fn add(number: &SharedNumber, count: u64) {
    number.fetch_add(count, Ordering::Relaxed);
}

pub(crate) fn read(number: &SharedNumber) -> u64 {
    number.load(Ordering::Relaxed)
}
