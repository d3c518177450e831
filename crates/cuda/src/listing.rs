//! All devices of the driver, without opening any.

use super::CudaDevice;
use super::driver::{check, failure, load};
use super::pools::handle_types;
use cudarc::driver::result::device as driver;
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute};
use std::fmt;
use weirpool_device::{DeviceError, HandleTypes, Peers};

/// A device in the driver's list. Its `Display` form is one line of text:
/// `cuda:0 "NVIDIA H200" (139.8 GiB, sm_90, memory pools supported, peers 1)`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// The number of the device, for [`CudaDevice::new`].
    pub ordinal: u32,
    /// The name of the model.
    pub name: String,
    /// The memory in bytes.
    pub memory: u64,
    /// The major and minor version of the compute capability.
    pub compute_capability: (i32, i32),
    /// The driver has memory pools of its own for the device.
    pub memory_pools: bool,
    /// The kinds of handles as which those can be shared with other processes.
    pub handle_types: HandleTypes,
    /// The devices whose memory this one can be given access to.
    pub peers: Peers,
}

const CALL: &str = "list";

impl CudaDevice {
    /// Returns all devices of the driver, in its order. Opens none of them.
    ///
    /// ```no_run
    /// for device in weirpool_cuda::CudaDevice::all()? {
    ///     println!("{device}");
    /// }
    /// # Ok::<(), weirpool_device::DeviceError>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if there is no driver, or if it fails.
    pub fn all() -> Result<Vec<Listed>, DeviceError> {
        load()?;
        let count = driver::get_count().map_err(|error| failure(CALL, error))?;
        (0..count)
            .map(|ordinal| Listed::of(ordinal, count))
            .collect()
    }
}

impl Listed {
    fn of(ordinal: i32, count: i32) -> Result<Self, DeviceError> {
        use CUdevice_attribute::*;
        let told = |error| failure(CALL, error);
        let device = driver::get(ordinal).map_err(told)?;
        // SAFETY: the driver returned the device.
        let ask = |attribute| unsafe { driver::get_attribute(device, attribute) }.map_err(told);
        // SAFETY: the driver returned the device.
        let memory = unsafe { driver::total_mem(device) }.map_err(told)?;
        Ok(Self {
            ordinal: ordinal as u32,
            name: driver::get_name(device).map_err(told)?,
            memory: memory as u64,
            compute_capability: (
                ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            memory_pools: ask(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0,
            handle_types: handle_types(ask(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES)?),
            peers: peers_of(device, count)?,
        })
    }
}

/// Returns the peers of a device, among the first `count` of the driver's list.
pub(super) fn peers_of(device: CUdevice, count: i32) -> Result<Peers, DeviceError> {
    let mut peers = Peers::NONE;
    for ordinal in 0..count {
        let peer = driver::get(ordinal).map_err(|error| failure(CALL, error))?;
        if peer == device {
            continue;
        }
        let mut can_access = 0;
        // SAFETY: the driver returned both devices; the call writes to `can_access`.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&mut can_access, device, peer) };
        check(CALL, asked)?;
        if can_access != 0 {
            peers = peers.with(ordinal as u32);
        }
    }
    Ok(peers)
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            ordinal,
            name,
            memory,
            compute_capability: (major, minor),
            peers,
            ..
        } = self;
        let gib = *memory as f64 / (1u64 << 30) as f64;
        let pools = if self.memory_pools { "" } else { "not " };
        write!(
            f,
            "cuda:{ordinal} {name:?} ({gib:.1} GiB, sm_{major}{minor}, memory pools {pools}supported, {peers})"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_is_one_line() {
        let listed = Listed {
            ordinal: 1,
            name: "NVIDIA H200".into(),
            memory: 150_754_820_096,
            compute_capability: (9, 0),
            memory_pools: true,
            handle_types: HandleTypes::POSIX_FD,
            peers: Peers::NONE.with(0),
        };
        let line = r#"cuda:1 "NVIDIA H200" (140.4 GiB, sm_90, memory pools supported, peers 0)"#;
        assert_eq!(listed.to_string(), line);
    }
}
