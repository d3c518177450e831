//! The driver's own pool: `cuMemAllocAsync` and `cuMemFreeAsync`.

use super::super::backend::{Backend, Line};
use super::super::contender::{Awaited, Contender};
use super::Cuda;
use cudarc::driver::sys::{self, CUdeviceptr, CUmemPool_attribute, CUmemoryPool, CUresult};
use cudarc::driver::{CudaStream, DriverError};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weirpool::Pool;

const PATIENCE: Duration = Duration::from_secs(10);

/// A pool of the driver that keeps its memory: its release threshold is the largest value.
///
/// It is not the device's default pool, so that its figures are those of one workload. The driver makes the default
/// pool in the same way.
pub(crate) struct DriverPool<'a> {
    backend: &'a Cuda,
    pool: Handle,
    /// Allocates nothing. It serves to await the streams.
    waiting: Pool,
}

struct Handle(CUmemoryPool);

// SAFETY: the driver accepts its handles on any thread, and on several at a time.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl<'a> DriverPool<'a> {
    /// # Errors
    /// Returns an error if the driver fails to create one.
    pub(crate) fn new(backend: &'a Cuda, most: Option<u64>) -> Result<Self, DriverError> {
        backend.enter();
        let properties = properties(backend.device.context().cu_device(), most.unwrap_or(0));
        let mut pool = std::ptr::null_mut();
        // SAFETY: the properties are complete, and `pool` is valid for the write.
        unsafe { sys::cuMemPoolCreate(&mut pool, properties.as_ptr()) }.result()?;
        let waiting = Pool::builder(backend.device()).capacity(16 << 20);
        let made = Self {
            backend,
            pool: Handle(pool),
            waiting: waiting.build().expect("a small pool"),
        };
        let mut threshold = u64::MAX;
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let value = (&raw mut threshold).cast::<c_void>();
        // SAFETY: the pool lives, and the attribute is a `u64`.
        unsafe { sys::cuMemPoolSetAttribute(made.pool.0, attribute, value) }.result()?;
        Ok(made)
    }
}

/// Properties of device memory that no other process can open, limited to `most` bytes; 0 is no limit.
fn properties(device: c_int, most: u64) -> MaybeUninit<sys::CUmemPoolProps> {
    let mut properties = MaybeUninit::<sys::CUmemPoolProps>::zeroed();
    let fields = properties.as_mut_ptr();
    let pinned = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    const DEVICE: c_int = 1;
    // SAFETY: the fields are the structure's own; the others may be zero. A location is a kind and a number; their
    // names differ between versions.
    unsafe {
        (&raw mut (*fields).allocType).write(pinned);
        let location = (&raw mut (*fields).location).cast::<[c_int; 2]>();
        location.write([DEVICE, device]);
        (&raw mut (*fields).maxSize).write(most as usize);
    }
    properties
}

const _: () = assert!(size_of::<sys::CUmemLocation>() == 2 * size_of::<c_int>());

impl Contender for DriverPool<'_> {
    type Stream = Line<Arc<CudaStream>>;
    type Block = CUdeviceptr;

    fn stream(&self) -> Line<Arc<CudaStream>> {
        self.backend.line(&self.waiting)
    }

    fn enter(&self) {
        self.backend.enter();
    }

    #[inline]
    fn allocate(&self, line: &Line<Arc<CudaStream>>, bytes: u64) -> Option<CUdeviceptr> {
        let (pool, stream) = (self.pool.0, line.work.cu_stream());
        let mut address = 0;
        // SAFETY: the pool and the stream live, and `address` is valid for the write.
        let result =
            unsafe { sys::cuMemAllocFromPoolAsync(&mut address, bytes as usize, pool, stream) };
        match result {
            CUresult::CUDA_SUCCESS => Some(address),
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => None,
            error => panic!("cuMemAllocFromPoolAsync: {error:?}"),
        }
    }

    #[inline]
    fn free(&self, address: CUdeviceptr, line: &Line<Arc<CudaStream>>) {
        // SAFETY: the stream lives, the memory is the pool's, and the work that uses it was submitted before.
        let result = unsafe { sys::cuMemFreeAsync(address, line.work.cu_stream()) };
        assert_eq!(result, CUresult::CUDA_SUCCESS, "cuMemFreeAsync");
    }

    fn reserved(&self) -> Option<u64> {
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
        let mut high = 0_u64;
        let value = (&raw mut high).cast::<c_void>();
        // SAFETY: the pool lives, and the attribute is a `u64`.
        let result = unsafe { sys::cuMemPoolGetAttribute(self.pool.0, attribute, value) };
        (result == CUresult::CUDA_SUCCESS).then_some(high)
    }
}

impl Awaited for DriverPool<'_> {
    /// Polls until there is memory, because the driver's pool cannot be awaited.
    ///
    /// # Panics
    /// Panics if there is none for longer than any work takes.
    async fn granted(&self, line: &Line<Arc<CudaStream>>, bytes: u64) -> (CUdeviceptr, u64) {
        let (mut refused, start) = (0, Instant::now());
        loop {
            match self.allocate(line, bytes) {
                Some(address) => return (address, refused),
                None => refused += 1,
            }
            assert!(
                start.elapsed() < PATIENCE,
                "the driver's pool has no memory"
            );
            std::thread::yield_now();
        }
    }

    fn hand_on(
        &self,
        _block: &mut CUdeviceptr,
        from: &Line<Arc<CudaStream>>,
        to: &Line<Arc<CudaStream>>,
    ) {
        to.come_after(from);
    }
}

impl Drop for DriverPool<'_> {
    fn drop(&mut self) {
        // SAFETY: the pool lives until here; the driver waits for pending frees.
        let destroyed = unsafe { sys::cuMemPoolDestroy(self.pool.0) };
        assert_eq!(destroyed, CUresult::CUDA_SUCCESS, "cuMemPoolDestroy");
    }
}
