//! Memory of the pool in candle's storages, and out of them again.

use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::{CpuStorage, CudaStorage, DType, InplaceOp1, Layout, Result, bail};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, CudaStream, DeviceRepr};
use std::sync::Arc;

/// Makes a storage of memory that it does not own: [`TakeOut`] must take that out before the storage is dropped.
///
/// # Errors
/// Returns an error if candle has no tensors of the type on a GPU.
///
/// # Safety
/// The memory has `count` elements of the type, and lives until it is taken out.
pub(crate) unsafe fn storage_over(
    stream: &Arc<CudaStream>,
    dtype: DType,
    address: CUdeviceptr,
    count: usize,
) -> Result<CudaStorageSlice> {
    macro_rules! over {
        // SAFETY: guaranteed by the caller.
        ($kind:ident) => {
            CudaStorageSlice::$kind(unsafe { stream.upgrade_device_ptr(address, count) })
        };
    }
    Ok(match dtype {
        DType::U8 => over!(U8),
        DType::U32 => over!(U32),
        DType::I16 => over!(I16),
        DType::I32 => over!(I32),
        DType::I64 => over!(I64),
        DType::BF16 => over!(BF16),
        DType::F16 => over!(F16),
        DType::F32 => over!(F32),
        DType::F64 => over!(F64),
        DType::F8E4M3 => over!(F8E4M3),
        dtype => bail!("tensors of {dtype:?} in memory of a pool are not supported"),
    })
}

/// Takes the pool's memory out of the storage of a tensor, behind all work that candle submitted on it. One element of the
/// driver's memory takes its place: a clone of the tensor that is still there is out of bounds of that, and fails.
pub(crate) struct TakeOut;

impl InplaceOp1 for TakeOut {
    fn name(&self) -> &'static str {
        "take the pool's memory out"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        bail!("the tensor is not on a GPU")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> Result<()> {
        fn out<T: DeviceRepr>(slice: &mut CudaSlice<T>) -> Result<()> {
            // SAFETY: no element of it is read.
            let placeholder = unsafe { slice.stream().clone().alloc(1) };
            let placeholder = placeholder.map_err(candle_core::Error::wrap)?;
            // Waits, in the stream, for the uses that candle noted.
            let _ = std::mem::replace(slice, placeholder).leak();
            Ok(())
        }
        match &mut storage.slice {
            CudaStorageSlice::U8(slice) => out(slice),
            CudaStorageSlice::U32(slice) => out(slice),
            CudaStorageSlice::I16(slice) => out(slice),
            CudaStorageSlice::I32(slice) => out(slice),
            CudaStorageSlice::I64(slice) => out(slice),
            CudaStorageSlice::BF16(slice) => out(slice),
            CudaStorageSlice::F16(slice) => out(slice),
            CudaStorageSlice::F32(slice) => out(slice),
            CudaStorageSlice::F64(slice) => out(slice),
            CudaStorageSlice::F8E4M3(slice) => out(slice),
            _ => bail!("no storage of a pool"),
        }
    }
}
