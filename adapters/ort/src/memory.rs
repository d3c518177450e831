//! A pool as the memory of onnxruntime's sessions on a GPU.

use crate::blocks::Blocks;
use crate::callbacks::{Callbacks, Report, Runtime};
use crate::exception::thrower;
use crate::failure::Failure;
use cudarc::driver::CudaStream;
use ort::AsPointer;
use ort::environment::Environment;
use ort::ep;
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::session::Session;
use ort::session::builder::SessionBuilder;
use std::fmt;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::cuda::CudaDevice;
use weirpool::device::{Device, DeviceError};
use weirpool::{Pool, StreamError};

/// A pool as the memory of onnxruntime's sessions on one GPU: weights, activations and outputs.
///
/// onnxruntime keeps the address of an allocator as long as any session, and any output of one. So this lives until the
/// process ends, with the pool and the streams of its sessions. Use a few streams again and again, not one for each request.
pub struct Memory(Callbacks);

/// Settings of a [`Memory`].
#[must_use = "nothing is registered before `register` is called"]
pub struct MemoryBuilder<'a> {
    pool: &'a Pool,
    wait: Duration,
    report: Report,
}

/// Why onnxruntime does not take the memory of a pool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The pool is of no GPU of CUDA's, or works in another context than the primary one, which onnxruntime uses.
    #[error(
        "the pool is not of the primary context of GPU {ordinal}; build it on `CudaDevice::new({ordinal})`"
    )]
    ForeignContext {
        /// The number of the pool's device.
        ordinal: u32,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The stream cannot be registered with the pool.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The stream is the default stream, in whose place onnxruntime makes one of its own.
    #[error(
        "onnxruntime takes no default stream; make one by `CudaContext::new_stream` for the session"
    )]
    DefaultStream,
    /// onnxruntime's failures cannot be raised: the library of C++ that it uses is not found.
    #[error("onnxruntime cannot be told of a failed allocation: {0}; use its library for Linux")]
    NoExceptions(#[source] libloading::Error),
    /// onnxruntime refuses the allocator, or the settings of a session.
    #[error(transparent)]
    Ort(#[from] ort::Error),
}

impl Memory {
    /// Begins to make a pool the memory of onnxruntime's sessions on the pool's GPU.
    pub fn of(pool: &Pool) -> MemoryBuilder<'_> {
        MemoryBuilder {
            pool,
            wait: Duration::from_secs(5),
            report: Box::new(print),
        }
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        self.0.blocks.pool()
    }

    /// Begins a session that works on `stream` with memory of the pool. `environment` is the one that the memory was
    /// [registered](MemoryBuilder::register) with. `provider` has further settings of the CUDA provider: its device and
    /// stream are set here, and it records no graphs, since a graph goes on using memory that is freed.
    ///
    /// All work of the session, and all its memory, is in the order of the stream. Memory that one session has freed serves
    /// another once its stream has passed that point, or behind a wait on the device.
    ///
    /// The builder may be changed, with two exceptions: no setting may replace the provider's stream, and with
    /// [parallel execution](SessionBuilder::with_parallel_execution) allocations come from other threads than the caller's,
    /// so that none draws from a [reservation](weirpool::Reservation::enter).
    ///
    /// # Errors
    /// Returns an error if the stream is of another device than the pool, or a default stream, and if onnxruntime has no CUDA
    /// provider.
    pub fn session(
        &self,
        environment: &Environment,
        stream: &Arc<CudaStream>,
        provider: ep::CUDA,
    ) -> Result<SessionBuilder, MemoryError> {
        let handle = stream.cu_stream();
        if handle.is_null() {
            return Err(MemoryError::DefaultStream);
        }
        self.0.blocks.add_stream(handle.addr(), stream)?;
        let provider = provider.with_device_id(self.pool().device().ordinal() as i32);
        let provider = provider.with_cuda_graph(false);
        // SAFETY: the registered stream is kept until the process ends.
        let provider = unsafe { provider.with_compute_stream(handle.cast()) };
        let builder = Session::builder(environment)?;
        let builder = builder.with_env_allocators().map_err(ort::Error::from)?;
        let providers = [provider.build().error_on_failure()];
        let builder = builder.with_execution_providers(providers);
        Ok(builder.map_err(ort::Error::from)?)
    }
}

impl MemoryBuilder<'_> {
    /// Sets how long an allocation of onnxruntime's waits for memory before it fails. The default is 5 s. The thread that
    /// runs the session is blocked meanwhile.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = limit;
        self
    }

    /// Sets a function that is told of each failure. The default prints it on stderr. It is called inside of onnxruntime, and
    /// must not call that.
    pub fn report(mut self, report: impl Fn(&Failure) + Send + Sync + 'static) -> Self {
        self.report = Box::new(report);
        self
    }

    /// Registers the memory with an environment, for the sessions that [`Memory::session`] begins. A session of the
    /// environment that takes its allocators and was begun otherwise gets no memory of this GPU.
    ///
    /// An environment has one allocator for each GPU: a second registration replaces the first for sessions that are begun
    /// after it.
    ///
    /// # Errors
    /// Returns an error if the pool is not of the primary context of a GPU, if onnxruntime does not take the allocator, and
    /// if it is linked without `libstdc++.so.6`, by which it learns that an allocation failed.
    ///
    /// # Panics
    /// Panics, as all functions of `ort` do, if onnxruntime is older than 1.23.
    pub fn register(self, environment: &Environment) -> Result<&'static Memory, MemoryError> {
        let ordinal = self.pool.device().ordinal();
        if CudaDevice::new(ordinal as usize)?.id() != self.pool.device().id() {
            return Err(MemoryError::ForeignContext { ordinal });
        }
        let (device, allocator) = (AllocationDevice::CUDA, AllocatorType::Device);
        let info = MemoryInfo::new(device, ordinal as i32, allocator, MemoryType::Default)?;
        self.register_as(info, environment)
    }

    /// Registers the memory as that of a device of onnxruntime's.
    pub(crate) fn register_as(
        self,
        info: MemoryInfo<'static>,
        environment: &Environment,
    ) -> Result<&'static Memory, MemoryError> {
        let api = ort::api();
        let runtime = Runtime {
            handle_of: api.SyncStream_GetHandle,
            throw: thrower().map_err(MemoryError::NoExceptions)?,
        };
        let blocks = Blocks::new(self.pool, self.wait)?;
        let info = ManuallyDrop::new(info).ptr().cast_mut();
        let callbacks = Callbacks::new(info, runtime, blocks, self.report);
        // Sessions keep its address.
        let memory: &'static Memory = Box::leak(Box::new(Memory(callbacks)));
        let environment = environment.ptr().cast_mut();
        // SAFETY: the environment lives during the call, and the allocator for ever.
        let status = unsafe { (api.RegisterAllocator)(environment, memory.0.as_allocator()) };
        // SAFETY: it is the status of that call.
        unsafe { ort::Error::result_from_status(status) }?;
        Ok(memory)
    }
}

fn print(failure: &Failure) {
    let _ = writeln!(std::io::stderr(), "weirpool-ort: {failure}");
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Memory").field(self.pool()).finish()
    }
}

impl fmt::Debug for MemoryBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBuilder")
            .field("pool", self.pool)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
