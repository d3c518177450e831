//! The search for every request of a deadlocked queue: which requests it tries.

use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use weirpool_heap::Request;

/// What a request needs.
#[derive(Clone, Debug)]
pub struct Pieces {
    /// The pieces of memory, each of which must be contiguous.
    pub all: SmallVec<[Request; 1]>,
    /// Whether the memory may lie at any address.
    pub is_anywhere: bool,
}

/// The requests that a search for every request tries.
#[derive(Debug)]
#[must_use = "the requests may be the last owners of their streams"]
pub struct ToTry<T> {
    /// In the order of the queue.
    pub all: Vec<T>,
    /// Requests that came since an earlier search, and are not to be tried for that. They may have left the queue.
    pub left_over: Vec<T>,
}

/// The last search for every request, which was in vain.
#[derive(Debug)]
pub(crate) struct Scan<T>(pub(crate) Option<Tried<T>>);

#[derive(Debug)]
pub(crate) struct Tried<T> {
    generation: u64,
    /// The requests that arrived since: they must be tried, because all others were.
    pub(crate) untried: Vec<T>,
}

impl<T> Scan<T> {
    pub(crate) fn new() -> Self {
        Self(None)
    }

    /// Returns the requests to try, in the order of the queue: all of them once in a generation, and after that the
    /// newcomers. Requests that cannot be granted while an earlier one cannot are left out.
    pub(crate) fn begin<'a>(
        &mut self,
        generation: u64,
        usual_alignment: u64,
        others: impl Iterator<Item = &'a T>,
        needs: impl Fn(&T) -> Pieces,
    ) -> ToTry<T>
    where
        T: Clone + 'a,
    {
        let tried = Tried {
            generation,
            untried: Vec::new(),
        };
        match self.0.replace(tried) {
            Some(last) if last.generation == generation => ToTry {
                all: last.untried,
                left_over: Vec::new(),
            },
            last => {
                let mut in_vain = InVain::new(usual_alignment);
                let to_try = others.filter(|waiter| in_vain.admits(&needs(waiter)));
                ToTry {
                    all: to_try.cloned().collect(),
                    left_over: last.map(|last| last.untried).unwrap_or_default(),
                }
            }
        }
    }

    /// Forgets the last search. Returns the requests that came since.
    pub(crate) fn forget(&mut self) -> Vec<T> {
        self.0.take().map(|last| last.untried).unwrap_or_default()
    }
}

/// The pieces of memory for which a search was in vain, so that it would be for larger ones. All free memory is
/// complete meanwhile, so it does not matter which stream asks.
#[derive(Debug)]
struct InVain {
    usual_alignment: u64,
    /// The smallest piece of each alignment.
    pieces: BTreeMap<u64, u64>,
    /// Several pieces of one request.
    others: BTreeSet<Vec<(u64, u64)>>,
}

impl InVain {
    fn new(usual_alignment: u64) -> Self {
        Self {
            usual_alignment,
            pieces: BTreeMap::new(),
            others: BTreeSet::new(),
        }
    }

    /// Returns whether a search for the request may succeed, although it did not for any that was admitted before.
    fn admits(&mut self, needs: &Pieces) -> bool {
        let alignment = |request: Request| request.alignment.max(self.usual_alignment);
        let pieces = needs.all.iter();
        let mut pieces: Vec<_> = pieces
            .map(|piece| (alignment(*piece), piece.bytes))
            .collect();
        let is_in_vain = |(alignment, bytes): &(u64, u64)| {
            let mut smaller = self.pieces.range(..=alignment);
            smaller.any(|(_, smallest)| smallest <= bytes)
        };
        if pieces.iter().any(is_in_vain) {
            return false;
        }
        if let ([(alignment, bytes)], true) = (&*pieces, needs.is_anywhere) {
            self.pieces.insert(*alignment, *bytes);
            return true;
        }
        pieces.sort_unstable();
        needs.is_anywhere.then(|| self.others.insert(pieces)) != Some(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(bytes: u64, alignment: u64) -> Pieces {
        Pieces {
            all: [Request { bytes, alignment }].into_iter().collect(),
            is_anywhere: true,
        }
    }

    fn several(pieces: &[u64], is_anywhere: bool) -> Pieces {
        let piece = |bytes| Request {
            bytes,
            alignment: 512,
        };
        Pieces {
            all: pieces.iter().copied().map(piece).collect(),
            is_anywhere,
        }
    }

    #[test]
    fn request_is_left_out_if_a_smaller_one_was_in_vain() {
        let mut in_vain = InVain::new(512);
        let mut admits = |needs: Pieces| in_vain.admits(&needs);
        assert!(admits(block(4096, 1024)));
        assert!(!admits(block(4096, 1024)) && !admits(block(8192, 4096)));
        assert!(admits(block(4096, 512)), "a lower alignment may do");
        assert!(!admits(block(4096, 4096)) && admits(block(2048, 4096)));
        assert!(admits(several(&[1024, 1024], true)));
        assert!(!admits(several(&[1024, 1024], true)));
        assert!(!admits(several(&[512, 4096], true)));
        assert!(admits(several(&[1024], false)));
        assert!(admits(several(&[1024], true)), "it needs no room");
        assert!(!admits(several(&[1024], false)));
        assert!(admits(block(512, 64)) && !admits(block(512, 512)));
    }
}
