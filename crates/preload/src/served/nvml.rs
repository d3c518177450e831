//! NVML's figures of a device's memory, under a limit: the limit, and the memory that the pool has taken.

use super::answer::Answer;
use super::contexts;
use super::counts::Passed;
use super::figures;
use crate::settings::Settings;
use cudarc::driver::sys::{self, CUresult};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::LazyLock;

/// `nvmlMemory_t`, in bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`, in bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MemoryWithReserved {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

impl MemoryWithReserved {
    pub(super) fn figures(self) -> Memory {
        let Self {
            total, free, used, ..
        } = self;
        Memory { total, free, used }
    }

    pub(super) fn set(&mut self, Memory { total, free, used }: Memory) {
        let reserved = self.reserved.min(total);
        *self = Self {
            version: self.version,
            total,
            reserved,
            free,
            used,
        };
    }
}

/// Returns the figures that the program sees of NVML's device.
pub(super) fn seen(device: usize, real: Memory) -> Answer<Memory> {
    static LIMIT: LazyLock<Option<u64>> = LazyLock::new(|| {
        Settings::of_environment()
            .ok()
            .and_then(|settings| settings.limit)
    });
    let Some(limit) = *LIMIT else {
        return Answer::Passed(Passed::NoPool);
    };
    let total = real.total.min(limit);
    let contexts = contexts::ever().into_iter();
    let of_it = contexts.filter(|context| is_device(device, context.device));
    let used = of_it.map(figures::taken).sum::<u64>().min(total);
    let free = (total - used).min(real.free);
    Answer::Served(Memory { total, free, used })
}

/// Returns whether NVML's device is the driver's of that number.
fn is_device(device: usize, number: c_int) -> bool {
    type GetUuid = unsafe extern "C" fn(usize, *mut c_char, c_uint) -> c_int;
    static GET: LazyLock<Option<GetUuid>> = LazyLock::new(|| {
        // SAFETY: the program has loaded this library already, and called it.
        let library = unsafe { libloading::Library::new("libnvidia-ml.so.1") }.ok()?;
        // SAFETY: this is the function's type. The library stays for the life of the process.
        let found = unsafe { Box::leak(Box::new(library)).get::<GetUuid>(b"nvmlDeviceGetUUID\0") };
        found.ok().map(|function| *function)
    });
    let Some(get) = *GET else {
        return false;
    };
    let mut text = [0 as c_char; 96];
    // SAFETY: the call writes at most as many bytes as it is told, with a zero at their end.
    if unsafe { get(device, text.as_mut_ptr(), text.len() as c_uint) } != 0 {
        return false;
    }
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: the call writes to the variable.
    if unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, number) } != CUresult::CUDA_SUCCESS {
        return false;
    }
    // SAFETY: as above.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) }
        .to_string_lossy()
        .replace('-', "");
    let digits = uuid
        .bytes
        .map(|byte| format!("{:02x}", byte as u8))
        .concat();
    text.strip_prefix("GPU")
        .is_some_and(|text| text.eq_ignore_ascii_case(&digits))
}
