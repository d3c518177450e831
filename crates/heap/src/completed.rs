//! The work that is complete, as far as the heap knows.

use super::fence::{Fence, Fences};
use crate::id::{StreamId, Ticket};
use std::collections::BTreeMap;

/// The last complete ticket of each live stream. All work of a stream that is not listed is complete: ids are never
/// reused (invariant *stable-ids*), so the stream is retired.
#[derive(Debug, Default)]
pub(super) struct Completed(BTreeMap<StreamId, Ticket>);

impl Completed {
    /// Adds a live stream, whose tickets up to `ticket` are complete; or moves its last complete ticket up.
    pub(super) fn set(&mut self, stream: StreamId, ticket: Ticket) {
        self.0.insert(stream, ticket);
    }

    /// Removes a retired stream.
    pub(super) fn forget(&mut self, stream: StreamId) {
        self.0.remove(&stream);
    }

    pub(super) fn contains(&self, fence: Fence) -> bool {
        let completed = self.0.get(&fence.stream);
        completed.is_none_or(|completed| fence.ticket <= *completed)
    }

    /// Drops the fences that are complete.
    pub(super) fn discharge(&self, fences: &mut Fences) {
        fences.discharge(|fence| self.contains(fence));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_up_to_the_last_and_retired_streams_are_complete() {
        let fence = |stream, ticket| Fence {
            stream: StreamId(stream),
            ticket: Ticket(ticket),
        };
        let mut completed = Completed::default();
        completed.set(StreamId(1), Ticket(3));
        completed.set(StreamId(2), Ticket::ZERO);
        assert!(completed.contains(fence(1, 3)) && !completed.contains(fence(1, 4)));
        assert!(!completed.contains(fence(2, 1)) && completed.contains(fence(9, 1)));
        let mut fences: Fences = [fence(1, 3), fence(2, 1), fence(9, 7)]
            .into_iter()
            .collect();
        completed.discharge(&mut fences);
        assert_eq!(fences.single(), Some(fence(2, 1)));
        completed.forget(StreamId(2));
        completed.discharge(&mut fences);
        assert!(fences.is_empty());
    }
}
