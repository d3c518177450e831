//! Counts of the calls that are passed through to the driver, by their reason.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a call is passed through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passed {
    /// The allocation, or free, is part of a capture, or comes while one goes on.
    Capture,
    /// Managed memory.
    Managed,
    /// Physical memory that the program maps itself, and that is not of the current device.
    Chunk,
    /// Memory of a pool of the program's that can be exported, is of the host or of another device than the stream, or has
    /// a size of its own.
    ForeignPool,
    /// Memory that is exported to another process.
    Export,
    /// There is no pool for the context, or its device fails.
    NoPool,
}

const NAMES: [&str; 6] = [
    "in captures",
    "of managed memory",
    "by cuMemCreate elsewhere",
    "from other pools",
    "exports",
    "without a pool",
];

static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];
static FAILURES: AtomicU64 = AtomicU64::new(0);

impl Passed {
    #[cold]
    pub(super) fn count(self) {
        COUNTS[self as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts an allocation that failed for want of memory.
#[cold]
pub(super) fn count_failure() {
    FAILURES.fetch_add(1, Ordering::Relaxed);
}

/// The counts, for a line of text.
pub(super) struct Counts;

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = COUNTS.iter().map(|count| count.load(Ordering::Relaxed));
        let mut separator = "; passed through: ";
        for (count, name) in counts.zip(NAMES).filter(|(count, _)| *count > 0) {
            write!(f, "{separator}{count} {name}")?;
            separator = ", ";
        }
        match FAILURES.load(Ordering::Relaxed) {
            0 => Ok(()),
            failures => write!(f, "; {failures} failed"),
        }
    }
}
