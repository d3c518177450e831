//! The streams of the program, registered with the pool when they are first used.
//!
//! A stream of the program's is destroyed when the pool does not need it any more: the program's call of
//! `cuStreamDestroy` takes effect then. So the pool treats it as one that it keeps, which costs least. The default
//! stream of a thread ends with the thread: its frees record an event at once, and the pool names it only in calls of that
//! thread.

use super::answer::Answer;
use super::context::Context;
use super::counts::Passed;
use super::driver::{self, LEGACY, PER_THREAD, Status};
use super::handle::Handle;
use super::{captures, contexts};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use weirpool::Stream;

/// The driver's `cuStreamDestroy`.
pub(super) type Destroy = unsafe extern "C" fn(usize) -> Status;

/// An owner of a stream of the program.
struct Owner {
    raw: usize,
    is_context_alive: Arc<AtomicBool>,
    /// The driver's function, once the program has destroyed the stream.
    destroy: OnceLock<Destroy>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let is_alive = self.is_context_alive.load(Ordering::Acquire);
        if let Some(destroy) = self.destroy.get().filter(|_| is_alive) {
            // SAFETY: the program has given the stream up, and this was the last owner.
            unsafe { destroy(self.raw) };
        }
    }
}

/// A registered stream.
pub(super) struct Known {
    pub(super) context: &'static Context,
    pub(super) stream: Stream,
    owner: Option<Arc<Owner>>,
}

/// What a thread used last: the generation, the stream, the context of a default stream, and the registration.
type Last = (u64, usize, usize, Arc<Known>);

/// The streams by their handles; those of no handle of their own by their contexts.
type Streams = FxHashMap<(usize, usize), Arc<Known>>;

static STREAMS: RwLock<Option<Streams>> = RwLock::new(None);
static NEXT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
    /// The default streams of this thread, by contexts.
    static OWN: RefCell<Vec<(usize, Arc<Known>)>> = const { RefCell::new(Vec::new()) };
}

/// Calls a function with a stream, which is registered at its first use.
///
/// # Safety
/// The stream is not destroyed.
#[inline]
pub(super) unsafe fn with<T>(raw: usize, call: impl FnOnce(&Known) -> Answer<T>) -> Answer<T> {
    let context = match raw {
        0..=PER_THREAD => match driver::current() {
            Some(context) => context,
            None => return Answer::Passed(Passed::NoPool),
        },
        _ => 0,
    };
    let generation = contexts::generation();
    let mut call = Some(call);
    let remembered = LAST.try_with(|last| {
        let mut last = last.try_borrow_mut().ok()?;
        let is_it = |last: &Last| (last.0, last.1, last.2) == (generation, raw, context);
        if !last.as_ref().is_some_and(is_it) {
            // SAFETY: guaranteed by the caller.
            match unsafe { find(raw, context) } {
                Answer::Served(found) => *last = Some((generation, raw, context, found)),
                Answer::Failed(status) => return Some(Answer::Failed(status)),
                Answer::Passed(reason) => return Some(Answer::Passed(reason)),
            }
        }
        let (.., known) = last.as_ref()?;
        Some(call.take()?(known))
    });
    match (remembered, call) {
        (Ok(Some(answer)), _) => answer,
        // The thread is ending, and remembers nothing any more.
        // SAFETY: guaranteed by the caller.
        (_, Some(call)) => unsafe { find(raw, context) }.and_then(|known| call(&known)),
        (_, None) => Answer::Passed(Passed::NoPool),
    }
}

/// # Safety
/// The stream is not destroyed.
unsafe fn find(raw: usize, current: usize) -> Answer<Arc<Known>> {
    if raw == PER_THREAD {
        return own(current);
    }
    // Handles differ, but the default stream of every context has the same.
    let name = match LEGACY.contains(&raw) {
        true => (0, current),
        false => (raw, 0),
    };
    let known = STREAMS.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = known.as_ref().and_then(|known| known.get(&name)) {
        return Answer::Served(known.clone());
    }
    drop(known);
    let context = match name {
        (0, current) => Ok(current),
        // SAFETY: guaranteed by the caller.
        _ => unsafe { driver::context_of(raw) },
    };
    let Ok(context) = context else {
        return Answer::Passed(Passed::NoPool);
    };
    contexts::of(context).and_then(|context| {
        let owner = Arc::new(Owner {
            raw: name.0,
            is_context_alive: context.is_alive.clone(),
            destroy: OnceLock::new(),
        });
        let handle = Handle::kept(context.handle, name.0, owner.clone());
        let handle = match name.0 {
            0 => handle.without_waits(),
            _ => handle,
        };
        let Some(made) = registered(context, &handle, Some(owner)) else {
            return Answer::Passed(Passed::NoPool);
        };
        let mut known = STREAMS.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been faster.
        Answer::Served(
            known
                .get_or_insert_default()
                .entry(name)
                .or_insert(made)
                .clone(),
        )
    })
}

/// Returns the default stream of this thread.
fn own(context: usize) -> Answer<Arc<Known>> {
    let known = OWN.try_with(|own| {
        let own = own.borrow();
        let of_it = |(handle, known): &&(usize, Arc<Known>)| {
            *handle == context && known.context.is_alive.load(Ordering::Acquire)
        };
        own.iter().find(of_it).map(|(_, known)| known.clone())
    });
    if let Ok(Some(known)) = known {
        return Answer::Served(known);
    }
    contexts::of(context).and_then(|served| {
        let handle = Handle::of_thread(context, NEXT.fetch_add(1, Ordering::Relaxed));
        let Some(known) = registered(served, &handle, None) else {
            return Answer::Passed(Passed::NoPool);
        };
        // A thread that is ending remembers nothing any more.
        let _ = OWN.try_with(|own| {
            let mut own = own.borrow_mut();
            own.retain(|(_, known)| known.context.is_alive.load(Ordering::Acquire));
            own.push((context, known.clone()));
        });
        Answer::Served(known)
    })
}

fn registered(
    context: &'static Context,
    handle: &Handle,
    owner: Option<Arc<Owner>>,
) -> Option<Arc<Known>> {
    let stream = context.pool.register(handle).ok()?;
    Some(Arc::new(Known {
        context,
        stream,
        owner,
    }))
}

/// Destroys a stream for the program: by the driver at once if the pool does not know it, else once the pool does not
/// need it any more.
///
/// # Safety
/// The program gives the stream up.
pub(super) unsafe fn destroy(raw: usize, destroy: Destroy) -> Status {
    let known = {
        let mut known = STREAMS.write().unwrap_or_else(PoisonError::into_inner);
        known.as_mut().and_then(|known| known.remove(&(raw, 0)))
    };
    let was_captured = captures::end_of_stream(raw);
    let Some(known) = known else {
        // SAFETY: guaranteed by the caller.
        return unsafe { destroy(raw) };
    };
    if was_captured {
        // Its capture ends now, and not with the stream.
        // SAFETY: the stream is not destroyed yet.
        unsafe { driver::end_capture(raw) };
    }
    contexts::change();
    let _ = LAST.try_with(|last| last.try_borrow_mut().map(|mut last| last.take()));
    if let Some(owner) = &known.owner {
        let _ = owner.destroy.set(destroy);
    }
    driver::SUCCESS
}

/// Forgets the streams of a context that is about to be destroyed.
pub(super) fn forget(context: &'static Context) {
    let mut known = STREAMS.write().unwrap_or_else(PoisonError::into_inner);
    let of_it = |_: &(usize, usize), known: &mut Arc<Known>| std::ptr::eq(known.context, context);
    let gone: Vec<_> = known
        .iter_mut()
        .flat_map(|known| known.extract_if(of_it))
        .collect();
    drop(known);
    drop(gone);
}
