//! A pool as memory for tensors of a device.

use crate::pool_tensor::PoolTensor;
use crate::storage::{placeholder, storage_over};
use candle_core::op::BackpropOp;
use candle_core::{CudaStorage, DType, Device, Shape, Storage, Tensor};
use weirpool::{AllocError, Pool, Stream, StreamError, Terms};

/// A pool as memory for tensors of one of candle's devices.
#[derive(Debug)]
pub struct Memory {
    pool: Pool,
    stream: Stream,
    device: candle_core::CudaDevice,
    terms: Terms,
}

/// Why there is no tensor of a pool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// There is no memory.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// candle's stream cannot be registered with the pool.
    #[error(
        "{0}; make candle's device by `Device::new_cuda_with_stream`, whose stream is not that of a thread"
    )]
    Stream(#[from] StreamError),
    /// The shape has no elements, or more bytes than an address can count. candle's own tensors
    /// without elements need no memory of a pool.
    #[error(
        "a tensor of {shape:?} and {dtype:?} has no elements, or more than {} bytes; choose another shape, or make a tensor \
         without elements by `Tensor::zeros`",
        usize::MAX
    )]
    Shape {
        /// The shape.
        shape: Shape,
        /// The type of the elements.
        dtype: DType,
    },
    /// candle failed, or has no such tensors on a GPU.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Memory {
    /// Registers the stream of a device with a pool. The device must be one of
    /// [`Device::new_cuda_with_stream`]: that of `new_cuda` works on the default stream of each thread, which no pool can
    /// keep in order.
    ///
    /// # Errors
    /// Returns an error if the device is no GPU, another one than the pool's, or works on such a stream.
    pub fn new(pool: &Pool, device: &Device) -> Result<Self, MemoryError> {
        let device = device.as_cuda_device()?.clone();
        Ok(Self {
            pool: pool.clone(),
            stream: pool.register(&device.cuda_stream())?,
            device,
            terms: Terms::default(),
        })
    }

    /// Sets the terms on which allocations wait: a tag, a timeout, a priority.
    #[must_use]
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// Makes a tensor of zeros, and waits in the pool's queue if there is no memory. A request allocates its keys and
    /// values by this, and writes them with `Tensor::slice_set`.
    ///
    /// # Errors
    /// Returns an error if there is no memory, if the shape has no elements or its size overflows, or if candle has no
    /// tensors of the type on a GPU.
    ///
    /// # Cancel safety
    /// If the future is dropped early, its place in the queue, or its memory, goes to the next request.
    pub async fn zeros(
        &self,
        shape: impl Into<Shape>,
        dtype: DType,
    ) -> Result<PoolTensor, MemoryError> {
        let shape = shape.into();
        let Some((count, bytes)) = size_of(&shape, dtype) else {
            return Err(MemoryError::Shape { shape, dtype });
        };
        let request = self.pool.allocate(&self.stream, bytes as u64);
        let block = request.terms(self.terms).zeroed().await?;
        let (stream, address) = (self.device.cuda_stream(), block.address().to_bits());
        let placeholder = placeholder(&stream)?;
        // SAFETY: the block has this many bytes, and `PoolTensor` takes them out before it drops the block.
        let slice = unsafe { storage_over(&stream, dtype, address, count) }?;
        let device = self.device.clone();
        let storage = Storage::Cuda(CudaStorage { slice, device });
        let tensor = Tensor::from_storage(storage, shape, BackpropOp::none(), false);
        Ok(PoolTensor::new(tensor, block, placeholder))
    }

    /// Copies a tensor into memory of the pool, from any device: a weight that was loaded.
    ///
    /// # Errors
    /// Returns the errors of [`zeros`](Self::zeros), and candle's if it cannot copy. A scalar has no dimension to copy
    /// along, and is refused.
    pub async fn copy(&self, tensor: &Tensor) -> Result<PoolTensor, MemoryError> {
        let here = Device::Cuda(self.device.clone());
        let source = tensor.to_device(&here)?.contiguous()?;
        let copy = self.zeros(tensor.shape().clone(), tensor.dtype()).await?;
        copy.slice_set(&source, 0, 0)?;
        Ok(copy)
    }
}

/// Returns the number of elements and of bytes, unless there are none or the number overflows.
fn size_of(shape: &Shape, dtype: DType) -> Option<(usize, usize)> {
    let mut dims = shape.dims().iter();
    let count = dims.try_fold(1usize, |count, dim| count.checked_mul(*dim))?;
    let bytes = count.checked_mul(dtype.size_in_bytes())?;
    (count > 0).then_some((count, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_without_elements_or_with_too_many_has_no_size() {
        let size = |dims: &[usize], dtype| size_of(&Shape::from_dims(dims), dtype);
        assert_eq!(size(&[1, 8, 2, 128], DType::BF16), Some((2048, 4096)));
        assert_eq!(size(&[], DType::F32), Some((1, 4)));
        assert_eq!(size(&[1, 8, 0, 128], DType::BF16), None);
        // The product of the dimensions wraps to 0, and that with the size of the type to 4.
        assert_eq!(size(&[1 << 32, 1 << 32], DType::U8), None);
        assert_eq!(size(&[(1 << 62) + 1], DType::F32), None);
    }
}
