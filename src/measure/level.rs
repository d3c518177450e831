//! A figure and the highest it has been.

/// A figure and the highest it has been since the pool was made or the highs were reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Level {
    /// Now, in bytes.
    pub current: u64,
    /// The highest so far, in bytes.
    pub high: u64,
}

impl Level {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.current += bytes;
        self.high = self.high.max(self.current);
    }

    pub(crate) fn subtract(&mut self, bytes: u64) {
        debug_assert!(self.current >= bytes, "I3: a figure never goes below zero");
        self.current -= bytes;
    }

    pub(crate) fn reset_high(&mut self) {
        self.high = self.current;
    }
}
