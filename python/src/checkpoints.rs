//! Checkpoints of the memory pools of graphs, for the extension `graph_trees.cpp`.
//!
//! A tree of graphs shares one pool. Before a further branch is recorded, the pool goes back to its state after the
//! graph that the branch follows: the ranges that are allocated now are freed, and those that were allocated then are
//! allocated again.

use crate::device_pool::{self, DevicePool};
use crate::graphs::MempoolId;
use crate::{exception, figure, guarded};
use cudarc::driver::sys::CUstream;
use std::ffi::{c_int, c_void};
use weirpool::{GraphCheckpoint, GraphMemory};

/// A range of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// Its first address.
    pub address: *mut c_void,
    /// Its size in bytes.
    pub bytes: usize,
}

/// A checkpoint of a pool.
#[derive(Debug)]
pub struct Checkpoint(GraphCheckpoint);

/// Records the ranges that are allocated in a pool of graphs. The caller passes the result to
/// [`weirpool_checkpoint_free`]. Throws a `std::runtime_error` if the pool has no owner.
///
/// # Safety
/// All frames up to the one that catches the exception must allow unwinding.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn weirpool_checkpoint_or_throw(
    device: c_int,
    id: MempoolId,
) -> *mut Checkpoint {
    let taken = guarded(|| {
        let (_, memory) = opened(device, id)?;
        Ok(Box::into_raw(Box::new(Checkpoint(memory.checkpoint()))))
    });
    match taken {
        Ok(checkpoint) => checkpoint,
        // SAFETY: guaranteed by the caller.
        Err(reason) => unsafe { exception::throw(reason).cast() },
    }
}

/// Frees a checkpoint, but no memory of the device. A null pointer has no effect.
///
/// # Safety
/// The checkpoint must come from [`weirpool_checkpoint_or_throw`], and must not be used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_checkpoint_free(checkpoint: *mut Checkpoint) {
    if !checkpoint.is_null() {
        // SAFETY: guaranteed by the caller.
        drop(unsafe { Box::from_raw(checkpoint) });
    }
}

/// Writes up to `room` ranges of a checkpoint, lowest first. Returns the number of all its ranges.
///
/// # Safety
/// The checkpoint must not be freed yet. `ranges` must have room for `room` elements, or be null if that is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_checkpoint_ranges(
    checkpoint: *const Checkpoint,
    ranges: *mut MemoryRange,
    room: usize,
) -> usize {
    // SAFETY: guaranteed by the caller.
    unsafe { write(&(*checkpoint).0, ranges, room) }
}

/// Writes the ranges that are allocated in a pool of graphs now, as [`weirpool_checkpoint_ranges`] does. Returns 0 if
/// the pool has no owner.
///
/// # Safety
/// `ranges` must have room for `room` elements, or be null if that is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weirpool_allocated_in_pool(
    device: c_int,
    id: MempoolId,
    ranges: *mut MemoryRange,
    room: usize,
) -> usize {
    let count = |pool: &DevicePool| {
        let memory = pool.graphs.memory(id);
        // SAFETY: guaranteed by the caller.
        memory.map_or(0, |memory| unsafe {
            write(&memory.checkpoint(), ranges, room) as u64
        })
    };
    figure(device, count) as usize
}

/// Frees all memory that is allocated in a pool of graphs, and allocates the ranges of a checkpoint of the same pool,
/// for use in the order of a stream. Throws a `std::runtime_error` if that fails.
///
/// # Safety
/// The checkpoint must not be freed yet. The stream must not be destroyed before this returns, nor any other stream
/// that the memory was used on. All frames up to the one that catches the exception must allow unwinding.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn weirpool_restore_or_throw(
    device: c_int,
    id: MempoolId,
    checkpoint: *const Checkpoint,
    stream: CUstream,
) {
    let restored = guarded(|| {
        let (pool, memory) = opened(device, id)?;
        // SAFETY: guaranteed by the caller.
        unsafe { pool.restore(&memory, &(*checkpoint).0, stream) }
    });
    if let Err(reason) = restored {
        // SAFETY: guaranteed by the caller.
        unsafe { exception::throw(reason) };
    }
}

fn opened(device: c_int, id: MempoolId) -> Result<(&'static DevicePool, GraphMemory), String> {
    let pool = device_pool::opened(device);
    let found = pool.and_then(|pool| Some((pool, pool.graphs.memory(id)?)));
    found.ok_or_else(|| {
        format!(
            "device {device} has no pool of graphs ({}, {}): it was released, or was never used",
            id.0, id.1
        )
    })
}

/// # Safety
/// `ranges` must have room for `room` elements, or be null if that is 0.
unsafe fn write(checkpoint: &GraphCheckpoint, ranges: *mut MemoryRange, room: usize) -> usize {
    for (at, (address, bytes)) in checkpoint.ranges().take(room).enumerate() {
        let range = MemoryRange {
            address: address.to_bits() as *mut c_void,
            bytes: bytes as usize,
        };
        // SAFETY: guaranteed by the caller: `at` is below `room`.
        unsafe { ranges.add(at).write(range) };
    }
    checkpoint.ranges().len()
}
