//! Whether this process was forked from the one that uses the GPU. CUDA does not work there, and a lock may be
//! held by a thread that is not there any more: nothing of a pool's is touched.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// From now on a fork is noticed.
pub(crate) fn look_out() {
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
    // SAFETY: this is its type, and the handler only stores a flag.
    let failed = unsafe { pthread_atfork(None, None, Some(begin)) };
    assert_eq!(failed, 0, "no memory for a handler");
}

#[cfg(not(unix))]
fn hook() {
    let _ = begin;
}
