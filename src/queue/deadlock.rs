//! Deadlocks: the waiting requests' own tasks hold what these requests wait for.
//!
//! When the head of the queue cannot be served, nothing is pending, and no block is freed for a while (the *grace*), no
//! work of the device will bring memory back: every byte that the head lacks is held by some task, which may be
//! waiting itself. Then every request that can be served is, in the order of the queue: a task that holds much and
//! asks for little goes on, and frees in the end. If none can be served, the queue is *deadlocked*. That is reported,
//! and after a time, if the pool has one, the head fails, so that its task frees what it holds. Reserving all that a
//! task needs up front avoids deadlocks.
//!
//! Requests that wait for the limit of their tag are no part of this: after the same time they fail, if nothing of the
//! tag was freed meanwhile (see [`Throttled`](super::throttled)).

use super::Position;
use super::Service;
use super::demand::{Demand, Wants};
use super::serving::{Pass, Served};
use super::waiter::Waiter;
use crate::error::AllocError;
use crate::heap::Request;
use crate::measure::Tag;
use crate::sync::{Arc, Guards, Mutex};
use crate::trace;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How many holders a report names.
const NAMED: usize = 16;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Deadlock(Mutex<Option<Standstill>>);

/// A queue in which nothing moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standstill {
    head: Position,
    /// Blocks given back so far. A free changes it, to a reservation as well.
    returns: u64,
    since: Duration,
    is_reported: bool,
}

impl Deadlock {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Guards::Queue, None))
    }

    /// Something moved. Returns whether that was not known.
    pub(super) fn end(&self) -> bool {
        self.0.lock().take().is_some()
    }

    /// Since when nothing moves: since now, if something did since the last look.
    fn since(&self, head: Position, returns: u64, now: Duration) -> Duration {
        let mut standstill = self.0.lock();
        match &*standstill {
            Some(known) if known.head == head && known.returns == returns => known.since,
            _ => {
                *standstill = Some(Standstill {
                    head,
                    returns,
                    since: now,
                    is_reported: false,
                });
                now
            }
        }
    }

    /// Whether the deadlock is to be reported: once.
    fn report(&self) -> bool {
        let mut standstill = self.0.lock();
        let was_reported = standstill
            .as_mut()
            .map(|known| std::mem::replace(&mut known.is_reported, true));
        was_reported == Some(false)
    }
}

/// How long nothing may move before every request is searched for. Looking at a long queue takes time: each 1,024
/// requests make it 1 ms longer, so that the looks stay rare.
fn grace(service: &Service) -> Duration {
    let queued = u32::try_from(service.queue.queued()).unwrap_or(u32::MAX);
    let longer = Duration::from_millis(1) * (queued / 1024);
    service.rules.deadlock_grace.saturating_add(longer)
}

/// The pieces of memory for which a search was in vain, so that it would be for larger ones. All free memory is complete
/// meanwhile, so it does not matter which stream asks.
#[derive(Debug)]
pub(super) struct InVain {
    usual_alignment: u64,
    /// The smallest piece of each alignment.
    pieces: BTreeMap<u64, u64>,
    /// Several pieces of one request.
    others: BTreeSet<Vec<(u64, u64)>>,
}

impl InVain {
    pub(super) fn new(usual_alignment: u64) -> Self {
        Self {
            usual_alignment,
            pieces: BTreeMap::new(),
            others: BTreeSet::new(),
        }
    }

    /// Whether a search for the request may succeed, although it did not for any that was admitted before.
    pub(super) fn admits(&mut self, wants: &Wants, demand: &Demand) -> bool {
        let alignment = |request: Request| request.alignment.max(self.usual_alignment);
        let pieces = wants.pieces(demand);
        let mut pieces: Vec<_> = pieces
            .map(|piece| (alignment(piece), piece.bytes))
            .collect();
        let is_in_vain = |(alignment, bytes): &(u64, u64)| {
            let mut smaller = self.pieces.range(..=alignment);
            smaller.any(|(_, smallest)| smallest <= bytes)
        };
        if pieces.iter().any(is_in_vain) {
            return false;
        }
        if let ([(alignment, bytes)], true) = (&*pieces, wants.is_anywhere()) {
            self.pieces.insert(*alignment, *bytes);
            return true;
        }
        pieces.sort_unstable();
        wants.is_anywhere().then(|| self.others.insert(pieces)) != Some(false)
    }
}

impl Pass<'_> {
    /// The head cannot be served, nor may any request overtake it. If nothing moves for the grace, serves the first
    /// request that can be served.
    pub(super) fn look_for_deadlock(&self, head: &Arc<Waiter>) -> Served {
        let service = self.service;
        let Some(returns) = service.driver.returns_if_quiet() else {
            service.end_deadlock();
            return Served::Short;
        };
        let now = service.now();
        let since = service.deadlock.since(head.sort_key.position, returns, now);
        let grace_ends = since.saturating_add(grace(service));
        if now < grace_ends {
            self.look_again_at(grace_ends);
            return Served::Short;
        }
        match self.serve_any() {
            Served::Short if service.is_short_for_others() => Served::Short,
            Served::Short => self.report_deadlock(head, now, since),
            served => served,
        }
    }

    fn serve_any(&self) -> Served {
        let usual_alignment = self.service.driver.settings.alignment;
        let to_scan = self.service.queue.to_scan(self.generation, usual_alignment);
        let mut served = to_scan.iter().map(|waiter| self.serve_one(waiter));
        let served = served.find(|served| *served != Served::Short);
        if served.is_some() {
            // The rest was not tried.
            self.service.queue.forget_scan();
        }
        served.unwrap_or(Served::Short)
    }

    /// No request can be served.
    fn report_deadlock(&self, head: &Arc<Waiter>, now: Duration, since: Duration) -> Served {
        let service = self.service;
        if service.deadlock.report() {
            trace::deadlocked(&service.shortfall(&head.demand), || holders(service, None));
        }
        let Some(fails_at) = service.rules.deadlock_fails_at(since) else {
            return Served::Short;
        };
        if now < fails_at {
            self.look_again_at(fails_at);
            return Served::Short;
        }
        service.end_deadlock();
        let shortfall = service.shortfall(&head.demand);
        service.fail(head, AllocError::Deadlocked(shortfall.into()));
        Served::Gone
    }
}

/// What is held, the most first: by tag, and where a history is kept, by location in the user's source. With a tag,
/// what it holds.
pub(super) fn holders(service: &Service, of: Option<Tag>) -> String {
    let accounts = service.queue.accounts.iter();
    let accounts = accounts.filter(|(tag, _)| of.is_none_or(|of| of == *tag));
    let by_tag = accounts.map(|(tag, account)| (tag.to_string(), account.used().current));
    let event_log = service.driver.event_log.iter();
    let by_location = event_log.flat_map(|event_log| event_log.held_by_location(of));
    let mut holders: Vec<_> = by_tag.chain(by_location).collect();
    holders.retain(|(_, bytes)| *bytes > 0);
    holders.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let most = holders.iter().take(NAMED);
    let lines = most.map(|(holder, bytes)| format!("{holder}: {bytes} bytes"));
    lines.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Part, Parts};
    use crate::heap::Placement;

    fn block(bytes: u64, alignment: u64) -> (Wants, Demand) {
        (Wants::Block, Demand::in_steps(bytes, alignment, 0, None))
    }

    fn several(pieces: &[u64], placement: Placement) -> (Wants, Demand) {
        let part = |bytes| Part {
            request: Request {
                bytes,
                alignment: 512,
            },
            rounding: 0,
        };
        let all: Vec<_> = pieces.iter().copied().map(part).collect();
        let parts = Parts {
            all: all.into(),
            is_for_all: false,
            placement,
        };
        let demand = Demand::in_steps(pieces.iter().sum(), 512, 0, None);
        (Wants::Parts(parts), demand)
    }

    #[test]
    fn request_is_left_out_if_a_smaller_one_was_in_vain() {
        let mut in_vain = InVain::new(512);
        let mut admits = |(wants, demand): (Wants, Demand)| in_vain.admits(&wants, &demand);
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
