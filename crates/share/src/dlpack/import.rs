//! Tensors of other libraries as blocks.
#![allow(unsafe_code, reason = "tensors of DLPack are raw pointers")]

use super::error::{DlpackError, ImportError};
use super::export::device_of;
use dlpark::ffi::DLDataType;
use dlpark::{AllocationDeleter, DlpackFlags, Managed, ManagedTensorBase};
use std::fmt;
use weirpool::device::DeviceAddress;
use weirpool::extend::{ForeignMemory, Passages};
use weirpool::{Block, SliceMut, Stream, StreamError};

/// A tensor of another library, as a block.
///
/// It is created by [`ImportTensor::import_dlpack`]. The block can be used like any other, in submitted work too. The
/// library's function that releases the tensor is called once the block is dropped and all work that uses it is
/// complete, on a thread of the crate's own; never if the device is broken.
///
/// The memory is none of the pool's: its limits do not count it, and it is not reused.
#[derive(Debug)]
#[must_use = "a tensor is released when it is dropped"]
pub struct Foreign {
    block: Block,
    dtype: DLDataType,
    shape: Vec<i64>,
    is_read_only: bool,
}

impl Foreign {
    /// Returns the memory. If the tensor is [read-only](Self::is_read_only), no work may write it.
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// Returns the bytes of the tensor for writing; `None` if it is read-only. (Not the block itself: safe code could swap
    /// it for another one, which the shape would describe wrongly.)
    pub fn bytes_mut(&mut self) -> Option<SliceMut<'_, u8>> {
        let bytes = self.block.requested();
        let all = (!self.is_read_only).then(|| self.block.slice_mut(0..bytes));
        all.map(|all| all.expect("a block has the bytes that were requested"))
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DLDataType {
        self.dtype
    }

    /// Returns the number of elements in each dimension. They are in row-major order.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Returns whether the producer forbids writing.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }
}

/// The owner of an imported block's memory.
struct Tensor {
    address: u64,
    bytes: u64,
    /// Releases the tensor when it is dropped.
    deleter: AllocationDeleter,
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor").finish_non_exhaustive()
    }
}

// SAFETY: the caller of `import_dlpack` guarantees that the memory is valid until the tensor is released, after the
// passages.
unsafe impl ForeignMemory for Tensor {
    fn range(&self) -> (DeviceAddress, u64) {
        (DeviceAddress::from_bits(self.address), self.bytes)
    }

    /// Its producer tells of its life, if it is a pool.
    fn is_checked(&self) -> bool {
        false
    }

    fn release(self: Box<Self>, after: Passages) {
        let Self { deleter, .. } = *self;
        after.then(move || drop(deleter));
    }
}

struct Described {
    address: u64,
    bytes: u64,
    dtype: DLDataType,
    shape: Vec<i64>,
}

fn described<M: ManagedTensorBase>(
    tensor: &Managed<M>,
    stream: &Stream,
) -> Result<Described, DlpackError> {
    let malformed = |error: dlpark::tensor::Error| DlpackError::Malformed {
        reason: error.to_string(),
    };
    let valid = tensor.validate().map_err(malformed)?;
    let pool = stream.pool();
    if stream.device().id() != pool.device().id() {
        return Err(StreamError::ForeignDevice.into());
    }
    let own = device_of(&pool);
    if valid.device() != own {
        return Err(DlpackError::other_device(valid.device(), own));
    }
    let shape = valid.shape().to_vec();
    if !valid.is_compact().map_err(malformed)? {
        return Err(DlpackError::NotContiguous { shape });
    }
    let base = valid.data_ptr().addr() as u64;
    if valid.num_bytes() == 0 || base == 0 {
        return Err(DlpackError::NoMemory { shape });
    }
    let bytes = valid.num_bytes() as u64;
    let address = base.checked_add(valid.byte_offset());
    let address = address.filter(|address| address.checked_add(bytes).is_some());
    let address = address.ok_or_else(|| DlpackError::Malformed {
        reason: "it extends beyond the last address".to_owned(),
    })?;
    Ok(Described {
        address,
        bytes,
        dtype: valid.dtype(),
        shape,
    })
}

/// Imports tensors as blocks of a stream.
pub trait ImportTensor {
    /// Takes a tensor of another library as a block of this stream, without a copy. The tensor is kept until all work
    /// that uses the block is complete: see [`Foreign`].
    ///
    /// In Python, pass this stream to the producer's `__dlpack__(stream=…)`, which makes the data ready on it.
    ///
    /// # Errors
    /// Returns an error, with the tensor, if the tensor is not in the kind of memory that the pool has on the stream's
    /// device, is not in row-major order, or has no bytes.
    ///
    /// # Safety
    /// The tensor's memory must be valid until the tensor is released, and all earlier work on it must come before the
    /// work that is submitted to this stream from now on. Until the tensor is released, the producer must not write it,
    /// nor read it if it is written here, but in an order with this stream's work.
    unsafe fn import_dlpack<M: ManagedTensorBase>(
        &self,
        tensor: Managed<M>,
    ) -> Result<Foreign, ImportError<M>>;
}

impl ImportTensor for Stream {
    unsafe fn import_dlpack<M: ManagedTensorBase>(
        &self,
        tensor: Managed<M>,
    ) -> Result<Foreign, ImportError<M>> {
        let described = match described(&tensor, self) {
            Ok(described) => described,
            Err(reason) => return Err(ImportError { tensor, reason }),
        };
        let is_read_only = tensor.flags().contains(DlpackFlags::READ_ONLY);
        let Described {
            address,
            bytes,
            dtype,
            shape,
        } = described;
        let memory = Box::new(Tensor {
            address,
            bytes,
            deleter: tensor.into_deleter(),
        });
        // Other streams come after the work submitted to this one so far: then the data is ready.
        // SAFETY: the tensor names the device and the kind of memory of the pool, and the caller guarantees the rest.
        let block = unsafe { self.adopt(memory) };
        Ok(Foreign {
            block,
            dtype,
            shape,
            is_read_only,
        })
    }
}
