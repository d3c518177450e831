//! The search for every request of a deadlocked queue: which requests it tries.

use crate::fair_queue::Position;
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

/// The last search for every request, which was in vain.
#[derive(Debug)]
pub(crate) struct Scan {
    generation: u64,
    /// The requests that entered the queue since: they must be tried, because all others were.
    pub(crate) untried: BTreeSet<Position>,
}

impl Scan {
    pub(crate) fn new(generation: u64) -> Self {
        Self {
            generation,
            untried: BTreeSet::new(),
        }
    }

    /// Returns whether nothing changed since, so that only the newcomers must be tried.
    pub(crate) fn is_of(&self, generation: u64) -> bool {
        self.generation == generation
    }
}

/// Returns the requests to try of all, in the order of the queue. Those that cannot be granted while an earlier one
/// cannot are left out.
pub(crate) fn promising(
    all: impl Iterator<Item = Position>,
    usual_alignment: u64,
    needs: impl Fn(Position) -> Pieces,
) -> Vec<Position> {
    let mut in_vain = InVain::new(usual_alignment);
    let promising = all.filter(|position| in_vain.admits(&needs(*position)));
    promising.collect()
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
