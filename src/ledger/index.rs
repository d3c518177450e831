//! Where a block is found: free ones by size, pending ones by who freed them, by size and by ticket.

use super::block::BlockId;
use super::fence::Fence;
use crate::id::{StreamId, Ticket};
use std::collections::{BTreeMap, BTreeSet};

/// Blocks by size, and by address among those of one size.
#[derive(Debug, Default)]
pub(crate) struct BySize(BTreeSet<(u64, u64, BlockId)>);

impl BySize {
    pub(crate) fn insert(&mut self, bytes: u64, address: u64, id: BlockId) {
        self.0.insert((bytes, address, id));
    }

    pub(crate) fn remove(&mut self, bytes: u64, address: u64, id: BlockId) {
        let was_there = self.0.remove(&(bytes, address, id));
        debug_assert!(was_there, "an indexed block is found");
    }

    /// Those of at least `bytes`, smallest first.
    pub(crate) fn at_least(&self, bytes: u64) -> impl Iterator<Item = (u64, BlockId)> + '_ {
        self.0
            .range((bytes, 0, BlockId(0))..)
            .map(|(bytes, _, id)| (*bytes, *id))
    }

    /// The largest.
    pub(crate) fn last(&self) -> Option<(u64, BlockId)> {
        self.0.last().map(|(bytes, _, id)| (*bytes, *id))
    }

    pub(crate) fn largest(&self) -> u64 {
        self.0.last().map_or(0, |(bytes, _, _)| *bytes)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Pending blocks, by the streams that they wait for.
#[derive(Debug, Default)]
pub(crate) struct ByDonor {
    donors: BTreeMap<StreamId, Donated>,
    /// Blocks that wait for several streams: few, and looked through one by one.
    several: BTreeSet<BlockId>,
}

/// What waits for one stream.
#[derive(Debug, Default)]
pub(crate) struct Donated {
    /// Blocks that wait for this stream alone.
    pub(crate) by_size: BySize,
    /// Every block that waits for this stream, by the ticket it waits for.
    by_ticket: BTreeSet<(Ticket, BlockId)>,
}

impl ByDonor {
    /// Files a block under each of its fences. `alone`: it has no other.
    pub(crate) fn insert(&mut self, id: BlockId, fence: Fence, alone: Option<(u64, u64)>) {
        let donated = self.donors.entry(fence.stream).or_default();
        donated.by_ticket.insert((fence.ticket, id));
        match alone {
            Some((bytes, address)) => donated.by_size.insert(bytes, address, id),
            None => {
                self.several.insert(id);
            }
        }
    }

    pub(crate) fn remove(&mut self, id: BlockId, fence: Fence, alone: Option<(u64, u64)>) {
        let donated = self.donors.get_mut(&fence.stream).expect("a donor");
        donated.by_ticket.remove(&(fence.ticket, id));
        match alone {
            Some((bytes, address)) => donated.by_size.remove(bytes, address, id),
            None => {
                self.several.remove(&id);
            }
        }
        if donated.by_ticket.is_empty() {
            self.donors.remove(&fence.stream);
        }
    }

    /// A block that waits for a ticket of `stream` up to `ticket`.
    pub(crate) fn first_due(&self, stream: StreamId, ticket: Ticket) -> Option<BlockId> {
        let (due, id) = self.donors.get(&stream)?.by_ticket.first()?;
        (*due <= ticket).then_some(*id)
    }

    /// Every block that waits for `stream`, alone or with others.
    pub(crate) fn waiting_for(&self, stream: StreamId) -> impl Iterator<Item = BlockId> + '_ {
        let donated = self.donors.get(&stream);
        let waiting = donated.into_iter().flat_map(|donated| &donated.by_ticket);
        waiting.map(|(_, id)| *id)
    }

    pub(crate) fn donors(&self) -> impl Iterator<Item = (StreamId, &Donated)> {
        self.donors
            .iter()
            .map(|(stream, donated)| (*stream, donated))
    }

    pub(crate) fn several(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.several.iter().copied()
    }
}
