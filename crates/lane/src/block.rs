//! Blocks as a lane receives, keeps and returns them.

use crate::heap::BlockId;
use crate::id::Ticket;

/// A block that is used or freed, as the lane and the engine need to know it.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// The heap's name of it.
    pub id: BlockId,
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Bytes of it that were not requested.
    pub rounding: u32,
}

/// A block that a stream freed and its lane kept.
#[derive(Clone, Copy, Debug)]
pub struct CachedBlock {
    /// The heap's name of it.
    pub id: BlockId,
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// The ticket under which it was freed.
    pub ticket: Ticket,
}

impl CachedBlock {
    #[inline(always)]
    pub(super) fn freed(block: &Use, ticket: Ticket) -> Self {
        Self {
            id: block.id,
            address: block.address,
            bytes: block.bytes,
            ticket,
        }
    }
}

/// A ticket that no further free joins.
#[derive(Clone, Copy, Debug)]
pub struct Closed {
    /// Its name.
    pub ticket: Ticket,
    /// Whether any free joined it.
    pub(super) covers_frees: bool,
}

/// The outcome of a free.
#[derive(Debug)]
#[must_use = "a block that is not kept must go to the heap, and a closed ticket must be recorded"]
pub struct Freed {
    /// The ticket that the block joined.
    pub ticket: Ticket,
    /// Whether the cache has the block; if not, it goes to the heap.
    pub is_kept: bool,
    /// The ticket that this free closed: its event must be recorded now.
    pub closed: Option<Closed>,
}

/// Which sizes satisfy a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The size itself.
    Exact,
    /// If there is no block of the size, one that is larger by up to an eighth.
    Near,
}
