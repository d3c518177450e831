//! Allocations: blocks on their way from heap or cache to their user.

use super::Source;
use crate::heap::BlockId;
use crate::id::Ticket;
use crate::lane::{CachedBlock, Use};

/// A block out of the heap, on its way to its user.
#[derive(Debug)]
#[must_use = "a block that is dropped here is memory lost"]
pub(crate) struct Allocation {
    pub(crate) id: BlockId,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// The point of the stream behind which every earlier use of the memory lies; zero if all were complete.
    pub(crate) after: Ticket,
    pub(crate) source: Source,
}

impl Allocation {
    /// Returns a copy for observers.
    #[inline(always)]
    pub(crate) fn seen(&self) -> Self {
        Self { ..*self }
    }

    /// Returns the block as it is freed. `rounding` is the part of its bytes that was not asked for.
    #[inline(always)]
    pub(crate) fn as_used(&self, rounding: u32) -> Use {
        Use {
            id: self.id,
            address: self.address,
            bytes: self.bytes,
            rounding,
        }
    }

    #[inline(always)]
    pub(crate) fn of_cache(cached: CachedBlock) -> Self {
        Self {
            id: cached.id,
            address: cached.address,
            bytes: cached.bytes,
            after: cached.ticket,
            source: Source::Lane,
        }
    }
}
