//! The steps that a reader takes, counted so that tests and fuzz targets can hold them against the length of the input:
//! a time would depend on the host.

use std::cell::Cell;

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { steps: 0, bytes: 0 }) };
}

/// What the readers of this thread did so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Items, entries, rows and bytes that were looked at.
    pub(crate) steps: u64,
    /// Bytes of the inputs, decompressed ones as well.
    pub(crate) bytes: u64,
}

impl Counts {
    /// The most steps for a byte, and those for an input of no bytes. The most expensive byte of a sound input is half of
    /// a reference to an event of a snapshot, whose keys are looked up ten times.
    const MOST: (u64, u64) = (128, 4096);

    /// Returns the difference to an earlier count.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            steps: self.steps - earlier.steps,
            bytes: self.bytes - earlier.bytes,
        }
    }

    /// Returns whether the steps are in proportion to the bytes.
    pub(crate) fn are_linear(self) -> bool {
        let (each, fixed) = Self::MOST;
        self.steps <= each * self.bytes + fixed
    }
}

/// Counts steps.
pub(crate) fn take(steps: usize) {
    COUNTS.with(|counts| {
        let mut now = counts.get();
        now.steps += steps as u64;
        counts.set(now);
    });
}

/// Counts bytes of an input.
pub(crate) fn read(bytes: usize) {
    COUNTS.with(|counts| {
        let mut now = counts.get();
        now.bytes += bytes as u64;
        counts.set(now);
    });
}

/// Returns what this thread has counted so far.
pub(crate) fn counts() -> Counts {
    COUNTS.get()
}
