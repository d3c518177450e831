//! The primitives of `weirpool`: the only file of the pool that names those of std, loom or shuttle. No stable API.
//!
//! Under `--cfg weirpool_loom` the names stand for loom's primitives, so that the models in `loom-tests/` run the
//! pool's own types. With `--cfg weirpool_shuttle` as well they stand for shuttle's, for models with too many
//! schedules for loom. In debug builds this crate also counts, for two checks that a test can make: the locks that a
//! thread took and its writes to shared cache lines (`census`), and whether it holds a lock where it must hold none
//! ([`assert_unlocked`], *no-lock-across-calls*).
//!
//! The device layer is below the models: it uses [`plain`], which is always std.
#![deny(unsafe_code)]

// A stack that overflows panics, and a test that expects a panic of its model would pass. See `build.rs`.
#[cfg(all(weirpool_loom, not(weirpool_shuttle), weirpool_unoptimized))]
compile_error!(
    "loom gives a thread 32 KiB of stack, and a pool needs more in a build without optimizations; build with \
     `--release`, or set `opt-level = 1` in the profile"
);

#[cfg(not(weirpool_loom))]
use std::sync as primitive;

#[cfg(all(weirpool_loom, not(weirpool_shuttle)))]
use loom::{sync as primitive, thread};

#[cfg(weirpool_shuttle)]
use shuttle::{sync as primitive, thread};

#[cfg(not(weirpool_loom))]
use std::thread;

pub mod background;
mod foreign;
mod link;
mod rare;
pub mod timer;
pub mod worker;

use crossbeam_utils::Backoff;
pub use foreign::{Foreign, ForeignOption, GuardWithTrash, Trash};
pub use link::Link;
#[cfg(all(weirpool_loom, not(weirpool_shuttle)))]
pub use loom::thread_local as of_model_thread;
pub use primitive::Arc;
use primitive::atomic;
pub use primitive::atomic::Ordering;
pub use rare::Rare;
#[cfg(weirpool_shuttle)]
pub use shuttle::thread_local as of_model_thread;
#[cfg(not(weirpool_loom))]
pub use std::thread_local;
pub use weirpool_device::{assert_unlocked, plain};

/// Declares variables of the model's threads, as std's macro does of threads.
#[cfg(weirpool_loom)]
#[macro_export]
macro_rules! thread_local {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = const { $value:expr };)+) => {
        $crate::of_model_thread! { $($(#[$attribute])* static $name: $type = $value;)+ }
    };
}

/// The object that a lock guards: the name under which the census counts the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guards {
    /// The state of a stream.
    Lane,
    /// The records of all memory.
    Heap,
    /// The events to record.
    Markers,
    /// What one stream knows of the others.
    Clock,
    /// The spare events.
    Events,
    /// A list that rarely changes, of streams or of graphs.
    Registry,
    /// The queues of requests.
    Queue,
    /// One request that waits.
    Waiter,
    /// The waiters to notify.
    Notifier,
    /// The state that few blocks have.
    Block,
    /// The budget of remappings.
    Budget,
    /// The host tasks of a stream.
    HostTasks,
    /// The result of a task.
    Outcome,
}

/// A mutex that does not poison. A panic while it is held is a bug of this crate, and the invariants, not the poison
/// flag, tell whether the data is sound.
#[derive(Debug)]
pub struct Mutex<T: ?Sized> {
    #[cfg(debug_assertions)]
    guards: Guards,
    inner: primitive::Mutex<T>,
}

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    pub fn new(guards: Guards, value: T) -> Self {
        #[cfg(not(debug_assertions))]
        let _ = guards;
        Self {
            #[cfg(debug_assertions)]
            guards,
            inner: primitive::Mutex::new(value),
        }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Returns `None` while another thread holds the lock.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return None,
        };
        #[cfg(debug_assertions)]
        counters::locked(self.guards);
        Some(Guard { inner })
    }

    /// Locks the mutex, whether or not a thread panicked while it held the lock.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        let inner = self
            .inner
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        #[cfg(debug_assertions)]
        counters::locked(self.guards);
        Guard { inner }
    }
}

impl<T> Mutex<T> {
    /// Returns the value of a mutex that the caller owns. Takes no lock.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        let value = self.inner.get_mut();
        value.unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A mutex that many threads take at once and hold only briefly. A thread that finds it locked retries for some
/// microseconds before it sleeps, because sleeping and being woken takes longer than the lock is held.
#[derive(Debug)]
pub struct Busy<T>(Mutex<T>);

impl<T> Busy<T> {
    /// Creates an unlocked mutex.
    pub fn new(guards: Guards, value: T) -> Self {
        Self(Mutex::new(guards, value))
    }

    /// Returns the value of a mutex that the caller owns. Takes no lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// Locks the mutex.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        if cfg!(weirpool_loom) {
            return self.0.lock();
        }
        match self.0.try_lock() {
            Some(guard) => guard,
            None => self.lock_soon(),
        }
    }

    #[cold]
    fn lock_soon(&self) -> Guard<'_, T> {
        /// Each attempt is followed by 1 to 64 pauses: about 20 us in all.
        const LOOKS: usize = 12;
        let backoff = Backoff::new();
        for _ in 0..LOOKS {
            backoff.spin();
            if let Some(guard) = self.0.try_lock() {
                return guard;
            }
        }
        self.0.lock()
    }
}

/// The guard of a [`Mutex`].
#[derive(Debug)]
pub struct Guard<'a, T: ?Sized> {
    inner: primitive::MutexGuard<'a, T>,
}

impl<T: ?Sized> std::ops::Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> std::ops::DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

#[cfg(debug_assertions)]
impl<T: ?Sized> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        weirpool_device::count_unlocked();
    }
}

/// A value that is never deallocated, so that a reference to it needs no reference count. Models use a reference count,
/// because each execution creates a new value.
#[derive(Debug)]
pub struct Lasting<T: ?Sized + 'static>(
    #[cfg(not(weirpool_loom))] &'static T,
    #[cfg(weirpool_loom)] plain::Arc<T>,
);

impl<T> Lasting<T> {
    /// Allocates a value for the rest of the process.
    pub fn new(value: T) -> Self {
        #[cfg(not(weirpool_loom))]
        return Self(Box::leak(Box::new(value)));
        #[cfg(weirpool_loom)]
        return Self(plain::Arc::new(value));
    }
}

impl<T: ?Sized> Clone for Lasting<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        #[cfg(not(weirpool_loom))]
        return Self(self.0);
        #[cfg(weirpool_loom)]
        return Self(self.0.clone());
    }
}

impl<T: ?Sized> std::ops::Deref for Lasting<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        #[cfg(not(weirpool_loom))]
        return self.0;
        #[cfg(weirpool_loom)]
        return &self.0;
    }
}

macro_rules! shared_atomic {
    ($(#[$doc:meta])* $name:ident, $atomic:ty, $value:ty) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name($atomic);

        impl $name {
            /// Creates an atomic with this value.
            #[inline]
            pub fn new(value: $value) -> Self {
                Self(<$atomic>::new(value))
            }

            /// Returns the value.
            #[inline]
            pub fn load(&self, order: Ordering) -> $value {
                self.0.load(order)
            }

            /// Sets the value.
            #[inline]
            pub fn store(&self, value: $value, order: Ordering) {
                #[cfg(debug_assertions)]
                counters::wrote();
                self.0.store(value, order);
            }

            /// Sets the value. Returns the former one.
            #[inline]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                #[cfg(debug_assertions)]
                counters::wrote();
                self.0.swap(value, order)
            }

            /// Sets the value to `new` if it is `current`.
            ///
            /// # Errors
            /// Returns the value if it is another one.
            #[inline]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                #[cfg(debug_assertions)]
                counters::wrote();
                self.0.compare_exchange(current, new, success, failure)
            }
        }
    };
}

shared_atomic!(
    /// A flag on a cache line that several threads read.
    SharedFlag, atomic::AtomicBool, bool);
shared_atomic!(
    /// A small state on a cache line that several threads write.
    SharedState, atomic::AtomicU8, u8);
shared_atomic!(
    /// A number on a cache line that several threads write.
    SharedNumber, atomic::AtomicU64, u64);

impl SharedState {
    /// Sets bits. Returns the former value.
    #[inline]
    pub fn fetch_or(&self, bits: u8, order: Ordering) -> u8 {
        #[cfg(debug_assertions)]
        counters::wrote();
        self.0.fetch_or(bits, order)
    }

    /// Clears the other bits. Returns the former value.
    #[inline]
    pub fn fetch_and(&self, bits: u8, order: Ordering) -> u8 {
        #[cfg(debug_assertions)]
        counters::wrote();
        self.0.fetch_and(bits, order)
    }
}

impl SharedNumber {
    /// Sets the number to `value` if that is higher. Returns the former number.
    #[inline]
    pub fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        #[cfg(debug_assertions)]
        counters::wrote();
        self.0.fetch_max(value, order)
    }

    /// Sets the number to the result of `next` for the current number, atomically.
    ///
    /// # Errors
    /// Returns the current number if `next` returns `None`.
    #[inline]
    pub fn fetch_update(
        &self,
        order: Ordering,
        next: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        #[cfg(debug_assertions)]
        counters::wrote();
        self.0.fetch_update(order, Ordering::Relaxed, next)
    }

    /// Adds, and wraps around. Returns the former number.
    #[inline]
    pub fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        #[cfg(debug_assertions)]
        counters::wrote();
        self.0.fetch_add(value, order)
    }

    /// Subtracts, and wraps around. Returns the former number.
    #[inline]
    pub fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        #[cfg(debug_assertions)]
        counters::wrote();
        self.0.fetch_sub(value, order)
    }
}

/// A number that is only reported: nothing waits for it, and no decision depends on it. It is std's atomic in models as
/// well, so that figures add no steps to them. The census counts each write.
#[derive(Debug, Default)]
pub struct Count(plain::AtomicU64);

impl Count {
    /// Returns the number.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds, and wraps around. Differences stay correct.
    #[inline]
    pub fn add(&self, count: u64) {
        #[cfg(debug_assertions)]
        counters::wrote();
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Adds, and saturates at the largest number.
    #[inline]
    pub fn add_saturating(&self, count: u64) {
        #[cfg(debug_assertions)]
        counters::wrote();
        let add = |sum: u64| Some(sum.saturating_add(count));
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Subtracts, and wraps around.
    #[inline]
    pub fn subtract(&self, count: u64) {
        self.add(count.wrapping_neg());
    }

    /// Sets the number.
    #[inline]
    pub fn set(&self, value: u64) {
        #[cfg(debug_assertions)]
        counters::wrote();
        self.0.store(value, Ordering::Relaxed);
    }

    /// Sets the number to `value` if that is higher. Otherwise writes nothing.
    #[inline]
    pub fn raise(&self, value: u64) {
        if value > self.get() {
            #[cfg(debug_assertions)]
            counters::wrote();
            self.0.fetch_max(value, Ordering::Relaxed);
        }
    }
}

/// Lets other threads run, because this thread waits for an imminent action of one of them.
#[inline]
pub fn yield_now() {
    thread::yield_now();
}

/// Returns the number of the calling thread, counted from the first thread that asks.
#[cfg(not(weirpool_loom))]
#[inline]
pub fn thread_number() -> usize {
    use std::sync::atomic::AtomicUsize;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // A thread that is ending may share another's number.
    OWN.try_with(|own| *own).unwrap_or_default()
}

/// Returns the number that the model gave to the calling thread.
#[cfg(weirpool_loom)]
pub fn thread_number() -> usize {
    let name = format!("{:?}", thread::current().id());
    let digits: String = name.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_default()
}

/// Returns and resets the counts of the calling thread: locks by name, and writes to shared atomics. Debug builds only.
#[cfg(all(debug_assertions, not(weirpool_loom)))]
pub fn census() -> Census {
    counters::take()
}

/// The counts that [`census`] returns.
#[cfg(all(debug_assertions, not(weirpool_loom)))]
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// How often locks were taken, by the name of the object that they guard.
    pub locks: Vec<(Guards, u64)>,
    /// The number of writes to shared atomics.
    pub shared_writes: u64,
}

#[cfg(all(debug_assertions, not(weirpool_loom)))]
mod counters {
    use super::{Census, Guards};
    use std::cell::RefCell;

    thread_local! {
        static CENSUS: RefCell<Census> = const {
            RefCell::new(Census { locks: Vec::new(), shared_writes: 0 })
        };
    }

    pub(super) fn locked(guards: Guards) {
        weirpool_device::count_locked();
        count(
            |census| match census.locks.iter_mut().find(|(name, _)| *name == guards) {
                Some((_, count)) => *count += 1,
                None => census.locks.push((guards, 1)),
            },
        );
    }

    pub(super) fn wrote() {
        count(|census| census.shared_writes += 1);
    }

    /// A thread that is ending may drop blocks. It is no longer counted.
    fn count(what: impl FnOnce(&mut Census)) {
        let _ = CENSUS.try_with(|census| what(&mut census.borrow_mut()));
    }

    pub(super) fn take() -> Census {
        CENSUS.take()
    }
}

/// loom runs its threads as coroutines of one thread, so that thread-local counters would mix them up.
#[cfg(all(debug_assertions, weirpool_loom))]
mod counters {
    use super::Guards;

    pub(super) fn locked(_: Guards) {}
    pub(super) fn wrote() {}
}
