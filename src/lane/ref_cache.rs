//! What freed blocks leave for the next ones.
//!
//! A block counts its stream's owners. To count up at each grant and down at each free would be two of the six atomic
//! operations of a pair, and a cache line that all threads of the stream write. So a free leaves its count under the
//! lock that it has anyway, and the next grant takes it from there.
//!
//! What is left here keeps its stream alive, and the stream keeps the lane, in which it is left. So that is done only
//! while the stream has a handle: with the last one the reference cache is closed, and what was in it is let go.

use std::fmt;

/// Counts kept at most. Frees come before grants by a few blocks, or by many, and then most are counted anyway.
const ROOM: usize = 8;

/// See the [module](self). What it keeps is nothing to the lane.
pub(crate) struct RefCache<O> {
    left: [Option<O>; ROOM],
    /// The first of them are there.
    count: usize,
    /// None while it is closed.
    room: usize,
}

impl<O> Default for RefCache<O> {
    /// Closed.
    fn default() -> Self {
        Self {
            left: [const { None }; ROOM],
            count: 0,
            room: 0,
        }
    }
}

impl<O> RefCache<O> {
    /// Takes over what is there, if it may be left here. If not, it is to be dropped once the lock is let go.
    #[inline(always)]
    pub(crate) fn put(&mut self, owner: &mut Option<O>) {
        if self.count >= self.room {
            return;
        }
        if let Some(place) = self.left.get_mut(self.count) {
            // The place is vacant: there is nothing to be dropped.
            std::mem::swap(place, owner);
            self.count += 1;
        }
    }

    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<O> {
        let last = self.count.checked_sub(1)?;
        self.count = last;
        self.left.get_mut(last)?.take()
    }

    /// From now on something may be left here.
    pub(crate) fn open(&mut self) {
        self.room = ROOM;
    }

    /// Nothing may be left here any more. Returns what was, to be dropped once the lock is let go.
    #[must_use = "it is dropped once the lock is let go"]
    pub(crate) fn close(&mut self) -> [Option<O>; ROOM] {
        self.room = 0;
        self.empty()
    }

    /// Takes everything that was left.
    #[must_use = "it is dropped once the lock is let go"]
    pub(crate) fn empty(&mut self) -> [Option<O>; ROOM] {
        self.count = 0;
        std::mem::replace(&mut self.left, [const { None }; ROOM])
    }
}

/// Without what was left: that is the stream, which has this.
impl<O> fmt::Debug for RefCache<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stash")
            .field("count", &self.count)
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_few_and_none_once_it_is_closed() {
        let mut ref_cache = RefCache::default();
        let mut refused = Some(0);
        ref_cache.put(&mut refused);
        assert_eq!((refused, ref_cache.take()), (Some(0), None));
        ref_cache.open();
        let mut left: Vec<_> = (0..=ROOM).map(Some).collect();
        left.iter_mut().for_each(|owner| ref_cache.put(owner));
        let last = left.pop();
        assert_eq!(last, Some(Some(ROOM)));
        assert!(left.iter().all(Option::is_none));
        assert_eq!(ref_cache.take(), Some(ROOM - 1));
        assert_eq!(ref_cache.close().iter().flatten().count(), ROOM - 1);
        ref_cache.put(&mut refused);
        assert_eq!((refused, ref_cache.take()), (Some(0), None));
    }
}
