//! The blocks: a slab of nodes, linked in address order within their segment.

use super::fence::{Fence, Fences};
use crate::id::{ReservationId, StreamId};
use std::mem::discriminant;
use std::num::NonZeroU32;

/// The id of a block. It is reused once the block is merged into another, so only the holder of a block may name the
/// block by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(NonZeroU32);

impl BlockId {
    /// The smallest id.
    pub const FIRST: Self = Self(NonZeroU32::MIN);

    /// # Panics
    /// Panics if there are 2^32 blocks.
    pub fn of_slot(slot: usize) -> Self {
        let number = u32::try_from(slot + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("fewer than 2^32 blocks"))
    }

    pub(super) fn slot(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The state of a block. The [module](super) describes each state and each transition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// No work touches the memory any more. Any stream may take it.
    Free,
    /// Freed, but work before these fences may still touch the memory. The set is never empty.
    Pending(Fences),
    /// Granted: in use, or cached by a lane. When it is freed it returns to this reservation, if there is one.
    Used(Option<ReservationId>),
    /// Set aside in a reservation, with the fences of its last use.
    Reserved(ReservationId, Fences),
    /// Held by an unfinished plan or release, with the state from before.
    Claimed(Was),
    /// Addresses without memory: never mapped, or their memory was moved or released.
    Hole,
    /// A hole that only the used block below may grow into.
    Room,
}

/// The state of a claimed block before the claim. The block returns to it if the plan fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Was {
    Free,
    Pending(Fences),
    Hole,
    Room,
}

impl State {
    /// Returns [`Free`](Self::Free) if no fence is left, otherwise [`Pending`](Self::Pending).
    pub(super) fn after(fences: Fences) -> Self {
        if fences.is_empty() {
            Self::Free
        } else {
            Self::Pending(fences)
        }
    }

    /// Returns whether the block is granted.
    pub(crate) fn is_used(&self) -> bool {
        matches!(self, Self::Used(_))
    }

    /// Returns whether work may still touch the memory, in a plan or not.
    fn is_pending(&self) -> bool {
        matches!(self, Self::Pending(_) | Self::Claimed(Was::Pending(_)))
    }

    /// Returns whether there is memory behind the addresses.
    pub(crate) fn is_backed(&self) -> bool {
        !matches!(
            self,
            Self::Hole | Self::Room | Self::Claimed(Was::Hole | Was::Room)
        )
    }

    /// Returns whether two neighbours in these states are one block.
    #[inline]
    pub(crate) fn merges_with(&self, other: &Self) -> bool {
        // Most neighbours are in different states, which one comparison shows.
        discriminant(self) == discriminant(other)
            && match (self, other) {
                (Self::Free | Self::Hole | Self::Room, _) => true,
                (Self::Pending(these), Self::Pending(those)) => these == those,
                _ => false,
            }
    }
}

/// A block. It fills one cache line: when several threads share a heap, changed lines travel from core to core.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Block {
    pub address: u64,
    pub bytes: u64,
    pub state: State,
    /// For a granted block, the number of the stream that it was granted to. For a pending block, how many frees it is
    /// made of. It is one word, so that the block stays one cache line.
    note: u64,
    pub previous: Option<BlockId>,
    pub next: Option<BlockId>,
}

const _: () = assert!(size_of::<Option<Block>>() == 64);

impl Block {
    pub(crate) fn new(address: u64, bytes: u64, state: State) -> Self {
        Self {
            address,
            bytes,
            state,
            note: StreamId::NONE.0,
            previous: None,
            next: None,
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.address + self.bytes
    }

    /// Returns the stream that a granted block was granted to.
    pub(crate) fn user(&self) -> StreamId {
        StreamId(self.note)
    }

    pub(crate) fn set_user(&mut self, stream: StreamId) {
        self.note = stream.0;
    }

    /// Returns how many frees a pending block is made of, its merged neighbours included; 1 for a block in another state,
    /// which is one free once it is pending.
    pub(crate) fn frees(&self) -> u64 {
        if self.state.is_pending() {
            self.note
        } else {
            1
        }
    }

    pub(crate) fn set_frees(&mut self, frees: u64) {
        self.note = frees.max(1);
    }
}

/// All blocks of a heap.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    nodes: Vec<Option<Block>>,
    vacant: Vec<BlockId>,
}

impl Blocks {
    #[inline]
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

    /// Returns the number of live blocks.
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.vacant.len()
    }

    pub(crate) fn get(&self, id: BlockId) -> Option<&Block> {
        self.nodes.get(id.slot())?.as_ref()
    }

    /// Returns whether the block exists and is pending behind exactly this point.
    pub(super) fn is_waiting(&self, id: BlockId, fence: Fence) -> bool {
        self.get(id).is_some_and(|block| match &block.state {
            State::Pending(fences) => fences.of(fence.stream) == fence.ticket,
            _ => false,
        })
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: BlockId) {
        debug_assert!(self.get(id).is_some(), "a block is removed once");
        self.nodes[id.slot()] = None;
        self.vacant.push(id);
    }

    /// Cuts a block in two at `offset`. Both parts keep the state. Returns the upper part.
    pub(crate) fn split(&mut self, id: BlockId, offset: u64) -> BlockId {
        let lower = &mut self[id];
        debug_assert!(0 < offset && offset < lower.bytes);
        // The upper part of a pending block counts as one of its frees.
        let (frees, user) = (lower.frees(), lower.user());
        let mut upper = Block {
            address: lower.address + offset,
            bytes: lower.bytes - offset,
            state: lower.state.clone(),
            note: user.0,
            previous: Some(id),
            next: lower.next,
        };
        if lower.state.is_pending() {
            lower.set_frees(frees - 1);
            upper.set_frees(1);
        }
        lower.bytes = offset;
        let above = lower.next;
        let upper = self.insert(upper);
        self[id].next = Some(upper);
        if let Some(above) = above {
            self[above].previous = Some(upper);
        }
        upper
    }

    /// Joins a block with the one above it, whose id becomes vacant.
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

    /// Returns the block and all blocks above it in its segment, in address order.
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
