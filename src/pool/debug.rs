//! A pool under the magnifying glass: what it has, whence that is, and what led there.

use super::Pool;
use crate::observe::{History, LeakReport, Snapshot};

impl Pool {
    /// All segments and blocks, now, with whence they are and what led there, where the pool keeps a
    /// [history](crate::PoolBuilder::history).
    ///
    /// Taken under the heap's lock, in time proportional to the number of blocks and the length of the
    /// history; neither seals nor reaps. Blocks never overlap, and tile the memory. Each is used, pending
    /// or free as of when its stream's lane was read: at rest, the sums are those of
    /// [`statistics`](Self::statistics).
    ///
    /// ```
    /// # use weirpool::{BlockState, Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// let block = pool.try_allocate(&stream, 1 << 20)?;
    /// let snapshot = pool.snapshot();
    /// let used: Vec<_> = snapshot.blocks_in(BlockState::Used).collect();
    /// assert_eq!((used[0].address, used[0].stream), (block.address(), Some(stream.id())));
    /// assert_eq!(snapshot.reserved(), pool.statistics().reserved.current);
    /// println!("{snapshot}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "memory_snapshot")]
    #[doc(alias = "_snapshot")]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.presence)
    }

    /// The last things that happened in the pool; nothing, where it was built without a
    /// [history](crate::PoolBuilder::history).
    ///
    /// Takes time in proportion to its length, under the lock that allocations then share.
    ///
    /// ```
    /// # use weirpool::{HistoryEvent, Pool, device::sim::SimDevice};
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
    pub fn history(&self) -> History {
        History::of(&self.service().driver)
    }

    /// The blocks that are in use now, and the reservations that live: to be asked when nobody should have any more.
    /// With a [history](crate::PoolBuilder::history) it says whence they are.
    ///
    /// What was given to `mem::forget` lives for ever, and keeps its pool alive.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).history(1).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// std::mem::forget(pool.try_allocate(&stream, 4096)?);
    /// let leaks = pool.leaks();
    /// assert_eq!((leaks.blocks.len(), leaks.bytes()), (1, 4096));
    /// println!("{leaks}"); // 1 block of 4.0 KiB, the oldest for 0.070 ms, from src/main.rs:8:21
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn leaks(&self) -> LeakReport {
        LeakReport::of(&self.service().driver)
    }
}
