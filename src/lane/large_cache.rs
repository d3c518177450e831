//! The large-block cache: the few large blocks that a lane keeps, for a stream that takes the same size again at once.
//!
//! Large blocks are what other streams need, and what neighbours merge into. So a large-block cache holds few, each for a request of
//! exactly its size, and only of a stream that has been taking turns: it allocates a size and frees it, again and again,
//! and no other large one meanwhile. Whoever finds nothing else is given what has lain there for a while before more
//! memory is taken from the device, and all of it before anybody waits.

use super::cache::CachedBlock;
use crate::id::Ticket;
use smallvec::SmallVec;
use std::time::Duration;

/// A batch's few large buffers.
const PLACES: usize = 4;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct LargeCache {
    all: SmallVec<[Shelved; PLACES]>,
    turns: Turns,
}

/// So often a stream comes back for what it freed last before that is left to it.
const ENOUGH: u32 = if cfg!(weirpool_loom) { 1 } else { 8 };

/// What a stream does with large blocks.
#[derive(Debug, Default)]
struct Turns {
    /// The size that it freed last.
    freed: u64,
    /// It took that since, and nothing else.
    is_taken: bool,
    /// How many times in a row.
    streak: u32,
}

impl Turns {
    fn note_asked(&mut self, bytes: u64) {
        self.is_taken = self.freed == bytes && !self.is_taken;
        if !self.is_taken {
            self.streak = 0;
        }
    }

    fn note_freed(&mut self, bytes: u64) {
        let is_turn = self.freed == bytes && self.is_taken;
        self.streak = if is_turn { self.streak + 1 } else { 0 };
        (self.freed, self.is_taken) = (bytes, false);
    }
}

#[derive(Clone, Copy, Debug)]
struct Shelved {
    cached: CachedBlock,
    /// By the device's clock.
    since: Duration,
}

impl LargeCache {
    pub(super) fn bytes(&self) -> u64 {
        self.all().map(|cached| cached.bytes).sum()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = CachedBlock> + '_ {
        self.all.iter().map(|shelved| shelved.cached)
    }

    /// Keeps a block, if there is a place for it among `bound` bytes.
    pub(super) fn put(&mut self, cached: CachedBlock, since: Duration, bound: u64) -> bool {
        self.turns.note_freed(cached.bytes);
        let has_room = self.turns.streak >= ENOUGH
            && self.all.len() < PLACES
            && self.bytes() + cached.bytes <= bound;
        if has_room {
            self.all.push(Shelved { cached, since });
        }
        has_room
    }

    /// Takes the block of exactly this size that was kept last.
    pub(super) fn take(&mut self, bytes: u64) -> Option<CachedBlock> {
        self.turns.note_asked(bytes);
        let is_it = |shelved: &Shelved| shelved.cached.bytes == bytes;
        let at = self.all.iter().rposition(is_it)?;
        Some(self.all.remove(at).cached)
    }

    /// Takes what has lain here for so long.
    pub(super) fn take_older(
        &mut self,
        now: Duration,
        age: Duration,
        taken: &mut Vec<CachedBlock>,
    ) {
        self.all.retain(|shelved| {
            let is_older = now.saturating_sub(shelved.since) >= age;
            if is_older {
                taken.push(shelved.cached);
            }
            !is_older
        });
    }

    pub(super) fn drain(&mut self, taken: &mut Vec<CachedBlock>) {
        taken.extend(self.all.drain(..).map(|shelved| shelved.cached));
    }

    /// Bytes kept under tickets up to `ticket`.
    pub(super) fn bytes_up_to(&self, ticket: Ticket) -> u64 {
        let older = self.all().filter(|cached| cached.ticket <= ticket);
        older.map(|cached| cached.bytes).sum()
    }
}
