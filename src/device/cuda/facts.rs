//! What is known of a device: asked once, when it is opened.

use super::driver::{check, failure};
use crate::device::DeviceError;
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUdevice_attribute};
use std::fmt;

/// The step of plain memory, in bytes: the size of the device's large pages.
const PLAIN_STEP: u64 = 2 << 20;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Facts {
    ordinal: usize,
    name: String,
    total: u64,
    /// Major and minor.
    compute_capability: (i32, i32),
    /// CUDA's version that the driver speaks: major and minor.
    driver: (i32, i32),
    /// The step of virtual memory in bytes, where there is any.
    pub(super) virtual_memory: Option<u64>,
    has_memory_pools: bool,
    shares_by_file: bool,
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
            has_memory_pools: ask(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0,
            shares_by_file: ask(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?
                != 0,
        })
    }

    /// The step of sizes and addresses, in bytes.
    pub(super) fn step(&self) -> u64 {
        self.virtual_memory.unwrap_or(PLAIN_STEP)
    }
}

fn driver_version() -> Result<(i32, i32), DeviceError> {
    let mut version = 0;
    // SAFETY: writes the version to the place given.
    check("open", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    Ok((version / 1000, version % 1000 / 10))
}

/// `cuda:0 "NVIDIA H200" (139.8 GiB, sm_90, CUDA 13.0): virtual memory (2 MiB step), ...`
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
        let pools = has(self.has_memory_pools);
        let sharing = has(self.shares_by_file);
        write!(
            f,
            ", {pools}memory pools, {sharing}sharing by file descriptor"
        )
    }
}
