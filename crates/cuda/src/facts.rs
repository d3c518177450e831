//! The properties of a device, queried once when it is opened.

use super::driver::{check, failure};
use super::host_memory;
use super::listing::peers_of;
use super::pools::handle_types;
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUdevice_attribute};
use std::fmt;
use weirpool_device::{
    DeviceError, DeviceErrorKind, HandleType, HandleTypes, MemoryKind, MemoryKinds, Peers,
};

/// The granularity of plain memory, in bytes: the size of the device's large pages.
const PLAIN_STEP: u64 = 2 << 20;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Facts {
    ordinal: usize,
    name: String,
    total: u64,
    /// The major and minor version.
    compute_capability: (i32, i32),
    /// The major and minor CUDA version that the driver supports.
    driver: (i32, i32),
    /// The granularity of virtual memory in bytes, or `None` if the device has no virtual memory.
    pub(super) virtual_memory: Option<u64>,
    /// The kinds of plain memory that the device has.
    pub(super) memory_kinds: MemoryKinds,
    has_memory_pools: bool,
    /// The kinds of handles by which memory pools can be shared.
    handle_types: HandleTypes,
    /// Single allocations can be shared with other processes.
    pub(super) has_ipc: bool,
    /// Chunks can be shared with other processes by file descriptors.
    #[cfg_attr(
        not(target_os = "linux"),
        allow(dead_code, reason = "sharing is Linux's")
    )]
    pub(super) shares_chunks: bool,
    /// The id of the physical device; `None` if the driver does not tell it.
    pub(super) uuid: Option<[u8; 16]>,
    pub(super) peers: Peers,
}

impl Facts {
    pub(super) fn of(context: &CudaContext) -> Result<Self, DeviceError> {
        const CALL: &str = "open";
        let ask = |attribute| {
            let answer = context.attribute(attribute);
            answer.map_err(|error| failure(CALL, error))
        };
        use CUdevice_attribute::*;
        let has_virtual_memory =
            ask(CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED)? != 0;
        let virtual_memory = has_virtual_memory
            .then(|| super::memory::granularity(context))
            .transpose()?;
        Ok(Self {
            ordinal: context.ordinal(),
            name: context.name().map_err(|error| failure(CALL, error))?,
            total: context.total_mem().map_err(|error| failure(CALL, error))? as u64,
            compute_capability: (
                ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            driver: driver_version()?,
            virtual_memory,
            memory_kinds: memory_kinds(|attribute| Ok(ask(attribute)? != 0))?,
            has_memory_pools: ask(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0,
            handle_types: handle_types(ask(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES)?),
            // CUDA restricts it to Linux, and to devices with unified addressing.
            has_ipc: cfg!(target_os = "linux") && ask(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)? != 0,
            shares_chunks: virtual_memory.is_some()
                && ask(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)? != 0,
            uuid: (context.uuid().ok()).map(|uuid| uuid.bytes.map(|byte| byte as u8)),
            peers: {
                let count = CudaContext::device_count().map_err(|error| failure(CALL, error))?;
                peers_of(context.cu_device(), count)?
            },
        })
    }

    pub(super) fn ordinal(&self) -> usize {
        self.ordinal
    }

    pub(super) fn has_memory_pools(&self) -> bool {
        self.has_memory_pools
    }

    pub(super) fn handle_types(&self) -> HandleTypes {
        match self.has_memory_pools {
            true => self.handle_types,
            false => HandleTypes::NONE,
        }
    }

    /// Returns the granularity of sizes and addresses, in bytes.
    pub(super) fn step(&self) -> u64 {
        self.virtual_memory.unwrap_or(PLAIN_STEP)
    }

    /// # Errors
    /// Returns an error that names an alternative if the device has no memory of this kind.
    pub(super) fn check_kind(
        &self,
        call: &'static str,
        kind: MemoryKind,
    ) -> Result<(), DeviceError> {
        if self.memory_kinds.contains(kind) {
            return Ok(());
        }
        let instead = match kind {
            MemoryKind::Host => "pinned host memory or managed memory is seen by the host as well",
            _ => "use device memory, and copies",
        };
        let reason = format!("this device has no {kind}: {instead}");
        Err(DeviceError::new(call, DeviceErrorKind::Unsupported, reason))
    }
}

/// Returns the kinds of plain memory, from the device's attributes.
fn memory_kinds(
    has: impl Fn(CUdevice_attribute) -> Result<bool, DeviceError>,
) -> Result<MemoryKinds, DeviceError> {
    use CUdevice_attribute::*;
    let mut kinds = MemoryKinds::DEVICE;
    // Pinned memory needs equal addresses for host and device, and a host that reports how much memory it has.
    let is_mapped = has(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)?
        && has(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY)?;
    if is_mapped && host_memory::figures().is_some() {
        kinds = kinds.with(MemoryKind::Pinned);
    }
    // Without concurrent access, the host must not touch managed memory while any work runs on the device. Stream order
    // cannot express that.
    let is_shared = has(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)?
        && has(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)?;
    if is_shared {
        kinds = kinds.with(MemoryKind::Managed);
    }
    Ok(kinds)
}

fn driver_version() -> Result<(i32, i32), DeviceError> {
    let mut version = 0;
    // SAFETY: `version` is valid for the write.
    check("open", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    Ok((version / 1000, version % 1000 / 10))
}

/// `cuda:0 "NVIDIA H200" (139.8 GiB, sm_90, CUDA 13.0), supports virtual memory (step 2 MiB), ...`
impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            ordinal,
            name,
            total,
            compute_capability: (major, minor),
            driver: (cuda, update),
            ..
        } = self;
        let gib = *total as f64 / (1u64 << 30) as f64;
        write!(
            f,
            "cuda:{ordinal} {name:?} ({gib:.1} GiB, sm_{major}{minor}, CUDA {cuda}.{update}), supports "
        )?;
        match self.virtual_memory {
            Some(step) => write!(f, "virtual memory (step {} MiB)", step >> 20)?,
            None => write!(f, "no virtual memory")?,
        }
        let has = |yes| if yes { "" } else { "no " };
        for kind in [MemoryKind::Pinned, MemoryKind::Managed] {
            write!(f, ", {}{kind}", has(self.memory_kinds.contains(kind)))?;
        }
        let pools = has(self.has_memory_pools);
        let sharing = has(self.handle_types.contains(HandleType::PosixFd));
        write!(
            f,
            ", {pools}memory pools, {sharing}sharing by file descriptor, {}",
            self.peers
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CUdevice_attribute::*;

    fn kinds_with(attributes: &[CUdevice_attribute]) -> MemoryKinds {
        memory_kinds(|attribute| Ok(attributes.contains(&attribute))).unwrap()
    }

    #[test]
    fn managed_memory_needs_concurrent_host_access() {
        let managed = CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY;
        assert_eq!(kinds_with(&[managed]), MemoryKinds::DEVICE);
        let both = [managed, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS];
        let expected = MemoryKinds::DEVICE.with(MemoryKind::Managed);
        assert_eq!(kinds_with(&both), expected);
    }

    #[test]
    fn pinned_memory_needs_unified_addressing() {
        let mapped = CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY;
        assert_eq!(kinds_with(&[mapped]), MemoryKinds::DEVICE);
        let kinds = kinds_with(&[mapped, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING]);
        let is_told = host_memory::figures().is_some();
        assert_eq!(kinds.contains(MemoryKind::Pinned), is_told);
    }

    #[test]
    fn failed_attribute_query_is_an_error() {
        let broken = DeviceError::new("open", DeviceErrorKind::Sticky, "broken");
        assert_eq!(memory_kinds(|_| Err(broken.clone())), Err(broken));
    }
}
