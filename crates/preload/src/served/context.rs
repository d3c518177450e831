//! The pool of a context.

use super::answer::Answer;
use super::counts::{Passed, count_failure};
use super::driver::{self, OUT_OF_MEMORY, Status};
use super::handle::Handle;
use super::message::{program, say};
use super::turns::Turns;
use crate::settings::Settings;
use cudarc::driver::CudaContext;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weirpool::device::DeviceErrorKind;
use weirpool::device::cuda::CudaDevice;
use weirpool::extend::Charge;
use weirpool::{
    AccessError, AllocError, Block, BuildError, ErrorClass, Pool, Sealing, Stream, StreamError,
    Tag, Terms,
};
use weirpool_broker::BrokerOptions;
use weirpool_observe::Record;

/// Bytes that each stream keeps for itself: a program of this kind has few streams, and allocates large blocks on them.
const LANE_BYTES: u64 = 256 << 20;

/// A context, and its pool.
pub(super) struct Context {
    pub(super) handle: usize,
    pub(super) device: c_int,
    pub(super) pool: Pool,
    /// The device, for access to the memory of others.
    cuda: CudaDevice,
    /// The stream of calls that are in no stream's order. No work is submitted to it, and it never waits on the device:
    /// memory that is allocated on it is free of earlier work.
    synchronous: Stream,
    pub(super) is_alive: Arc<AtomicBool>,
    pub(super) settings: Settings,
    terms: Terms,
    turns: Option<Turns>,
    /// Counts the allocations of the driver's that were admitted.
    pub(super) admitted: AtomicU64,
}

impl Context {
    /// Makes the pool of a context, which is the current one.
    ///
    /// # Errors
    /// Returns an error if the device or the broker refuses.
    pub(super) fn new(
        handle: usize,
        settings: Settings,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let device = driver::device_of_current();
        let device = device.map_err(|status| format!("the driver answers {status}"))?;
        // SAFETY: the context is that of the device. The handle is leaked, so that cudarc destroys nothing; `close` is called
        // before the program destroys the context, and the driver is not called after it.
        let context =
            unsafe { CudaContext::from_raw_context(device as usize, device, handle as *mut _) }?;
        std::mem::forget(context.clone());
        let cuda = CudaDevice::builder()
            .ordinal(device as usize)
            .context(context)
            .virtual_memory(!settings.is_plain)
            .exportable_memory(true)
            .build()?;
        let pool = build(&cuda, &settings)?;
        let work = cuda.create_stream()?;
        let raw = work.cu_stream() as usize;
        let own = Handle::kept(handle, raw, work).without_waits();
        let terms = Terms {
            tag: settings.tag.as_deref().map(Tag::new),
            timeout: Some(settings.wait),
            ..Terms::default()
        };
        Ok(Self {
            handle,
            device,
            synchronous: pool.register(&own)?.named("synchronous calls"),
            pool,
            cuda,
            is_alive: Arc::new(AtomicBool::new(true)),
            turns: settings.reserve.map(Turns::new),
            settings,
            terms,
            admitted: AtomicU64::new(0),
        })
    }

    /// Allocates in the order of a stream, and waits for memory as long as the settings say. Calls `before_wait` before
    /// it waits, to free memory whose free was deferred.
    #[inline]
    pub(super) fn allocate(&self, stream: &Stream, bytes: u64, before_wait: fn()) -> Answer<Block> {
        // Most requests are served from the stream's own lane.
        let request = || self.pool.allocate(stream, bytes).terms(self.terms);
        let plainly = || {
            request().try_now().or_else(|error| match error.class() {
                ErrorClass::Busy { .. } => {
                    before_wait();
                    request().blocking()
                }
                _ => Err(error),
            })
        };
        let allocated = match &self.turns {
            None => plainly(),
            Some(turns) => {
                before_wait();
                let drawn = turns.allocate((&self.pool, self.terms), stream, bytes);
                let block = drawn.and_then(|drawn| drawn.map_or_else(plainly, Ok));
                block.inspect_err(|_| turns.freed(bytes))
            }
        };
        match allocated {
            Ok(block) => Answer::Served(block),
            Err(error) => refused(&error),
        }
    }

    /// Frees a block in the order of its stream, and of those that it was told.
    #[inline]
    pub(super) fn free(&self, block: Block) {
        let bytes = block.requested();
        drop(block);
        if let Some(turns) = &self.turns {
            turns.freed(bytes);
        }
    }

    /// Allocates memory that any stream may use at once.
    pub(super) fn allocate_synchronously(&self, bytes: u64, before_wait: fn()) -> Answer<Block> {
        self.allocate(&self.synchronous, bytes, before_wait)
    }

    /// Returns whether a block was allocated in no stream's order.
    pub(super) fn is_synchronous(&self, block: &Block) -> bool {
        block.stream().id() == self.synchronous.id()
    }

    /// Admits memory that the driver allocates by `allocate`, as soon as there is room for it. Returns what `allocate` returns,
    /// and the charge, to be dropped when the memory is gone.
    pub(super) fn admit(
        &self,
        bytes: u64,
        before_wait: fn(),
        allocate: impl Fn() -> Result<u64, Status>,
    ) -> Answer<(u64, Charge)> {
        before_wait();
        let charge = match self.pool.charge_for(bytes).terms(self.terms).blocking() {
            Ok(charge) => charge,
            Err(error) => return refused(&error),
        };
        let allocated = allocate().or_else(|status| match self.pool.trim_to(0) {
            // The pool's free memory may be what the driver lacks.
            Ok(trimmed) if status == OUT_OF_MEMORY && trimmed.released > 0 => allocate(),
            _ => Err(status),
        });
        match allocated {
            Ok(memory) => {
                self.admitted.fetch_add(1, Ordering::Relaxed);
                Answer::Served((memory, charge))
            }
            Err(status) => Answer::Failed(status),
        }
    }

    /// Frees a block that no work uses any more.
    pub(super) fn free_complete(&self, block: Block) {
        // Its own stream may be the thread's own of another thread.
        let _ = block.freed_after(&self.synchronous);
        self.free(block);
    }

    /// Gives a peer access to the memory of the pool, or takes it back.
    pub(super) fn set_access(&self, peer: &Self, is_given: bool) {
        let peers = self.pool.peers();
        let done: Result<bool, AccessError> = match is_given {
            true => peers.enable(&peer.cuda),
            false => peers.disable(&peer.cuda),
        };
        if let Err(error) = done {
            say(&format!(
                "device {} has no access to the pool of device {}: {error}",
                peer.device, self.device
            ));
        }
    }

    /// Gives all memory back. All blocks are freed, and no work of the context is left.
    pub(super) fn end(&self) {
        let _ = self.synchronous.seal();
        // The pool records events where it frees.
        let _ = driver::synchronize(self.handle);
        let _ = self.pool.maintain().reap();
        let _ = self.pool.trim_to(0);
        self.pool.close();
        self.is_alive.store(false, Ordering::Release);
    }
}

/// Returns the answer for a request that the pool refuses.
#[cold]
fn refused<T>(error: &AllocError) -> Answer<T> {
    match error {
        AllocError::Device(error) | AllocError::Stream(StreamError::Device(error))
            if error.kind() != DeviceErrorKind::OutOfMemory =>
        {
            Answer::Passed(Passed::NoPool)
        }
        AllocError::Closed => Answer::Passed(Passed::NoPool),
        _ => {
            count_failure();
            Answer::Failed(OUT_OF_MEMORY)
        }
    }
}

fn build(cuda: &CudaDevice, settings: &Settings) -> Result<Pool, BuildError> {
    let builder = Pool::builder(cuda.clone())
        .sealing(Sealing::OnDemand)
        .tuning(|tuning| tuning.lane_bytes = LANE_BYTES);
    let builder = match settings.limit {
        Some(bytes) => builder.capacity(bytes),
        None => builder,
    };
    let builder = match &settings.record {
        Some(_) => builder.history(usize::MAX),
        None => builder,
    };
    let builder = match &settings.broker {
        Some(socket) => {
            let options = BrokerOptions::new(socket);
            let name = settings.tag.clone().or_else(program);
            let options = match name {
                Some(name) => options.name(name.chars().take(60).collect::<String>()),
                None => options,
            };
            weirpool_broker::lease_capacity(builder, options)
        }
        None => builder,
    };
    builder.build()
}
