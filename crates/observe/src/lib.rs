#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

#[cfg(feature = "export")]
mod export;
mod history;
mod leaks;
mod metrics;
mod prometheus;
mod recorder;
#[cfg(feature = "tracing")]
pub mod tracing;

#[cfg(feature = "export")]
pub use export::{write_chrome_trace, write_memory_viz, write_trace};
pub use history::{History, HistoryEntry, HistoryEvent, Occupancy};
pub use leaks::LeakReport;
pub use metrics::Metrics;
pub use prometheus::prometheus_text;
pub use recorder::{Record, Recorder};

use std::collections::BTreeMap;
use weirpool::{Pool, Snapshot, StreamId};

/// What a pool with a [`Recorder`] remembers. Without one, the history is empty, and locations are not known.
pub trait Recorded {
    /// Returns the latest events of the pool. Takes time in proportion to their number.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// use weirpool_observe::{HistoryEvent, Record as _, Recorded as _};
    /// # let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).history(10_000).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// drop(pool.try_allocate(&stream, 1 << 20)?);
    /// let history = pool.history();
    /// let [.., allocated, freed] = &history.entries[..] else { unreachable!() };
    /// assert!(matches!(&allocated.event, HistoryEvent::Allocated { origin, .. } if origin.requested == 1 << 20));
    /// assert!(matches!(freed.event, HistoryEvent::Freed { .. }));
    /// println!("{history}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn history(&self) -> History;

    /// Returns all segments and blocks, with the events that led there.
    fn recorded(&self) -> (Snapshot, History);

    /// Returns the blocks that are in use, and the reservations that live: for the moment when there should be none any
    /// more. With a recorder it says where they come from.
    ///
    /// A block that was given to `mem::forget` lives for ever, and keeps its pool alive.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// use weirpool_observe::{Record as _, Recorded as _};
    /// # let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).history(1).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// std::mem::forget(pool.try_allocate(&stream, 4096)?);
    /// let leaks = pool.leaks();
    /// assert_eq!((leaks.blocks.len(), leaks.bytes()), (1, 4096));
    /// println!("{leaks}"); // 1 block of 4.0 KiB, the oldest for 0.070 ms, from src/main.rs:8:21
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn leaks(&self) -> LeakReport;
}

impl Recorded for Pool {
    fn history(&self) -> History {
        let streams = self.inspect().statistics_by_stream().into_iter();
        let names = streams.filter_map(|figures| Some((figures.stream, figures.name?)));
        history(self, u64::MAX, names.collect())
    }

    fn recorded(&self) -> (Snapshot, History) {
        let snapshot = self.inspect().snapshot();
        let history = history(self, snapshot.events, snapshot.streams.clone());
        (snapshot, history)
    }

    fn leaks(&self) -> LeakReport {
        LeakReport::of(self)
    }
}

fn history(pool: &Pool, events: u64, streams: BTreeMap<StreamId, String>) -> History {
    match Recorder::of(pool) {
        Some(recorder) => recorder.history(events, streams),
        None => History {
            streams,
            ..History::default()
        },
    }
}
