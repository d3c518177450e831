//! Where a block is found: free ones by size, pending ones by who freed them, by size and by ticket.

mod by_size;

pub(crate) use by_size::BySize;

use super::block::BlockId;
use super::fence::{Fence, Fences};
use crate::id::{StreamId, Ticket};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Pending blocks, by the streams that they wait for.
#[derive(Debug, Default)]
pub(crate) struct ByDonor {
    /// A stream stays until it is forgotten, whether anything waits for it or not.
    donors: BTreeMap<StreamId, Donated>,
    /// Blocks that wait for several streams: few, and looked through one by one.
    several: BTreeSet<BlockId>,
}

/// What waits for one stream.
#[derive(Debug, Default)]
pub(crate) struct Donated {
    /// Blocks that wait for this stream alone.
    pub(crate) by_size: BySize,
    by_ticket: ByTicket,
    /// All that waits for this stream, in bytes.
    bytes: u64,
}

/// A pending block, as it is filed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filed {
    pub(crate) id: BlockId,
    pub(crate) bytes: u64,
    pub(crate) address: u64,
}

impl ByDonor {
    /// Files a block under its fences. `is_waiting` says whether a block waits for a point still.
    pub(crate) fn insert(
        &mut self,
        block: Filed,
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
        block: Filed,
        fence: Fence,
        is_waiting: impl Fn(BlockId, Fence) -> bool,
    ) -> &mut Donated {
        let donated = self.donors.entry(fence.stream).or_default();
        donated.bytes += block.bytes;
        let stream = fence.stream;
        let is_waiting = |ticket, id| is_waiting(id, Fence { stream, ticket });
        donated.by_ticket.insert(fence.ticket, block.id, is_waiting);
        donated
    }

    pub(crate) fn remove(&mut self, block: Filed, fences: &Fences) {
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

    fn take_away(&mut self, block: Filed, fence: Fence) -> &mut Donated {
        let donated = self.donors.get_mut(&fence.stream).expect("a donor");
        donated.bytes -= block.bytes;
        donated.by_ticket.note_gone();
        donated
    }

    /// A block that waited for a ticket of `stream` up to `ticket` when it was filed, with that ticket: each is told
    /// of once, those that are gone meanwhile as well.
    pub(crate) fn next_due(
        &mut self,
        stream: StreamId,
        ticket: Ticket,
    ) -> Option<(Ticket, BlockId)> {
        self.donors.get_mut(&stream)?.by_ticket.next_due(ticket)
    }

    /// Nothing waits for the stream any more, and nothing will.
    pub(crate) fn forget(&mut self, stream: StreamId) {
        self.donors.remove(&stream);
    }

    /// What waits for `stream`, alone or with others, in bytes.
    pub(crate) fn bytes_waiting_for(&self, stream: StreamId) -> u64 {
        self.donated_by(stream).map_or(0, |donated| donated.bytes)
    }

    /// What waits for `stream`.
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

/// Blocks in the order of the tickets that they wait for, which is nearly the order in which they come. What is gone
/// stays until its turn, or until most of them are gone.
#[derive(Debug, Default)]
struct ByTicket {
    entries: VecDeque<(Ticket, BlockId)>,
    /// Those that are not gone.
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

    fn note_gone(&mut self) {
        self.live -= 1;
        if self.live == 0 {
            self.entries.clear();
        }
    }

    fn sweep(&mut self, is_waiting: impl Fn(Ticket, BlockId) -> bool) {
        self.entries.retain(|(ticket, id)| is_waiting(*ticket, *id));
        // One that was taken and came back at the same ticket is there twice, and others may be in between.
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

    /// Two blocks, of which one is taken and freed while the other waits, and no event comes in between.
    #[test]
    fn turns_at_one_ticket_take_no_more_memory() {
        let blocks = [0, 1].map(BlockId::of_slot);
        let mut index = ByTicket::default();
        let freed = |index: &mut ByTicket, id| index.insert(Ticket(1), id, |_, _| true);
        blocks.iter().for_each(|id| freed(&mut index, *id));
        for _ in 0..1000 {
            for id in blocks {
                index.note_gone();
                freed(&mut index, id);
            }
        }
        assert!(index.entries.len() < 100, "{}", index.entries.len());
        let due: BTreeSet<_> = std::iter::from_fn(|| index.next_due(Ticket(1))).collect();
        assert_eq!(due, blocks.map(|id| (Ticket(1), id)).into());
    }
}
