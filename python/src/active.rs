//! The reservations, tags and regions that allocations draw from: of a thread, or of a stream.
//!
//! PyTorch allocates without Python's lock, and on threads of its own. So an activation is kept here and not in Python: in
//! a list of its thread, and, if it names a stream, in a list of streams for the allocations of all threads.

use crate::device_pool::threads_of;
use crate::fork;
use crate::regions::{Gated, Inside};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use weirpool::{AllocError, Block, Pool, Reservation, Stream, Tag};

/// The number of activations in the process. While it is 0, an allocation looks no further.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);

/// Activations for the allocations of all threads on a stream, by the stream's handle.
static STREAMS: Mutex<Vec<(u64, Arc<Activation>)>> = Mutex::new(Vec::new());

/// The reservations that live, for reports.
static LIVE: Mutex<BTreeMap<u64, Weak<Listed>>> = Mutex::new(BTreeMap::new());

/// How many entries of one kind a report lists.
const MOST_LISTED: usize = 4;

thread_local! {
    static OF_THREAD: Stack = const { Stack(RefCell::new(Vec::new())) };
}

/// The activations of a thread. They end with it.
struct Stack(RefCell<Vec<Arc<Activation>>>);

impl Drop for Stack {
    fn drop(&mut self) {
        for activation in self.0.take() {
            activation.end();
        }
    }
}

pub(crate) fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A reservation, kept by its owner and by its activations.
pub(crate) struct Held(Arc<Listed>);

/// A reservation as reports know it, which does not keep its memory.
struct Listed {
    number: u64,
    pool: Pool,
    /// `None` once its last owner is gone.
    reservation: RwLock<Option<Reservation>>,
    /// The threads on which it is active, by the names that Python gives them.
    threads: Mutex<Vec<String>>,
}

impl Listed {
    fn with<T>(&self, call: impl FnOnce(&Reservation) -> T) -> Option<T> {
        let reservation = self.reservation.read();
        let reservation = reservation.unwrap_or_else(PoisonError::into_inner);
        reservation.as_ref().map(call)
    }
}

impl Held {
    pub(crate) fn new(reservation: Reservation) -> Arc<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let listed = Arc::new(Listed {
            number,
            pool: reservation.pool(),
            reservation: RwLock::new(Some(reservation)),
            threads: Mutex::default(),
        });
        locked(&LIVE).insert(number, Arc::downgrade(&listed));
        Arc::new(Self(listed))
    }

    fn with<T>(&self, call: impl FnOnce(&Reservation) -> T) -> T {
        let called = self.0.with(call);
        called.expect("present while it has an owner")
    }

    pub(crate) fn size(&self) -> u64 {
        self.with(Reservation::size)
    }

    pub(crate) fn left(&self) -> u64 {
        self.with(Reservation::left)
    }

    pub(crate) fn tag(&self) -> Option<Tag> {
        self.with(Reservation::tag)
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// Allocates from the reservation; see [`Reservation::allocate`].
    ///
    /// # Errors
    /// Returns the errors of [`Reservation::allocate`].
    pub(crate) fn allocate(&self, stream: &Stream, bytes: u64) -> Result<Block, AllocError> {
        self.with(|reservation| reservation.allocate(stream, bytes))
    }

    /// Moves bytes that are not allocated into a reservation of their own.
    ///
    /// # Errors
    /// Returns [`AllocError::NotReserved`] if fewer bytes are left.
    pub(crate) fn split(&self, bytes: u64) -> Result<Arc<Self>, AllocError> {
        let reservation = self.0.reservation.write();
        let mut reservation = reservation.unwrap_or_else(PoisonError::into_inner);
        let part = reservation.as_mut().map(|owned| owned.split(bytes));
        drop(reservation);
        part.expect("present while it has an owner").map(Self::new)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // In a forked process a lock of the pool may be held by a thread that it does not have.
        if fork::is_child() {
            return std::mem::forget(self.0.clone());
        }
        locked(&LIVE).remove(&self.0.number);
        let reservation = self.0.reservation.write();
        let ended = reservation.unwrap_or_else(PoisonError::into_inner).take();
        // Its memory is with the pool when this returns, even while a report is made.
        drop(ended);
    }
}

/// What allocations draw from.
#[derive(Clone)]
pub(crate) enum Source {
    /// A reservation. Its allocations never wait.
    Reservation(Arc<Held>),
    /// The pool, charged to a tag.
    Tag(Tag),
    /// A region, which stays resident meanwhile.
    Region(Arc<Inside>),
}

/// A source that allocations draw from until the activation ends.
pub(crate) struct Activation {
    pool: Pool,
    thread: String,
    source: Mutex<Option<Source>>,
}

impl Activation {
    /// Makes allocations of this thread draw from a source; and those of all threads on a stream, by its handle.
    pub(crate) fn begin(
        pool: &Pool,
        source: Source,
        thread: String,
        stream: Option<u64>,
    ) -> Arc<Self> {
        if let Source::Reservation(held) = &source {
            locked(&held.0.threads).push(thread.clone());
        }
        let activation = Arc::new(Self {
            pool: pool.clone(),
            thread,
            source: Mutex::new(Some(source)),
        });
        ACTIVE.fetch_add(1, Ordering::Relaxed);
        // A thread that is ending has no list any more: then nothing draws from the source.
        let _ = OF_THREAD.try_with(|stack| {
            let mut stack = stack.0.borrow_mut();
            stack.retain(|other| !other.has_ended());
            stack.push(activation.clone());
        });
        if let Some(stream) = stream {
            let mut streams = locked(&STREAMS);
            streams.retain(|(_, other)| !other.has_ended());
            streams.push((stream, activation.clone()));
        }
        activation
    }

    /// Ends the activation, from any thread. Returns false if it has ended.
    pub(crate) fn end(&self) -> bool {
        let source = locked(&self.source).take();
        if let Some(Source::Reservation(held)) = &source {
            let mut threads = locked(&held.0.threads);
            if let Some(at) = threads.iter().position(|name| *name == self.thread) {
                threads.swap_remove(at);
            }
        }
        if source.is_some() {
            ACTIVE.fetch_sub(1, Ordering::Relaxed);
        }
        // The reservation may end here, outside the lock.
        source.is_some()
    }

    fn has_ended(&self) -> bool {
        locked(&self.source).is_none()
    }

    fn source_for(&self, pool: &Pool) -> Option<Source> {
        if self.pool != *pool {
            return None;
        }
        locked(&self.source).clone()
    }
}

/// Returns what an allocation of this thread draws from on a stream with this handle, if that is not the pool alone.
#[inline]
pub(crate) fn source(pool: &Pool, stream: u64) -> Option<Source> {
    if !has_any() {
        return None;
    }
    source_of(pool, stream)
}

/// Returns whether anything is active in the process.
#[inline]
pub(crate) fn has_any() -> bool {
    ACTIVE.load(Ordering::Relaxed) > 0
}

/// Returns whether allocations of this thread come from a region.
pub(crate) fn is_inside(region: &Arc<Gated>) -> bool {
    let is_its = |activation: &Arc<Activation>| {
        let source = locked(&activation.source);
        matches!(&*source, Some(Source::Region(inside)) if inside.is_of(region))
    };
    let found = OF_THREAD.try_with(|stack| stack.0.borrow().iter().any(is_its));
    found.unwrap_or(false)
}

#[cold]
fn source_of(pool: &Pool, stream: u64) -> Option<Source> {
    let of_thread = OF_THREAD.try_with(|stack| {
        let stack = stack.0.borrow();
        let mut sources = stack.iter().rev();
        sources.find_map(|activation| activation.source_for(pool))
    });
    let of_stream = || {
        let streams = locked(&STREAMS);
        let its = streams.iter().rev().filter(|(handle, _)| *handle == stream);
        its.clone()
            .find_map(|(_, activation)| activation.source_for(pool))
    };
    of_thread.ok().flatten().or_else(of_stream)
}

/// Returns what the pool knows about the holders of its memory: reservations with the threads that they are active on,
/// tags, streams with the threads that use them, and the requests that wait.
pub(crate) fn holders(pool: &Pool) -> String {
    let mut text = String::new();
    let live: Vec<_> = locked(&LIVE).values().filter_map(Weak::upgrade).collect();
    let figures = |held: Arc<Listed>| {
        let read = |owned: &Reservation| (owned.size(), owned.left(), owned.tag());
        Some((held.with(read)?, held))
    };
    let of_pool = live.into_iter().filter(|held| held.pool == *pool);
    let mut live: Vec<_> = of_pool.filter_map(figures).collect();
    live.sort_by_key(|((size, ..), _)| std::cmp::Reverse(*size));
    let is_more = live.len().saturating_sub(MOST_LISTED);
    for ((size, left, tag), held) in live.iter().take(MOST_LISTED) {
        let (size, left) = (in_units(*size), in_units(*left));
        let _ = write!(text, "; reservation {} of {size}", held.number);
        if let Some(tag) = tag {
            let _ = write!(text, " for tag {tag}");
        }
        let _ = write!(text, " with {left} not allocated");
        let threads = locked(&held.threads).join(", ");
        if !threads.is_empty() {
            let _ = write!(text, ", active on thread {threads}");
        }
    }
    if is_more > 0 {
        let _ = write!(text, "; {is_more} smaller reservations");
    }
    let mut tags = pool.inspect().statistics_by_tag();
    tags.retain(|tag| tag.used.current > 0);
    tags.sort_by_key(|tag| std::cmp::Reverse(tag.used.current));
    for tag in tags.iter().take(MOST_LISTED) {
        let _ = write!(text, "; tag {}: {}", tag.tag, in_units(tag.used.current));
    }
    let mut streams = pool.inspect().statistics_by_stream();
    streams.retain(|stream| stream.used.current > 0);
    streams.sort_by_key(|stream| std::cmp::Reverse(stream.used.current));
    for stream in streams.iter().take(MOST_LISTED) {
        let (id, used) = (stream.stream, in_units(stream.used.current));
        let _ = write!(text, "; {id}: {used}");
        if let Some(threads) = threads_of(pool, id) {
            let _ = write!(text, ", used by thread {threads}");
        }
    }
    let waiting = pool.inspect().waiting_requests(usize::MAX);
    if !waiting.is_empty() {
        let bytes = waiting.iter().map(|request| request.requested).sum();
        let (count, bytes) = (waiting.len(), in_units(bytes));
        let _ = write!(text, "; {count} requests wait for {bytes}");
    }
    text.trim_start_matches("; ").to_owned()
}

/// Returns the reason why a request failed; for one that found no memory, with the holders of the pool's memory.
pub(crate) fn explained(pool: &Pool, error: &AllocError) -> String {
    let holders = match error {
        AllocError::TimedOut { .. } | AllocError::Exhausted(_) | AllocError::Deadlocked(_) => {
            holders(pool)
        }
        _ => String::new(),
    };
    if holders.is_empty() {
        return error.to_string();
    }
    format!("{error}. Held by: {holders}")
}

fn in_units(bytes: u64) -> bytesize::ByteSize {
    bytesize::ByteSize(bytes)
}

#[cfg(test)]
mod tests;
