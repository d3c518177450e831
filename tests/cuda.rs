//! The CUDA device where there is none: every test here runs without a GPU. On one, `tests/gpu` does.

#[path = "common/gpu/contexts.rs"]
#[allow(dead_code, reason = "the GPU tests use the rest")]
mod contexts;

use weirpool::device::DeviceErrorKind;
use weirpool::device::cuda::CudaDevice;

/// Without a driver opening a device is an error that says so, each time, and no panic.
#[test]
fn without_a_driver_opening_is_an_error() {
    if contexts::has_driver() {
        eprintln!("skipped: there is a driver here; {:?}", CudaDevice::new(0));
        return;
    }
    for opened in [
        CudaDevice::new(0),
        CudaDevice::new(7),
        CudaDevice::builder().virtual_memory(false).build(),
    ] {
        let error = opened.expect_err("no device without a driver");
        assert_eq!(error.kind(), DeviceErrorKind::Unsupported);
        assert_eq!(error.call(), "initialize");
        assert!(!error.is_sticky());
        let text = error.to_string();
        for words in ["no NVIDIA driver", "libcuda", "simulated device"] {
            assert!(cfg!(windows) || text.contains(words), "{text}");
        }
    }
}
