//! A debug check: no lock of the pool is held across a device call, nor while a waker runs
//! (`no-lock-across-calls`).
//!
//! The pool's mutex reports each lock and unlock, and backends assert at the entrance of each call that the
//! calling thread holds none. In release builds nothing is counted. Under `--cfg weirpool_loom` neither is it:
//! loom runs its threads as coroutines of one thread, so that a count of a thread would mix them up.

#[cfg(all(debug_assertions, not(weirpool_loom)))]
mod held {
    use std::cell::Cell;

    thread_local! {
        static HELD: Cell<u32> = const { Cell::new(0) };
    }

    pub(super) fn change(by: i32) {
        HELD.with(|held| held.set(held.get().wrapping_add_signed(by)));
    }

    pub(super) fn count() -> u32 {
        HELD.with(Cell::get)
    }
}

/// Counts a lock that the calling thread took.
#[inline(always)]
pub fn count_locked() {
    #[cfg(all(debug_assertions, not(weirpool_loom)))]
    held::change(1);
}

/// Counts a lock that the calling thread released.
#[inline(always)]
pub fn count_unlocked() {
    #[cfg(all(debug_assertions, not(weirpool_loom)))]
    held::change(-1);
}

/// Checks that the calling thread holds no lock of the pool, in debug builds.
///
/// # Panics
/// In debug builds, panics if the thread holds a lock that was counted by [`count_locked`].
#[inline(always)]
#[track_caller]
pub fn assert_unlocked(what: &str) {
    #[cfg(all(debug_assertions, not(weirpool_loom)))]
    {
        let held = held::count();
        assert!(
            held == 0,
            "no-lock-across-calls: {what} while {held} lock(s) are held"
        );
    }
    let _ = what;
}

#[cfg(all(test, debug_assertions, not(weirpool_loom)))]
mod tests {
    use super::*;

    #[test]
    fn held_lock_fails_the_assertion_until_it_is_released() {
        count_locked();
        assert!(std::panic::catch_unwind(|| assert_unlocked("a call")).is_err());
        count_unlocked();
        assert_unlocked("a call");
    }
}
