//! Blocks as cudarc's slices: for its copies, for cuBLAS and its other libraries, and for any function that takes one.
//!
//! Such a call names the stream that it uses the memory on. The use is noted there, ordered as
//! [`Stream::record_use`](crate::Stream::record_use) orders it, and counted among the block's fences. A call that only borrows a stream cannot keep it
//! alive. So for a stream that the pool does not know, the host waits for its work before the call returns.

use crate::block::{Access, Block};
use crate::buffer::{Buffer, SliceMut};
use crate::device::cuda::native::{
    CUdeviceptr, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop, default_of,
    names_of, of_native,
};
use crate::device::{DeviceError, RawStream};
use crate::engine::Shared;
use crate::error::StreamError;
use crate::handles::Registration;
use crate::stream::Event;
use crate::sync::{Arc, plain};

/// A stream of cudarc's, as a pool knows it.
enum Guest {
    Registered(Arc<Registration>),
    Stranger(RawStream),
}

impl Guest {
    /// # Errors
    /// Returns an error if the pool's memory cannot be used on the stream.
    fn of(stream: &CudaStream, home: &Arc<Registration>) -> Result<Self, StreamError> {
        let default = default_of(stream);
        let (device, raw) = names_of(default.as_deref().unwrap_or(stream));
        let engine = &home.service.engine;
        if !engine.streams.neighbours.is_accessible_from(device) {
            return Err(StreamError::ForeignDevice);
        }
        engine.shared.expect_seen_by(raw)?;
        if home.is_of(device, raw) {
            return Ok(Self::Registered(home.clone()));
        }
        if let Some(registration) = home.presence.roll.find(device, raw) {
            let allowed = engine.streams.neighbours.allow_uses(&registration.lane);
            allowed.map_err(|_| StreamError::ForeignDevice)?;
            return Ok(Self::Registered(registration));
        }
        match default {
            Some(default) => {
                let registration = Registration::enter(&home.presence, &default)?;
                Ok(Self::Registered(registration))
            }
            None if device == engine.shared.device.id() => Ok(Self::Stranger(raw)),
            // The host cannot be made to wait for work of another device's stream: the pool does not keep that device.
            None => Err(StreamError::ForeignPool(Box::default())),
        }
    }

    /// Orders a use of the block on the stream, and takes note of it where that can be done.
    fn use_in_order(&self, block: &Block, access: Access) -> Result<(), StreamError> {
        match self {
            Self::Registered(registration) => {
                // The call that is given the pointer cannot hold the memory: its caller does.
                drop(block.uses().hold_for(registration)?);
                for point in block.uses().points_before(access, Some(registration))? {
                    point.come_before(registration)?;
                }
                Ok(block.uses().conclude(registration, access)?)
            }
            Self::Stranger(raw) => {
                drop(block.uses().hold_for(block.registration())?);
                let points = block.uses().points_before(access, None)?;
                for point in &points {
                    point.is_awaited_by(*raw, &block.registration().service.engine.shared)?;
                }
                Ok(())
            }
        }
    }
}

impl Event {
    /// Makes a stream of a pool's own device come after the point.
    fn is_awaited_by(&self, stranger: RawStream, of: &Shared) -> Result<(), DeviceError> {
        let marker = self.marker()?;
        if !marker.has_event() {
            return Ok(());
        }
        // SAFETY: the caller of cudarc's trait borrows the stream, which is of this context.
        #[allow(unsafe_code, reason = "device call on the caller's stream")]
        let waits = unsafe { marker.event().delay(&*of.device, stranger) };
        of.noted(waits)
    }
}

/// Returns the pointer of a use on `stream`, and the action to take once it is submitted.
///
/// # Panics
/// Panics if the block cannot be used on the stream; cudarc's call has not been made then.
fn pointer<'a>(
    block: &Block,
    start: u64,
    access: Access,
    stream: &'a CudaStream,
) -> (CUdeviceptr, SyncOnDrop<'a>) {
    let guest = Guest::of(stream, block.registration());
    let ordered = guest.and_then(|guest| {
        guest.use_in_order(block, access)?;
        Ok(guest)
    });
    let done = match ordered {
        // The fence is the stream's: see `Stream::record_use`.
        Ok(Guest::Registered(_)) => SyncOnDrop::Record(None),
        Ok(Guest::Stranger(_)) => SyncOnDrop::sync_stream(stream),
        // Nothing runs any more, and nothing is reused: cudarc's call fails by itself, and says so.
        Err(StreamError::Device(error)) if error.is_sticky() => SyncOnDrop::Record(None),
        Err(error) => panic!("a block cannot be used on a stream: {error}"),
    };
    ((block.address() + start).to_bits(), done)
}

/// Returns cudarc's stream of a block.
///
/// # Panics
/// Panics if the block is of another device, or of an external stream.
fn stream_of(block: &Block) -> &plain::Arc<CudaStream> {
    let native = block.registration().native.get();
    let stream = native.and_then(of_native);
    stream.expect("the block is of a stream that is none of cudarc's")
}

/// Gives cudarc the requested bytes of a block as a slice. The implementation for [`Buffer`] has an example.
impl DeviceSlice<u8> for Block {
    fn len(&self) -> usize {
        self.requested() as usize
    }

    fn stream(&self) -> &plain::Arc<CudaStream> {
        stream_of(self)
    }
}

/// Gives cudarc the bytes of a block to read. [`Stream::record_use`](crate::Stream::record_use) describes how the use is ordered.
impl DevicePtr<u8> for Block {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        pointer(self, 0, Access::Read, stream)
    }
}

/// Gives cudarc the bytes of a block to write. [`Stream::record_use`](crate::Stream::record_use) describes how the use is ordered.
impl DevicePtrMut<u8> for Block {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        pointer(self, 0, Access::Write, stream)
    }
}

/// Gives a buffer to cudarc's copies and libraries, which take it like cudarc's own slices:
///
/// ```no_run
/// # use cudarc::cublas::{CudaBlas, Gemm, GemmConfig, sys::cublasOperation_t::CUBLAS_OP_N};
/// # use std::sync::Arc;
/// # use cudarc::driver::CudaStream;
/// # use weirpool::{Buffer, Pool};
/// # async fn multiply(pool: Pool, work: Arc<CudaStream>, n: usize) -> Result<(), Box<dyn std::error::Error>> {
/// let stream = pool.register(&work)?;
/// let allocate = || pool.buffer::<f32>(&stream, n * n);
/// let (mut a, mut b, mut c) = (allocate().await?, allocate().await?, allocate().await?);
/// work.memcpy_htod(&vec![1.0; n * n], &mut a)?;
/// work.memcpy_htod(&vec![2.0; n * n], &mut b)?;
/// let blas = CudaBlas::new(work.clone())?;
/// let (m, n, k) = (n as i32, n as i32, n as i32);
/// # let config = GemmConfig {
/// #     transa: CUBLAS_OP_N, transb: CUBLAS_OP_N, m, n, k, alpha: 1.0, lda: m, ldb: k, beta: 0.0, ldc: m,
/// # };
/// // SAFETY: the matrices are as large as the configuration says.
/// unsafe { blas.gemm(config, &a, &b, &mut c) }?;
/// let product = c.read(&stream).await?;
/// # Ok(()) }
/// ```
///
/// The page on [GPUs](crate::guide::gpus) describes how such a use is ordered and counted.
impl<T> DeviceSlice<T> for Buffer<T> {
    fn len(&self) -> usize {
        self.len()
    }

    /// # Panics
    /// Panics if the buffer is of another device, or was allocated on an external stream.
    fn stream(&self) -> &plain::Arc<CudaStream> {
        stream_of(self.as_block())
    }
}

impl<T> DevicePtr<T> for Buffer<T> {
    /// Returns the address to read. The stream is ordered after every use that may have written the buffer, as
    /// [`Stream::record_use`](crate::Stream::record_use) orders it.
    ///
    /// # Panics
    /// Panics if the stream is of another context, or no event can be recorded behind the earlier uses: see
    /// [`Stream::record_use`](crate::Stream::record_use).
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        pointer(self.as_block(), 0, Access::Read, stream)
    }
}

impl<T> DevicePtrMut<T> for Buffer<T> {
    /// Returns the address to write. The stream is ordered after all earlier uses of the buffer, as
    /// [`Stream::record_use`](crate::Stream::record_use) orders it.
    ///
    /// # Panics
    /// Panics as [`device_ptr`](Self::device_ptr) does.
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        pointer(self.as_block(), 0, Access::Write, stream)
    }
}

/// Gives cudarc the part's elements as a slice.
impl<T> DeviceSlice<T> for SliceMut<'_, T> {
    fn len(&self) -> usize {
        self.len()
    }

    fn stream(&self) -> &plain::Arc<CudaStream> {
        stream_of(self.block())
    }
}

/// Gives cudarc the part's elements to read. [`Stream::record_use`](crate::Stream::record_use) describes how the use is ordered.
impl<T> DevicePtr<T> for SliceMut<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        pointer(self.block(), self.start(), Access::Read, stream)
    }
}

/// Gives cudarc the part's elements to write. [`Stream::record_use`](crate::Stream::record_use) describes how the use is ordered.
impl<T> DevicePtrMut<T> for SliceMut<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        pointer(self.block(), self.start(), Access::Part, stream)
    }
}
