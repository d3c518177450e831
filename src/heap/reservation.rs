//! Hoards: memory set aside for one holder.
//!
//! A reservation's blocks are in nobody else's reach: no search, plan or trim sees them. What is taken from it is
//! lent as ever, and comes back to it, with its fences, for as long as it lasts; after that it is anybody's.
//! Neighbours of one reservation are joined only for a request that no single block does for: a reservation is small, and
//! joining costs fences.

use super::block::{BlockId, State};
use super::fence::Fences;
use super::filing::free_or_pending;
use super::fit::{Best, PROBES};
use super::index::BySize;
use super::{Grant, Heap, Request, View};
use std::num::NonZeroU64;

/// A reservation's name; never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ReservationId(NonZeroU64);

/// What came back to a reservation so far, and what will: by which a look that found too little is seen to be out of date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moves {
    /// How often something came to it: a block that was freed, what an exchange left over, or more.
    pub(crate) so_far: u64,
    /// Bytes of it that are given for exchanges under way: some of them will be back, or all.
    pub(crate) under_way: u64,
}

impl Heap {
    /// Makes a reservation of what was lent, complete.
    pub(crate) fn reservation(&mut self, used: impl IntoIterator<Item = BlockId>) -> ReservationId {
        self.reservations_so_far += 1;
        let number = NonZeroU64::new(self.reservations_so_far).expect("ids start at 1");
        let reservation = ReservationId(number);
        self.reservations.insert(reservation, BySize::default());
        self.set_aside(reservation, used);
        reservation
    }

    /// Adds what was lent, complete.
    pub(crate) fn add_to_reservation(
        &mut self,
        reservation: ReservationId,
        used: impl IntoIterator<Item = BlockId>,
    ) {
        self.set_aside(reservation, used);
        self.change_moves(reservation, |moves| moves.so_far += 1);
    }

    fn set_aside(&mut self, reservation: ReservationId, used: impl IntoIterator<Item = BlockId>) {
        for id in used {
            debug_assert!(self.blocks[id].state.is_used());
            self.set_state(id, State::Reserved(reservation, Fences::default()));
        }
    }

    /// Best fit in a reservation: of what the asker comes after already, else of what it may be made to wait for.
    pub(crate) fn take_from_reservation(
        &mut self,
        reservation: ReservationId,
        request: Request,
        view: &View<'_>,
    ) -> Option<Grant> {
        let id = self
            .fitting(reservation, request, view)
            .or_else(|| self.join_for(reservation, request, view))?;
        let mut grant = self.carve(id, request);
        self.discharge(&mut grant.fences);
        self.blocks[grant.id].state = State::Used(Some(reservation));
        self.note_borrower(grant.id, view.stream);
        Some(grant)
    }

    fn fitting(
        &self,
        reservation: ReservationId,
        request: Request,
        view: &View<'_>,
    ) -> Option<BlockId> {
        let by_size = self.reservations.get(&reservation)?.at_least(request.bytes);
        let forecast = |id| view.forecast(&self.reserved_fences(id)).unwrap_or_default();
        let mut allowed = None;
        let mut probes = 0;
        for (size, id) in by_size {
            if self.placement(id, request).is_none() {
                continue;
            }
            let fences = self.reserved_fences(id);
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
    pub(super) fn reserved_fences(&self, id: BlockId) -> Fences {
        let State::Reserved(_, fences) = &self.blocks[id].state else {
            unreachable!("only hoarded blocks are filed in a hoard");
        };
        let mut fences = fences.clone();
        self.discharge(&mut fences);
        fences
    }

    /// Joins neighbours that together do for the request. Those that may not be had part the runs.
    fn join_for(
        &mut self,
        reservation: ReservationId,
        request: Request,
        view: &View<'_>,
    ) -> Option<BlockId> {
        let mut first_ones: Vec<_> = self.reserved(reservation);
        first_ones.sort_by_key(|id| self.blocks[*id].address);
        for first in first_ones {
            let run = self.run_from(first, reservation, request, view);
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
        reservation: ReservationId,
        request: Request,
        view: &View<'_>,
    ) -> Vec<BlockId> {
        let start = self.blocks[first]
            .address
            .next_multiple_of(request.alignment);
        let mut run = Vec::new();
        for (id, block) in self.blocks.from(first) {
            let is_ours =
                matches!(&block.state, State::Reserved(owner, _) if *owner == reservation);
            let may_have = |id| view.forecast(&self.reserved_fences(id)).is_some();
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
            fences.join_all(&self.reserved_fences(*id));
            self.unfile(*id);
        }
        let first = run[0];
        for _ in &run[1..] {
            self.blocks.absorb_next(first);
        }
        if let State::Reserved(_, all) = &mut self.blocks[first].state {
            *all = fences;
        }
        self.file(first);
        first
    }

    pub(super) fn reserved(&self, reservation: ReservationId) -> Vec<BlockId> {
        let blocks = self.reservations.get(&reservation);
        let blocks = blocks.into_iter().flat_map(|by_size| by_size.at_least(0));
        blocks.map(|(_, id)| id).collect()
    }

    /// All reservations, with the bytes of each that are not lent.
    pub(crate) fn reservations(&self) -> impl Iterator<Item = (ReservationId, u64)> + '_ {
        let reservations = self.reservations.keys();
        reservations.map(|reservation| (*reservation, self.left_in_reservation(*reservation).0))
    }

    /// Bytes of a reservation that are not lent, and of its largest block.
    pub(crate) fn left_in_reservation(&self, reservation: ReservationId) -> (u64, u64) {
        let Some(by_size) = self.reservations.get(&reservation) else {
            return (0, 0);
        };
        (
            by_size.at_least(0).map(|(bytes, _)| bytes).sum(),
            by_size.largest(),
        )
    }

    /// Makes another reservation of so many bytes of one, if as many are not lent: in one piece, if one is large
    /// enough.
    pub(crate) fn split_reservation(
        &mut self,
        reservation: ReservationId,
        bytes: u64,
    ) -> Option<ReservationId> {
        if self.left_in_reservation(reservation).0 < bytes {
            return None;
        }
        let other = self.reservation([]);
        let mut left = bytes;
        while left > 0 {
            let by_size = &self.reservations[&reservation];
            let piece = by_size.at_least(left).next().or_else(|| by_size.last());
            let (size, id) = piece.expect("enough is there");
            if size > left {
                self.cut(id, left);
            }
            left -= size.min(left);
            let fences = self.reserved_fences(id);
            self.set_state(id, State::Reserved(other, fences));
        }
        Some(other)
    }

    /// Ends a reservation: what is not lent is everybody's, and so will be what is.
    pub(crate) fn disband(&mut self, reservation: ReservationId) {
        for id in self.reserved(reservation) {
            let fences = self.reserved_fences(id);
            self.unfile(id);
            self.blocks[id].state = State::Used(None);
            self.settle(id, free_or_pending(fences));
        }
        self.reservations.remove(&reservation);
        self.moves.remove(&reservation);
    }

    pub(crate) fn moves_in(&self, reservation: ReservationId) -> Moves {
        self.moves.get(&reservation).copied().unwrap_or_default()
    }

    /// A block is about to come back to its reservation, if it has one that lasts.
    pub(super) fn note_move(&mut self, id: BlockId) {
        if let State::Used(Some(reservation)) = self.blocks[id].state {
            self.change_moves(reservation, |moves| moves.so_far += 1);
        }
    }

    pub(super) fn change_moves(
        &mut self,
        reservation: ReservationId,
        change: impl FnOnce(&mut Moves),
    ) {
        if self.reservations.contains_key(&reservation) {
            change(self.moves.entry(reservation).or_default());
        }
    }

    /// What becomes of a block that is given back: its reservation's again, or anybody's.
    pub(super) fn after_use(&self, id: BlockId, fences: Fences) -> State {
        match self.blocks[id].state {
            State::Used(Some(reservation)) if self.reservations.contains_key(&reservation) => {
                State::Reserved(reservation, fences)
            }
            _ => free_or_pending(fences),
        }
    }

    pub(super) fn set_state(&mut self, id: BlockId, state: State) {
        self.unfile(id);
        self.blocks[id].state = state;
        self.file(id);
    }
}
