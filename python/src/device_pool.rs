//! The pools, one for each device, used by addresses and stream handles.

use crate::active::{self, Source};
use crate::evictables::Entries;
use crate::graphs::{Graphs, MempoolId};
use crate::threads::Threads;
use crate::{fork, settings::Settings};
use cudarc::driver::DriverError;
use cudarc::driver::sys::{self, CUstream};
use rustc_hash::FxHashMap;
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;
#[cfg(target_os = "linux")]
use weirpool::device::Sharing;
use weirpool::device::cuda::{CudaDevice, ExternalStream};
use weirpool::device::{Device, DeviceError};
use weirpool::{
    AllocError, Block, GraphCheckpoint, GraphMemory, Pool, Statistics, StatisticsScope, Stream,
    StreamError, StreamId,
};
use weirpool_compat::{RawError, RawPool};

/// The most devices that PyTorch supports.
const DEVICES: usize = 128;

/// Bytes that each stream keeps for itself. Half of the blocks of a service are too large for the pool's default: each
/// of them would go through the heap. PyTorch's own allocator keeps all that a stream frees.
const LANE_BYTES: u64 = 256 << 20;

static POOLS: [OnceLock<Result<DevicePool, String>>; DEVICES] =
    [const { OnceLock::new() }; DEVICES];

/// The pool of a device, and the timeout of its allocations.
pub(crate) struct DevicePool {
    device: CudaDevice,
    raw: RawPool,
    timeout: Duration,
    /// The capacity of the settings, which no limit of PyTorch exceeds.
    capacity: Option<u64>,
    /// Counts the peaks of PyTorch's figures, once they were reset.
    peaks: Mutex<Option<StatisticsScope>>,
    failures: AtomicU64,
    pub(crate) graphs: Graphs,
    pub(crate) entries: Entries,
    /// Streams that are never destroyed, by their handles. Their entries are never removed.
    permanent: RwLock<FxHashMap<usize, &'static Permanent>>,
    /// The stream of memory that is shared with other processes, since PyTorch's streams may be gone before that
    /// memory.
    #[cfg(target_os = "linux")]
    own_stream: OnceLock<Result<Stream, StreamError>>,
}

/// A stream that is never destroyed, with its registration.
struct Permanent {
    external: ExternalStream,
    stream: Stream,
    threads: Threads,
}

thread_local! {
    /// The permanent stream that this thread named last, by the address of its pool and its handle.
    static LAST: Cell<Option<(usize, usize, &'static Permanent)>> = const { Cell::new(None) };
}

/// Returns the pool of a device, and creates it on the first call. It is never dropped, because PyTorch may still free
/// memory while the process ends.
///
/// # Errors
/// Returns the reason why there is no pool, which is kept for later calls.
pub(crate) fn open(device: c_int) -> Result<&'static DevicePool, String> {
    if fork::is_child() {
        return Err(
            "this process was forked from the one that uses the device; start it with spawn instead of fork"
                .to_owned(),
        );
    }
    let slot = slot(device).ok_or_else(|| format!("there is no device {device}"))?;
    let opened = slot.get_or_init(|| DevicePool::new(device));
    opened.as_ref().map_err(Clone::clone)
}

/// Returns the pool of a device, if it was created.
pub(crate) fn opened(device: c_int) -> Option<&'static DevicePool> {
    slot(device)?.get()?.as_ref().ok()
}

/// Returns the lowest number of a device whose pool was created.
#[cfg(feature = "module")]
pub(crate) fn first_opened() -> Option<usize> {
    POOLS
        .iter()
        .position(|slot| matches!(slot.get(), Some(Ok(_))))
}

/// Returns the threads that use a stream of a pool, if that is never destroyed.
pub(crate) fn threads_of(pool: &Pool, stream: StreamId) -> Option<&'static Threads> {
    let mut opened = POOLS.iter().filter_map(|slot| slot.get()?.as_ref().ok());
    let its = opened.find(|opened| opened.pool() == pool)?;
    let permanent = its.permanent.read();
    let permanent = permanent.unwrap_or_else(PoisonError::into_inner);
    let mut all = permanent.values();
    let found = all.find(|permanent| permanent.stream.id() == stream)?;
    Some(&found.threads)
}

fn slot(device: c_int) -> Option<&'static OnceLock<Result<DevicePool, String>>> {
    POOLS.get(usize::try_from(device).ok()?)
}

/// Records a use on another stream, of memory of any device.
///
/// # Errors
/// Returns an error if no pool allocated the address, or if the stream cannot be identified.
///
/// # Safety
/// The conditions of [`weirpool_record_stream`](crate::weirpool_record_stream) apply.
pub(crate) unsafe fn record_stream(address: u64, stream: CUstream) -> Result<(), String> {
    let opened = POOLS.iter().filter_map(|slot| slot.get()?.as_ref().ok());
    for pool in opened {
        // SAFETY: as the caller promises.
        match unsafe { pool.record_stream(address, stream) } {
            Err(RawError::NotGivenOut { found: None, .. }) => {}
            answer => return answer.map_err(|reason| reason.to_string()),
        }
    }
    Err(format!("{address:#x}: nothing was allocated there"))
}

impl DevicePool {
    fn new(ordinal: c_int) -> Result<Self, String> {
        let Settings {
            capacity,
            remapping,
            sealing,
            timeout,
            broker,
        } = Settings::of_environment()?;
        fork::watch();
        let device = CudaDevice::builder()
            .ordinal(ordinal as usize)
            .exportable_memory(true)
            .build()
            .map_err(|error| error.to_string())?;
        let builder = Pool::builder(device.clone())
            .tuning(|tuning| tuning.remapping = remapping)
            .sealing(sealing)
            .tuning(|tuning| tuning.lane_bytes = LANE_BYTES);
        let builder = match capacity {
            Some(bytes) => builder.capacity(bytes),
            None => builder,
        };
        let builder = match broker {
            Some(socket) => weirpool_broker::lease_capacity(builder, socket),
            None => builder,
        };
        let pool = builder.build().map_err(|error| error.to_string())?;
        Ok(Self {
            device,
            raw: RawPool::new(&pool),
            timeout,
            capacity,
            peaks: Mutex::default(),
            failures: AtomicU64::new(0),
            graphs: Graphs::default(),
            entries: Entries::default(),
            permanent: RwLock::default(),
            #[cfg(target_os = "linux")]
            own_stream: OnceLock::new(),
        })
    }

    pub(crate) fn pool(&self) -> &Pool {
        self.raw.pool()
    }

    pub(crate) fn raw(&self) -> &RawPool {
        &self.raw
    }

    /// Returns a stream of the pool, which is created on the first call.
    #[cfg(target_os = "linux")]
    pub(crate) fn own_stream(&self) -> Result<Stream, String> {
        let made = self.own_stream.get_or_init(|| self.pool().create_stream());
        made.clone().map_err(|error| error.to_string())
    }

    pub(crate) fn statistics(&self) -> Statistics {
        self.pool().inspect().statistics()
    }

    /// Returns the figures, with the peaks since they were reset.
    pub(crate) fn since_reset(&self) -> Statistics {
        let peaks = self.peaks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut read = self.statistics();
        if let Some(scope) = &*peaks {
            read.reserved = scope.read().reserved;
        }
        read
    }

    /// Begins the peaks of [`since_reset`](Self::since_reset) anew.
    pub(crate) fn reset_peaks(&self) {
        let scope = self.pool().inspect().statistics_scope();
        let mut peaks = self.peaks.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = peaks.replace(scope);
        drop(peaks);
        drop(earlier);
    }

    /// Returns free memory to the device. Freed memory that work may still use is waited for, unless a stream is being
    /// captured, when the device must not be waited for.
    ///
    /// # Errors
    /// Returns the device's error.
    pub(crate) fn trim(&self) -> Result<(), String> {
        let trim = || self.pool().trim_to(0).map_err(|error| error.to_string());
        let trimmed = trim()?;
        if trimmed.pending == 0 || self.graphs.has_any() {
            return Ok(());
        }
        self.synchronize()?;
        // The first poll may come before the driver has noted completed events.
        self.pool()
            .maintain()
            .reap()
            .map_err(|error| error.to_string())?;
        trim().map(drop)
    }

    /// Blocks this thread until all work of the device is complete.
    ///
    /// # Errors
    /// Returns the driver's error, or one while a stream is being captured, when the device must not be waited for.
    pub(crate) fn synchronize(&self) -> Result<(), String> {
        if self.graphs.has_any() {
            return Err(
                "a stream is being captured; wait for the device before or after the capture"
                    .to_owned(),
            );
        }
        // SAFETY: the context is current.
        self.in_context(|| unsafe { sys::cuCtxSynchronize() }.result())
    }

    /// Limits the memory that the pool may reserve, to no more than its setting.
    ///
    /// # Errors
    /// Returns an error if that is less than a chunk, or the device's error.
    pub(crate) fn limit(&self, bytes: u64) -> Result<(), String> {
        let bytes = self.capacity.map_or(bytes, |capacity| bytes.min(capacity));
        let resized = self.pool().resize(bytes);
        resized.map(drop).map_err(|error| error.to_string())
    }

    /// Calls a function of the driver in the device's context, and restores the thread's context.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn in_context<T>(
        &self,
        call: impl FnOnce() -> Result<T, DriverError>,
    ) -> Result<T, String> {
        let mut previous = std::ptr::null_mut();
        // SAFETY: the context lives as long as the device, and is removed again below.
        let outcome = unsafe {
            let context = self.device.context().cu_ctx();
            let pushed = sys::cuCtxPushCurrent_v2(context).result();
            pushed.and_then(|()| {
                let outcome = call();
                sys::cuCtxPopCurrent_v2(&raw mut previous).result()?;
                outcome
            })
        };
        outcome.map_err(|error| error.to_string())
    }

    /// Returns the calls by which chunks are shared with other processes, if the device has them.
    #[cfg(target_os = "linux")]
    pub(crate) fn device_sharing(&self) -> Option<&dyn Sharing> {
        self.device.sharing()
    }

    pub(crate) fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// Returns new memory for graphs.
    pub(crate) fn graph_memory(&self) -> GraphMemory {
        self.pool().graph_memory()
    }

    /// Returns a stream as it is registered with the pool.
    pub(crate) fn registered(&self, stream: &ExternalStream) -> Result<Stream, StreamError> {
        self.raw.stream(stream)
    }

    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Allocates in the order of a stream, from the memory of its capture if it is part of one.
    ///
    /// # Errors
    /// Returns an error if there was no memory in time, or the device failed.
    ///
    /// # Safety
    /// The conditions of [`weirpool_alloc`](crate::weirpool_alloc) apply.
    pub(crate) unsafe fn allocate(&self, bytes: u64, stream: CUstream) -> Result<u64, AllocError> {
        // SAFETY: as the caller promises.
        let address = unsafe { self.allocate_from_any(bytes, stream) };
        if address.is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        address
    }

    /// # Safety
    /// As for [`allocate`](Self::allocate).
    unsafe fn allocate_from_any(&self, bytes: u64, stream: CUstream) -> Result<u64, AllocError> {
        if let Some(stream) = self.plain_stream(stream)
            && !self.hands_over()
            && !active::has_any()
        {
            let request = self.pool().allocate(stream, bytes).timeout(self.timeout);
            return Ok(self.kept(request.blocking()?));
        }
        // SAFETY: as the caller promises.
        let stream = unsafe { self.stream(stream) }?;
        self.graphs.route(self, &stream)?;
        self.allocate_active(&stream, bytes)
    }

    /// Returns the registration of a stream that is never destroyed, while no capture is announced.
    fn plain_stream(&self, handle: CUstream) -> Option<&'static Stream> {
        if self.graphs.has_any() {
            return None;
        }
        let (pool, name) = (std::ptr::from_ref(self).addr(), handle as usize);
        match LAST.get() {
            Some((of, last, permanent)) if (of, last) == (pool, name) => Some(&permanent.stream),
            _ => {
                let mut permanent = self.permanent_at(handle);
                if permanent.is_none() && name == 0 {
                    // SAFETY: the default stream is never destroyed.
                    unsafe { self.keep_stream(handle) }.ok()?;
                    permanent = self.permanent_at(handle);
                }
                let permanent = permanent?;
                LAST.set(Some((pool, name, permanent)));
                Some(&permanent.stream)
            }
        }
    }

    fn permanent_at(&self, handle: CUstream) -> Option<&'static Permanent> {
        let permanent = self.permanent.read();
        let permanent = permanent.unwrap_or_else(PoisonError::into_inner);
        let permanent = permanent.get(&(handle as usize)).copied()?;
        permanent.threads.record();
        Some(permanent)
    }

    /// Allocates from the memory of a pool of graphs, on a stream that is part of a capture or not. If there is no such
    /// pool, allocates from the device's pool.
    ///
    /// # Errors
    /// Returns an error if there was no memory in time, or the device failed.
    ///
    /// # Safety
    /// The conditions of [`weirpool_alloc`](crate::weirpool_alloc) apply.
    pub(crate) unsafe fn allocate_in(
        &self,
        id: MempoolId,
        bytes: u64,
        stream: CUstream,
    ) -> Result<u64, AllocError> {
        // SAFETY: as the caller promises.
        let stream = unsafe { self.stream(stream) };
        let address = stream.map_err(AllocError::from).and_then(|stream| {
            let is_captured = self.graphs.route_into(self, &stream, id)?;
            match self.graphs.memory(id).filter(|_| !is_captured) {
                Some(memory) => self.allocate_outside(&memory, &stream, bytes),
                None => self.allocate_active(&stream, bytes),
            }
        });
        if address.is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        address
    }

    /// Allocates from the reservation, for the tag or in the region that is [active](crate::active) on this thread or stream,
    /// or else from the pool. Allocations in a capture come from the memory of its graph.
    fn allocate_active(&self, stream: &ExternalStream, bytes: u64) -> Result<u64, AllocError> {
        if self.hands_over() {
            let block = self.handed_over(&self.registered(stream)?);
            if let Some(block) = block {
                return Ok(self.kept(block?));
            }
        }
        match active::source(self.pool(), stream.raw().0) {
            None => self.raw.allocate(stream, bytes, self.timeout),
            Some(Source::Reservation(held)) => {
                match held.allocate(&self.registered(stream)?, bytes) {
                    Err(AllocError::StreamCaptured) => {
                        self.raw.allocate(stream, bytes, self.timeout)
                    }
                    block => Ok(self.kept(block?)),
                }
            }
            Some(Source::Tag(tag)) => {
                let registered = self.registered(stream)?;
                let request = self.pool().allocate(&registered, bytes).tag(tag);
                let block = request.timeout(self.timeout).blocking()?;
                Ok(self.kept(block))
            }
            Some(Source::Region(_)) if self.capture_of(stream)?.is_some() => {
                self.raw.allocate(stream, bytes, self.timeout)
            }
            Some(Source::Region(inside)) => {
                let block = inside.allocate(&self.registered(stream)?, bytes, self.timeout);
                Ok(self.kept(block?))
            }
        }
    }

    /// Returns the reason why an allocation failed; see [`active::explained`].
    pub(crate) fn explained(&self, error: &AllocError) -> String {
        active::explained(self.pool(), error)
    }

    /// Allocates from memory of graphs outside captures. If it is too small, waits for memory of the pool to add to it.
    fn allocate_outside(
        &self,
        memory: &GraphMemory,
        stream: &ExternalStream,
        bytes: u64,
    ) -> Result<u64, AllocError> {
        let stream = self.registered(stream)?;
        let block = match memory.allocate(&stream, bytes) {
            Err(AllocError::NotReserved { requested, .. }) => {
                let more = self.pool().reserve(requested).timeout(self.timeout);
                memory.give(more.blocking()?)?;
                memory.allocate(&stream, bytes)?
            }
            block => block?,
        };
        Ok(self.kept(block))
    }

    fn kept(&self, block: Block) -> u64 {
        let kept = self.raw.keep(block);
        kept.expect("a block of this pool")
    }

    /// Frees all blocks of a memory of graphs, and allocates the ranges of a checkpoint in their place.
    ///
    /// # Errors
    /// Returns an error if the memory of the checkpoint is gone, if another owner has one of its ranges, or if the
    /// device failed. The blocks are freed even then.
    ///
    /// # Safety
    /// The conditions of [`weirpool_free`](crate::weirpool_free) apply.
    pub(crate) unsafe fn restore(
        &self,
        memory: &GraphMemory,
        checkpoint: &GraphCheckpoint,
        stream: CUstream,
    ) -> Result<(), String> {
        // SAFETY: as the caller promises.
        let stream = unsafe { self.stream(stream) }.map_err(|error| error.to_string())?;
        for (address, _) in memory.checkpoint().ranges() {
            // Other owners keep their memory.
            let _ = self.raw.free(address.to_bits(), &stream);
        }
        let stream = self
            .registered(&stream)
            .map_err(|error| error.to_string())?;
        let blocks = memory.restore(checkpoint, &stream);
        for block in blocks.map_err(|error| error.to_string())? {
            self.kept(block);
        }
        Ok(())
    }

    /// Frees memory. Has no effect if the device is gone, such as at the end of the process, or has failed.
    ///
    /// # Errors
    /// Returns an error if the address is not allocated here, or if the stream cannot be identified; nothing is freed
    /// then.
    ///
    /// # Safety
    /// The conditions of [`weirpool_free`](crate::weirpool_free) apply.
    pub(crate) unsafe fn free(&self, address: u64, stream: CUstream) -> Result<(), String> {
        if let Some(stream) = self.plain_stream(stream)
            && self.entries.is_empty()
        {
            let block = self.raw.take(address);
            let block = block.map_err(|reason| reason.to_string())?;
            if block.stream().id() == stream.id() {
                drop(block);
                return Ok(());
            }
            self.kept(block);
        }
        // SAFETY: as the caller promises.
        let stream = unsafe { self.stream(stream) };
        let freed = stream
            .map_err(|error| RawError::from(StreamError::from(error)))
            .and_then(|stream| {
                // Routed so that the end of the capture covers the free. If that fails, the memory is freed all the
                // same.
                let _ = self.graphs.route(self, &stream);
                match self.keep_evictable(address, &stream) {
                    Ok(false) => self.free_after(address, &stream),
                    kept => kept.map(drop),
                }
            });
        match freed {
            Err(RawError::Stream(StreamError::Device(error))) if error.is_sticky() => Ok(()),
            freed => freed.map_err(|reason| reason.to_string()),
        }
    }

    /// Frees memory in the order of a stream. The work of a captured stream cannot be waited for, as a block of a region
    /// needs: such a block ends behind the streams that are known to use it.
    fn free_after(&self, address: u64, stream: &ExternalStream) -> Result<(), RawError> {
        let freed = self.raw.free(address, stream);
        let is_of_region = || self.pool().inspect().block_at(address).is_none();
        match freed {
            Err(RawError::Stream(_)) if is_of_region() => self.raw.take(address).map(drop),
            freed => freed,
        }
    }

    /// Records a use on another stream.
    ///
    /// # Errors
    /// Returns an error if the address is not allocated here, or if the stream cannot be identified. In the second case
    /// the memory is leaked, so that it is not reused too early. Returns an error if the memory is suspended.
    ///
    /// # Safety
    /// The conditions of [`weirpool_record_stream`](crate::weirpool_record_stream) apply.
    unsafe fn record_stream(&self, address: u64, stream: CUstream) -> Result<(), RawError> {
        let stream = match self.permanent_at(stream) {
            // In a capture, too: the driver can be asked for the order of such a stream when the memory is freed.
            Some(kept) => Ok(kept.external),
            // SAFETY: as the caller promises.
            None => unsafe { self.stream(stream) },
        };
        let noted = stream
            .map_err(|error| RawError::from(StreamError::from(error)))
            .and_then(|stream| self.raw.record_stream(address, &stream));
        match &noted {
            Ok(()) | Err(RawError::Stream(StreamError::Absent { .. })) => {}
            Err(RawError::Stream(_)) => self.raw.take(address).map(std::mem::forget)?,
            Err(_) => {}
        }
        noted
    }

    /// Notes that a stream is never destroyed.
    ///
    /// # Errors
    /// Returns an error if the driver does not know the stream.
    ///
    /// # Safety
    /// The conditions of [`weirpool_keep_stream`](crate::weirpool_keep_stream) apply.
    pub(crate) unsafe fn keep_stream(&self, handle: CUstream) -> Result<(), StreamError> {
        // SAFETY: as the caller promises.
        let external = unsafe { self.device.permanent_stream(handle) }?;
        let stream = self.registered(&external)?;
        let permanent = self.permanent.write();
        let mut permanent = permanent.unwrap_or_else(PoisonError::into_inner);
        let entry = permanent.entry(handle as usize);
        entry.or_insert_with(|| {
            let threads = Threads::default();
            Box::leak(Box::new(Permanent {
                external,
                stream,
                threads,
            }))
        });
        Ok(())
    }

    /// Returns a stream that is never destroyed, unless it is part of a capture. The driver is asked only while a
    /// capture is announced.
    fn permanent(&self, handle: CUstream) -> Result<Option<ExternalStream>, DeviceError> {
        match self.permanent_at(handle).map(|kept| kept.external) {
            Some(stream) if self.graphs.has_any() => {
                let capture = self.capture_of(&stream)?;
                Ok(Some(stream).filter(|_| capture.is_none()))
            }
            stream => Ok(stream),
        }
    }

    /// Identifies a stream by its handle.
    ///
    /// # Safety
    /// The stream must not be destroyed before the last call with the returned stream returns.
    pub(crate) unsafe fn stream(&self, handle: CUstream) -> Result<ExternalStream, DeviceError> {
        match self.permanent(handle)? {
            Some(stream) => Ok(stream),
            // SAFETY: as the caller promises.
            None => unsafe { self.device.external_stream(handle) },
        }
    }
}
