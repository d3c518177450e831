//! What needs an operator's attention, from the figures of one second after another.

use crate::clip;
use serde::Serialize;
use std::collections::HashMap;
use weirpool::{Health, Statistics, Tag, TagStatistics};

/// The share of the memory in use from which a pool is nearly full, in percent.
const FULL: u64 = 95;
/// How long a pool is nearly full, or stands still, before that is said: in milliseconds.
const STILL: u64 = 10_000;
/// How long no work completes that pending memory waits for, until the device is said to stand still: in milliseconds.
const HUNG: u64 = 60_000;
/// How long a tag waits without a grant, while others get some, until it starves: in milliseconds.
const STARVED: u64 = 30_000;
/// How long a deadlock is shown that ended in an error: in milliseconds.
const SHOWN: u64 = 60_000;
/// The most starving tags that are named.
const NAMED: usize = 3;

/// A condition that lasts, with the time of its beginning.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Alert {
    /// `device lost`, `deadlock`, `device stalled`, `starving` or `nearly full`.
    kind: &'static str,
    text: String,
    /// In milliseconds since 1970, where it is known.
    since: Option<u64>,
}

/// Since when each condition holds. `docs/alerts.yml` of `weirpool-observe` has the same conditions for Prometheus.
#[derive(Debug, Default)]
pub(super) struct Watch {
    now: u64,
    waiting: usize,
    full: Option<u64>,
    still: Option<Still>,
    /// The deadlocks that ended in errors, and the time of the last one.
    deadlocks: Option<u64>,
    deadlocked: Option<u64>,
    /// The tags that wait: since when, with the allocations of the tag and of the pool at that time.
    hungry: HashMap<Tag, (u64, u64, u64)>,
    allocations: u64,
}

/// Requests wait, and nothing has moved since that time.
#[derive(Clone, Copy, Debug)]
struct Still {
    since: u64,
    /// The allocations and frees so far.
    moved: u64,
    /// Freed bytes that work of the device may still use; none if all of them are in caches, where they may be complete.
    pending: u64,
}

impl Watch {
    /// Takes the figures of a second. `now` is in milliseconds since 1970.
    pub(super) fn update(&mut self, now: u64, statistics: &Statistics, tags: &[TagStatistics]) {
        let waits = &statistics.waits;
        self.now = now;
        self.waiting = waits.waiting;
        self.allocations = statistics.allocations;
        let taken = statistics.used.current - statistics.evictable.min(statistics.used.current);
        let taken = u128::from(taken.saturating_add(statistics.charged));
        let is_full = statistics.leased > 0
            && taken * 100 >= u128::from(statistics.leased) * u128::from(FULL);
        self.full = is_full.then(|| self.full.unwrap_or(now));

        let moved = statistics.allocations.wrapping_add(statistics.frees);
        let pending = statistics.pending.current;
        // What caches hold may be complete.
        let pending = if pending > statistics.cached_in_lanes {
            pending
        } else {
            0
        };
        let known = self
            .still
            .filter(|still| (still.moved, still.pending) == (moved, pending));
        let new = Still {
            since: now,
            moved,
            pending,
        };
        self.still = (waits.waiting > 0).then(|| known.unwrap_or(new));

        let before = self.deadlocks.replace(waits.deadlocked);
        if before.is_some_and(|before| waits.deadlocked > before) {
            self.deadlocked = Some(now);
        }

        let waiting = tags.iter().filter(|tag| tag.waits.waiting > 0);
        self.hungry = waiting
            .map(|tag| {
                let known = self.hungry.get(&tag.tag);
                let known = known.filter(|(_, granted, _)| *granted == tag.allocations);
                let new = (now, tag.allocations, statistics.allocations);
                (tag.tag, known.copied().unwrap_or(new))
            })
            .collect();
    }

    /// Returns the conditions that hold, the worst first.
    pub(super) fn alerts(&self, health: &Health) -> Vec<Alert> {
        let lasts = |since: &u64, least: u64| self.now.saturating_sub(*since) >= least;
        let lost = health.fault.as_ref().map(|fault| Alert {
            kind: "device lost",
            text: clip(&format!("every request fails: {fault}")).into_owned(),
            since: None,
        });
        let still = self
            .still
            .filter(|still| lasts(&still.since, if still.pending > 0 { HUNG } else { STILL }));
        let still = still.map(|Still { since, pending, .. }| Alert {
            kind: if pending > 0 {
                "device stalled"
            } else {
                "deadlock"
            },
            text: format!(
                "{} requests wait, while {}",
                self.waiting,
                match pending {
                    0 => "nothing is granted, freed or pending",
                    _ => "freed memory is pending behind work of the device that does not complete",
                }
            ),
            since: Some(since),
        });
        let ended = self.deadlocked.filter(|since| !lasts(since, SHOWN));
        let ended = ended.map(|since| Alert {
            kind: "deadlock",
            text: "requests that held memory of each other failed".to_owned(),
            since: Some(since),
        });
        let full = self.full.filter(|since| lasts(since, STILL));
        let full = full.map(|since| Alert {
            kind: "nearly full",
            text: format!("at least {FULL} % of the memory is in use and cannot be evicted"),
            since: Some(since),
        });
        let alerts = lost.into_iter().chain(still.or(ended));
        alerts.chain(self.starving()).chain(full).collect()
    }

    fn starving(&self) -> Option<Alert> {
        let mut starving: Vec<_> = self
            .hungry
            .iter()
            .filter(|(_, (since, _, others))| {
                self.now.saturating_sub(*since) >= STARVED && self.allocations > *others
            })
            .map(|(tag, (since, ..))| (*since, *tag))
            .collect();
        starving.sort_unstable();
        let (since, _) = *starving.first()?;
        let names: Vec<_> = starving
            .iter()
            .take(NAMED)
            .map(|(_, tag)| clip(tag.name()))
            .collect();
        let more = starving.len() - names.len();
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        let text = format!(
            "no grant to {}{more}, while others get memory",
            names.join(", ")
        );
        Some(Alert {
            kind: "starving",
            text,
            since: Some(since),
        })
    }
}
