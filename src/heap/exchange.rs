//! Exchange: a reservation that is in pieces gives them away for as much in one.
//!
//! What is not lent of a reservation can be enough for a request, and lie in pieces that live blocks keep apart. Then
//! its complete pieces go to everybody, the request is served as anybody's would be (joined with free
//! neighbours, remapped, grown), and the reservation gets what is left of its bytes back, from wherever they are free.
//! All of it under one lock, and none of it for longer than that: what the device must be asked for in between
//! is claimed by a plan, and what the pieces were given for is kept in *escrow* until the plan has ended.

use super::plan::Plan;
use super::reservation::ReservationId;
use super::{BlockId, Fences, Grant, Growth, Heap, Request, State, View};

/// Bytes, of which some lie in whole handles: as many are had back, since they can be mapped elsewhere.
#[derive(Clone, Copy, Debug, Default)]
struct Portion {
    bytes: u64,
    chunks: u64,
}

/// What is due once a plan has ended.
#[derive(Debug)]
pub(crate) struct Exchange {
    reservation: ReservationId,
    /// What was given for the plan, as far as it does not claim that itself.
    escrow: ReservationId,
    /// What the reservation gave, and has not got back.
    given: Portion,
    /// What it is to have of that, if the plan is carried out.
    owed: Portion,
}

/// What came of trying to exchange.
#[derive(Debug)]
pub(crate) enum Exchanged {
    Granted(Grant),
    /// To be carried out, and committed with what is due.
    Planned(Plan, Exchange),
}

impl Heap {
    /// Serves a request for which the complete pieces of a reservation would be enough, if they were one.
    pub(crate) fn exchange(
        &mut self,
        reservation: ReservationId,
        request: Request,
        view: &View<'_>,
        growth: Growth,
    ) -> Option<Exchanged> {
        if self.complete_in_reservation(reservation) < request.bytes {
            return None;
        }
        let all = self.loosen(reservation);
        let rest = Portion {
            bytes: all.bytes - request.bytes,
            chunks: all.chunks - self.chunks_in(request.bytes).min(all.chunks),
        };
        if let Some(grant) = self.take(request, view) {
            let missing = self.tighten(reservation, rest);
            debug_assert_eq!(missing.bytes, 0, "the request took no more than its bytes");
            self.blocks[grant.id].state = State::Used(Some(reservation));
            return Some(Exchanged::Granted(grant));
        }
        let Some(plan) = self.plan(request, view, growth) else {
            let missing = self.tighten(reservation, all);
            debug_assert_eq!(missing.bytes, 0, "nothing was taken");
            return None;
        };
        let owed = self.tighten(reservation, rest);
        let given = Portion {
            bytes: request.bytes + owed.bytes,
            chunks: all.chunks - rest.chunks + owed.chunks,
        };
        let escrow = self.reservation([]);
        self.tighten(escrow, given);
        self.change_moves(reservation, |moves| moves.under_way += given.bytes);
        let exchange = Exchange {
            reservation,
            escrow,
            given,
            owed,
        };
        Some(Exchanged::Planned(plan, exchange))
    }

    /// Commits the plan of an exchange. What the plan claimed and did not lend is free in this moment, and is
    /// enough for what the reservation is owed.
    pub(crate) fn commit_exchange(
        &mut self,
        exchange: &Exchange,
        commit: impl FnOnce(&mut Self) -> Option<Grant>,
    ) -> Option<Grant> {
        self.disband(exchange.escrow);
        self.change_moves(exchange.reservation, |moves| {
            moves.under_way -= exchange.given.bytes;
            moves.so_far += 1;
        });
        let grant = commit(self);
        match &grant {
            Some(grant) => {
                self.blocks[grant.id].state = State::Used(Some(exchange.reservation));
                self.tighten(exchange.reservation, exchange.owed);
            }
            None => {
                self.tighten(exchange.reservation, exchange.given);
            }
        }
        grant
    }

    fn chunks_in(&self, bytes: u64) -> u64 {
        if self.geometry.virtual_memory {
            bytes / self.geometry.chunk_bytes
        } else {
            0
        }
    }

    /// Bytes of a reservation that are complete.
    fn complete_in_reservation(&self, reservation: ReservationId) -> u64 {
        let pieces = self.complete_pieces(reservation);
        pieces.iter().map(|id| self.blocks[*id].bytes).sum()
    }

    fn complete_pieces(&self, reservation: ReservationId) -> Vec<BlockId> {
        let mut pieces = self.reserved(reservation);
        pieces.retain(|id| self.reserved_fences(*id).is_empty());
        pieces
    }

    /// Gives what is complete of a reservation to everybody. Returns how much.
    fn loosen(&mut self, reservation: ReservationId) -> Portion {
        let before = self.totals.whole_free_chunks;
        let mut bytes = 0;
        for id in self.complete_pieces(reservation) {
            bytes += self.blocks[id].bytes;
            self.unfile(id);
            self.settle(id, State::Free);
        }
        let freed = self.totals.whole_free_chunks - before;
        Portion {
            bytes,
            chunks: freed.min(self.chunks_in(bytes)),
        }
    }

    /// Sets so much of what is free aside in a reservation, in as few pieces as can be. Returns what is missing: all of
    /// it, if the reservation is over.
    fn tighten(&mut self, reservation: ReservationId, portion: Portion) -> Portion {
        let mut left = portion;
        while left.bytes > 0 && self.reservations.contains_key(&reservation) {
            let Some(id) = self
                .whole_piece(left)
                .or_else(|| self.any_piece(left.bytes))
            else {
                break;
            };
            let block = &self.blocks[id];
            left.chunks -= self.whole_chunks(block).count().min(left.chunks);
            left.bytes -= block.bytes;
            self.set_state(id, State::Reserved(reservation, Fences::default()));
        }
        left
    }

    /// Whole handles of a free block, no more than that, cut out of it.
    fn whole_piece(&mut self, most: Portion) -> Option<BlockId> {
        let chunk = self.geometry.chunk_bytes;
        let most = most.chunks.min(most.bytes / chunk);
        if most == 0 {
            return None;
        }
        let id = self.smallest_with_a_chunk()?;
        let whole = self.whole_chunks(&self.blocks[id]);
        let count = whole.count().min(most);
        Some(self.trim_piece(id, whole.first * chunk, (whole.first + count) * chunk))
    }

    /// The best fit among what is free, or the largest there is; no more than that, cut out of it.
    fn any_piece(&mut self, most: u64) -> Option<BlockId> {
        let piece = self.free.at_least(most).next().or_else(|| self.free.last());
        let (size, id) = piece?;
        if size > most {
            self.cut(id, most);
        }
        Some(id)
    }
}
