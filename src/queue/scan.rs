//! The search for every request of a deadlocked queue: which requests it tries.

use super::waiter::Waiter;
use crate::engine::Parts;
use crate::fault::injected;
use crate::heap::{Placement, Request};
use crate::sync::{Arc, Foreign, Trash};
use std::collections::{BTreeMap, BTreeSet};

/// The last search for every request, which was in vain.
#[derive(Debug, Default)]
pub(super) struct Scan(Option<Tried>);

#[derive(Debug)]
struct Tried {
    generation: u64,
    /// The requests that arrived since.
    untried: Vec<Foreign<Arc<Waiter>>>,
}

impl Scan {
    /// Notes a request that joins. Returns whether it must be tried, because all others were.
    pub(super) fn record_newcomer(&mut self, waiter: &Arc<Waiter>) -> bool {
        let Some(tried) = &mut self.0 else {
            return false;
        };
        tried.untried.push(Foreign::new(waiter.clone()));
        true
    }

    /// Returns the requests to try, in the order of the queue: all of them once in a generation, and after that the
    /// newcomers. Requests that cannot be granted while an earlier one cannot are left out.
    pub(super) fn begin<'a>(
        &mut self,
        generation: u64,
        usual_alignment: u64,
        others: impl Iterator<Item = &'a Arc<Waiter>>,
        trash: &mut Trash<Arc<Waiter>>,
    ) -> Vec<Arc<Waiter>> {
        let tried = Tried {
            generation,
            untried: Vec::new(),
        };
        match self.0.replace(tried) {
            Some(last) if last.generation == generation => {
                let untried = last.untried.into_iter();
                untried.map(Foreign::into_inner).collect()
            }
            last => {
                // They may have left the queue, and be the last owners of their streams.
                let left = last.into_iter().flat_map(|last| last.untried);
                match injected("search-dropped-under-the-lock") {
                    true => left.map(Foreign::into_inner).for_each(drop),
                    false => trash.add(left),
                }
                let mut in_vain = InVain::new(usual_alignment);
                let to_try = others.filter(|waiter| in_vain.admits(&waiter.parts));
                to_try.cloned().collect()
            }
        }
    }
}

impl Scan {
    /// Forgets the last search.
    pub(super) fn forget(&mut self, trash: &mut Trash<Arc<Waiter>>) {
        trash.add(self.0.take().into_iter().flat_map(|last| last.untried));
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
    fn admits(&mut self, parts: &Parts) -> bool {
        let alignment = |request: Request| request.alignment.max(self.usual_alignment);
        let requests = parts.all.iter().map(|part| part.request);
        let mut pieces: Vec<_> = requests
            .map(|request| (alignment(request), request.bytes))
            .collect();
        // A search for blocks says nothing of charges, nor one of them of the others.
        let is_anywhere = parts.placement == Placement::Anywhere && parts.charge.is_none();
        let is_in_vain = |(alignment, bytes): &(u64, u64)| {
            let mut smaller = self.pieces.range(..=alignment);
            smaller.any(|(_, smallest)| smallest <= bytes)
        };
        if pieces.iter().any(is_in_vain) {
            return false;
        }
        if let ([(alignment, bytes)], true) = (&*pieces, is_anywhere) {
            self.pieces.insert(*alignment, *bytes);
            return true;
        }
        pieces.sort_unstable();
        is_anywhere.then(|| self.others.insert(pieces)) != Some(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Part;

    fn block(bytes: u64, alignment: u64) -> Parts {
        Parts::one(Request { bytes, alignment }, 0, Placement::Anywhere)
    }

    fn several(pieces: &[u64], placement: Placement) -> Parts {
        let part = |bytes| Part {
            request: Request {
                bytes,
                alignment: 512,
            },
            rounding: 0,
        };
        Parts {
            all: pieces.iter().copied().map(part).collect(),
            is_for_all: false,
            placement,
            charge: None,
        }
    }

    #[test]
    fn request_is_left_out_if_a_smaller_one_was_in_vain() {
        let mut in_vain = InVain::new(512);
        let mut admits = |parts: Parts| in_vain.admits(&parts);
        assert!(admits(block(4096, 1024)));
        assert!(!admits(block(4096, 1024)) && !admits(block(8192, 4096)));
        assert!(admits(block(4096, 512)), "a lower alignment may do");
        assert!(!admits(block(4096, 4096)) && admits(block(2048, 4096)));
        assert!(admits(several(&[1024, 1024], Placement::Anywhere)));
        assert!(!admits(several(&[1024, 1024], Placement::Anywhere)));
        assert!(!admits(several(&[512, 4096], Placement::Anywhere)));
        assert!(admits(several(&[1024], Placement::WithRoom(8192))));
        assert!(
            admits(several(&[1024], Placement::Anywhere)),
            "it needs no room"
        );
        assert!(!admits(several(&[1024], Placement::WithRoom(1024))));
        assert!(admits(block(512, 64)) && !admits(block(512, 512)));
    }
}
