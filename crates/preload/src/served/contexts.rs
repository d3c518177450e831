//! The pools: one for each context in which the program allocates.
//!
//! A context's pool is made at the first allocation there. It lives until the program destroys the context: then
//! what it has not freed is freed, as the driver does. A closed pool is never dropped, since another thread
//! may be about to use it.

use super::answer::Answer;
use super::context::Context;
use super::counts::Passed;
use super::driver::{self, OUT_OF_MEMORY};
use super::message::say;
use super::{captures, fork, page, stated};
use crate::settings::{BROKER, Settings};
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

#[derive(Clone, Copy)]
enum Opened {
    Pool(&'static Context),
    /// There is no pool: the driver serves the context, or a broker's memory was asked for and there is no broker.
    None(bool),
}

/// The contexts that were used and not destroyed.
static OPENED: Mutex<Vec<(usize, Opened)>> = Mutex::new(Vec::new());
/// All that had a pool, those that were destroyed included.
static EVER: Mutex<Vec<&'static Context>> = Mutex::new(Vec::new());
/// Counts the changes after which what a thread remembers may be wrong.
static GENERATION: AtomicU64 = AtomicU64::new(0);
thread_local! {
    static LAST: Cell<Option<(u64, usize, Opened)>> = const { Cell::new(None) };
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline]
pub(super) fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// Makes all threads forget what they remember of streams and contexts.
pub(super) fn change() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// Returns the context with a handle, and makes its pool at the first call.
pub(super) fn of(handle: usize) -> Answer<&'static Context> {
    let generation = generation();
    let remembered = LAST
        .get()
        .filter(|last| (last.0, last.1) == (generation, handle));
    let opened = match remembered {
        Some((_, _, opened)) => opened,
        // A pool makes a stream, and waits for the device.
        None if captures::are_active() && !is_open(handle) => {
            return Answer::Passed(Passed::Capture);
        }
        None => {
            let opened = open(handle);
            LAST.set(Some((generation, handle, opened)));
            opened
        }
    };
    match opened {
        Opened::Pool(context) => Answer::Served(context),
        Opened::None(true) => Answer::Failed(OUT_OF_MEMORY),
        Opened::None(false) => Answer::Passed(Passed::NoPool),
    }
}

/// Returns the current context of this thread; passes the call on if it has none.
pub(super) fn of_current() -> Answer<&'static Context> {
    driver::current().map_or(Answer::Passed(Passed::NoPool), of)
}

/// Returns a context of a device that has a pool: the current one, if it is of that device.
pub(super) fn of_device(device: c_int) -> Option<&'static Context> {
    let current = driver::current();
    let opened = locked(&OPENED);
    let pools = opened.iter().filter_map(|(handle, opened)| match opened {
        Opened::Pool(context) if context.device == device => Some((*handle, *context)),
        _ => None,
    });
    let found = pools.max_by_key(|(handle, _)| Some(*handle) == current);
    found.map(|(_, context)| context)
}

/// Returns the contexts that have or had a pool.
pub(super) fn ever() -> Vec<&'static Context> {
    locked(&EVER).clone()
}

/// Removes a context that is about to be destroyed.
pub(super) fn remove(handle: usize) -> Option<&'static Context> {
    let mut opened = locked(&OPENED);
    let at = opened.iter().position(|(known, _)| *known == handle);
    let removed = at.map(|at| opened.swap_remove(at).1);
    drop(opened);
    change();
    match removed {
        Some(Opened::Pool(context)) => Some(context),
        _ => None,
    }
}

fn is_open(handle: usize) -> bool {
    locked(&OPENED).iter().any(|(known, _)| *known == handle)
}

fn open(handle: usize) -> Opened {
    let mut opened = locked(&OPENED);
    if let Some((_, known)) = opened.iter().find(|(known, _)| *known == handle) {
        return *known;
    }
    fork::watch();
    let made = Settings::of_environment().and_then(|settings| {
        // Its making makes the context current.
        let made = driver::in_context(handle, || Ok(Context::new(handle, settings)));
        made.map_err(|status| format!("the driver answers {status}"))?
            .map_err(|error| error.to_string())
    });
    let made = match made {
        Ok(context) => {
            let context: &'static Context = Box::leak(Box::new(context));
            let mut ever = locked(&EVER);
            ever.push(context);
            if let (1, Some(port)) = (ever.len(), context.settings.page) {
                page::serve(&context.pool, port);
            }
            stated::set_up(&context.pool, context.device);
            Opened::Pool(context)
        }
        Err(reason) => {
            let is_leased = std::env::var_os(BROKER).is_some();
            let outcome = match is_leased {
                true => "allocations fail",
                false => "the driver serves the program",
            };
            say(&format!("{reason}; {outcome}"));
            Opened::None(is_leased)
        }
    };
    opened.push((handle, made));
    drop(opened);
    if let Opened::Pool(context) = made {
        for (owner, peer, is_given) in stated::access_of(context.device) {
            set_access(owner, peer, is_given);
        }
    }
    made
}

/// Gives a device access to the pool of another one, or takes it back, if the program holds the primary contexts of both.
pub(super) fn set_access(owner: c_int, peer: c_int, is_given: bool) {
    let primary = |device| driver::primary(device).map(of);
    let both = (primary(owner), primary(peer));
    if let (Some(Answer::Served(owner)), Some(Answer::Served(peer))) = both {
        owner.set_access(peer, is_given);
    }
}
