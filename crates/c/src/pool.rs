//! A pool as C programs know it: by addresses and handles.

use crate::options::Options;
use crate::status::{Failure, Status};
use futures_executor::block_on;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use weirpool::device::cuda::{CudaDevice, ExternalStream};
use weirpool::device::sim::{Checker, Clock, Operation, SimDevice, SimStream};
use weirpool::device::{DeviceAddress, RawStream};
use weirpool::{AllocError, Block, Pool, Stream};
use weirpool_compat::RawPool;

/// No limit of a wait.
const NO_LIMIT: u64 = u64::MAX;

/// `weirpool_pool`.
pub(crate) struct CPool {
    raw: RawPool,
    backend: Backend,
    /// The stream of memory that is in no stream's order. No work is submitted to it.
    own: OnceLock<Stream>,
}

enum Backend {
    Gpu {
        device: CudaDevice,
        is_permanent: bool,
    },
    Simulated(Simulated),
}

pub(crate) struct Simulated {
    device: SimDevice,
    /// Keeps them; the first is the default stream.
    streams: Mutex<Vec<SimStream>>,
}

/// A stream of a caller, for the time of its call.
enum Work {
    Gpu(ExternalStream),
    Simulated(SimStream),
}

/// Calls a generic function with the stream in a [`Work`].
macro_rules! with {
    ($work:expr, $name:ident => $call:expr) => {
        match $work {
            Work::Gpu($name) => $call,
            Work::Simulated($name) => $call,
        }
    };
}

impl CPool {
    /// # Safety
    /// As for [`Options::read`].
    pub(crate) unsafe fn new(options: &Options) -> Result<Self, Failure> {
        let (builder, backend) = match options.gpu()? {
            Some(number) => {
                let device = CudaDevice::new(number)?;
                let is_permanent = options.has_permanent_streams();
                (
                    Pool::builder(device.clone()),
                    Backend::Gpu {
                        device,
                        is_permanent,
                    },
                )
            }
            None => {
                let device = SimDevice::builder();
                // The caller's threads wait for it, and a violation is an error of the call.
                let device = device.clock(Clock::Wall).checker(Checker::Collect).build();
                let streams = Mutex::new(vec![device.create_stream()]);
                let builder = Pool::builder(device.clone());
                (builder, Backend::Simulated(Simulated { device, streams }))
            }
        };
        // SAFETY: guaranteed by the caller.
        let pool = unsafe { options.apply(builder) }?.build()?;
        Ok(Self {
            raw: RawPool::new(&pool),
            backend,
            own: OnceLock::new(),
        })
    }

    pub(crate) fn pool(&self) -> &Pool {
        self.raw.pool()
    }

    /// # Safety
    /// The stream exists until the result is dropped, and if the pool was told so, as long as the pool.
    unsafe fn work(&self, handle: u64) -> Result<Work, Failure> {
        match &self.backend {
            Backend::Gpu {
                device,
                is_permanent,
            } => {
                let handle = std::ptr::with_exposed_provenance_mut(handle as usize);
                // SAFETY: guaranteed by the caller.
                let stream = unsafe {
                    match is_permanent {
                        true => device.permanent_stream(handle),
                        false => device.external_stream(handle),
                    }
                };
                let stream = stream.map_err(|error| Failure::new(Status::Stream, error))?;
                Ok(Work::Gpu(stream))
            }
            Backend::Simulated(simulated) => Ok(Work::Simulated(simulated.stream(handle)?)),
        }
    }

    /// Allocates in the order of a stream, and returns the address.
    ///
    /// # Safety
    /// As for [`work`](Self::work), during the call.
    pub(crate) unsafe fn allocate(
        &self,
        handle: u64,
        bytes: u64,
        alignment: u64,
        wait: u64,
    ) -> Result<u64, Failure> {
        // SAFETY: guaranteed by the caller.
        let work = unsafe { self.work(handle) }?;
        let stream = with!(&work, work => self.raw.stream(work))?;
        let block = self.allocated(&stream, bytes, alignment, wait)?;
        Ok(self.keep(block))
    }

    /// Allocates memory that is complete for every stream, and returns the address.
    pub(crate) fn allocate_sync(
        &self,
        bytes: u64,
        alignment: u64,
        wait: u64,
    ) -> Result<u64, Failure> {
        let own = self.own()?;
        let block = self.allocated(own, bytes, alignment, wait)?;
        // The pool may have made the stream wait for work of others.
        block_on(own.synchronize())?;
        Ok(self.keep(block))
    }

    fn allocated(
        &self,
        stream: &Stream,
        bytes: u64,
        alignment: u64,
        wait: u64,
    ) -> Result<Block, AllocError> {
        let request = self
            .pool()
            .allocate(stream, bytes)
            .alignment(alignment.max(1));
        match wait {
            0 => request.try_now(),
            NO_LIMIT => request.blocking(),
            wait => request.timeout(Duration::from_nanos(wait)).blocking(),
        }
    }

    fn keep(&self, block: Block) -> u64 {
        self.raw.keep(block).expect("it is of this pool")
    }

    /// # Safety
    /// As for [`work`](Self::work), during the call.
    pub(crate) unsafe fn free(&self, address: u64, handle: u64) -> Result<(), Failure> {
        // SAFETY: guaranteed by the caller.
        let work = unsafe { self.work(handle) }?;
        Ok(with!(&work, work => self.raw.free(address, work))?)
    }

    pub(crate) fn free_sync(&self, address: u64) -> Result<(), Failure> {
        let own = self.own()?;
        let block = self.raw.take(address)?;
        // Instead of an external stream, which may be gone.
        if let Err(error) = block.freed_after(own) {
            self.keep(block);
            return Err(error.into());
        }
        Ok(())
    }

    /// # Safety
    /// As for [`work`](Self::work), until the memory is freed.
    pub(crate) unsafe fn record_use(&self, address: u64, handle: u64) -> Result<(), Failure> {
        // SAFETY: guaranteed by the caller.
        let work = unsafe { self.work(handle) }?;
        Ok(with!(&work, work => self.raw.record_stream(address, work))?)
    }

    fn own(&self) -> Result<&Stream, Failure> {
        if self.own.get().is_none() {
            let made = self.pool().create_stream()?;
            // Another thread may have been faster.
            let _ = self.own.set(made);
        }
        Ok(self.own.get().expect("set above"))
    }

    pub(crate) fn simulated(&self) -> Result<&Simulated, Failure> {
        match &self.backend {
            Backend::Simulated(simulated) => Ok(simulated),
            Backend::Gpu { .. } => Err(Failure::invalid("the pool is not of the simulated device")),
        }
    }
}

impl Simulated {
    fn stream(&self, handle: u64) -> Result<SimStream, Failure> {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let is_named = |stream: &&SimStream| stream.raw() == RawStream(handle);
        let stream = match handle {
            0 => streams.first(),
            _ => streams.iter().find(is_named),
        };
        let missing = || {
            Failure::new(
                Status::Stream,
                format_args!("there is no stream {handle:#x}"),
            )
        };
        stream.cloned().ok_or_else(missing)
    }

    pub(crate) fn create_stream(&self) -> u64 {
        let stream = self.device.create_stream();
        let handle = stream.raw().0;
        self.streams
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(stream);
        handle
    }

    pub(crate) fn launch(
        &self,
        handle: u64,
        nanoseconds: u64,
        address: u64,
        bytes: u64,
    ) -> Result<(), Failure> {
        let stream = self.stream(handle)?;
        let operation = Operation::new(Duration::from_nanos(nanoseconds));
        stream.submit(operation.writes(DeviceAddress::from_bits(address), bytes));
        match self.device.take_violations().first() {
            Some(violation) => Err(Failure::new(Status::Unordered, violation)),
            None => Ok(()),
        }
    }
}
