//! Deadlocks: the waiting requests' own tasks hold what these requests wait for.
//!
//! When the head of the queue cannot be served, nothing is pending, and no block is freed for a while (the *grace*), no
//! work of the device will bring memory back: every byte that the head lacks is held by some task, which may be waiting
//! itself. Then every request that can be served is, in the order of the queue: a task that holds much and asks for
//! little goes on, and frees in the end. If none can be served, the queue is *deadlocked*. That is reported, and after
//! a time, if the pool has one, the head fails, so that its task frees its memory. Reserving all that a task needs up
//! front avoids deadlocks.
//!
//! Requests that wait for the limit of their tag are no part of this: after the same time they fail, if nothing of the
//! tag was freed meanwhile (see [`Throttled`](super::throttled)).

use super::pass::{Pass, Served};
use super::waiter::Waiter;
use super::{Demand, Service};
use crate::error::AllocError;
use crate::lane::{Holder, Lane};
use crate::measure::{Bytes, Milliseconds, Tag};
use crate::seam::Fact;
use crate::sync::Arc;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// How many holders a report names.
const NAMED: usize = 16;

impl Pass<'_> {
    pub(super) fn serve_any(&self) -> Served {
        let usual_alignment = self.service.engine.shared.settings.alignment;
        let to_scan = self.service.queue.to_scan(self.generation, usual_alignment);
        let mut served = to_scan.iter().map(|waiter| self.serve_one(waiter));
        let served = served.find(|served| *served != Served::Short);
        if served.is_some() {
            // The rest was not tried.
            self.service.queue.forget_scan();
        }
        served.unwrap_or(Served::Short)
    }

    /// Reports the deadlock, in which no request can be served, and fails the head when it has lasted long enough.
    pub(super) fn report_deadlock(&self, head: &Arc<Waiter>, now: Duration) -> Served {
        let service = self.service;
        let verdict = service.standstill.lock().judge(&service.rules, now);
        if verdict.is_new {
            tell_deadlock(service, &head.demand, None);
        }
        if !verdict.fails {
            let fails_at = verdict.fails_at.into_iter();
            fails_at.for_each(|at| self.look_again_at(at));
            return Served::Short;
        }
        service.end_deadlock();
        let shortfall = service.shortfall(&head.demand);
        service.fail(head, AllocError::Deadlocked(shortfall.into()));
        Served::Gone
    }
}

/// Tells observers of a deadlock: of the queue, or of the requests that wait for the limit of a tag.
pub(super) fn tell_deadlock(service: &Service, demand: &Demand, of: Option<Tag>) {
    let announcer = &service.engine.store.announcer;
    if announcer.is_open() {
        let (shortfall, holders) = (service.shortfall(demand), holders(service, of));
        announcer.tell(|| Fact::Deadlocked {
            shortfall: &shortfall,
            at_limit: of.is_some(),
            holders: &holders,
        });
    }
}

/// Lists the holders of memory, the largest first: tags, and the locations in the user's source that observers
/// remember. With a tag, only the holders of its memory.
fn holders(service: &Service, of: Option<Tag>) -> String {
    let accounts = service.queue.accounts.iter();
    let accounts = accounts.filter(|(tag, _)| of.is_none_or(|of| of == *tag));
    let by_tag = accounts.map(|(tag, account)| (tag.to_string(), account.used().current));
    let by_location = held_by_location(service, of).into_iter();
    let mut holders: Vec<_> = by_tag.chain(by_location).collect();
    holders.retain(|(_, bytes)| *bytes > 0);
    holders.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let most = holders.iter().take(NAMED);
    let lines = most.map(|(holder, bytes)| format!("{holder}: {}", Bytes(*bytes)));
    lines.collect::<Vec<_>>().join("; ")
}

fn held_by_location(service: &Service, of: Option<Tag>) -> BTreeMap<String, u64> {
    let mut held = BTreeMap::new();
    if service.engine.store.announcer.is_open() {
        let segments = service.engine.heap_walk().segments.into_iter();
        for block in segments.flat_map(|segment| segment.blocks) {
            let origin = block
                .origin
                .filter(|origin| of.is_none() || origin.tag == of);
            if let Some(origin) = origin {
                *held.entry(origin.site.to_string()).or_default() += block.size;
            }
        }
    }
    held
}

impl Service {
    /// Describes the waiting requests, the holders of memory, and the streams that host tasks hold, if there are any:
    /// `pool "frames": 1 request waiting: 4.0 MiB for tag chat on S2, since 0.120 ms, at src/main.rs:9:30; held by …`
    pub(crate) fn explain(&self, name: Option<&str>) -> Option<String> {
        let (waiting, first) = (self.queue.waiting(), self.queue.first(NAMED));
        let held = held_streams(self);
        if first.is_empty() && held.is_empty() {
            return None;
        }
        let name = name.map(|name| format!(" {name:?}"));
        let (name, plural) = (
            name.unwrap_or_default(),
            if waiting == 1 { "" } else { "s" },
        );
        let first: Vec<_> = first.iter().map(|waiter| explain(waiter)).collect();
        let mut text = format!("pool{name}: {waiting} request{plural} waiting");
        if !first.is_empty() {
            let _ = write!(text, ": {}", first.join("; "));
        }
        let holders = holders(self, None);
        if !holders.is_empty() {
            let _ = write!(text, "; held by {holders}");
        }
        held.iter().for_each(|stream| text += stream);
        Some(text)
    }
}

/// Describes the host tasks that hold streams.
fn held_streams(service: &Service) -> Vec<String> {
    let lanes = service.engine.streams.lanes();
    let of_lane = |lane: &Arc<Lane>| {
        let label = lane.label().to_string();
        let describe = move |holder: Holder| {
            let Holder {
                name,
                location,
                since,
            } = holder;
            let name = name.map(|name| format!(" {name:?}")).unwrap_or_default();
            let since = Milliseconds(since);
            format!("; {label} is held by the host task{name}, since {since}, at {location}")
        };
        lane.host_tasks.holders().into_iter().map(describe)
    };
    lanes.iter().flat_map(of_lane).collect()
}

fn explain(waiter: &Waiter) -> String {
    let Demand { request, tag, .. } = waiter.demand;
    let mut text = Bytes(request.bytes).to_string();
    if let Some(tag) = tag {
        let _ = write!(text, " for tag {tag}");
    }
    let _ = match waiter.lane.id.of_a_stream() {
        Some(_) => write!(text, " on {}", waiter.lane.label()),
        None if waiter.parts.charge.is_some() => write!(text, " to charge"),
        None => write!(text, " to reserve"),
    };
    if waiter.is_throttled() {
        text += ", at the limit of its tag";
    }
    let _ = write!(
        text,
        ", since {}, at {}",
        Milliseconds(waiter.entry.since),
        waiter.location
    );
    text
}
