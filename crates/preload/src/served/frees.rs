//! Frees in no stream's order, and the end of a context.

use super::blocks::{self, Memory};
use super::context::Context;
use super::counts::Passed;
use super::driver::{self, Status};
use super::{captures, contexts, streams};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use weirpool::Block;

type Deferred = Vec<(&'static Context, Block)>;

/// Frees that came during a capture, while the device must not be waited for.
static DEFERRED: Mutex<Deferred> = Mutex::new(Vec::new());
static HAS_DEFERRED: AtomicBool = AtomicBool::new(false);

fn deferred() -> MutexGuard<'static, Deferred> {
    DEFERRED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees a block that work of any stream may use: waits for all work of the context, as the driver's `cuMemFree` does. During a
/// capture, when the device must not be waited for, the block is freed later.
///
/// # Errors
/// Returns the driver's error, and the block.
pub(super) fn free(context: &'static Context, block: Block) -> Result<(), (Status, Block)> {
    free_deferred();
    if captures::are_active() {
        deferred().push((context, block));
        HAS_DEFERRED.store(true, Ordering::Release);
        Passed::Capture.count();
        return Ok(());
    }
    free_now(context, block)
}

fn free_now(context: &Context, block: Block) -> Result<(), (Status, Block)> {
    match driver::synchronize(context.handle) {
        Ok(()) => {
            context.free_complete(block);
            Ok(())
        }
        Err(status) => Err((status, block)),
    }
}

/// Frees the memory whose free came during a capture, once there is no capture.
pub(super) fn free_deferred() {
    if !HAS_DEFERRED.load(Ordering::Acquire) || captures::are_active() {
        return;
    }
    HAS_DEFERRED.store(false, Ordering::Release);
    let deferred = std::mem::take(&mut *deferred());
    for (context, block) in deferred {
        let _ = free_now(context, block);
    }
}

/// Ends the pool of a context that is about to be destroyed: frees what the program has not freed, as the driver does.
pub(super) fn close(handle: usize) {
    let Some(context) = contexts::remove(handle) else {
        return;
    };
    let _ = driver::synchronize(context.handle);
    deferred().retain(|(of, _)| !std::ptr::eq(*of, context));
    for held in blocks::take_all(context) {
        if let Memory::Block(block) = held.memory {
            context.free_complete(block);
        }
    }
    streams::forget(context);
    context.end();
}

/// Ends the pool of a device's primary context, which the program still holds.
pub(super) fn close_primary(device: c_int) {
    if let Some(context) = driver::primary(device) {
        close(context);
    }
}
