//! The functions that the class of PyTorch's allocators calls (`weirpool/torch/allocator.cpp`).
//!
//! They return a status instead of throwing, so that C++ throws its own exceptions: `torch.OutOfMemoryError` for
//! memory, and others for the rest.

use crate::device_pool::{self, DevicePool};
use crate::graphs::MempoolId;
use crate::{fork, guarded};
use cudarc::driver::sys::CUstream;
use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;
use weirpool::device::{Device, DeviceErrorKind, MemoryKind};
use weirpool::{AccessError, AllocError, BlockState};

/// The bytes of the longest reason, with its final zero. Longer reasons are cut.
const LONGEST: usize = 1020;

/// How often access is tried again while another thread changes it.
const ACCESS_TRIES: u32 = 1000;

/// What kind of refusal it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Kind {
    OutOfMemory = 1,
    Unsupported = 2,
    Other = 3,
}

/// The reason why a call failed.
#[derive(Debug)]
#[repr(C)]
pub struct Refusal {
    kind: c_int,
    text: [u8; LONGEST],
}

/// A reason, before C++ reads it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reason(pub(crate) Kind, pub(crate) String);

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self(Kind::Other, text)
    }
}

impl From<AllocError> for Reason {
    fn from(error: AllocError) -> Self {
        let kind = match &error {
            AllocError::Device(device) if device.kind() == DeviceErrorKind::OutOfMemory => {
                Kind::OutOfMemory
            }
            AllocError::Device(_)
            | AllocError::Stream(_)
            | AllocError::Stopping
            | AllocError::Closed
            | AllocError::ForeignStream
            | AllocError::InvalidAlignment { .. }
            | AllocError::StreamCaptured
            | AllocError::BlocksRuntime { .. } => Kind::Other,
            _ => Kind::OutOfMemory,
        };
        Self(kind, error.to_string())
    }
}

impl Refusal {
    fn write(&mut self, Reason(kind, text): &Reason) {
        self.kind = *kind as c_int;
        self.text.fill(0);
        // A cut within a character is no error in C++.
        let bytes = text.bytes().filter(|byte| *byte != 0);
        let room = &mut self.text[..LONGEST - 1];
        room.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    }
}

/// Calls a function. On failure, writes the reason.
///
/// # Safety
/// `refusal` must be valid for writes.
pub(crate) unsafe fn told<T>(
    refusal: *mut Refusal,
    call: impl FnOnce() -> Result<T, Reason>,
) -> Option<T> {
    let answer = guarded(|| Ok(call())).unwrap_or_else(|panicked| Err(panicked.into()));
    match answer {
        Ok(value) => Some(value),
        Err(reason) => {
            // SAFETY: guaranteed by the caller.
            unsafe { (*refusal).write(&reason) };
            None
        }
    }
}

/// Allocates memory, from the memory of a pool of graphs if `pool` is not null. On failure, returns null and writes the
/// reason.
///
/// # Safety
/// The conditions of [`weirpool_alloc`](crate::weirpool_alloc) apply. `pool` must be valid for reads, or null, and
/// `refusal` for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_torch_alloc(
    size: usize,
    device: c_int,
    stream: CUstream,
    pool: *const MempoolId,
    refusal: *mut Refusal,
) -> *mut c_void {
    let allocate = || {
        let opened = device_pool::open(device)?;
        // SAFETY: guaranteed by the caller.
        let address = match unsafe { pool.as_ref() } {
            // SAFETY: guaranteed by the caller.
            Some(id) => unsafe { opened.allocate_in(*id, size as u64, stream) },
            // SAFETY: guaranteed by the caller.
            None => unsafe { opened.allocate(size as u64, stream) },
        };
        let address = address.map_err(|error| {
            let text = opened.explained(&error);
            Reason(Reason::from(error).0, text)
        })?;
        Ok(address as *mut c_void)
    };
    // SAFETY: guaranteed by the caller.
    unsafe { told(refusal, allocate) }.unwrap_or(std::ptr::null_mut())
}

/// Returns whether this process was forked from the one that uses the device.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_is_child() -> c_int {
    c_int::from(fork::is_child())
}

/// The figures of a pool, for PyTorch's.
#[derive(Debug, Default)]
#[repr(C)]
pub struct TorchFigures {
    reserved: u64,
    /// Since the pool was created, or since [`weirpool_torch_reset_peaks`].
    peak_reserved: u64,
    released: u64,
    chunks: u64,
    chunks_created: u64,
    free: u64,
    free_blocks: u64,
    releasable: u64,
    releasable_blocks: u64,
    waits: u64,
    capacity: u64,
}

/// Writes the figures of a device's pool. Without a pool, writes nothing and returns 1.
///
/// # Safety
/// `figures` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_torch_figures(
    device: c_int,
    figures: *mut TorchFigures,
) -> c_int {
    let Some(read) = with_pool(device, |pool| pool.since_reset()) else {
        return 1;
    };
    let read = TorchFigures {
        reserved: read.reserved.current,
        peak_reserved: read.reserved.high,
        released: read.released,
        chunks: read.chunks,
        chunks_created: read.chunks_created,
        free: read.free,
        free_blocks: read.free_blocks as u64,
        releasable: read.releasable_bytes,
        releasable_blocks: read.releasable_blocks,
        waits: read.waits.served,
        capacity: read.capacity,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { figures.write(read) };
    0
}

/// Begins the peaks of [`weirpool_torch_figures`] anew. The pool's own peaks stay.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_torch_reset_peaks(device: c_int) {
    with_pool(device, DevicePool::reset_peaks);
}

/// Returns the largest block that could be allocated once pending memory is complete. Creates the device's pool.
#[unsafe(no_mangle)]
pub extern "C" fn weirpool_torch_largest(device: c_int) -> u64 {
    let largest = guarded(|| {
        let pool = device_pool::open(device)?;
        let read = pool.statistics();
        let left = read.leased.saturating_sub(read.reserved.current);
        let info = pool.device().memory_info(MemoryKind::Device);
        let left = left.min(info.map_err(|error| error.to_string())?.free);
        // Free chunks of virtual memory are mapped together.
        Ok(match pool.pool().inspect().describe().is_virtual {
            true => read.free + read.pending.current + left,
            false => read.largest_free.max(left),
        })
    });
    largest.unwrap_or(0)
}

/// Returns free memory to the device, and waits for freed memory that work may still use. Returns 1 on failure.
///
/// # Safety
/// `refusal` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_torch_trim(device: c_int, refusal: *mut Refusal) -> c_int {
    let trim = || with_pool(device, DevicePool::trim).unwrap_or(Ok(()));
    // SAFETY: guaranteed by the caller.
    status(unsafe { told(refusal, || trim().map_err(Reason::from)) })
}

/// Limits the memory that the device's pool may reserve, to no more than its setting. Returns 1 on failure.
///
/// # Safety
/// `refusal` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_torch_limit(
    device: c_int,
    bytes: u64,
    refusal: *mut Refusal,
) -> c_int {
    let limit = || {
        let pool = device_pool::open(device)?;
        Ok(pool.limit(bytes)?)
    };
    // SAFETY: guaranteed by the caller.
    status(unsafe { told(refusal, limit) })
}

/// Lets a device use the memory of the pool of another device. Returns 1 on failure.
///
/// # Safety
/// `refusal` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_torch_enable_access(
    owner: c_int,
    device: c_int,
    refusal: *mut Refusal,
) -> c_int {
    let enable = || {
        let (owner, device) = (device_pool::open(owner)?, device_pool::open(device)?);
        for _ in 0..ACCESS_TRIES {
            match owner.pool().peers().enable(device.device()) {
                Err(AccessError::Changing) => std::thread::sleep(Duration::from_millis(1)),
                Err(error @ AccessError::Unsupported { .. }) => {
                    return Err(Reason(Kind::Unsupported, error.to_string()));
                }
                done => return done.map(drop).map_err(|error| error.to_string().into()),
            }
        }
        Err(AccessError::Changing.to_string().into())
    };
    // SAFETY: guaranteed by the caller.
    status(unsafe { told(refusal, enable) })
}

/// Called with each block: its address, size and state (0 free, 1 pending, 2 set aside, 3 used).
pub type Visit = unsafe extern "C" fn(to: *mut c_void, address: u64, bytes: u64, state: c_int);

/// Calls a function with each block of the device's pool, in the order of their addresses.
///
/// # Safety
/// The function must be callable with `to`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_torch_walk(device: c_int, visit: Visit, to: *mut c_void) {
    let snapshot = with_pool(device, |pool| pool.pool().inspect().snapshot());
    for block in snapshot.iter().flat_map(|snapshot| snapshot.blocks()) {
        let state = match block.state {
            BlockState::Free => 0,
            BlockState::Pending => 1,
            BlockState::Reserved => 2,
            _ => 3,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { visit(to, block.address.to_bits(), block.size, state) };
    }
}

/// Copies text into a buffer of C. Returns its length, or 0 if there is no room.
///
/// # Safety
/// `buffer` must be valid for writes of `room` bytes.
pub(crate) unsafe fn copy_out(text: &str, buffer: *mut c_char, room: usize) -> c_int {
    if text.len() > room {
        return 0;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { buffer.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
    text.len() as c_int
}

pub(crate) fn status<T>(done: Option<T>) -> c_int {
    c_int::from(done.is_none())
}

/// Calls a function with the device's pool, if it was created.
fn with_pool<T>(device: c_int, call: impl FnOnce(&DevicePool) -> T) -> Option<T> {
    if fork::is_child() {
        return None;
    }
    let called = guarded(|| Ok(device_pool::opened(device).map(call)));
    called.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Refusal {
        Refusal {
            kind: 0,
            text: [0xff; LONGEST],
        }
    }

    #[test]
    fn reason_is_cut_and_ends_with_a_zero() {
        let mut refusal = empty();
        refusal.write(&Reason(Kind::Other, "x\0".repeat(LONGEST)));
        assert_eq!(refusal.kind, 3);
        assert_eq!(refusal.text[LONGEST - 2..], [b'x', 0]);
        refusal.write(&Reason(Kind::OutOfMemory, "none".to_owned()));
        assert_eq!(refusal.text[..5], *b"none\0");
    }

    #[test]
    fn shortage_is_told_apart_from_other_errors() {
        let requested = 2;
        let shortage = AllocError::TooLarge {
            requested,
            capacity: 1,
        };
        assert_eq!(Reason::from(shortage).0, Kind::OutOfMemory);
        assert_eq!(Reason::from(AllocError::Closed).0, Kind::Other);
    }

    #[test]
    fn missing_device_is_refused_with_a_reason() {
        for device in [-1, 100, c_int::MAX] {
            let (mut refusal, mut figures) = (empty(), TorchFigures::default());
            let (none, to) = (std::ptr::null_mut(), &raw mut refusal);
            // SAFETY: null is the legacy default stream, and the other pointers are valid.
            let address = unsafe { weirpool_torch_alloc(512, device, none, std::ptr::null(), to) };
            assert!(address.is_null() && refusal.kind == 3, "device {device}");
            // SAFETY: as above.
            let outcome = unsafe {
                (
                    weirpool_torch_limit(device, 1, to),
                    weirpool_torch_trim(device, to),
                    weirpool_torch_enable_access(device, 0, to),
                    weirpool_torch_figures(device, &raw mut figures),
                )
            };
            assert_eq!(outcome, (1, 0, 1, 1), "device {device}");
            assert_eq!(weirpool_torch_largest(device), 0);
        }
    }
}
