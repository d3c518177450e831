//! Frees in no stream's order, and the end of a context.

use super::blocks::{self, Memory};
use super::context::Context;
use super::driver::{self, Status};
use super::{captures, contexts, streams};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use weirpool::Block;

/// A block to be freed when the work of its context is complete, and that of the context in whose order it is freed.
type Free = (&'static Context, &'static Context, Block);

/// Frees that came during a capture, while the device must not be waited for.
static DEFERRED: Mutex<Vec<Free>> = Mutex::new(Vec::new());
static HAS_DEFERRED: AtomicBool = AtomicBool::new(false);
/// Held while deferred frees are carried out, and while a context ends: it ends before or after them.
static FREEING: Mutex<()> = Mutex::new(());

fn deferred() -> MutexGuard<'static, Vec<Free>> {
    DEFERRED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees a block that work of any stream of its context and of another one may use: waits for all of their work, as the
/// driver's `cuMemFree` does. During a capture, when the device must not be waited for, the block is freed later.
///
/// # Errors
/// Returns the driver's error, and the block.
pub(super) fn free(
    context: &'static Context,
    other: &'static Context,
    block: Block,
) -> Result<(), (Status, Block)> {
    free_deferred();
    if captures::are_active() {
        defer((context, other, block));
        return Ok(());
    }
    free_now(context, other, block)
}

fn defer(free: Free) {
    deferred().push(free);
    HAS_DEFERRED.store(true, Ordering::Release);
}

fn free_now(context: &Context, other: &Context, block: Block) -> Result<(), (Status, Block)> {
    let synchronized = driver::synchronize(context.handle).and_then(|()| {
        let is_same = std::ptr::eq(context, other);
        if is_same {
            Ok(())
        } else {
            driver::synchronize(other.handle)
        }
    });
    match synchronized {
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
    let _freeing = FREEING.lock().unwrap_or_else(PoisonError::into_inner);
    HAS_DEFERRED.store(false, Ordering::Release);
    let deferred = std::mem::take(&mut *deferred());
    for (context, other, block) in deferred {
        if let Err((_, block)) = free_now(context, other, block) {
            // Another capture may have begun.
            defer((context, other, block));
        }
    }
}

/// Ends the pool of a context that is about to be destroyed: frees what the program has not freed, as the driver does.
pub(super) fn close(handle: usize) {
    captures::end_of_context(handle);
    let _freeing = FREEING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(context) = contexts::remove(handle) else {
        return;
    };
    let _ = driver::synchronize(context.handle);
    let mut deferred = deferred();
    let gone: Vec<_> = deferred
        .extract_if(.., |(of, ..)| std::ptr::eq(*of, context))
        .collect();
    for (of, other, _) in deferred.iter_mut() {
        if std::ptr::eq(*other, context) {
            // Its work is complete.
            *other = of;
        }
    }
    drop(deferred);
    for (.., block) in gone {
        context.free_complete(block);
    }
    for held in blocks::take_all(context) {
        if let Memory::Block(block) = held.memory {
            context.free_complete(block);
        }
    }
    streams::forget(context);
    context.end();
}

/// Ends the pool of a context that the program destroys, unless it is the primary one of a device: the driver refuses then.
pub(super) fn close_unless_primary(handle: usize) {
    if !(0..driver::devices()).any(|device| driver::primary(device) == Some(handle)) {
        close(handle);
    }
}

/// Ends the pool of a device's primary context, which the program still holds.
pub(super) fn close_primary(device: c_int) {
    if let Some(context) = driver::primary(device) {
        close(context);
    }
}
