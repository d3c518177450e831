//! Detects that this process was forked from the one that uses the GPU. CUDA does not work in such a process, and
//! a lock may be held by a thread that it does not have, so it must not touch a pool.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Detects forks from now on.
pub(crate) fn watch() {
    static HOOK: Once = Once::new();
    HOOK.call_once(hook);
}

pub(crate) fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

extern "C" fn begin() {
    IS_CHILD.store(true, Ordering::Relaxed);
}

#[cfg(unix)]
fn hook() {
    type Handler = Option<extern "C" fn()>;
    unsafe extern "C" {
        fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> std::ffi::c_int;
    }
    // SAFETY: this is the function's type, and the handler only stores a flag.
    let failed = unsafe { pthread_atfork(None, None, Some(begin)) };
    assert_eq!(failed, 0, "no memory for a handler");
}

#[cfg(not(unix))]
fn hook() {
    let _ = begin;
}
