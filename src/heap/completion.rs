//! What has completed: a stream's tickets, and what was pending on them.

use super::block::State;
use super::filing::free_or_pending;
use super::{Fence, Fences, Heap};
use crate::id::{StreamId, Ticket};

impl Heap {
    /// Makes a stream known, so that its tickets count: those after `completed`.
    pub(crate) fn register(&mut self, stream: StreamId, completed: Ticket) {
        self.completed.insert(stream, completed);
    }

    /// Forgets a stream whose work is complete: its id is never used again (I7).
    pub(crate) fn forget(&mut self, stream: StreamId) {
        self.complete(stream, Ticket::LAST);
        self.pending.forget(stream);
        self.completed.remove(&stream);
    }

    /// Learns that a ticket is complete, and all before it of that stream. Says whether that is new.
    ///
    /// I4: a ticket completes once; hearing of it again changes nothing.
    pub(crate) fn complete(&mut self, stream: StreamId, ticket: Ticket) -> bool {
        if self.is_complete(Fence { stream, ticket }) {
            return false;
        }
        self.completed.insert(stream, ticket);
        while let Some((due, id)) = self.pending.next_due(stream, ticket) {
            let fence = Fence {
                stream,
                ticket: due,
            };
            if !self.blocks.is_waiting(id, fence) {
                continue;
            }
            let State::Pending(fences) = &self.blocks[id].state else {
                unreachable!("only pending blocks are filed by ticket");
            };
            // If it waits for no other stream, that was all.
            let mut left = match fences.single() {
                Some(_) => Fences::default(),
                None => fences.clone(),
            };
            self.discharge(&mut left);
            self.unfile(id);
            self.settle(id, free_or_pending(left));
        }
        true
    }

    /// Whether anything is pending that waits for this stream: what is set aside is not.
    pub(crate) fn is_waiting_for(&self, stream: StreamId) -> bool {
        self.pending.bytes_waiting_for(stream) > 0
    }

    /// Drops the fences that are complete.
    pub(crate) fn discharge(&self, fences: &mut Fences) {
        fences.discharge(|fence| self.is_complete(fence));
    }

    pub(super) fn is_complete(&self, fence: Fence) -> bool {
        let completed = self.completed.get(&fence.stream);
        completed.is_none_or(|completed| fence.ticket <= *completed)
    }
}
