//! The reference cache: references to the stream that freed blocks leave for the next ones.
//!
//! Each block holds a counted reference to its stream's registration. Counting up at each grant and down at each free
//! would cost two of the six atomic operations of a pair, and a cache line that all threads of the stream write. So a
//! free leaves its reference under the lock that it holds anyway, the lane's or the shard's, and the next grant takes it
//! from there.
//!
//! A reference that is left here keeps the registration alive, and the registration keeps the lane, in which the
//! reference lies. So references are left only while the stream has a handle: dropping the last handle closes all
//! reference caches of the stream and drops their references (safe-teardown).
//!
//! For this type alone the lane imports from a higher layer. The alternatives are a type parameter of every type around
//! the lane's lock, or a downcast in each grant, which takes 8 ns more than a whole pair's 25.

pub(super) use crate::handles::Registration;
use crate::sync::Arc;
use std::fmt;

/// Maximum number of references. Usually a few blocks are freed before the next is granted.
const ROOM: usize = 8;

/// See the [module](self).
pub(crate) struct RefCache {
    left: [Option<Arc<Registration>>; ROOM],
    /// The number of occupied entries, which are the first ones of `left`.
    count: usize,
    /// 0 while the cache is closed.
    room: usize,
}

impl Default for RefCache {
    /// Creates a closed cache.
    fn default() -> Self {
        Self {
            left: [const { None }; ROOM],
            count: 0,
            room: 0,
        }
    }
}

impl RefCache {
    /// Takes the reference over, if there is room.
    #[inline(always)]
    pub(super) fn leave(&mut self, owner: &mut Option<Arc<Registration>>) {
        if self.count >= self.room {
            return;
        }
        if let Some(entry) = self.left.get_mut(self.count) {
            // The entry is vacant: nothing need be dropped.
            std::mem::swap(entry, owner);
            self.count += 1;
        }
    }

    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<Arc<Registration>> {
        let last = self.count.checked_sub(1)?;
        self.count = last;
        self.left.get_mut(last)?.take()
    }

    /// Creates a cache for the same stream, which is closed if this one is.
    pub(super) fn beside(&self) -> Self {
        Self {
            room: self.room,
            ..Self::default()
        }
    }

    /// Lets freed blocks leave references from now on.
    pub(crate) fn open(&mut self) {
        self.room = ROOM;
    }

    /// Closes the cache and returns its references.
    #[must_use = "references are dropped after the lock is released"]
    pub(crate) fn close(&mut self) -> [Option<Arc<Registration>>; ROOM] {
        self.room = 0;
        self.empty()
    }

    /// Takes all references.
    #[must_use = "references are dropped after the lock is released"]
    pub(crate) fn empty(&mut self) -> [Option<Arc<Registration>>; ROOM] {
        self.count = 0;
        std::mem::replace(&mut self.left, [const { None }; ROOM])
    }
}

/// Does not print the owners: each of them contains this cache.
impl fmt::Debug for RefCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefCache")
            .field("count", &self.count)
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}
