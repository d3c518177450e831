//! Pending blocks by their donors: the streams that freed them, or used them last.

use super::super::block::BlockId;
use super::super::fence::{Fence, Fences};
use super::{BySize, Indexed};
use crate::id::{StreamId, Ticket};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Pending blocks, by the streams that they wait for.
#[derive(Debug, Default)]
pub(crate) struct ByDonor {
    /// A stream stays until it is [forgotten](Self::forget), even if no block waits for it.
    donors: BTreeMap<StreamId, Donated>,
    /// Blocks that wait for several streams. They are few, and a search looks at each of them.
    several: BTreeSet<BlockId>,
}

/// The blocks that wait for one stream.
#[derive(Debug, Default)]
pub(crate) struct Donated {
    /// Blocks that wait for this stream alone.
    pub by_size: BySize,
    by_ticket: ByTicket,
    /// The bytes of all blocks that wait for this stream, alone or with others.
    bytes: u64,
    /// The number of frees that those blocks are made of.
    frees: u64,
}

impl ByDonor {
    /// Adds a block under each of its fences. `is_waiting` returns whether a block is still pending behind a point.
    pub(super) fn insert(
        &mut self,
        block: Indexed,
        fences: &Fences,
        is_waiting: impl Fn(BlockId, Fence) -> bool,
    ) {
        match fences.single() {
            Some(fence) => {
                let donated = self.donate(block, fence, is_waiting);
                donated.by_size.insert(block.bytes, block.address, block.id);
            }
            None => {
                for fence in fences.iter() {
                    self.donate(block, fence, &is_waiting);
                }
                self.several.insert(block.id);
            }
        }
    }

    fn donate(
        &mut self,
        block: Indexed,
        fence: Fence,
        is_waiting: impl Fn(BlockId, Fence) -> bool,
    ) -> &mut Donated {
        let donated = self.donors.entry(fence.stream).or_default();
        donated.bytes += block.bytes;
        donated.frees += block.frees;
        let stream = fence.stream;
        let is_waiting = |ticket, id| is_waiting(id, Fence { stream, ticket });
        donated.by_ticket.insert(fence.ticket, block.id, is_waiting);
        donated
    }

    pub(super) fn remove(&mut self, block: Indexed, fences: &Fences) {
        match fences.single() {
            Some(fence) => {
                let donated = self.take_away(block, fence);
                donated.by_size.remove(block.bytes, block.address, block.id);
            }
            None => {
                for fence in fences.iter() {
                    self.take_away(block, fence);
                }
                self.several.remove(&block.id);
            }
        }
    }

    fn take_away(&mut self, block: Indexed, fence: Fence) -> &mut Donated {
        let donated = self.donors.get_mut(&fence.stream).expect("a donor");
        donated.bytes -= block.bytes;
        donated.frees -= block.frees;
        donated.by_ticket.count_gone();
        donated
    }

    /// Returns a block that waited for a ticket of `stream` up to `ticket` when it was added, with that ticket.
    /// Returns each entry once, also if its block was removed meanwhile.
    pub(crate) fn next_due(
        &mut self,
        stream: StreamId,
        ticket: Ticket,
    ) -> Option<(Ticket, BlockId)> {
        self.donors.get_mut(&stream)?.by_ticket.next_due(ticket)
    }

    /// Forgets a retired stream: no block waits for it, and none will.
    pub(crate) fn forget(&mut self, stream: StreamId) {
        self.donors.remove(&stream);
    }

    /// Returns the bytes of all blocks that wait for `stream`, alone or with others.
    pub(crate) fn bytes_waiting_for(&self, stream: StreamId) -> u64 {
        self.donated_by(stream).map_or(0, |donated| donated.bytes)
    }

    /// Returns the number of frees that those blocks are made of.
    pub(crate) fn frees_waiting_for(&self, stream: StreamId) -> u64 {
        self.donated_by(stream).map_or(0, |donated| donated.frees)
    }

    pub(crate) fn donated_by(&self, stream: StreamId) -> Option<&Donated> {
        self.donors.get(&stream)
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

/// Blocks in the order of the tickets that they wait for, which is nearly the order in which they are added. Entries
/// of removed blocks stay until their turn, or until they are the majority.
#[derive(Debug, Default)]
struct ByTicket {
    entries: VecDeque<(Ticket, BlockId)>,
    /// The number of entries whose blocks were not removed.
    live: usize,
}

impl ByTicket {
    fn insert(
        &mut self,
        ticket: Ticket,
        id: BlockId,
        is_waiting: impl Fn(Ticket, BlockId) -> bool,
    ) {
        if self.entries.len() > 4 * self.live + 64 {
            self.sweep(is_waiting);
        }
        self.live += 1;
        match self.entries.back() {
            Some((last, _)) if *last > ticket => {
                let at = self.entries.partition_point(|(other, _)| *other <= ticket);
                self.entries.insert(at, (ticket, id));
            }
            _ => self.entries.push_back((ticket, id)),
        }
    }

    fn count_gone(&mut self) {
        self.live -= 1;
        if self.live == 0 {
            self.entries.clear();
        }
    }

    fn sweep(&mut self, is_waiting: impl Fn(Ticket, BlockId) -> bool) {
        self.entries.retain(|(ticket, id)| is_waiting(*ticket, *id));
        // A block that was taken and freed again under the same ticket has two entries, perhaps with others between.
        self.entries.make_contiguous().sort_unstable();
        let mut last = None;
        self.entries
            .retain(|entry| last.replace(*entry) != Some(*entry));
    }

    fn next_due(&mut self, ticket: Ticket) -> Option<(Ticket, BlockId)> {
        let (due, _) = self.entries.front()?;
        (*due <= ticket).then(|| self.entries.pop_front())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two blocks wait for one ticket. They are taken and freed in turn, and no event comes in between.
    #[test]
    fn entries_of_one_ticket_do_not_accumulate() {
        let blocks = [0, 1].map(BlockId::of_slot);
        let mut index = ByTicket::default();
        let freed = |index: &mut ByTicket, id| index.insert(Ticket(1), id, |_, _| true);
        blocks.iter().for_each(|id| freed(&mut index, *id));
        for _ in 0..1000 {
            for id in blocks {
                index.count_gone();
                freed(&mut index, id);
            }
        }
        assert!(index.entries.len() < 100, "{}", index.entries.len());
        let due: BTreeSet<_> = std::iter::from_fn(|| index.next_due(Ticket(1))).collect();
        assert_eq!(due, blocks.map(|id| (Ticket(1), id)).into());
    }

    #[test]
    fn late_block_of_an_early_ticket_is_due_in_its_turn() {
        let ids = [0, 1, 2].map(BlockId::of_slot);
        let mut index = ByTicket::default();
        for (ticket, id) in [5, 7, 5].into_iter().zip(ids) {
            index.insert(Ticket(ticket), id, |_, _| true);
        }
        assert_eq!(index.next_due(Ticket(4)), None);
        assert_eq!(index.next_due(Ticket(5)), Some((Ticket(5), ids[0])));
        assert_eq!(index.next_due(Ticket(6)), Some((Ticket(5), ids[2])));
        assert_eq!(index.next_due(Ticket(6)), None);
        assert_eq!(index.next_due(Ticket(7)), Some((Ticket(7), ids[1])));
    }

    #[test]
    fn bytes_count_for_each_stream_that_a_block_waits_for() {
        let mut index = ByDonor::default();
        let block = |slot, bytes| Indexed {
            id: BlockId::of_slot(slot),
            bytes,
            address: slot as u64,
            frees: 1,
        };
        let [one, other] = [1, 2].map(StreamId);
        let both: Fences = [one, other]
            .map(|stream| Fence {
                stream,
                ticket: Ticket(1),
            })
            .into_iter()
            .collect();
        let alone = Fences::one(one, Ticket(1));
        index.insert(block(0, 10), &both, |_, _| true);
        index.insert(block(1, 7), &alone, |_, _| true);
        assert_eq!(index.bytes_waiting_for(one), 17);
        assert_eq!(index.frees_waiting_for(one), 2);
        assert_eq!(index.bytes_waiting_for(other), 10);
        assert_eq!(index.several().count(), 1);
        assert_eq!(
            index.donated_by(one).map(|donated| donated.by_size.len()),
            Some(1)
        );
        assert_eq!(
            index.donated_by(other).map(|donated| donated.by_size.len()),
            Some(0)
        );
        index.remove(block(0, 10), &both);
        assert_eq!(index.bytes_waiting_for(one), 7);
        assert_eq!(index.frees_waiting_for(one), 1);
        assert_eq!(index.bytes_waiting_for(other), 0);
        assert_eq!(index.several().count(), 0);
        index.remove(block(1, 7), &alone);
        assert_eq!(index.donors().count(), 2, "until they are forgotten");
        index.forget(one);
        assert_eq!(index.donors().count(), 1);
    }
}
