//! The event log: recent events, and the origin of each live block. Only a pool that is built with a history keeps one.
//!
//! It is a ring under a lock of its own, which is taken last. Where memory is mapped and released it is taken under the
//! heap's lock, so that heap and log agree for a caller that holds that lock. The device's clock is read before any
//! lock is taken.

mod event;

pub use event::{BlockOrigin, HistoryEntry, HistoryEvent, Occupancy, ReservationOrigin, Site};

use crate::device::Device;
use crate::heap::{Outcome, Step, Totals};
use crate::id::{ReservationId, StreamId};
use crate::measure::Tag;
use crate::sync::{Guards, Mutex, plain};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct EventLog {
    device: plain::Arc<dyn Device>,
    log: Mutex<Log>,
}

/// The entries, and the origins that they name.
#[derive(Debug)]
struct Log {
    /// The most entries that are kept.
    most: usize,
    entries: VecDeque<HistoryEntry>,
    forgotten: u64,
    known: Origins,
    used: u64,
    allocations: u64,
}

/// A live block.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) size: u64,
    pub(crate) origin: BlockOrigin,
}

/// The origins of live blocks and reservations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    /// Live blocks, by address.
    pub(super) live: BTreeMap<u64, Live>,
    /// Live reservations.
    pub(super) reservations: BTreeMap<ReservationId, ReservationOrigin>,
}

/// A copy of the entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages {
    pub(crate) entries: Vec<HistoryEntry>,
    pub(crate) forgotten: u64,
}

/// A block that is granted or freed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) stream: StreamId,
}

/// An entry to write, with its time. No lock is held when it is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    event_log: &'a EventLog,
    time: Duration,
}

impl EventLog {
    /// Creates a log of up to `most` entries; `None` for 0.
    pub(super) fn new(device: &plain::Arc<dyn Device>, most: usize) -> Option<Self> {
        let log = Log {
            most,
            entries: VecDeque::new(),
            forgotten: 0,
            known: Origins::default(),
            used: 0,
            allocations: 0,
        };
        (most > 0).then(|| Self {
            device: device.clone(),
            log: Mutex::new(Guards::EventLog, log),
        })
    }

    /// Makes an entry. No lock is held.
    pub(super) fn begin(&self) -> Entry<'_> {
        Entry {
            event_log: self,
            time: self.device.now(),
        }
    }

    /// Returns the origins of all live blocks and reservations.
    pub(super) fn origins(&self) -> Origins {
        self.log.lock().known.clone()
    }

    /// Returns the recent entries.
    pub(crate) fn pages(&self) -> Pages {
        let log = self.log.lock();
        Pages {
            entries: log.entries.iter().cloned().collect(),
            forgotten: log.forgotten,
        }
    }

    /// Notes the origin of a new reservation.
    pub(crate) fn note_reserved(&self, reservation: ReservationId, site: Site, tag: Option<Tag>) {
        let time = self.device.now();
        let origin = ReservationOrigin { site, time, tag };
        let known = &mut self.log.lock().known;
        known.reservations.insert(reservation, origin);
    }

    /// Forgets a reservation that is about to end.
    pub(crate) fn note_disbanded(&self, reservation: ReservationId) {
        self.log.lock().known.reservations.remove(&reservation);
    }

    /// Returns the bytes of live blocks by the location that allocated them; only those of the tag, if one is given.
    pub(crate) fn held_by_location(&self, of: Option<Tag>) -> Vec<(String, u64)> {
        let live = self.origins().live;
        let is_meant = |block: &Live| of.is_none() || block.origin.tag == of;
        let mut held = BTreeMap::<Site, u64>::new();
        for block in live.into_values().filter(is_meant) {
            *held.entry(block.origin.site).or_default() += block.size;
        }
        let held = held.into_iter();
        held.map(|(site, bytes)| (site.to_string(), bytes))
            .collect()
    }
}

impl Log {
    /// Adds an entry. Times never go back, though a later writer may have read the clock first.
    fn push(&mut self, time: Duration, totals: Totals, event: HistoryEvent) {
        if self.entries.len() == self.most {
            self.entries.pop_front();
            self.forgotten += 1;
        }
        let last = self.entries.back().map(|entry| entry.time);
        self.entries.push_back(HistoryEntry {
            time: time.max(last.unwrap_or_default()),
            event,
            occupancy: Occupancy {
                reserved: totals.reserved.current,
                used: self.used,
                pending: totals.pending.current,
                free: totals.free.current,
            },
        });
    }
}

impl Entry<'_> {
    pub(crate) fn write(&self, totals: Totals, event: HistoryEvent) {
        self.event_log.log.lock().push(self.time, totals, event);
    }

    /// Writes that memory was mapped, as far as the device came. A chunk may have been lost on the way.
    pub(super) fn write_mapped(
        &self,
        totals: Totals,
        steps: &[Step],
        outcome: Outcome,
        chunk_bytes: u64,
    ) {
        let mut log = self.event_log.log.lock();
        let (done, rest) = steps.split_at(outcome.done);
        for run in done.chunk_by(|step, next| follows(*step, *next, chunk_bytes)) {
            let bytes = run.len() as u64 * chunk_bytes;
            let Step { from, to } = run[0];
            let event = match from {
                Some(from) => HistoryEvent::Remapped {
                    from: from.into(),
                    to: to.into(),
                    bytes,
                },
                None => HistoryEvent::Grown {
                    address: to.into(),
                    bytes,
                },
            };
            log.push(self.time, totals, event);
        }
        let lost = rest.first().filter(|_| outcome.lost);
        if let Some(from) = lost.and_then(|step| step.from) {
            let event = HistoryEvent::Released {
                address: from.into(),
                bytes: chunk_bytes,
            };
            log.push(self.time, totals, event);
        }
    }

    /// Writes that ranges were released. Neighbours become one entry.
    pub(super) fn write_released(&self, totals: Totals, spans: &[(u64, u64)]) {
        let mut log = self.event_log.log.lock();
        for run in spans.chunk_by(|(at, bytes), (next, _)| at + bytes == *next) {
            let bytes = run.iter().map(|(_, bytes)| bytes).sum();
            let address = run[0].0.into();
            log.push(self.time, totals, HistoryEvent::Released { address, bytes });
        }
    }

    /// Writes that a block was granted, and fills in its number and time.
    pub(crate) fn write_granted(&self, totals: Totals, block: Extent, origin: BlockOrigin) {
        let Entry { event_log, time } = *self;
        let Extent {
            address,
            size,
            stream,
        } = block;
        let mut log = event_log.log.lock();
        log.allocations += 1;
        log.used += size;
        let origin = BlockOrigin {
            number: log.allocations,
            time,
            ..origin
        };
        let live = Live {
            size,
            origin: origin.clone(),
        };
        log.known.live.insert(address, live);
        let event = HistoryEvent::Allocated {
            address: address.into(),
            size,
            stream,
            origin,
        };
        log.push(time, totals, event);
    }

    /// Writes that a block is about to grow: as a free and an allocation at the same address, which is what readers of
    /// the log understand.
    pub(crate) fn write_grown(&self, totals: Totals, block: Extent, bytes: u64, site: Site) {
        let Entry { event_log, time } = *self;
        let (address, stream) = (block.address, block.stream);
        let mut log = event_log.log.lock();
        log.allocations += 1;
        let number = log.allocations;
        let Some(live) = log.known.live.get_mut(&address) else {
            return;
        };
        let (old, before) = (live.size, live.origin.number);
        live.size += bytes;
        live.origin.number = number;
        live.origin.requested += bytes;
        let (size, origin) = (live.size, live.origin.clone());
        let freed = HistoryEvent::Freed {
            number: before,
            address: address.into(),
            size: old,
            stream,
            further: Vec::new(),
            site: Some(site.clone()),
        };
        let allocated = HistoryEvent::Allocated {
            address: address.into(),
            size,
            stream,
            origin: BlockOrigin {
                site,
                time,
                ..origin
            },
        };
        log.used -= old;
        log.push(time, totals, freed);
        log.used += size;
        log.push(time, totals, allocated);
    }

    /// Writes that a block is about to be freed, before its memory can be granted again.
    pub(crate) fn write_ending(
        &self,
        totals: Totals,
        block: Extent,
        further: Vec<StreamId>,
        site: Option<Site>,
    ) {
        let Entry { event_log, time } = *self;
        let Extent {
            address, stream, ..
        } = block;
        let mut log = event_log.log.lock();
        let Some(Live { size, origin }) = log.known.live.remove(&address) else {
            return;
        };
        log.used -= size;
        let event = HistoryEvent::Freed {
            number: origin.number,
            address: address.into(),
            size,
            stream,
            further,
            site,
        };
        log.push(time, totals, event);
    }
}

/// Returns whether two steps belong to one run: neighbours both before and after.
fn follows(step: Step, next: Step, chunk_bytes: u64) -> bool {
    let is_from_next = match (step.from, next.from) {
        (Some(from), Some(next)) => from + chunk_bytes == next,
        (None, None) => true,
        _ => false,
    };
    is_from_next && step.to + chunk_bytes == next.to
}
