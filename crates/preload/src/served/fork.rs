//! Detects that this process was forked from the one whose allocations the pool serves. CUDA does not work in such a
//! process, and a lock may be held by a thread that it does not have: all calls are the driver's there.

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_CHILD: AtomicBool = AtomicBool::new(false);

pub(super) fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Detects forks from now on.
pub(super) fn watch() {
    type Handler = Option<extern "C" fn()>;
    unsafe extern "C" {
        fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
    }
    extern "C" fn begin() {
        IS_CHILD.store(true, Ordering::Relaxed);
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        // SAFETY: this is the function's type, and the handler only stores a flag.
        let failed = unsafe { pthread_atfork(None, None, Some(begin)) };
        assert_eq!(failed, 0, "no memory for a handler");
    });
}
