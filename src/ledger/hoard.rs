//! Hoards: memory set aside for one holder.
//!
//! A hoard's blocks are in nobody else's reach: no search, plan or trim sees them. What is taken from it is
//! lent as ever, and comes back to it, with its fences, for as long as it lasts; after that it is anybody's.
//! Neighbours of one hoard are joined only for a request that no single block does for: a hoard is small, and
//! joining costs fences.

use super::block::{BlockId, State};
use super::fence::Fences;
use super::filing::free_or_pending;
use super::fit::{Best, PROBES};
use super::index::BySize;
use super::{Grant, Ledger, Request, View};
use std::num::NonZeroU32;

/// A hoard's name; never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HoardId(NonZeroU32);

/// What came back to a hoard so far, and what will: by which a look that found too little is seen to be out of date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moves {
    /// How often something came to it: a block that was freed, what an exchange left over, or more.
    pub(crate) so_far: u64,
    /// Bytes of it that are given for exchanges under way: some of them will be back, or all.
    pub(crate) under_way: u64,
}

impl Ledger {
    /// Makes a hoard of what was lent, complete.
    pub(crate) fn hoard(&mut self, lent: impl IntoIterator<Item = BlockId>) -> HoardId {
        self.hoards_so_far += 1;
        let number = NonZeroU32::new(self.hoards_so_far).expect("fewer than 2^32 hoards");
        let hoard = HoardId(number);
        self.hoards.insert(hoard, BySize::default());
        self.set_aside(hoard, lent);
        hoard
    }

    /// Adds what was lent, complete.
    pub(crate) fn add_to_hoard(&mut self, hoard: HoardId, lent: impl IntoIterator<Item = BlockId>) {
        self.set_aside(hoard, lent);
        self.change_moves(hoard, |moves| moves.so_far += 1);
    }

    fn set_aside(&mut self, hoard: HoardId, lent: impl IntoIterator<Item = BlockId>) {
        for id in lent {
            debug_assert_eq!(self.blocks[id].state, State::Lent);
            self.set_state(id, State::Hoarded(hoard, Fences::default()));
        }
    }

    /// Best fit in a hoard: of what the asker comes after already, else of what it may be made to wait for.
    pub(crate) fn take_from_hoard(
        &mut self,
        hoard: HoardId,
        request: Request,
        view: &View<'_>,
    ) -> Option<Grant> {
        let id = self
            .fitting(hoard, request, view)
            .or_else(|| self.join_for(hoard, request, view))?;
        let mut grant = self.carve(id, request);
        self.discharge(&mut grant.fences);
        self.blocks[grant.id].hoard = Some(hoard);
        self.note_borrower(grant.id, view.stream);
        Some(grant)
    }

    fn fitting(&self, hoard: HoardId, request: Request, view: &View<'_>) -> Option<BlockId> {
        let by_size = self.hoards.get(&hoard)?.at_least(request.bytes);
        let forecast = |id| view.forecast(&self.hoarded_fences(id)).unwrap_or_default();
        let mut allowed = None;
        let mut probes = 0;
        for (size, id) in by_size {
            if self.placement(id, request).is_none() {
                continue;
            }
            let fences = self.hoarded_fences(id);
            if fences.iter().all(|fence| view.is_ordered(fence)) {
                return Some(id);
            }
            let is_larger = allowed.as_ref().is_some_and(|best: &Best| size > best.size);
            if !is_larger && probes < PROBES && view.forecast(&fences).is_some() {
                probes += 1;
                Best::consider(&mut allowed, (size, id), Some(forecast));
            }
        }
        allowed.map(|best| best.id)
    }

    /// What is left of a hoarded block's last life.
    pub(super) fn hoarded_fences(&self, id: BlockId) -> Fences {
        let State::Hoarded(_, fences) = &self.blocks[id].state else {
            unreachable!("only hoarded blocks are filed in a hoard");
        };
        let mut fences = fences.clone();
        self.discharge(&mut fences);
        fences
    }

    /// Joins neighbours that together do for the request. Those that may not be had part the runs.
    fn join_for(&mut self, hoard: HoardId, request: Request, view: &View<'_>) -> Option<BlockId> {
        let mut first_ones: Vec<_> = self.hoarded(hoard);
        first_ones.sort_by_key(|id| self.blocks[*id].address);
        for first in first_ones {
            let run = self.run_from(first, hoard, request, view);
            if run.len() > 1 {
                return Some(self.join(&run));
            }
        }
        None
    }

    /// The shortest run of neighbours from this one on that does for the request; empty if none does.
    fn run_from(
        &self,
        first: BlockId,
        hoard: HoardId,
        request: Request,
        view: &View<'_>,
    ) -> Vec<BlockId> {
        let start = self.blocks[first]
            .address
            .next_multiple_of(request.alignment);
        let mut run = Vec::new();
        for (id, block) in self.blocks.from(first) {
            let is_ours = matches!(&block.state, State::Hoarded(owner, _) if *owner == hoard);
            let may_have = |id| view.forecast(&self.hoarded_fences(id)).is_some();
            if !is_ours || !may_have(id) {
                break;
            }
            run.push(id);
            if block.end() >= start + request.bytes {
                return run;
            }
        }
        Vec::new()
    }

    fn join(&mut self, run: &[BlockId]) -> BlockId {
        let mut fences = Fences::default();
        for id in run {
            fences.join_all(&self.hoarded_fences(*id));
            self.unfile(*id);
        }
        let first = run[0];
        for _ in &run[1..] {
            self.blocks.absorb_next(first);
        }
        if let State::Hoarded(_, all) = &mut self.blocks[first].state {
            *all = fences;
        }
        self.file(first);
        first
    }

    pub(super) fn hoarded(&self, hoard: HoardId) -> Vec<BlockId> {
        let blocks = self.hoards.get(&hoard);
        let blocks = blocks.into_iter().flat_map(|by_size| by_size.at_least(0));
        blocks.map(|(_, id)| id).collect()
    }

    /// All hoards, with the bytes of each that are not lent.
    pub(crate) fn hoards(&self) -> impl Iterator<Item = (HoardId, u64)> + '_ {
        let hoards = self.hoards.keys();
        hoards.map(|hoard| (*hoard, self.left_in_hoard(*hoard).0))
    }

    /// Bytes of a hoard that are not lent, and of its largest block.
    pub(crate) fn left_in_hoard(&self, hoard: HoardId) -> (u64, u64) {
        let Some(by_size) = self.hoards.get(&hoard) else {
            return (0, 0);
        };
        (
            by_size.at_least(0).map(|(bytes, _)| bytes).sum(),
            by_size.largest(),
        )
    }

    /// Makes another hoard of so many bytes of one, if as many are not lent: in one piece, if one is large
    /// enough.
    pub(crate) fn split_hoard(&mut self, hoard: HoardId, bytes: u64) -> Option<HoardId> {
        if self.left_in_hoard(hoard).0 < bytes {
            return None;
        }
        let other = self.hoard([]);
        let mut left = bytes;
        while left > 0 {
            let by_size = &self.hoards[&hoard];
            let piece = by_size.at_least(left).next().or_else(|| by_size.last());
            let (size, id) = piece.expect("enough is there");
            if size > left {
                self.cut(id, left);
            }
            left -= size.min(left);
            let fences = self.hoarded_fences(id);
            self.set_state(id, State::Hoarded(other, fences));
        }
        Some(other)
    }

    /// Ends a hoard: what is not lent is everybody's, and so will be what is.
    pub(crate) fn disband(&mut self, hoard: HoardId) {
        for id in self.hoarded(hoard) {
            let fences = self.hoarded_fences(id);
            self.unfile(id);
            self.blocks[id].state = State::Lent;
            self.settle(id, free_or_pending(fences));
        }
        self.hoards.remove(&hoard);
        self.moves.remove(&hoard);
    }

    pub(crate) fn moves_in(&self, hoard: HoardId) -> Moves {
        self.moves.get(&hoard).copied().unwrap_or_default()
    }

    /// A block is about to come back to its hoard, if it has one that lasts.
    pub(super) fn note_move(&mut self, id: BlockId) {
        if let Some(hoard) = self.blocks[id].hoard {
            self.change_moves(hoard, |moves| moves.so_far += 1);
        }
    }

    pub(super) fn change_moves(&mut self, hoard: HoardId, change: impl FnOnce(&mut Moves)) {
        if self.hoards.contains_key(&hoard) {
            change(self.moves.entry(hoard).or_default());
        }
    }

    /// What becomes of a block that is given back: its hoard's again, or anybody's.
    pub(super) fn after_use(&mut self, id: BlockId, fences: Fences) -> State {
        let hoard = self.blocks[id].hoard.take();
        match hoard.filter(|hoard| self.hoards.contains_key(hoard)) {
            Some(hoard) => State::Hoarded(hoard, fences),
            None => free_or_pending(fences),
        }
    }

    pub(super) fn set_state(&mut self, id: BlockId, state: State) {
        self.unfile(id);
        self.blocks[id].state = state;
        self.file(id);
    }
}
