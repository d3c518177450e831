//! The blocks: a slab of nodes, linked in address order within their segment.

use super::fence::{Fence, Fences};
use super::index::Filed;
use super::reservation::ReservationId;
use crate::id::StreamId;
use std::mem::discriminant;
use std::num::NonZeroU32;

/// A block of the heap. Reused once the block is merged away, so only who holds the block may
/// name it by this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockId(NonZeroU32);

impl BlockId {
    /// The least there is.
    pub(crate) const FIRST: Self = Self(NonZeroU32::MIN);

    pub(crate) fn of_slot(slot: usize) -> Self {
        let number = u32::try_from(slot + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("fewer than 2^32 blocks"))
    }

    pub(super) fn slot(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// What a block is; the edges are drawn in the header of [`heap`](super).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing may touch it any more; any stream may have it.
    Free,
    /// Given back, but the work behind these fences may still touch it. Never empty.
    Pending(Fences),
    /// Granted: in use, or cached by a lane. When it is freed it returns to this reservation, if there is one.
    Used(Option<ReservationId>),
    /// Set aside for one holder, which has lent none of it; with what is left of its last life.
    Reserved(ReservationId, Fences),
    /// Held by an unfinished [`Plan`](super::plan::Plan), and what it was before.
    Claimed(Was),
    /// Addresses without memory: never mapped, or remapped elsewhere.
    Hole,
    /// The same, kept for the lent block below to grow into.
    Room,
}

/// What a claimed block was, and goes back to if the plan fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Was {
    Free,
    Pending(Fences),
    Hole,
    Room,
}

impl State {
    /// Whether the block is granted.
    pub(crate) fn is_used(&self) -> bool {
        matches!(self, State::Used(_))
    }

    /// Whether there is memory behind the addresses.
    pub(crate) fn is_backed(&self) -> bool {
        !matches!(
            self,
            State::Hole | State::Room | State::Claimed(Was::Hole | Was::Room)
        )
    }

    /// Whether two neighbours in these states are one block.
    #[inline]
    pub(crate) fn merges_with(&self, other: &State) -> bool {
        // Most neighbours differ: that is seen by one comparison.
        discriminant(self) == discriminant(other)
            && match (self, other) {
                (State::Free | State::Hole | State::Room, _) => true,
                (State::Pending(these), State::Pending(those)) => these == those,
                _ => false,
            }
    }
}

/// One cache line: a heap that many threads share goes from core to core with what is changed.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) state: State,
    /// The stream that it was granted to last.
    pub(crate) user: StreamId,
    pub(crate) previous: Option<BlockId>,
    pub(crate) next: Option<BlockId>,
}

impl Block {
    pub(crate) fn end(&self) -> u64 {
        self.address + self.bytes
    }

    /// As it is filed, being pending.
    pub(super) fn filed(&self, id: BlockId) -> Filed {
        Filed {
            id,
            bytes: self.bytes,
            address: self.address,
        }
    }
}

/// All blocks of a heap.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    nodes: Vec<Option<Block>>,
    vacant: Vec<BlockId>,
}

impl Blocks {
    pub(crate) fn insert(&mut self, block: Block) -> BlockId {
        match self.vacant.pop() {
            Some(id) => {
                self.nodes[id.slot()] = Some(block);
                id
            }
            None => {
                self.nodes.push(Some(block));
                BlockId::of_slot(self.nodes.len() - 1)
            }
        }
    }

    pub(crate) fn get(&self, id: BlockId) -> Option<&Block> {
        self.nodes.get(id.slot())?.as_ref()
    }

    /// Whether a block is there, and waits for that very point.
    pub(super) fn is_waiting(&self, id: BlockId, fence: Fence) -> bool {
        self.get(id).is_some_and(|block| match &block.state {
            State::Pending(fences) => fences.of(fence.stream) == fence.ticket,
            _ => false,
        })
    }

    pub(crate) fn remove(&mut self, id: BlockId) {
        debug_assert!(self.get(id).is_some(), "a block is removed once");
        self.nodes[id.slot()] = None;
        self.vacant.push(id);
    }

    /// Cuts a block in two at `offset`; both halves keep the state. Returns the upper half.
    pub(crate) fn split(&mut self, id: BlockId, offset: u64) -> BlockId {
        let lower = &mut self[id];
        debug_assert!(0 < offset && offset < lower.bytes);
        let upper = Block {
            address: lower.address + offset,
            bytes: lower.bytes - offset,
            state: lower.state.clone(),
            user: lower.user,
            previous: Some(id),
            next: lower.next,
        };
        lower.bytes = offset;
        let above = lower.next;
        let upper = self.insert(upper);
        self[id].next = Some(upper);
        if let Some(above) = above {
            self[above].previous = Some(upper);
        }
        upper
    }

    /// Joins a block with the one above it, which goes away.
    pub(crate) fn absorb_next(&mut self, id: BlockId) {
        let next = self[id].next.expect("there is a block above");
        let upper = &self[next];
        let (start, bytes, above) = (upper.address, upper.bytes, upper.next);
        self.remove(next);
        let lower = &mut self[id];
        debug_assert_eq!(lower.end(), start);
        lower.bytes += bytes;
        lower.next = above;
        if let Some(above) = above {
            self[above].previous = Some(id);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        self.nodes.iter().enumerate().filter_map(|(slot, node)| {
            let block = node.as_ref()?;
            Some((BlockId::of_slot(slot), block))
        })
    }

    /// The block and those above it in its segment, in address order.
    pub(crate) fn from(&self, first: BlockId) -> impl Iterator<Item = (BlockId, &Block)> {
        let mut at = Some(first);
        std::iter::from_fn(move || {
            let id = at?;
            at = self[id].next;
            Some((id, &self[id]))
        })
    }
}

impl std::ops::Index<BlockId> for Blocks {
    type Output = Block;

    fn index(&self, id: BlockId) -> &Block {
        self.nodes[id.slot()].as_ref().expect("a live block")
    }
}

impl std::ops::IndexMut<BlockId> for Blocks {
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        self.nodes[id.slot()].as_mut().expect("a live block")
    }
}

const _: () = assert!(size_of::<Option<Block>>() == 64);
