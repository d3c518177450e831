//! Captures: the driver's own memory serves the allocations of a stream that is being captured.

use super::driver::{self, PER_THREAD, Status};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// A stream whose capture was begun: its context, its handle, and its thread if it is the default stream of one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    context: usize,
    stream: usize,
    thread: Option<ThreadId>,
}

/// The streams whose captures were begun and not ended.
static CAPTURED: LazyLock<Mutex<HashSet<Origin>>> = LazyLock::new(Mutex::default);
/// Their number.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);

fn change<T>(change: impl FnOnce(&mut MutexGuard<'static, HashSet<Origin>>) -> T) -> T {
    let mut captured = CAPTURED.lock().unwrap_or_else(PoisonError::into_inner);
    let answer = change(&mut captured);
    ACTIVE.store(captured.len(), Ordering::SeqCst);
    answer
}

/// Returns the stream of a call.
///
/// # Safety
/// The stream is not destroyed.
pub(super) unsafe fn origin(stream: usize) -> Origin {
    let context = match stream {
        0..=PER_THREAD => driver::current(),
        // SAFETY: guaranteed by the caller.
        _ => unsafe { driver::context_of(stream) }.ok(),
    };
    Origin {
        context: context.unwrap_or_default(),
        stream,
        thread: (stream == PER_THREAD).then(|| thread::current().id()),
    }
}

/// Ends the capture of a thread's default stream when the thread ends.
struct OfThread(ThreadId);

impl Drop for OfThread {
    fn drop(&mut self) {
        if are_active() {
            change(|captured| captured.retain(|origin| origin.thread != Some(self.0)));
        }
    }
}

thread_local! {
    static OF_THREAD: OfThread = OfThread(thread::current().id());
}

/// Notes that a capture begins. Returns whether the stream had none.
pub(super) fn begin(origin: Origin) -> bool {
    if origin.thread.is_some() {
        // Fails in a thread that ends.
        let _ = OF_THREAD.try_with(|_| ());
    }
    change(|captured| captured.insert(origin))
}

/// Notes that a capture has ended. Returns whether the stream had one.
pub(super) fn end(origin: Origin) -> bool {
    change(|captured| captured.remove(&origin))
}

/// Notes that a stream of a handle of its own is destroyed. Returns whether it had a capture.
pub(super) fn end_of_stream(stream: usize) -> bool {
    are_active()
        && change(|captured| {
            captured
                .extract_if(|origin| origin.stream == stream)
                .count()
                > 0
        })
}

/// Notes that the captures of a context end with it.
pub(super) fn end_of_context(context: usize) {
    if are_active() {
        change(|captured| captured.retain(|origin| origin.context != context));
    }
}

pub(super) fn are_active() -> bool {
    ACTIVE.load(Ordering::SeqCst) > 0
}

/// Returns whether a stream is part of a capture. Asks the driver only while there is a capture.
///
/// # Errors
/// Returns the driver's error: the default stream must not be asked for during some captures.
///
/// # Safety
/// The stream is not destroyed.
#[inline]
pub(super) unsafe fn has(stream: usize) -> Result<bool, Status> {
    match are_active() {
        // SAFETY: guaranteed by the caller.
        true => unsafe { driver::is_captured(stream) },
        false => Ok(false),
    }
}
