//! A lane's front: what its lock guards.

use super::cache::{Cache, CachedBlock};
use super::count::Book;
use super::shards::Shards;
use super::{Bounds, Use};
use crate::id::Ticket;
use crate::sync::{Ordering, SharedState};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct StreamState {
    pub(super) cache: Cache,
    pub(super) is_host: bool,
    pub(super) open: Ticket,
    /// Bytes freed under the open ticket and not taken again by the lane.
    pub(super) unsealed: u64,
    /// Something was freed under the open ticket, or its last record failed.
    pub(super) is_dirty: bool,
    /// The stream's last handle is gone: nothing is kept any more.
    pub(super) is_retired: bool,
    /// Who has a grant for the stream on its way.
    pub(super) visitors: u32,
    pub(super) book: Book,
    /// The hits and the open ticket of the last look at whether the lane is idle.
    pub(super) last_look: (u64, Ticket),
}

/// A ticket under which nothing is freed any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed {
    pub(crate) ticket: Ticket,
    /// Whether anything was.
    pub(super) covers_frees: bool,
}

impl StreamState {
    /// Of no lane.
    pub(super) fn vacant() -> Self {
        Self::new(0, false)
    }

    pub(super) fn new(largest: u64, is_host: bool) -> Self {
        Self {
            cache: Cache::new(largest),
            is_host,
            open: Ticket::ZERO.next(),
            unsealed: 0,
            is_dirty: false,
            is_retired: false,
            visitors: 0,
            book: Book::default(),
            last_look: (0, Ticket::ZERO),
        }
    }

    /// What is kept of that size, unless somebody waits for memory.
    #[inline]
    pub(super) fn pop(&mut self, bytes: u64, gate: &SharedState) -> Option<CachedBlock> {
        if gate.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let cached = self.cache.pop(bytes)?;
        self.note_taken(&cached);
        Some(cached)
    }

    #[inline(always)]
    fn note_taken(&mut self, cached: &CachedBlock) {
        if cached.ticket == self.open {
            self.unsealed -= cached.bytes;
        }
    }

    /// What is kept of a size that has a stack, unless somebody waits for memory.
    #[inline(always)]
    pub(super) fn take_at_once(
        &mut self,
        bytes: u64,
        rounding: u32,
        gate: &SharedState,
    ) -> Option<CachedBlock> {
        if gate.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let cached = self.cache.pop_stacked(bytes)?;
        self.note_taken(&cached);
        self.book.note_hit(bytes, rounding);
        Some(cached)
    }

    /// A block that is a little larger than what is asked for, where there is none of the size, unless somebody waits
    /// for memory.
    pub(super) fn take_near(
        &mut self,
        bytes: u64,
        rounding: u32,
        gate: &SharedState,
    ) -> Option<CachedBlock> {
        if gate.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let cached = self.cache.pop_near(bytes)?;
        self.note_taken(&cached);
        let surplus = (cached.bytes - bytes) as u32;
        self.book.note_hit(cached.bytes, rounding + surplus);
        Some(cached)
    }

    /// Keeps a block on its stack, if nobody waits for memory and nothing is to be sealed. None if nothing was done.
    #[inline(always)]
    pub(super) fn keep_at_once(
        &mut self,
        block: impl FnOnce() -> Use,
        bounds: &Bounds,
        seals_above: u64,
        gate: &SharedState,
    ) -> Option<Ticket> {
        let Use {
            id,
            address,
            bytes,
            rounding,
        } = block();
        let (ticket, unsealed) = (self.open, self.unsealed.saturating_add(bytes));
        if gate.load(Ordering::Relaxed) != 0 || unsealed > seals_above {
            return None;
        }
        let cached = CachedBlock {
            id,
            address,
            bytes,
            ticket,
        };
        if !self.cache.push_at_once(cached, bounds.bytes) {
            return None;
        }
        self.unsealed = unsealed;
        self.is_dirty = !self.is_host;
        self.book.note_free(bytes, rounding);
        Some(ticket)
    }

    /// The freeing stream's part, before anything is decided.
    pub(super) fn note_use(&mut self, bytes: u64) -> Ticket {
        self.unsealed = self.unsealed.saturating_add(bytes);
        self.is_dirty = !self.is_host;
        self.open
    }

    pub(super) fn close(&mut self, shards: &Shards) -> Closed {
        let (ticket, was_dirty) = (self.open, self.is_dirty);
        self.open = ticket.next();
        self.unsealed = 0;
        self.is_dirty = false;
        let covers_frees = shards.note_closed(self.open) || was_dirty;
        Closed {
            ticket,
            covers_frees,
        }
    }

    #[inline]
    pub(super) fn close_if(&mut self, condition: bool, shards: &Shards) -> Option<Closed> {
        if condition {
            self.close_unless_host(shards)
        } else {
            None
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn close_unless_host(&mut self, shards: &Shards) -> Option<Closed> {
        (!self.is_host).then(|| self.close(shards))
    }
}
