//! Notes about a recording that lacks something: reported, but no error.

use crate::units;
use std::fmt;

/// A note about how a recording was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// Frees of memory that was allocated before the recording began.
    UnknownFrees(u64),
    /// Blocks that were allocated before the recording began and not freed during it.
    EarlierBlocks { blocks: u64, bytes: u64 },
    /// Requests that failed while they were recorded, and so hold nothing.
    FailedAllocations(u64),
    /// Operations on 0 bytes.
    Empty(u64),
    /// The recorder wrote no times.
    NoTimes { apart_us: u64 },
    /// One device of several is replayed.
    OneDevice { device: usize, others: String },
}

impl fmt::Display for Note {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownFrees(frees) => write!(
                formatter,
                "{} of memory allocated before the recording began, not replayed",
                counted(*frees, "free")
            ),
            Self::EarlierBlocks { blocks, bytes } => write!(
                formatter,
                "{} ({}) allocated before the recording began, not replayed",
                counted(*blocks, "block"),
                units::bytes(*bytes)
            ),
            Self::FailedAllocations(requests) => write!(
                formatter,
                "{} that failed when it was recorded, not replayed",
                counted(*requests, "allocation")
            ),
            Self::Empty(operations) => write!(
                formatter,
                "{} of 0 bytes, not replayed",
                counted(*operations, "operation")
            ),
            Self::NoTimes { apart_us } => write!(
                formatter,
                "no times were recorded: the events are spaced evenly, {apart_us} us apart"
            ),
            Self::OneDevice { device, others } => write!(
                formatter,
                "device {device} is replayed; --trace-device chooses another: {others}"
            ),
        }
    }
}

fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", units::count(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_counts_with_singular_and_plural() {
        let one = Note::UnknownFrees(1).to_string();
        assert!(one.starts_with("1 free of memory"), "{one}");
        let blocks = Note::EarlierBlocks {
            blocks: 1200,
            bytes: 5_000_000,
        };
        assert!(blocks.to_string().starts_with("1,200 blocks (5.00 MB)"));
    }
}
