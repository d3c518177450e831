//! Allocations: blocks on their way from heap or cache to their user.

use crate::heap::BlockId;
use crate::id::Ticket;
use crate::lane::CachedBlock;
use crate::measure::Source;
use smallvec::SmallVec;

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

/// The blocks of one request, in the order of its parts: mostly one.
pub(crate) type Allocations = SmallVec<[Allocation; 1]>;

impl Allocation {
    /// Returns a copy for observers.
    #[inline(always)]
    pub(crate) fn seen(&self) -> Self {
        Self { ..*self }
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
