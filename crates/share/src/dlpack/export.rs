//! Blocks as tensors of other libraries.
#![allow(unsafe_code, reason = "tensors of DLPack are raw pointers")]

use super::DlpackError;
use crate::{SharedBlock, SharedBuffer};
use dlpark::ffi::{DLDataType, DLDevice, DLDeviceType};
use dlpark::metadata::Dynamic;
use dlpark::{DlpackElement, Managed, ManagedTensorBase};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use weirpool::device::MemoryKind;
use weirpool::{Pool, Stream};

/// The owner of an exported tensor's memory.
struct Exported(ManuallyDrop<SharedBlock>);

impl Drop for Exported {
    /// A consumer calls this from C, through which nothing may unwind.
    fn drop(&mut self) {
        // SAFETY: it is taken once, here.
        let block = unsafe { ManuallyDrop::take(&mut self.0) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(block)));
    }
}

/// Returns DLPack's name of a pool's memory.
pub(super) fn device_of(pool: &Pool) -> DLDevice {
    let device = pool.device();
    let own = DLDeviceType(device.dlpack_type());
    let (device_type, device_id) = match pool.inspect().memory_kind() {
        MemoryKind::Host => (DLDeviceType::CPU, 0),
        MemoryKind::Pinned if own == DLDeviceType::CUDA => (DLDeviceType::CUDAHOST, 0),
        MemoryKind::Managed if own == DLDeviceType::CUDA => (DLDeviceType::CUDAMANAGED, 0),
        _ => (own, i32::try_from(device.ordinal()).unwrap_or(i32::MAX)),
    };
    DLDevice {
        device_type,
        device_id,
    }
}

/// Returns the bytes of a tensor.
fn bytes_of(shape: &[i64], dtype: DLDataType) -> Result<u64, DlpackError> {
    let invalid = |reason: &str| DlpackError::InvalidShape {
        shape: shape.to_vec(),
        reason: reason.to_owned(),
    };
    let mut elements = 1_u64;
    for dimension in shape {
        let dimension =
            u64::try_from(*dimension).map_err(|_| invalid("a dimension is negative"))?;
        elements = elements
            .checked_mul(dimension)
            .ok_or_else(|| invalid("it has too many elements"))?;
    }
    let bits = u64::from(dtype.bits) * u64::from(dtype.lanes);
    let bits = elements.checked_mul(bits);
    let bits = bits.ok_or_else(|| invalid("it has too many elements"))?;
    Ok(bits.div_ceil(8))
}

/// Exports blocks as tensors.
pub trait ExportBlock {
    /// Exports these bytes as a tensor, without a copy, to a library that uses it on the stream `consumer`. The tensor
    /// keeps the block until the library drops the tensor.
    ///
    /// The stream is made to wait for all earlier uses of the whole block, and the block counts as used there from then
    /// on: see the [module](super). The library may write the bytes; reads that are declared later, by
    /// [`Stream::record_use`] and copies, come after the work that it has submitted by then. The tensor is
    /// in row-major order. `M` is `DLManagedTensorVersioned`, or `DLManagedTensor` for libraries that know only the
    /// first version.
    ///
    /// On an external stream, no event is recorded but at the drop of the tensor. So `record_use` and copies return an error
    /// meanwhile; order other streams by an event of your own, and record the use as [`weirpool::Unordered`].
    ///
    /// Where the stream cannot be made to wait on the device, the host waits for the earlier uses. In a task of a
    /// current-thread tokio runtime it does not: await the earlier uses first.
    ///
    /// The tensor can be dropped on any thread. That never blocks and never panics.
    ///
    /// # Errors
    /// Returns an error if the shape does not have as many bytes as this part, or the errors of
    /// [`Block::open_to`](weirpool::Block::open_to).
    fn to_dlpack<M: ManagedTensorBase>(
        &self,
        dtype: DLDataType,
        shape: &[i64],
        consumer: &Stream,
    ) -> Result<Managed<M>, DlpackError>;
}

impl ExportBlock for SharedBlock {
    fn to_dlpack<M: ManagedTensorBase>(
        &self,
        dtype: DLDataType,
        shape: &[i64],
        consumer: &Stream,
    ) -> Result<Managed<M>, DlpackError> {
        let (needed, size) = (bytes_of(shape, dtype)?, self.size());
        if needed != size {
            return Err(DlpackError::WrongSize { needed, size });
        }
        let prepared = Dynamic::compact(shape).prepare_as::<M>();
        let prepared = prepared.map_err(|error| DlpackError::InvalidShape {
            shape: shape.to_vec(),
            reason: error.to_string(),
        })?;
        self.block().open_to(consumer)?;
        let owner = Box::new(Exported(ManuallyDrop::new(self.clone())));
        let mut tensor = prepared.initialize(owner);
        let data = match needed {
            0 => std::ptr::null_mut(),
            _ => self.address().to_bits() as *mut std::ffi::c_void,
        };
        let device = device_of(&consumer.pool());
        tensor.set_data(data).set_device(device).set_dtype(dtype);
        // SAFETY: the shape was checked against the bytes of the memory, which the owner keeps.
        Ok(unsafe { tensor.finish() })
    }
}

/// Exports buffers as tensors.
pub trait ExportBuffer {
    /// Exports these elements as a tensor; see [`ExportBlock::to_dlpack`].
    ///
    /// # Errors
    /// Returns the errors of [`ExportBlock::to_dlpack`].
    fn to_dlpack<M: ManagedTensorBase>(
        &self,
        shape: &[i64],
        consumer: &Stream,
    ) -> Result<Managed<M>, DlpackError>;
}

impl<T: DlpackElement> ExportBuffer for SharedBuffer<T> {
    fn to_dlpack<M: ManagedTensorBase>(
        &self,
        shape: &[i64],
        consumer: &Stream,
    ) -> Result<Managed<M>, DlpackError> {
        let block = self.clone().into_shared_block();
        block.to_dlpack(T::DTYPE, shape, consumer)
    }
}
