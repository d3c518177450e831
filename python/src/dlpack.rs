//! Blocks as DLPack tensors for Python, and tensors of other libraries as blocks: `weirpool_dlpack.py` calls these
//! functions.
//!
//! Callers refer to blocks by numbers. Kernels of this library write to blocks on streams of the pool, so that a test
//! can check the values that other libraries read on their own streams.

use crate::device_pool::{self, DevicePool};
use crate::report::print;
use crate::{fork, guarded};
use cudarc::driver::sys::CUstream;
use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use futures::executor::block_on;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weirpool::{Block, Stream};
use weirpool_share::dlpack::dlpark::ffi::{
    DLDataType, DLDataTypeCode, DLManagedTensor, DLManagedTensorVersioned,
};
use weirpool_share::dlpack::dlpark::{Managed, ManagedTensorBase};
use weirpool_share::dlpack::{ExportBlock, Foreign, ImportTensor};
use weirpool_share::{Share, SharedBlock};

/// The number of streams on each device.
const STREAMS: usize = 4;
/// The timeout of an allocation.
const PATIENCE: Duration = Duration::from_secs(5);

const SOURCE: &str = r#"
__device__ void spin(unsigned long long cycles) {
    long long begin = clock64();
    while (clock64() - begin < (long long)cycles) {}
}
extern "C" __global__ void write(unsigned* words, unsigned count, unsigned stamp, unsigned long long cycles) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    spin(cycles);
    if (at < count) words[at] = stamp + at;
}
extern "C" __global__ void add(unsigned* words, unsigned count, unsigned stamp, unsigned long long cycles) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    spin(cycles);
    if (at < count) words[at] += stamp;
}
"#;

enum Memory {
    Own(Block),
    Shared(SharedBlock),
    Foreign(Foreign),
}

impl Memory {
    fn block(&self) -> &Block {
        match self {
            Self::Own(block) => block,
            Self::Shared(shared) => shared.block(),
            Self::Foreign(foreign) => foreign.block(),
        }
    }
}

struct Site {
    pool: &'static DevicePool,
    streams: Vec<Stream>,
    write: CudaFunction,
    add: CudaFunction,
}

#[derive(Default)]
struct All {
    sites: HashMap<c_int, Site>,
    memory: HashMap<u64, (c_int, Memory)>,
    last: u64,
}

fn all() -> MutexGuard<'static, All> {
    static ALL: LazyLock<Mutex<All>> = LazyLock::new(Mutex::default);
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl All {
    fn site(&mut self, device: c_int) -> Result<&Site, String> {
        if let std::collections::hash_map::Entry::Vacant(entry) = self.sites.entry(device) {
            entry.insert(Site::new(device)?);
        }
        Ok(&self.sites[&device])
    }

    fn stream(&mut self, device: c_int, stream: c_int) -> Result<Stream, String> {
        let streams = &self.site(device)?.streams;
        let found = usize::try_from(stream).ok().and_then(|at| streams.get(at));
        found
            .cloned()
            .ok_or_else(|| format!("there is no stream {stream}"))
    }

    fn insert(&mut self, device: c_int, memory: Memory) -> u64 {
        self.last += 1;
        self.memory.insert(self.last, (device, memory));
        self.last
    }

    fn take(&mut self, number: u64) -> Result<(c_int, Memory), String> {
        let found = self.memory.remove(&number);
        found.ok_or_else(|| format!("there is no block {number}"))
    }
}

impl Site {
    fn new(device: c_int) -> Result<Self, String> {
        let pool = device_pool::open(device)?;
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let compiled = cudarc::nvrtc::compile_ptx(SOURCE).map_err(|error| text(&error))?;
        let module = pool.device().context().load_module(compiled);
        let module = module.map_err(|error| text(&error))?;
        let function = |name| module.load_function(name).map_err(|error| text(&error));
        let streams = (0..STREAMS).map(|_| pool.pool().create_stream());
        Ok(Self {
            streams: streams
                .collect::<Result<_, _>>()
                .map_err(|error| text(&error))?,
            write: function("write")?,
            add: function("add")?,
            pool,
        })
    }
}

fn call<T>(call: impl FnOnce() -> Result<T, String>) -> Option<T> {
    if fork::is_child() {
        print(
            "this process was forked from the one that uses the device; start it with spawn instead of fork",
        );
        return None;
    }
    guarded(call).map_err(|reason| print(&reason)).ok()
}

/// Returns the handle of a stream of the pool, by its number from 0 to 3; null on failure.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_dlpack_stream(device: c_int, stream: c_int) -> *mut c_void {
    let found = call(|| Ok(all().stream(device, stream)?.raw().0 as *mut c_void));
    found.unwrap_or(std::ptr::null_mut())
}

/// Allocates a block on a stream of the pool, and waits until memory is available. Returns its number, or 0, with the
/// reason on stderr.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_dlpack_allocate(device: c_int, stream: c_int, bytes: u64) -> u64 {
    let allocated = call(|| {
        let (stream, pool) = {
            let mut all = all();
            let stream = all.stream(device, stream)?;
            (stream, all.site(device)?.pool.pool())
        };
        let block = block_on(pool.allocate(&stream, bytes).timeout(PATIENCE));
        let block = block.map_err(|error| error.to_string())?;
        Ok(all().insert(device, Memory::Own(block)))
    });
    allocated.unwrap_or(0)
}

/// Returns the address of a block, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_dlpack_address(number: u64) -> u64 {
    let all = all();
    let found = all.memory.get(&number);
    found.map_or(0, |(_, memory)| memory.block().address().to_bits())
}

/// Drops a block. Its memory is reused once its tensors are dropped as well, in the order of all streams that used it.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_dlpack_free(number: u64) -> c_int {
    let taken = call(|| all().take(number));
    taken.map_or(-1, |_| 0)
}

/// Writes `stamp`, `stamp + 1`, … into a block (`is_sum` 0), or adds `stamp` to each word, by a kernel on a stream of
/// the pool that first spins for this many cycles. The block must be imported and writable, or not exported.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_dlpack_kernel(
    number: u64,
    stream: c_int,
    is_sum: c_int,
    stamp: u32,
    cycles: u64,
) -> c_int {
    let launched = call(|| {
        let mut all = all();
        let (device, mut memory) = all.take(number)?;
        let launched = launch(
            &mut all,
            device,
            &mut memory,
            (stream, is_sum != 0, stamp, cycles),
        );
        all.memory.insert(number, (device, memory));
        launched
    });
    launched.map_or(-1, |()| 0)
}

fn launch(
    all: &mut All,
    device: c_int,
    memory: &mut Memory,
    (stream, is_sum, stamp, cycles): (c_int, bool, u32, u64),
) -> Result<(), String> {
    let stream = all.stream(device, stream)?;
    let site = all.site(device)?;
    let kernel = if is_sum { &site.add } else { &site.write };
    let bytes = match memory {
        Memory::Own(block) => block.slice_mut(0..block.requested()).ok(),
        Memory::Foreign(foreign) => foreign.bytes_mut(),
        Memory::Shared(_) => None,
    };
    let mut bytes = bytes.ok_or("the block is shared, or read-only, and cannot be written")?;
    let count = (bytes.len() / 4) as u32;
    let submitted = stream
        .task("kernel")
        .try_submit(&mut bytes, |work: &CudaStream, words| {
            let mut launch = work.launch_builder(kernel);
            launch.arg(&words).arg(&count).arg(&stamp).arg(&cycles);
            // SAFETY: the kernel accesses `count` words of the block.
            unsafe { launch.launch(LaunchConfig::for_num_elems(count)) }?;
            Ok::<_, anyhow::Error>(())
        });
    submitted.map(drop).map_err(|error| format!("{error:?}"))
}

/// Copies a block to the host, after all of its work.
///
/// # Safety
/// `bytes` bytes must be writable at `to`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_dlpack_read(number: u64, to: *mut u8, bytes: u64) -> c_int {
    let read = call(|| {
        let download = {
            let mut all = all();
            let found = all.memory.get(&number).map(|(device, _)| *device);
            let device = found.ok_or_else(|| format!("there is no block {number}"))?;
            let stream = all.stream(device, 0)?;
            let (_, memory) = &all.memory[&number];
            memory.block().download(&stream, 0..bytes)
        };
        let read = block_on(download.map_err(|error| error.to_string())?);
        let read = read.map_err(|error| error.to_string())?;
        // SAFETY: as the caller promises.
        unsafe { std::ptr::copy_nonoverlapping(read.as_ptr(), to, read.len()) };
        Ok(())
    });
    read.map_or(-1, |()| 0)
}

fn exported<M: ManagedTensorBase>(
    number: u64,
    consumer: CUstream,
    (code, bits): (u8, u8),
    shape: &[i64],
) -> Result<*mut c_void, String> {
    let mut all = all();
    let (device, memory) = all.take(number)?;
    let memory = match memory {
        Memory::Own(block) => Memory::Shared(block.share()),
        memory => memory,
    };
    let tensor = match &memory {
        Memory::Shared(shared) => {
            let pool = device_pool::open(device)?;
            // SAFETY: the caller keeps the stream alive until the tensor is dropped.
            let consumer = unsafe { pool.device().external_stream(consumer) };
            let consumer = consumer.map_err(|error| error.to_string());
            consumer.and_then(|consumer| {
                let consumer = pool
                    .registered(&consumer)
                    .map_err(|error| error.to_string())?;
                let dtype = DLDataType::scalar(DLDataTypeCode(code), bits);
                let bytes = shared.block().requested();
                let part = shared.view(0..bytes).map_err(|error| error.to_string())?;
                let tensor = part.to_dlpack::<M>(dtype, shape, &consumer);
                tensor.map_err(|error| error.to_string())
            })
        }
        _ => Err("a tensor of another library cannot be exported again".to_owned()),
    };
    all.memory.insert(number, (device, memory));
    Ok(tensor?.into_raw().cast())
}

/// Exports a block as a tensor in row-major order, for use on a stream: returns a `DLManagedTensorVersioned*`, or a
/// `DLManagedTensor*` if `is_versioned` is 0; null on failure.
///
/// # Safety
/// `shape` must have `dimensions` elements. The stream must not be destroyed before the tensor is dropped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_dlpack_export(
    number: u64,
    consumer: CUstream,
    code: u8,
    bits: u8,
    shape: *const i64,
    dimensions: usize,
    is_versioned: c_int,
) -> *mut c_void {
    let exported = call(|| {
        let shape = match dimensions {
            0 => &[],
            // SAFETY: as the caller promises.
            _ => unsafe { std::slice::from_raw_parts(shape, dimensions) },
        };
        let element = (code, bits);
        match is_versioned {
            0 => exported::<DLManagedTensor>(number, consumer, element, shape),
            _ => exported::<DLManagedTensorVersioned>(number, consumer, element, shape),
        }
    });
    exported.unwrap_or(std::ptr::null_mut())
}

/// Calls the deleter of a tensor, for a capsule that was never consumed.
///
/// # Safety
/// The tensor must be one that [`weirpool_dlpack_export`] returned, and must not be used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_dlpack_release(tensor: *mut c_void, is_versioned: c_int) {
    let released = call(|| {
        // SAFETY: as the caller promises.
        unsafe {
            match is_versioned {
                0 => drop(Managed::from_raw(tensor.cast::<DLManagedTensor>())),
                _ => drop(Managed::from_raw(tensor.cast::<DLManagedTensorVersioned>())),
            }
        }
        Ok(())
    });
    let _ = released;
}

/// Imports a tensor of another library as a block of a stream of the pool, on which the tensor's data must be ready.
/// Returns the block's number, or 0 on failure. A failure releases the tensor.
///
/// # Safety
/// `tensor` must be a tensor of the named kind that the caller owns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_dlpack_import(
    device: c_int,
    stream: c_int,
    tensor: *mut c_void,
    is_versioned: c_int,
) -> u64 {
    /// # Safety
    /// The tensor must be of this kind, and the caller must own it.
    unsafe fn import<M: ManagedTensorBase>(
        device: c_int,
        stream: c_int,
        tensor: *mut c_void,
    ) -> Result<u64, String> {
        // Owned from here on, so that a failure releases it.
        // SAFETY: as the caller promises.
        let tensor = unsafe { Managed::<M>::from_raw(tensor.cast()) };
        let tensor = tensor.map_err(|error| error.to_string())?;
        let mut all = all();
        let stream = all.stream(device, stream)?;
        // SAFETY: as the caller promises.
        let foreign = unsafe { stream.import_dlpack(tensor) }.map_err(|error| error.to_string())?;
        Ok(all.insert(device, Memory::Foreign(foreign)))
    }
    // SAFETY: as the caller promises.
    let imported = call(|| unsafe {
        match is_versioned {
            0 => import::<DLManagedTensor>(device, stream, tensor),
            _ => import::<DLManagedTensorVersioned>(device, stream, tensor),
        }
    });
    imported.unwrap_or(0)
}
