//! The recorder: recent events, and the origin of each live block.

use crate::history::{History, HistoryEntry, HistoryEvent, Occupancy};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use weirpool::device::DeviceAddress;
use weirpool::extend::{BlockOrigin, Event, Fact, Observer, ReservationOrigin};
use weirpool::{Pool, PoolBuilder, StreamId};

/// How long a reader waits for events that other threads are about to tell.
const PATIENCE: Duration = Duration::from_millis(100);

/// An observer that remembers the latest events of a pool, and where each live block and reservation comes from. One recorder is for
/// one pool.
///
/// Each allocation and each free then takes the heap's lock and one more. An entry is about 200 bytes.
pub struct Recorder {
    log: Mutex<Log>,
}

struct Log {
    /// The most entries that are kept.
    most: usize,
    /// In the order of their numbers.
    entries: VecDeque<(u64, HistoryEntry)>,
    forgotten: u64,
    live: BTreeMap<DeviceAddress, Live>,
    reservations: BTreeMap<u64, ReservationOrigin>,
    used: u64,
    allocations: u64,
    arrived: Arrived,
}

/// A live block.
struct Live {
    size: u64,
    origin: BlockOrigin,
}

/// The numbers of the events that were told.
#[derive(Default)]
struct Arrived {
    /// All up to this one.
    all: u64,
    /// Others.
    beyond: BTreeSet<u64>,
}

impl Arrived {
    fn add(&mut self, number: u64) {
        self.beyond.insert(number);
        while self.beyond.remove(&(self.all + 1)) {
            self.all += 1;
        }
    }
}

impl Recorder {
    /// Creates a recorder of up to this many entries.
    pub fn new(entries: usize) -> Arc<Self> {
        Arc::new(Self {
            log: Mutex::new(Log {
                most: entries,
                entries: VecDeque::new(),
                forgotten: 0,
                live: BTreeMap::new(),
                reservations: BTreeMap::new(),
                used: 0,
                allocations: 0,
                arrived: Arrived::default(),
            }),
        })
    }

    /// Returns the recorder of a pool, if it has one.
    pub fn of(pool: &Pool) -> Option<&Self> {
        let mut observers = pool.inspect().observers();
        observers.find_map(|observer| (observer as &dyn Any).downcast_ref())
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the entries of events up to this number. Waits for those that other threads are about to tell, but not for
    /// ever: this thread may be one of them.
    pub(crate) fn history(&self, events: u64, streams: BTreeMap<StreamId, String>) -> History {
        let begun = Instant::now();
        loop {
            let log = self.lock();
            if events == u64::MAX || log.arrived.all >= events || begun.elapsed() > PATIENCE {
                let entries = log.entries.iter();
                let entries = entries.take_while(|(number, _)| *number <= events);
                return History {
                    entries: entries.map(|(_, entry)| entry.clone()).collect(),
                    forgotten: log.forgotten,
                    streams,
                };
            }
            drop(log);
            thread::yield_now();
        }
    }
}

impl Log {
    /// Adds an entry. Times never go back, though a later one may have read the clock first.
    fn push(&mut self, event: &Event<'_>, occupancy: Occupancy, told: HistoryEvent) {
        if self.most == 0 {
            return;
        }
        if self.entries.len() == self.most {
            self.entries.pop_front();
            self.forgotten += 1;
        }
        let later = self.entries.iter().rev();
        let later = later.take_while(|(number, _)| *number > event.number);
        let at = self.entries.len() - later.count();
        let before = at.checked_sub(1).map(|before| self.entries[before].1.time);
        let after = self.entries.get(at).map(|(_, entry)| entry.time);
        let time = event.time.max(before.unwrap_or_default());
        let entry = HistoryEntry {
            time: time.min(after.unwrap_or(Duration::MAX)),
            event: told,
            occupancy: Occupancy {
                used: self.used,
                ..occupancy
            },
        };
        self.entries.insert(at, (event.number, entry));
    }
}

impl Observer for Recorder {
    fn event(&self, event: &Event<'_>) {
        // Before the lock: it takes the pool's.
        let occupancy = event.memory().map(Occupancy::from).unwrap_or_default();
        let mut log = self.lock();
        let log = &mut *log;
        log.arrived.add(event.number);
        let told = match event.fact {
            Fact::Granted {
                address,
                size,
                requested,
                stream,
                tag,
                source,
                waited,
                site,
            } => {
                log.allocations += 1;
                log.used += size;
                let origin = BlockOrigin {
                    number: log.allocations,
                    site: site.into(),
                    time: event.time,
                    requested,
                    tag,
                    source,
                    waited,
                };
                let live = Live {
                    size,
                    origin: origin.clone(),
                };
                log.live.insert(address, live);
                HistoryEvent::Allocated {
                    address,
                    size,
                    stream,
                    origin,
                }
            }
            // As a free and an allocation at the same address, which is what readers of the history understand.
            Fact::Extended {
                address,
                bytes,
                stream,
                site,
            } => {
                log.allocations += 1;
                let number = log.allocations;
                let Some(live) = log.live.get_mut(&address) else {
                    return;
                };
                let (old, before) = (live.size, live.origin.number);
                live.size += bytes;
                live.origin.number = number;
                live.origin.requested += bytes;
                let (size, origin) = (live.size, live.origin.clone());
                let freed = HistoryEvent::Freed {
                    number: before,
                    address,
                    size: old,
                    stream,
                    further: Vec::new(),
                    site: Some(site.into()),
                };
                log.used -= old;
                log.push(event, occupancy, freed);
                log.used += size;
                let origin = BlockOrigin {
                    site: site.into(),
                    time: event.time,
                    ..origin
                };
                HistoryEvent::Allocated {
                    address,
                    size,
                    stream,
                    origin,
                }
            }
            Fact::Freed {
                address,
                stream,
                further,
                site,
                ..
            } => {
                let Some(Live { size, origin }) = log.live.remove(&address) else {
                    return;
                };
                log.used -= size;
                HistoryEvent::Freed {
                    number: origin.number,
                    address,
                    size,
                    stream,
                    further: further.to_vec(),
                    site: site.map(Into::into),
                }
            }
            Fact::Reserved {
                reservation,
                tag,
                site,
            } => {
                let origin = ReservationOrigin {
                    site: site.into(),
                    time: event.time,
                    tag,
                };
                log.reservations.insert(reservation, origin);
                return;
            }
            Fact::Disbanded { reservation } => {
                log.reservations.remove(&reservation);
                return;
            }
            Fact::Grown { address, bytes, .. } => HistoryEvent::Grown { address, bytes },
            Fact::Remapped {
                from, to, bytes, ..
            } => HistoryEvent::Remapped { from, to, bytes },
            Fact::Released { address, bytes } => HistoryEvent::Released { address, bytes },
            Fact::Reaped { streams } => HistoryEvent::Reaped { streams },
            Fact::DeviceWait { stream, donor, .. } => HistoryEvent::DeviceWait { stream, donor },
            Fact::Submitted {
                stream,
                task: Some(name),
                site,
                ..
            } => HistoryEvent::Submitted {
                stream,
                name: name.clone(),
                site: site.into(),
            },
            Fact::Waited {
                stream,
                requested,
                tag,
                waited,
                outcome,
                ..
            } => HistoryEvent::Waited {
                stream,
                requested,
                tag,
                waited,
                outcome,
            },
            Fact::OutOfMemory { stream, shortfall } => HistoryEvent::OutOfMemory {
                stream,
                shortfall: *shortfall,
            },
            _ => return,
        };
        log.push(event, occupancy, told);
    }

    fn origin_of(&self, address: DeviceAddress) -> Option<BlockOrigin> {
        let log = self.lock();
        log.live.get(&address).map(|live| live.origin.clone())
    }

    fn origin_of_reservation(&self, reservation: u64) -> Option<ReservationOrigin> {
        self.lock().reservations.get(&reservation).cloned()
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = self.lock();
        f.debug_struct("Recorder")
            .field("entries", &log.entries.len())
            .field("forgotten", &log.forgotten)
            .finish_non_exhaustive()
    }
}

/// Builds pools that record their history.
pub trait Record {
    /// Adds a [`Recorder`] of up to this many entries; none, for 0.
    fn history(self, entries: usize) -> Self;
}

impl Record for PoolBuilder {
    fn history(self, entries: usize) -> Self {
        match entries {
            0 => self,
            _ => self.observer(Recorder::new(entries)),
        }
    }
}
