//! Exchange: a hoard that is in pieces gives them away for as much in one.
//!
//! What is not lent of a hoard can be enough for a request, and lie in pieces that live blocks keep apart. Then
//! its complete pieces go to everybody, the request is served as anybody's would be (joined with free
//! neighbours, remapped, grown), and the hoard gets what is left of its bytes back, from wherever they are free.
//! All of it under one lock, and none of it for longer than that: what the device must be asked for in between
//! is claimed by a plan, and what the pieces were given for is kept in *escrow* until the plan has ended.

use super::hoard::HoardId;
use super::plan::Plan;
use super::{BlockId, Fences, Grant, Growth, Ledger, Request, State, View};

/// Bytes, of which some lie in whole handles: as many are had back, since they can be mapped elsewhere.
#[derive(Clone, Copy, Debug, Default)]
struct Portion {
    bytes: u64,
    handles: u64,
}

/// What is due once a plan has ended.
#[derive(Debug)]
pub(crate) struct Exchange {
    hoard: HoardId,
    /// What was given for the plan, as far as it does not claim that itself.
    escrow: HoardId,
    /// What the hoard gave, and has not got back.
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

impl Ledger {
    /// Serves a request for which the complete pieces of a hoard would be enough, if they were one.
    pub(crate) fn exchange(
        &mut self,
        hoard: HoardId,
        request: Request,
        view: &View<'_>,
        growth: Growth,
    ) -> Option<Exchanged> {
        if self.complete_in_hoard(hoard) < request.bytes {
            return None;
        }
        let all = self.loosen(hoard);
        let rest = Portion {
            bytes: all.bytes - request.bytes,
            handles: all.handles - self.handles_in(request.bytes).min(all.handles),
        };
        if let Some(grant) = self.take(request, view) {
            let missing = self.tighten(hoard, rest);
            debug_assert_eq!(missing.bytes, 0, "the request took no more than its bytes");
            self.blocks[grant.id].hoard = Some(hoard);
            return Some(Exchanged::Granted(grant));
        }
        let Some(plan) = self.plan(request, view, growth) else {
            let missing = self.tighten(hoard, all);
            debug_assert_eq!(missing.bytes, 0, "nothing was taken");
            return None;
        };
        let owed = self.tighten(hoard, rest);
        let given = Portion {
            bytes: request.bytes + owed.bytes,
            handles: all.handles - rest.handles + owed.handles,
        };
        let escrow = self.hoard([]);
        self.tighten(escrow, given);
        self.change_moves(hoard, |moves| moves.under_way += given.bytes);
        let exchange = Exchange {
            hoard,
            escrow,
            given,
            owed,
        };
        Some(Exchanged::Planned(plan, exchange))
    }

    /// Commits the plan of an exchange. What the plan claimed and did not lend is free in this moment, and is
    /// enough for what the hoard is owed.
    pub(crate) fn commit_exchange(
        &mut self,
        exchange: &Exchange,
        commit: impl FnOnce(&mut Self) -> Option<Grant>,
    ) -> Option<Grant> {
        self.disband(exchange.escrow);
        self.change_moves(exchange.hoard, |moves| {
            moves.under_way -= exchange.given.bytes;
            moves.so_far += 1;
        });
        let grant = commit(self);
        match &grant {
            Some(grant) => {
                self.blocks[grant.id].hoard = Some(exchange.hoard);
                self.tighten(exchange.hoard, exchange.owed);
            }
            None => {
                self.tighten(exchange.hoard, exchange.given);
            }
        }
        grant
    }

    fn handles_in(&self, bytes: u64) -> u64 {
        if self.geometry.virtual_memory {
            bytes / self.geometry.handle_bytes
        } else {
            0
        }
    }

    /// Bytes of a hoard that are complete.
    fn complete_in_hoard(&self, hoard: HoardId) -> u64 {
        let pieces = self.complete_pieces(hoard);
        pieces.iter().map(|id| self.blocks[*id].bytes).sum()
    }

    fn complete_pieces(&self, hoard: HoardId) -> Vec<BlockId> {
        let mut pieces = self.hoarded(hoard);
        pieces.retain(|id| self.hoarded_fences(*id).is_empty());
        pieces
    }

    /// Gives what is complete of a hoard to everybody. Returns how much.
    fn loosen(&mut self, hoard: HoardId) -> Portion {
        let before = self.totals.whole_free_handles;
        let mut bytes = 0;
        for id in self.complete_pieces(hoard) {
            bytes += self.blocks[id].bytes;
            self.unfile(id);
            self.settle(id, State::Free);
        }
        let freed = self.totals.whole_free_handles - before;
        Portion {
            bytes,
            handles: freed.min(self.handles_in(bytes)),
        }
    }

    /// Sets so much of what is free aside in a hoard, in as few pieces as can be. Returns what is missing: all of
    /// it, if the hoard is over.
    fn tighten(&mut self, hoard: HoardId, portion: Portion) -> Portion {
        let mut left = portion;
        while left.bytes > 0 && self.hoards.contains_key(&hoard) {
            let Some(id) = self
                .whole_piece(left)
                .or_else(|| self.any_piece(left.bytes))
            else {
                break;
            };
            let block = &self.blocks[id];
            left.handles -= self.whole_handles(block).count().min(left.handles);
            left.bytes -= block.bytes;
            self.set_state(id, State::Hoarded(hoard, Fences::default()));
        }
        left
    }

    /// Whole handles of a free block, no more than that, cut out of it.
    fn whole_piece(&mut self, most: Portion) -> Option<BlockId> {
        let handle = self.geometry.handle_bytes;
        let most = most.handles.min(most.bytes / handle);
        if most == 0 {
            return None;
        }
        let id = self.smallest_with_a_handle()?;
        let whole = self.whole_handles(&self.blocks[id]);
        let count = whole.count().min(most);
        Some(self.trim_piece(id, whole.first * handle, (whole.first + count) * handle))
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
