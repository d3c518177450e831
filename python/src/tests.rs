//! The functions as C calls them, with a GPU and without.

use super::*;
use std::ptr::null_mut;
use weirpool::device::cuda::CudaDevice;

const BYTES: usize = 4 << 20;

fn alloc(size: usize, device: c_int) -> *mut c_void {
    // SAFETY: null is the legacy default stream, which is never destroyed.
    unsafe { weirpool_alloc(size, device, null_mut()) }
}

fn free(address: *mut c_void, device: c_int) {
    // SAFETY: as above.
    unsafe { weirpool_free(address, BYTES, device, null_mut()) }
}

#[test]
fn zero_bytes_give_a_null_pointer() {
    assert!(alloc(0, 0).is_null());
    free(null_mut(), 0);
}

#[test]
fn foreign_address_is_neither_freed_nor_used() {
    let mut elsewhere = 0_u64;
    let address = (&raw mut elsewhere).cast();
    free(address, 0);
    free(address, -1);
    // SAFETY: as above.
    unsafe { weirpool_record_stream(address, null_mut()) };
    assert_eq!(elsewhere, 0);
}

#[test]
fn missing_device_allocates_nothing() {
    for device in [-1, 100, c_int::MAX, c_int::MIN] {
        assert!(alloc(BYTES, device).is_null(), "device {device}");
        assert_eq!(figures_of(device), Figures::default());
    }
}

#[test]
fn memory_is_allocated_on_a_present_device() {
    let address = alloc(BYTES, 0);
    assert_eq!(address.is_null(), CudaDevice::new(0).is_err());
    free(address, 0);
    let least = if address.is_null() { 0 } else { BYTES as u64 };
    let figures = figures_of(0);
    let figure = |name| figures.get(name);
    assert!(figure("peak_used") >= least && figure("peak_reserved") >= figure("peak_used"));
    assert_eq!((figure("waits"), figure("device_waits")), (0, 0));
    assert_eq!(figure("waited_us"), 0);
}

#[test]
fn pools_of_graphs_may_be_announced_without_a_device() {
    let id = MempoolId(0, 1);
    for device in [-1, 100, 0] {
        weirpool_end_allocate_to_pool(device, id);
        weirpool_release_pool(device, id);
        weirpool_begin_allocate_to_pool(device, id, std::ptr::null());
        weirpool_end_allocate_to_pool(device, id);
        weirpool_release_pool(device, id);
        weirpool_release_pool(device, id);
        assert_eq!(figures_of(device).get("in_graphs"), 0);
    }
}

#[test]
fn panic_becomes_an_error() {
    let outcome = guarded::<()>(|| panic!("as a bug would"));
    assert!(outcome.unwrap_err().contains("panicked"));
}

#[test]
fn pool_of_graphs_without_an_owner_has_no_ranges() {
    use checkpoints::{weirpool_allocated_in_pool, weirpool_checkpoint_free};
    let id = MempoolId(7, 1);
    for device in [-1, 100, 0] {
        let before = weirpool_pool_uses(device, id);
        // SAFETY: there is room for no range.
        let ranges = unsafe { weirpool_allocated_in_pool(device, id, null_mut(), 0) };
        assert_eq!((before, ranges), (0, 0), "device {device}");
        weirpool_retain_pool(device, id);
        let is_there = CudaDevice::new(0).is_ok() && device == 0;
        assert_eq!(weirpool_pool_uses(device, id), usize::from(is_there));
        weirpool_release_pool(device, id);
        assert_eq!(weirpool_pool_uses(device, id), 0);
    }
    // SAFETY: null has no effect.
    unsafe { weirpool_checkpoint_free(null_mut()) };
}

#[test]
fn tensors_need_a_block_and_a_device() {
    use super::dlpack::*;
    let shape = [4_i64];
    // SAFETY: the shape has one element, and null is the legacy default stream.
    let export = |number, versioned| unsafe {
        weirpool_dlpack_export(number, null_mut(), 2, 32, shape.as_ptr(), 1, versioned)
    };
    assert!(export(0, 0).is_null() && export(u64::MAX, 1).is_null());
    for device in [-1, 100] {
        assert_eq!(weirpool_dlpack_allocate(device, 0, 4096), 0);
        assert!(weirpool_dlpack_stream(device, 0).is_null());
    }
    assert_eq!(
        (weirpool_dlpack_address(7), weirpool_dlpack_free(7)),
        (0, -1)
    );
    assert_eq!(weirpool_dlpack_kernel(7, 0, 0, 1, 0), -1);
    let number = weirpool_dlpack_allocate(0, 0, 16);
    assert!(number == 0 || CudaDevice::new(0).is_ok());
    if number != 0 {
        assert_eq!(
            weirpool_dlpack_kernel(number, 9, 0, 1, 0),
            -1,
            "there is no such stream"
        );
        let tensor = export(number, 1);
        assert!(!tensor.is_null());
        assert_eq!(
            weirpool_dlpack_kernel(number, 0, 0, 1, 0),
            -1,
            "it is shared"
        );
        // SAFETY: the tensor is not used any more.
        unsafe { weirpool_dlpack_release(tensor, 1) };
        assert_eq!(weirpool_dlpack_free(number), 0);
    }
}

#[test]
fn tensor_that_cannot_be_imported_is_released() {
    use super::dlpack::weirpool_dlpack_import;
    use std::ffi::c_void;
    use weirpool_share::dlpack::dlpark::ffi::{
        DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensor, DLTensor,
    };

    unsafe extern "C" fn release(tensor: *mut DLManagedTensor) {
        // SAFETY: the test made the tensor by `Box::into_raw`, and passes the address of a number that it owns.
        unsafe { *Box::from_raw(tensor).manager_ctx.cast::<u32>() += 1 };
    }

    let mut released = 0_u32;
    let mut shape = [0_i64];
    let tensor = Box::new(DLManagedTensor {
        dl_tensor: DLTensor {
            data: null_mut(),
            device: DLDevice {
                device_type: DLDeviceType::CUDA,
                device_id: 100,
            },
            ndim: 1,
            dtype: DLDataType {
                code: DLDataTypeCode::UINT,
                bits: 32,
                lanes: 1,
            },
            shape: shape.as_mut_ptr(),
            strides: null_mut(),
            byte_offset: 0,
        },
        manager_ctx: (&raw mut released).cast::<c_void>(),
        deleter: Some(release),
    });
    // SAFETY: the tensor is passed on, and its shape outlives it.
    let number = unsafe { weirpool_dlpack_import(100, 0, Box::into_raw(tensor).cast(), 0) };
    assert_eq!((number, released), (0, 1));
}
