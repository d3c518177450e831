//! Memory of the pool in candle's storages, and out of them again.

use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::{CpuStorage, CudaStorage, DType, InplaceOp1, Layout, Result, bail};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, CudaStream};
use std::cell::Cell;
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
        ($kind:ident) => {{
            // SAFETY: guaranteed by the caller.
            let slice = unsafe { stream.upgrade_device_ptr(address, count) };
            CudaStorageSlice::$kind(slice)
        }};
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

/// Allocates the placeholder of a tensor's memory: a byte of the driver's, for [`TakeOut`].
///
/// # Errors
/// Returns the driver's error.
pub(crate) fn placeholder(stream: &Arc<CudaStream>) -> Result<CudaSlice<u8>> {
    // SAFETY: no element of it is read.
    let placeholder = unsafe { stream.alloc(1) };
    placeholder.map_err(candle_core::Error::wrap)
}

/// Takes the pool's memory out of the storage of a tensor, behind all work that candle submitted on it, and puts the
/// placeholder in. That is then of a type that no operation of candle's takes: operations on clones of the tensor return
/// errors. Its only calls of the driver that can fail are waits of the stream for uses on other streams.
pub(crate) struct TakeOut(Cell<Option<CudaSlice<u8>>>);

impl TakeOut {
    pub(crate) fn for_placeholder(placeholder: CudaSlice<u8>) -> Self {
        Self(Cell::new(Some(placeholder)))
    }
}

impl InplaceOp1 for TakeOut {
    fn name(&self) -> &'static str {
        "take the pool's memory out"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        bail!("the tensor is not on a GPU")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> Result<()> {
        let Some(placeholder) = self.0.take() else {
            bail!("the memory was taken out before")
        };
        let stream = storage.device.cuda_stream();
        // cudarc returns a stored error from its next call, in place of that call: from the waits below.
        let stored = stream.context().check_err();
        let slice = std::mem::replace(&mut storage.slice, CudaStorageSlice::F4(placeholder));
        // A leak waits, in the stream, for the uses that candle noted.
        match slice {
            CudaStorageSlice::U8(slice) => slice.leak(),
            CudaStorageSlice::U32(slice) => slice.leak(),
            CudaStorageSlice::I16(slice) => slice.leak(),
            CudaStorageSlice::I32(slice) => slice.leak(),
            CudaStorageSlice::I64(slice) => slice.leak(),
            CudaStorageSlice::BF16(slice) => slice.leak(),
            CudaStorageSlice::F16(slice) => slice.leak(),
            CudaStorageSlice::F32(slice) => slice.leak(),
            CudaStorageSlice::F64(slice) => slice.leak(),
            CudaStorageSlice::F8E4M3(slice) => slice.leak(),
            _ => bail!("no storage of a pool"),
        };
        let waited = stream.context().check_err();
        stream.context().record_err(stored.and(waited));
        waited.map_err(candle_core::Error::wrap)
    }
}
