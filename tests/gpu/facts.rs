//! What the device says of itself.

use crate::bench::Bench;
use crate::common::MIB;
use crate::cuda::{Cuda, Mapped, Plain};
use crate::harness::gpu;
use crate::site::Site;
use weirpool::device::DeviceErrorKind;
use weirpool::device::cuda::CudaDevice;

/// The line by which the device under test is known.
pub(crate) fn description() -> String {
    Cuda::<Mapped>::new().device.description()
}

/// As the user reads it: from the device, and from a pool over it.
pub(crate) fn description_names_the_device_and_its_memory() {
    let context = gpu().context().clone();
    let name = context.name().unwrap();
    let gib = context.total_mem().unwrap() as f64 / (1u64 << 30) as f64;
    let virtual_memory = Site::<Cuda<Mapped>>::new(8 * MIB);
    let plain = Site::<Cuda<Plain>>::new(8 * MIB);
    for pool in [&virtual_memory.pool, &plain.pool] {
        let line = pool.inspect().describe().device;
        assert!(!line.contains('\n'), "{line}");
        for fact in [&format!("{name:?}"), &format!("{gib:.1} GiB"), "CUDA "] {
            assert!(line.contains(fact), "`{line}` does not say {fact}");
        }
    }
    let line = plain.pool.inspect().describe().device;
    let in_use = "in use: plain memory, pooling enabled";
    assert!(line.ends_with(in_use), "{line}");
    let line = virtual_memory.pool.inspect().describe().device;
    let capabilities = virtual_memory.bench.device().capabilities();
    let kind = if capabilities.virtual_memory {
        "virtual"
    } else {
        "plain"
    };
    let in_use = format!("in use: {kind} memory, pooling enabled");
    assert!(line.ends_with(&in_use), "{line}");
}

pub(crate) fn missing_device_is_an_error() {
    let error = CudaDevice::new(999).unwrap_err();
    assert_eq!(error.kind(), DeviceErrorKind::InvalidArgument, "{error}");
    assert!(error.reason().contains("INVALID_DEVICE"), "{error}");
}

/// Every device of the driver has a line, also those that are not open, and the capabilities of an open one agree.
pub(crate) fn devices_are_listed_with_a_line_each() {
    let all = CudaDevice::all().unwrap();
    let lines = weirpool::device::list();
    let own = gpu().context().ordinal();
    let capabilities = Cuda::<Mapped>::new().device().capabilities();
    for (number, device) in all.iter().enumerate() {
        let line = device.to_string();
        assert_eq!(device.ordinal as usize, number);
        assert!(lines.contains(&line) && !line.contains('\n'), "{line}");
        assert!(!device.peers.contains(device.ordinal));
        if number == own {
            assert_eq!(device.memory_pools, capabilities.memory_pools);
            assert_eq!(device.peers, capabilities.peers);
        }
    }
    assert!(own < all.len());
}
