//! Memory whose contents go to the host, and come back.

use crate::books::State;
use crate::error::SpillError;
use crate::terms::{rest_of, takes_terms};
use crate::tier::{HostTier, Shared};
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use weirpool::{AllocateOwned, Block, Evictable, Pinned, Stream, Terms};
use weirpool_heap::GRANULE;

/// Makes blocks spillable.
pub trait IntoSpillable {
    /// Lets the pool take the block for others, once its contents are on the host; see [`Spillable`].
    fn into_spillable(self, tier: &HostTier) -> Spillable;
}

impl IntoSpillable for Block {
    fn into_spillable(self, tier: &HostTier) -> Spillable {
        let (tier, tag) = (tier.0.clone(), self.tag());
        let bytes = self.requested().next_multiple_of(GRANULE).min(self.size());
        let id = tier.with(|books, _| books.next());
        let (memory, pin) = tier.evictable(self, id);
        tier.with(|books, _| books.enter(id, bytes, tag, memory));
        drop(Fetched::of(&tier, id, pin));
        Spillable { tier, id, bytes }
    }
}

/// Memory that the pool may take for other requests, and whose contents are not lost by that: they are copied to a
/// [`HostTier`] before, and [`fetch`](Self::fetch) brings them back. For entries of a cache of keys and values, or the state of
/// a session that is idle.
///
/// While it is resident and nothing uses it, it is [evictable](weirpool::Evictable) memory: the pool chooses it by the same
/// rules, for the same requests, for other processes and in drains. Its memory is freed in stream order behind the copy,
/// which comes after every use. It is evictable only as far as the host has room, the least recently used first; other
/// memory stays. If the host refuses memory all the same, because others use its pool, the memory stays, and
/// is tried again after the next use of the tier.
///
/// ```
/// use weirpool::{Pool, Upstream, device::sim::SimDevice};
/// use weirpool_tiers::{HostTier, IntoSpillable};
///
/// let device = SimDevice::new();
/// let pool = Pool::builder(device.clone()).capacity(64 << 20).build()?;
/// let host = Pool::builder(device.clone()).upstream(Upstream::Pinned).capacity(256 << 20).build()?;
/// let (stream, tier) = (pool.create_stream()?, HostTier::new(&host)?);
/// device.block_on(async {
///     let mut block = pool.allocate(&stream, 48 << 20).await?;
///     let _written = block.upload(&stream, 0, b"weir")?;
///     let session = block.into_spillable(&tier);
///
///     let other = pool.allocate(&stream, 32 << 20).await?; // spills the session first
///     assert!(!session.is_resident());
///     drop(other);
///
///     let fetched = session.fetch(&stream).await?; // waits for memory, as any request
///     assert_eq!(fetched.download(&stream, 0..4)?.await?, b"weir");
///     Ok::<(), Box<dyn std::error::Error>>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropping it frees the memory, or the copy, or lets the last [`Fetched`] do so. A pool that is stopping or closed grants
/// nothing, so spilled memory stays on the host then until it is dropped. Memory of the tier's own pool is never spilled.
#[must_use = "the memory is freed when this is dropped"]
pub struct Spillable {
    tier: Arc<Shared>,
    id: u64,
    bytes: u64,
}

impl Spillable {
    /// Returns the number of bytes whose contents are kept, from the block's beginning: those that were requested, rounded
    /// up as the pool does. A block may be an eighth larger.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether the memory is on the device. It may be spilled at any time unless it is in use.
    pub fn is_resident(&self) -> bool {
        self.tier
            .with(|books, _| matches!(books.entry(self.id).state, State::Resident { .. }))
    }

    /// Brings the memory to the device, for a use on `stream` and on others as any block. If it is resident, nothing is
    /// copied, and the future is ready at once. Otherwise it waits in the fair queue of the stream's pool for as many bytes, on
    /// the [terms](Fetch::terms) that are set; several calls for the same memory wait each on their own terms, and the first
    /// that is served serves them all. The tag of the block is charged, unless the terms have another.
    ///
    /// It does not wait for the copy: later work of `stream` comes after it. The memory stays until the result is dropped.
    ///
    /// # Errors
    /// When awaited, returns [`SpillError::Alloc`] for the request, [`SpillError::Copy`] if the device cannot copy, or
    /// [`SpillError::Stream`] if it cannot order `stream`, or `stream` cannot use the memory. The contents stay where they are.
    ///
    /// # Cancel safety
    /// A future that is dropped leaves the queue, and the contents are where they were.
    #[track_caller]
    pub fn fetch<'a>(&'a self, stream: &'a Stream) -> Fetch<'a> {
        Fetch {
            spillable: self,
            stream,
            terms: Terms::default(),
            location: Location::caller(),
            begun: None,
            waiter: Waiter {
                tier: self.tier.clone(),
                id: self.id,
                number: None,
            },
            request: None,
        }
    }

    /// Takes the memory out as an ordinary block, to write it or to keep it.
    ///
    /// # Errors
    /// Returns the memory if it is in use, also by a graph, or not on the device: [fetch](Self::fetch) it, drop the
    /// result, and try again.
    pub fn into_block(self) -> Result<Block, Self> {
        // The first attempt may only have unpinned it.
        let take = || self.tier.with(|books, trash| books.take(self.id, trash));
        take().or_else(take).ok_or(self)
    }
}

impl Drop for Spillable {
    fn drop(&mut self) {
        self.tier.with(|books, trash| books.leave(self.id, trash));
    }
}

impl fmt::Debug for Spillable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spillable")
            .field("bytes", &self.bytes)
            .field("is_resident", &self.is_resident())
            .finish()
    }
}

/// Brings memory back to the device when it is awaited. Made by [`Spillable::fetch`].
#[must_use = "nothing is fetched until it is awaited"]
pub struct Fetch<'a> {
    spillable: &'a Spillable,
    stream: &'a Stream,
    terms: Terms,
    location: &'static Location<'static>,
    /// When it was first polled: the terms count from then.
    begun: Option<Duration>,
    waiter: Waiter,
    /// While the memory is not on the device.
    request: Option<AllocateOwned>,
}

impl Fetch<'_> {
    /// Makes the request, perhaps again, for the rest of the time.
    fn begin(&self, begun: Duration) -> AllocateOwned {
        let Spillable { tier, id, bytes } = self.spillable;
        let tag = self
            .terms
            .tag
            .or_else(|| tier.with(|books, _| books.entry(*id).tag));
        let pool = self.stream.pool();
        let waited = pool.device().now().saturating_sub(begun);
        let terms = rest_of(Terms { tag, ..self.terms }, waited);
        let request = pool.allocate_owned(self.stream, *bytes);
        request.terms(terms).location(self.location)
    }
}

takes_terms!(Fetch<'_>);

impl fmt::Debug for Fetch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetch")
            .field("spillable", &self.spillable)
            .field("terms", &self.terms)
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

impl Future for Fetch<'_> {
    type Output = Result<Fetched, SpillError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Spillable { tier, id, .. } = this.spillable;
        let begun = || this.stream.pool().device().now();
        let begun = *this.begun.get_or_insert_with(begun);
        loop {
            match tier.look(*id, &mut this.waiter.number, context.waker()) {
                Found::Resident(fetched) => {
                    this.request = None;
                    return Poll::Ready(fetched.used_on(this.stream));
                }
                Found::Moving => return Poll::Pending,
                Found::Spilled => {}
            }
            if this.request.is_none() {
                this.request = Some(this.begin(begun));
            }
            let request = this.request.as_mut().expect("made above");
            let Poll::Ready(granted) = Pin::new(request).poll(context) else {
                return Poll::Pending;
            };
            this.request = None;
            if let Some(fetched) = tier.bring_back(*id, granted?)? {
                return Poll::Ready(fetched.used_on(this.stream));
            }
        }
    }
}

/// A task that may wait for memory.
struct Waiter {
    tier: Arc<Shared>,
    id: u64,
    /// Its number, once it has waited.
    number: Option<u64>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            // The waker is dropped once the lock is released.
            drop(self.tier.with(|books, _| books.forget(self.id, number)));
        }
    }
}

enum Found {
    Resident(Fetched),
    Moving,
    Spilled,
}

impl Shared {
    /// Looks where memory is, and pins it if it is on the device. Otherwise the waker is called once that changes.
    fn look(self: &Arc<Self>, id: u64, waiter: &mut Option<u64>, waker: &Waker) -> Found {
        let mut leaving: Option<Arc<Evictable>> = None;
        loop {
            // Cloned, and dropped if it is not needed, outside the lock.
            let waker = waker.clone();
            let is_leaving = |memory: &Arc<Evictable>| {
                leaving.as_ref().is_some_and(|it| Arc::ptr_eq(it, memory))
            };
            let (found, _unneeded) = self.with(|books, _| {
                let found = match &books.entry(id).state {
                    State::Resident { memory, .. } if !is_leaving(memory) => {
                        return (Ok(memory.clone()), Some(waker));
                    }
                    State::Spilled(_) => Found::Spilled,
                    State::Resident { .. } | State::Moving => Found::Moving,
                };
                (Err(found), books.wait(id, waiter, waker))
            });
            let memory = match found {
                Ok(memory) => memory,
                Err(found) => return found,
            };
            if let Some(pin) = memory.pin() {
                self.with(|books, trash| books.pinned(id, trash));
                return Found::Resident(Fetched::of(self, id, pin));
            }
            leaving = Some(memory);
        }
    }

    /// Submits a copy of spilled memory to a block. Returns `None` if it is not spilled any more.
    ///
    /// # Errors
    /// Returns an error if the device cannot copy. The memory is spilled then.
    fn bring_back(
        self: &Arc<Self>,
        id: u64,
        mut block: Block,
    ) -> Result<Option<Fetched>, SpillError> {
        let Some(host) = self.with(|books, _| books.begin_fetch(id)) else {
            return Ok(None);
        };
        let mut arriving = Arriving {
            tier: self,
            id,
            host: Some(host),
        };
        if let Some(host) = &arriving.host {
            let bytes = 0..self.with(|books, _| books.entry(id).bytes);
            // It takes place whether it is awaited or not. An error of its work is one of the whole device.
            drop(host.copy_to(bytes, &mut block, 0, &self.copies)?);
        }
        let (memory, pin) = self.evictable(block, id);
        // An ordinary free: pending until the copy is complete.
        drop(arriving.host.take());
        self.with(|books, trash| books.end_fetch(id, memory, trash));
        Ok(Some(Fetched::of(self, id, pin)))
    }
}

/// Memory whose copy back is being submitted. If that fails, or panics, it stays on the host.
struct Arriving<'a> {
    tier: &'a Shared,
    id: u64,
    /// Until it is freed.
    host: Option<Block>,
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        if let Some(host) = self.host.take() {
            self.tier
                .with(|books, trash| books.refuse_fetch(self.id, host, trash));
        }
    }
}

/// Spillable memory in use: it is not spilled before this is dropped. Then it counts as the most recently used.
///
/// It dereferences to the block, which can be read on any stream.
#[must_use = "the memory may be spilled once this is dropped"]
pub struct Fetched {
    tier: Arc<Shared>,
    id: u64,
    /// Present until this is dropped.
    pin: Option<Pinned>,
}

impl Fetched {
    fn of(tier: &Arc<Shared>, id: u64, pin: Pinned) -> Self {
        Self {
            tier: tier.clone(),
            id,
            pin: Some(pin),
        }
    }

    /// Orders a stream after the copy back, and after other work that wrote the memory.
    fn used_on(self, stream: &Stream) -> Result<Self, SpillError> {
        stream.record_use(&*self)?;
        Ok(self)
    }
}

impl Deref for Fetched {
    type Target = Block;

    fn deref(&self) -> &Block {
        self.pin.as_deref().expect("present until this is dropped")
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        if let Some(pin) = self.pin.take() {
            self.tier
                .with(|books, trash| books.unpinned(self.id, pin, trash));
        }
    }
}

impl fmt::Debug for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fetched").field(&**self).finish()
    }
}
