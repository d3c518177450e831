//! A pool beyond its requests: its memory, its tags, and its end.

use super::{Pool, TagAccount};
use crate::device::{Device, DeviceError};
use crate::engine::{Trimmed, gate, maintenance};
use crate::error::BuildError;
use crate::measure::{BlockState, Tag};
use crate::queue::{Drain, serving};
use crate::seam::Fact;
use crate::sync::plain::Arc;

impl Pool {
    /// Returns the pool's name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.presence.name.as_deref()
    }

    /// Returns the device that the pool is over.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.service().engine.shared.device
    }

    /// Returns the most bytes that the pool may reserve from the device.
    pub fn capacity(&self) -> u64 {
        self.service().engine.store.capacity()
    }

    /// Sets the most bytes that the pool may reserve from the device; rounded down to whole chunks, and to the memory
    /// that the device has, or that a [source of the capacity](crate::PoolBuilder::capacity_source) ever lends. Returns the
    /// new capacity, and how much of the memory above it was released.
    ///
    /// More capacity serves waiting requests at once. With less, waiting requests that exceed it fail. Free memory
    /// above the capacity is released immediately, and used memory 10 ms after it is freed.
    ///
    /// ```
    /// # use weirpool::{AllocError, Pool, device::sim::SimDevice};
    /// # let pool = Pool::builder(SimDevice::new()).capacity(64 << 20).build()?;
    /// # let stream = pool.create_stream()?;
    /// let resized = pool.resize(32 << 20)?;
    /// assert!(resized.is_reached()); // nothing more is reserved
    /// assert_eq!(resized.target, 32 << 20); // the capacity
    /// let refused = pool.try_allocate(&stream, 48 << 20);
    /// assert!(matches!(refused, Err(AllocError::TooLarge { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`BuildError::CapacityTooSmall`] for less than a chunk. Returns the device's error if it cannot reserve
    /// addresses, in which case nothing changes, or cannot release memory.
    pub fn resize(&self, bytes: u64) -> Result<Trimmed, BuildError> {
        let engine = &self.service().engine;
        let total = engine
            .shared
            .device
            .memory_info(engine.shared.settings.kind)?
            .total;
        let total = total.min(engine.shared.settings.most());
        let chunk = engine.shared.settings.geometry.chunk_bytes;
        let capacity = bytes.min(total) / chunk * chunk;
        if capacity == 0 {
            return Err(BuildError::CapacityTooSmall {
                capacity: bytes,
                granularity: chunk,
            });
        }
        let resized = maintenance::resize(engine, capacity);
        // Even if memory could not be released: requests that exceed the capacity are told.
        serving::apply_terms(self.service());
        Ok(resized?)
    }

    /// Gives free memory back to the device until `bytes` bytes are reserved, or no more is free. Flushes all caches
    /// first. Used and pending memory stays. Returns how far it got.
    ///
    /// Chunks go one by one, so that at least `bytes` bytes stay. Where memory is plain, segments go whole: if all free
    /// segments are larger than the excess, the smallest one goes, and fewer bytes stay.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// let used = pool.try_allocate(&stream, 32 << 20)?;
    /// drop(pool.try_allocate(&stream, 64 << 20)?);
    /// assert_eq!(pool.trim_to(0)?.released, 64 << 20);
    /// assert_eq!(pool.inspect().statistics().reserved.current, used.size());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the device's error; memory that was released before it stays released.
    pub fn trim_to(&self, bytes: u64) -> Result<Trimmed, DeviceError> {
        maintenance::trim(&self.service().engine, bytes)
    }

    /// Returns the account of a tag with this pool: its limit, its weight in the queue, and its figures.
    pub fn tag(&self, tag: Tag) -> TagAccount<'_> {
        TagAccount::new(self, tag)
    }

    /// Admits no more requests, for good: those that wait fail with [`AllocError::Stopping`](crate::AllocError::Stopping),
    /// and so does every later one. Work that holds memory goes on to its end. This is how the end of a service begins;
    /// [`drain`](Self::drain) and [`close`](Self::close) follow. A second call does nothing.
    ///
    /// | what | after `stop_admitting` |
    /// |---|---|
    /// | requests for blocks, reservations and [charges](Self::charge_for), waiting or new, `try_allocate` included | fail; a grant that came before is kept |
    /// | allocations from a [`Reservation`](crate::Reservation), in its scope too | go on |
    /// | requests in the [scope](crate::Reservation::scope) of a reservation that it has too little for; [`grow`](crate::Reservation::grow) of a reservation and of a block; memory of captures | wait and are granted as before: a holder of memory makes them |
    /// | submissions, captures, launches, moves and uses on other streams, frees, charges and adopted blocks that are held | go on; freed blocks go to the heap, as while requests wait |
    /// | [evictable](crate::Evictable) memory | stays, and is evicted for the requests that go on |
    /// | a [source of the capacity](crate::PoolBuilder::capacity_source), such as a broker | is asked for the requests that go on, and takes its lease back as before |
    /// | the pool, when its last handle is dropped with no drain | ends as ever |
    pub fn stop_admitting(&self) {
        serving::stop(self.service(), gate::STOPPED);
    }

    /// Closes the pool: it [admits no more requests](Self::stop_admitting), and no longer grants from reservations either.
    /// Waiting requests fail with [`AllocError::Closed`](crate::AllocError::Closed), and so does every later one. So do
    /// submissions, captures and launches of graphs. Live blocks stay valid, and are freed as ever;
    /// `weirpool_observe::leaks` lists them.
    pub fn close(&self) {
        let engine = &self.service().engine;
        let how = gate::STOPPED | gate::ENDED;
        if serving::stop(self.service(), how) && engine.store.announcer.is_open() {
            tell_of_leaks(self);
        }
    }

    /// Waits until everything has come back: no request waits, no block or reservation lives, and nothing is
    /// pending. All memory that the pool holds is free then, and no work of the device touches it.
    ///
    /// A drain ends nothing by itself: allocations are granted meanwhile, and it is ready at a moment at which all of
    /// them have come back. [Evictable](crate::Evictable) memory is evicted. Memory that others own is not
    /// awaited, be it in [adopted](crate::Stream::adopt) blocks or [charged](Self::charge): it is no memory of the heap,
    /// and its owner may keep it for ever.
    ///
    /// To end a service, [admit no more requests](Self::stop_admitting) first, and [`close`](Self::close) the pool last. After
    /// `close` alone, work that holds a reservation can allocate no more:
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::{Operation, SimDevice}};
    /// # use std::time::Duration;
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let work = device.create_stream();
    /// # let stream = pool.register(&work)?;
    /// let request = pool.reserve(64 << 20).try_now()?;
    /// pool.stop_admitting(); // waiting and new requests fail
    ///
    /// let block = request.allocate(&stream, 64 << 20)?; // the reservation goes on
    /// work.submit(Operation::new(Duration::from_micros(50)));
    /// drop((block, request)); // pending behind that work
    ///
    /// device.block_on(pool.drain().timeout(Duration::from_secs(1)))?;
    /// assert_eq!(device.now(), Duration::from_micros(50));
    /// pool.close();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// During a drain no lane keeps freed memory: each free takes the heap's lock and records an event.
    pub fn drain(&self) -> Drain {
        Drain::new(self.service().clone(), self.presence.clone())
    }
}

/// Tells observers if blocks or reservations live.
#[cold]
fn tell_of_leaks(pool: &Pool) {
    let snapshot = pool.inspect().snapshot();
    let left = snapshot.reservations.iter().map(|left| left.left);
    let (blocks, reservations) = (
        snapshot.blocks_in(BlockState::Used).count(),
        snapshot.reservations.len(),
    );
    let bytes = snapshot.bytes_in(BlockState::Used) + left.sum::<u64>();
    if blocks + reservations > 0 {
        pool.service().engine.store.announcer.tell(|| Fact::Leaked {
            blocks,
            reservations,
            bytes,
            forgotten: false,
        });
    }
}
