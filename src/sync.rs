//! The only file that names the primitives of std, loom or shuttle.
//!
//! Under `--cfg weirpool_loom` the names stand for loom's primitives, so that the models in `loom-tests/` drive the
//! crate's own types. With `--cfg weirpool_shuttle` as well they stand for shuttle's, for schedules that are too many for
//! loom. In debug builds the facade also keeps count, for two checks that a
//! test can ask for: which locks a thread took and how often it wrote a shared cache line
//! ([`census`]), and whether it holds a lock where it must hold none ([`assert_unlocked`], *no-lock-across-calls*).
//!
//! The device layer is below the models: it uses [`plain`], which is std's always.

#[cfg(not(weirpool_loom))]
use std::sync as primitive;

#[cfg(all(weirpool_loom, not(weirpool_shuttle)))]
use loom::{sync as primitive, thread};

#[cfg(weirpool_shuttle)]
use shuttle::{sync as primitive, thread};

#[cfg(not(weirpool_loom))]
use std::thread;

use crossbeam_utils::Backoff;
pub(crate) use primitive::Arc;
use primitive::atomic;
pub(crate) use primitive::atomic::Ordering;
pub(crate) use weirpool_device::{assert_unlocked, plain};

/// What a lock guards: the name under which the census counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guards {
    Lane,
    Heap,
    Markers,
    Clock,
    Events,
    Registry,
    Queue,
    Waiter,
    Notifier,
    Block,
    EventLog,
    Budget,
}

/// A mutex that does not poison: a panic while it is held is a bug of this crate, and the
/// invariants, not the flag, say whether the data is sound.
#[derive(Debug)]
pub(crate) struct Mutex<T: ?Sized> {
    #[cfg(debug_assertions)]
    guards: Guards,
    inner: primitive::Mutex<T>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(guards: Guards, value: T) -> Self {
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
    /// None while somebody else has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        let inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return None,
        };
        #[cfg(debug_assertions)]
        counters::locked(self.guards);
        Some(Guard { inner })
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
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
    /// Returns the value of a mutex that the caller owns: no lock is taken.
    #[inline]
    pub(crate) fn get_mut(&mut self) -> &mut T {
        let value = self.inner.get_mut();
        value.unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A mutex that many threads come to at once, and nobody holds for long: who finds it taken looks again for some
/// microseconds before it sleeps. To sleep and be woken takes longer than what it waits for.
#[derive(Debug)]
pub(crate) struct Busy<T>(Mutex<T>);

impl<T> Busy<T> {
    pub(crate) fn new(guards: Guards, value: T) -> Self {
        Self(Mutex::new(guards, value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
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
        /// From 1 to 64 pauses each: some 20 us in all.
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
pub(crate) struct Guard<'a, T: ?Sized> {
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
        weirpool_device::note_unlocked();
    }
}

/// What is never given back to the allocator, so that a guard of it depends on nobody's count. Models count it: to
/// them it would be a new one in each execution.
#[derive(Debug)]
pub(crate) struct Lasting<T: ?Sized + 'static>(
    #[cfg(not(weirpool_loom))] pub(crate) &'static T,
    #[cfg(weirpool_loom)] pub(crate) plain::Arc<T>,
);

impl<T> Lasting<T> {
    pub(crate) fn new(value: T) -> Self {
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
        pub(crate) struct $name($atomic);

        #[allow(dead_code)]
        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                Self(<$atomic>::new(value))
            }

            #[inline]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.0.load(order)
            }

            #[inline]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                #[cfg(debug_assertions)]
                counters::wrote();
                self.0.store(value, order);
            }

            #[inline]
            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                #[cfg(debug_assertions)]
                counters::wrote();
                self.0.swap(value, order)
            }

            #[inline]
            pub(crate) fn compare_exchange(
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
    #[inline]
    pub(crate) fn fetch_or(&self, bits: u8, order: Ordering) -> u8 {
        #[cfg(debug_assertions)]
        counters::wrote();
        self.0.fetch_or(bits, order)
    }

    #[inline]
    pub(crate) fn fetch_and(&self, bits: u8, order: Ordering) -> u8 {
        #[cfg(debug_assertions)]
        counters::wrote();
        self.0.fetch_and(bits, order)
    }
}

impl SharedNumber {
    #[inline]
    pub(crate) fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        #[cfg(debug_assertions)]
        counters::wrote();
        self.0.fetch_max(value, order)
    }

    /// Sets the number to what `next` makes of it, as it is in that moment.
    ///
    /// # Errors
    /// Returns the current number if `next` returns `None`.
    #[inline]
    pub(crate) fn fetch_update(
        &self,
        order: Ordering,
        next: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        #[cfg(debug_assertions)]
        counters::wrote();
        self.0.fetch_update(order, Ordering::Relaxed, next)
    }

    #[inline]
    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        #[cfg(debug_assertions)]
        counters::wrote();
        self.0.fetch_add(value, order)
    }

    #[inline]
    pub(crate) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        #[cfg(debug_assertions)]
        counters::wrote();
        self.0.fetch_sub(value, order)
    }
}

/// A number that is only ever reported: nothing waits for it or is decided by it. Std's whatever is
/// being modelled, so that figures add no steps to the models; a write is one in the census.
#[derive(Debug, Default)]
pub(crate) struct Count(plain::AtomicU64);

impl Count {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Wraps around: differences stay right.
    pub(crate) fn add(&self, count: u64) {
        #[cfg(debug_assertions)]
        counters::wrote();
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Stays at the largest number rather than to wrap around.
    pub(crate) fn add_saturating(&self, count: u64) {
        #[cfg(debug_assertions)]
        counters::wrote();
        let add = |sum: u64| Some(sum.saturating_add(count));
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    pub(crate) fn subtract(&self, count: u64) {
        self.add(count.wrapping_neg());
    }

    pub(crate) fn set(&self, value: u64) {
        #[cfg(debug_assertions)]
        counters::wrote();
        self.0.store(value, Ordering::Relaxed);
    }

    /// Writes nothing while the value is not higher.
    pub(crate) fn raise(&self, value: u64) {
        if value > self.get() {
            #[cfg(debug_assertions)]
            counters::wrote();
            self.0.fetch_max(value, Ordering::Relaxed);
        }
    }
}

/// Lets other threads go on: this one waits for what one of them is about to do.
pub(crate) fn yield_now() {
    thread::yield_now();
}

/// Which thread this is: counted from the first that asks.
#[cfg(not(weirpool_loom))]
#[inline]
pub(crate) fn thread_number() -> usize {
    use std::sync::atomic::AtomicUsize;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // A thread that is ending may share another's number.
    OWN.try_with(|own| *own).unwrap_or_default()
}

#[cfg(weirpool_loom)]
pub(crate) fn thread_number() -> usize {
    let name = format!("{:?}", thread::current().id());
    let digits: String = name.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_default()
}

/// What the calling thread did since it last asked: locks by name, and writes to shared atomics.
#[cfg(all(test, debug_assertions, not(weirpool_loom)))]
pub(crate) fn census() -> Census {
    counters::take()
}

/// The answer of [`census`].
#[derive(Clone, Debug, Default)]
#[allow(dead_code)]
pub(crate) struct Census {
    pub(crate) locks: Vec<(Guards, u64)>,
    pub(crate) shared_writes: u64,
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
        weirpool_device::note_locked();
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

    /// A thread that is ending may drop blocks, and counts no more.
    fn count(what: impl FnOnce(&mut Census)) {
        let _ = CENSUS.try_with(|census| what(&mut census.borrow_mut()));
    }

    #[cfg(test)]
    pub(super) fn take() -> Census {
        CENSUS.take()
    }
}

/// loom runs its threads as coroutines of one, so a thread-local counters would mix them up.
#[cfg(all(debug_assertions, weirpool_loom))]
mod counters {
    use super::Guards;

    pub(super) fn locked(_: Guards) {}
    pub(super) fn wrote() {}
}
