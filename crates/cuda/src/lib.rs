//! NVIDIA GPUs, through cudarc and the driver.
//!
//! ```no_run
//! use weirpool_cuda::CudaDevice; // `weirpool::device::cuda::CudaDevice`, where it is re-exported
//!
//! let device = CudaDevice::new(0)?; // an error, not a panic, where there is no driver
//! println!("{}", device.description());
//! let work = device.create_stream()?; // a stream of cudarc; a pool also accepts your own
//! # Ok::<(), weirpool_device::DeviceError>(())
//! ```
//!
//! If the device supports it, memory is *virtual*: a large range of addresses is reserved, and physical chunks are
//! mapped into it. Free chunks are mapped elsewhere before more are taken, and unmapping does not wait. Otherwise it
//! is plain device memory, whose `cuMemFree` waits for the whole device; the pool calls it on a separate thread. The
//! same holds for [page-locked](weirpool_device::MemoryKind::Pinned) memory of the host, which is available if host and
//! device share one address space, and for [managed](weirpool_device::MemoryKind::Managed) memory, which is available
//! if the host may access it while the device runs.
//!
//! The driver is loaded at run time, and the build needs no part of CUDA. Each of the pool's own calls makes the
//! device's context current, and restores the previous one afterwards. It uses the relaxed capture mode, so that it
//! invalidates no capture of the program.
//!
//! | file | contents |
//! |---|---|
//! | `driver` | loading and calling the driver; its errors |
//! | `facts` | the properties and capabilities of the device |
//! | `memory` | address ranges, physical memory |
//! | `mapping` | the mapping of physical memory at an address, and access to it |
//! | `plain` | plain memory: of the device, page-locked, managed |
//! | `pools` | the driver's own memory pools |
//! | `peers` | access of other devices, and copies between devices |
//! | `listing` | all devices of the driver, one line each |
//! | `host`, `host_memory` | the host's own access to memory that it sees; the amount of host memory |
//! | `host_work` | functions of the host in the order of a stream, and holds |
//! | `stream` | cudarc's streams |
//! | `external` | streams of other libraries |
//! | `staging`, `stage` | copies between host and device, and the host's memory for them |
//! | `watcher` | the thread that watches events and alarms |
//! | `capture` | streams that are captured into graphs |
//! | `contract` | the implementation of the device contract |

mod capture;
mod contract;
mod driver;
mod external;
mod facts;
mod host;
mod host_memory;
mod host_work;
mod listing;
mod mapping;
mod memory;
mod peers;
mod plain;
mod pools;
#[cfg(target_os = "linux")]
mod sharing;
mod stage;
mod staging;
mod stream;
mod watcher;

/// What `weirpool` needs to register cudarc's streams and to pass blocks to cudarc. Not part of the public interface.
#[doc(hidden)]
pub mod native {
    pub use crate::stream::{default_of, keep_alive, names_of, of_native, properties};
    pub use cudarc::driver::sys::CUdeviceptr;
    pub use cudarc::driver::{
        CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, LaunchArgs, PushKernelArg, SyncOnDrop,
    };
}

use cudarc::driver::{CudaContext, CudaStream};
use driver::{Visit, failure, let_go};
use external::CapturedStreams;
pub use external::ExternalStream;
use facts::Facts;
use host_work::Words;
pub use listing::Listed;
use plain::PlainMemory;
use pools::PoolState;
use staging::Stages;
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use watcher::Watcher;
use weirpool_device::plain::{Arc, Mutex};
use weirpool_device::{DeviceError, Pooling, RawStream};

/// An NVIDIA GPU.
///
/// This is a handle, and cheap to clone: all clones are the same device. Two that were opened over the same context
/// have the same [`DeviceId`](weirpool_device::DeviceId), so that streams of one can be registered with pools of the
/// other.
#[derive(Clone)]
pub struct CudaDevice {
    inner: Arc<Whole>,
}

/// The device's parts, until its last handle is dropped.
struct Whole(Option<Inner>);

impl Deref for Whole {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        self.0.as_ref().expect("taken only when the device ends")
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        let_go(self.context.cu_ctx(), self.0.take());
    }
}

struct Inner {
    context: Arc<CudaContext>,
    facts: Facts,
    uses_virtual_memory: bool,
    #[cfg(target_os = "linux")]
    has_exportable_memory: bool,
    watcher: Watcher,
    /// Streams that the contract created, by their handles.
    streams: Mutex<HashMap<u64, Arc<CudaStream>>>,
    stages: Stages,
    words: Words,
    plain: PlainMemory,
    pools: PoolState,
    captured: CapturedStreams,
}

/// The settings with which a [`CudaDevice`] is opened.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct CudaBuilder {
    ordinal: usize,
    context: Option<Arc<CudaContext>>,
    virtual_memory: bool,
    exportable_memory: bool,
}

impl CudaBuilder {
    /// Sets the number of the device in the driver's list. Default: 0, the first.
    pub fn ordinal(mut self, ordinal: usize) -> Self {
        self.ordinal = ordinal;
        self
    }

    /// Uses an existing context rather than the device's primary one.
    pub fn context(mut self, context: Arc<CudaContext>) -> Self {
        self.context = Some(context);
        self
    }

    /// Sets whether to use virtual memory if it is supported. Default: yes.
    pub fn virtual_memory(mut self, yes: bool) -> Self {
        self.virtual_memory = yes;
        self
    }

    /// Sets whether all virtual memory is created in a form that can be exported to other processes, if the device
    /// supports that (on Linux). Other code can then export the memory under an address: with `cuMemRetainAllocationHandle` and
    /// `cuMemExportToShareableHandle`, as a file descriptor. A descriptor exists only once one is exported. Default: no.
    pub fn exportable_memory(mut self, yes: bool) -> Self {
        self.exportable_memory = yes;
        self
    }

    /// Opens the device.
    ///
    /// # Errors
    /// Returns an error if there is no driver, no such device, or the device cannot be used.
    pub fn build(self) -> Result<CudaDevice, DeviceError> {
        driver::load()?;
        let context = match self.context {
            Some(context) => context,
            None => {
                let opened = CudaContext::new(self.ordinal);
                opened.map_err(|error| failure("open", error))?
            }
        };
        let facts = Facts::of(&context)?;
        Ok(CudaDevice {
            inner: Arc::new(Whole(Some(Inner {
                uses_virtual_memory: self.virtual_memory && facts.virtual_memory.is_some(),
                #[cfg(target_os = "linux")]
                has_exportable_memory: self.exportable_memory && facts.shares_chunks,
                facts,
                watcher: Watcher::new(context.clone()),
                streams: Mutex::default(),
                stages: Stages::default(),
                words: Words::default(),
                plain: PlainMemory::default(),
                pools: PoolState::default(),
                captured: CapturedStreams::default(),
                context,
            }))),
        })
    }
}

impl CudaDevice {
    /// Opens a device by its number, with its primary context.
    ///
    /// # Errors
    /// Returns an error if there is no driver, no such device, or the device cannot be used.
    pub fn new(ordinal: usize) -> Result<Self, DeviceError> {
        Self::builder().ordinal(ordinal).build()
    }

    /// Returns a builder with the default settings.
    pub fn builder() -> CudaBuilder {
        CudaBuilder {
            ordinal: 0,
            context: None,
            virtual_memory: true,
            exportable_memory: false,
        }
    }

    /// Returns the context in which the device works.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.inner.context
    }

    /// Creates a stream, which lives as long as its handles. cudarc synchronizes the context when its first stream is
    /// created, so this call then waits for all of its work.
    ///
    /// # Errors
    /// Returns an error if the driver cannot make one.
    pub fn create_stream(&self) -> Result<Arc<CudaStream>, DeviceError> {
        let _visit = self.visit("create_stream")?;
        let stream = self.inner.context.new_stream();
        stream.map_err(|error| failure("create_stream", error))
    }

    /// Returns the stream of that name, if a pool created it.
    pub fn stream(&self, raw: RawStream) -> Option<Arc<CudaStream>> {
        self.inner.streams.lock().get(&raw.0).cloned()
    }

    /// Describes the device in one line of text: its name, memory and capabilities, which of them are in use, and
    /// whether its memory is pooled.
    pub fn description(&self) -> String {
        let kind = if self.inner.uses_virtual_memory {
            "virtual"
        } else {
            "plain"
        };
        let pooling = Pooling::of(stream::device_id(&self.inner.context));
        format!("{}; in use: {kind} memory, {pooling}", self.inner.facts)
    }

    fn uses_virtual_memory(&self) -> bool {
        self.inner.uses_virtual_memory
    }

    fn visit(&self, call: &'static str) -> Result<Visit, DeviceError> {
        Visit::new(call, &self.inner.context)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stages.free_all(&self.context);
        if let Ok(_visit) = Visit::new("close", &self.context) {
            self.pools.end();
        }
        self.words.free_all(&self.context);
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CudaDevice")
            .field(&self.description())
            .finish()
    }
}
