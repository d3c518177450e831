//! Memory that the pool may take back before a request waits.

use crate::block::Block;
use crate::buffer::Buffer;
use crate::engine::{Candidate, Change, Evict, Home, ListPosition};
use crate::measure::Tag;
use crate::queue::Service;
use crate::sync::{Arc, Guards, Mutex, plain};
use std::fmt;
use std::ops::Deref;

mod sealed {
    use super::{Block, Buffer};

    pub trait Memory: Send + Sync + 'static {
        fn the_block(&self) -> &Block;
    }

    impl Memory for Block {
        fn the_block(&self) -> &Block {
            self
        }
    }

    impl<T: 'static> Memory for Buffer<T> {
        fn the_block(&self) -> &Block {
            self.as_block()
        }
    }
}

use sealed::Memory;

/// Memory that its user can do without: a [`Block`] or a [`Buffer`] that the pool takes back before a request waits or
/// fails, such as an entry of a prefix cache. It stays readable until then.
///
/// The memory that was used least recently is evicted first; of small blocks, those that leave one free range together,
/// within a [bound on their age](crate::guide::services#freeing-under-pressure). To use it, [pin](Self::pin) it: pinned
/// memory is not evicted. Evicting memory is an ordinary free: it is ordered after every use on every stream, and the pool neither
/// copies it nor reports it.
///
/// The pool evicts when a request finds no memory in any other place: after growing, flushing caches and
/// [waiting on the device](crate::WhenShort), but before the request waits in the queue, fails, or
/// [stalls](crate::Request::poll_stalled). It evicts no more than the request lacks, as far as blocks can be joined. It
/// evicts nothing if all evictable memory would not be enough. A request at the limit of its [tag](crate::Tag)
/// evicts memory of that tag, and a [drain](crate::Pool::drain) evicts all of it. Where
/// [waiting comes first](crate::WhenShort::WaitFirst), a request first waits for the memory that is about to be free.
///
/// Evicted memory is pending while its stream is at work. A `try_allocate` does not evict more memory in its place. A
/// waiting request may evict more memory each time the pool searches for it, unless memory behind copies will be enough.
///
/// Memory of a living [reservation](crate::Reservation) returns to it, so it is evicted only for requests in the
/// reservation's [scope](crate::Reservation::scope), and in drains. Memory of other processes or libraries
/// cannot serve a request, so it is never evicted for one.
///
/// While a [graph](crate::CapturedGraph) uses the memory, it is as if it were pinned.
///
/// With a [broker](crate::guide::services#several-processes), a request asks the broker first: other processes may hold memory
/// that they do not use at all. A request that waits in the queue does not await the answer. It evicts at once if that is
/// enough, and takes its need back; a `try_allocate` waits up to 2 ms for the answer. In the other direction, memory is evicted
/// for other processes once all of them have given back their free memory, but not below the guarantee.
///
/// ```
/// use weirpool::{Pool, device::sim::SimDevice};
///
/// let device = SimDevice::new();
/// let pool = Pool::builder(device.clone()).capacity(64 << 20).build()?;
/// let stream = pool.create_stream()?;
/// let cached = [1, 2, 3].map(|_| pool.try_allocate(&stream, 16 << 20).map(|block| block.into_evictable()));
/// let [first, second, third] = cached.map(Result::unwrap);
/// assert_eq!(pool.inspect().statistics().evictable, 48 << 20);
///
/// let in_use = first.pin().expect("nothing was evicted"); // reads the block, on any stream
/// let block = pool.try_allocate(&stream, 32 << 20)?; // 16 MiB are free: evicts the second
/// assert!(second.pin().is_none() && third.pin().is_some());
/// drop(in_use);
/// # drop(block);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropping it frees the memory, or, while it is pinned, lets the last pin do so. The figures are in
/// [`Statistics::evictable`](crate::Statistics::evictable), which counts the bytes that can be evicted now, and
/// [`evictions`](crate::Statistics::evictions). The demand is that of vLLM's prefix cache: memory that is worth having
/// while no other request needs it.
#[must_use = "the memory is freed when this is dropped"]
pub struct Evictable<T: Memory = Block>(plain::Arc<SharedMemory<T>>);

/// Evictable memory in use: it is not evicted before this is dropped. Then it counts as the most recently used.
///
/// It dereferences to the block or buffer, which can be read on any stream.
#[derive(Debug)]
#[must_use = "the memory may be evicted once this is dropped"]
pub struct Pinned<T: Memory = Block> {
    shared: plain::Arc<SharedMemory<T>>,
    /// Present until this is dropped.
    memory: Option<plain::Arc<T>>,
}

struct SharedMemory<T: Memory> {
    slot: Mutex<EvictableSlot<T>>,
}

struct EvictableSlot<T> {
    /// `None` once it is evicted, or its owner is gone.
    memory: Option<plain::Arc<T>>,
    pins: usize,
    /// Its place on the pool's list while nothing pins it.
    place: ListPosition,
    /// Ends the memory in place of a drop.
    evict: Option<Box<dyn FnOnce(T) -> bool + Send>>,
}

impl Block {
    /// Lets the pool take the block back before a request waits or fails; see [`Evictable`].
    pub fn into_evictable(self) -> Evictable {
        Evictable::new(self, None).0
    }
}

impl<T: 'static> Buffer<T> {
    /// Lets the pool take the buffer back before a request waits or fails; see [`Evictable`].
    pub fn into_evictable(self) -> Evictable<Self> {
        Evictable::new(self, None).0
    }
}

impl Evictable {
    /// Makes a block evictable once nothing pins it. The pool evicts it by a call of `end`, with no lock held, on any thread:
    /// `end` drops the block, after it submitted work that reads it, say, and returns true. Or it keeps the block and returns
    /// false. It must not wait for memory of the same pool. A panic is caught.
    pub fn evicted_by(block: Block, end: Box<dyn FnOnce(Block) -> bool + Send>) -> (Self, Pinned) {
        Self::new(block, Some(end))
    }
}

impl<T: Memory> Evictable<T> {
    fn new(memory: T, evict: Option<Box<dyn FnOnce(T) -> bool + Send>>) -> (Self, Pinned<T>) {
        let memory = plain::Arc::new(memory);
        let shared = plain::Arc::new(SharedMemory {
            slot: Mutex::new(
                Guards::Block,
                EvictableSlot {
                    memory: Some(memory.clone()),
                    pins: 1,
                    place: ListPosition::default(),
                    evict,
                },
            ),
        });
        let memory = Some(memory);
        (Self(shared.clone()), Pinned { shared, memory })
    }

    /// Pins the memory for a use. Returns `None` if it was evicted.
    #[must_use = "the memory may be evicted while it is not pinned"]
    pub fn pin(&self) -> Option<Pinned<T>> {
        let mut slot = self.0.slot.lock();
        let memory = slot.memory.clone()?;
        if slot.pins == 0 && !unlist(memory.the_block(), slot.place) {
            return None;
        }
        slot.pins += 1;
        Some(Pinned {
            shared: self.0.clone(),
            memory: Some(memory),
        })
    }

    /// Returns whether the memory is there: it may be evicted at any time unless it is [pinned](Self::pin).
    pub fn is_present(&self) -> bool {
        self.0.slot.lock().memory.is_some()
    }

    /// Takes the memory out, which then is not evictable any more: to write it, or to keep it. Returns `None` if it was
    /// evicted, or is pinned, also by a graph; then it stays as it is.
    pub fn take(&mut self) -> Option<T> {
        let memory = {
            let mut slot = self.0.slot.lock();
            let block = slot.memory.as_ref()?.the_block();
            if slot.pins > 0 || !unlist(block, slot.place) {
                return None;
            }
            slot.memory.take()
        };
        // A pin lets go of the memory before it ends.
        memory.and_then(plain::Arc::into_inner)
    }
}

impl<T: Memory> Drop for Evictable<T> {
    fn drop(&mut self) {
        let memory = {
            let mut slot = self.0.slot.lock();
            if let Some(memory) = slot.memory.as_ref().filter(|_| slot.pins == 0) {
                // If it is being evicted, that ends here.
                let _ = unlist(memory.the_block(), slot.place);
            }
            slot.memory.take()
        };
        // Outside the lock: it may be the last reference.
        drop(memory);
    }
}

impl<T: Memory> Drop for Pinned<T> {
    fn drop(&mut self) {
        // First: a thread that finds no pin under the lock has the only reference.
        drop(self.memory.take());
        let (mut for_graph, mut listed) = (None, None);
        {
            let mut slot = self.shared.slot.lock();
            // Under the lock: the pin that ended last may have named the block in a capture.
            let memory = slot.memory.as_ref().filter(|_| slot.pins == 1);
            let graph = memory.and_then(|memory| memory.the_block().uses().keeper());
            if let Some(graph) = graph {
                for_graph = slot.memory.clone().map(|memory| (graph, memory));
            } else {
                slot.pins -= 1;
                if slot.pins == 0 {
                    listed = self.shared.list(&mut slot);
                }
            }
        }
        listed.into_iter().for_each(Listed::publish);
        if let Some((graph, memory)) = for_graph {
            // The pin ends with the graph.
            let (shared, memory) = (self.shared.clone(), Some(memory));
            graph.keep(Box::new(Self { shared, memory }));
        }
    }
}

impl<T: Memory> Deref for Pinned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.memory
            .as_deref()
            .expect("present until this is dropped")
    }
}

impl<T: Memory> SharedMemory<T> {
    /// Lists memory that nothing pins, if its owner still has it.
    fn list(self: &plain::Arc<Self>, slot: &mut EvictableSlot<T>) -> Option<Listed> {
        let block = slot.memory.as_ref()?.the_block();
        let service = block.registration().service.clone();
        let (address, bytes, tag) = (block.address(), block.size(), block.tag());
        let in_heap = block.allocation().id;
        let home = block.home();
        let memory: plain::Weak<Self> = plain::Arc::downgrade(self);
        let evictables = &service.engine.store.evictables;
        slot.place = evictables.list(Candidate {
            memory,
            block: in_heap,
            address,
            bytes,
            tag,
            home,
        });
        let home = evictables.follow(home, || block.home());
        Some(Listed {
            service: service.clone(),
            tag,
            home,
        })
    }
}

impl<T: Memory> Evict for SharedMemory<T> {
    fn evict(&self) -> bool {
        let (memory, evict) = {
            let mut slot = self.slot.lock();
            debug_assert_eq!(slot.pins, 0, "memory in use is not listed");
            (slot.memory.take(), slot.evict.take())
        };
        let mut is_freed = memory.is_some();
        // Nothing pins it, so this is the only reference.
        if let Some((memory, evict)) = memory.and_then(plain::Arc::into_inner).zip(evict) {
            is_freed = false;
            // A panic drops the memory.
            let panicked = plain::catch(|| is_freed = evict(memory));
            is_freed |= panicked;
        }
        is_freed
    }
}

/// Takes the memory of a block off the pool's list. Returns false if it is being evicted.
fn unlist(block: &Block, place: ListPosition) -> bool {
    block
        .registration()
        .service
        .engine
        .store
        .evictables
        .remove(place)
}

/// Memory was listed, and no lock is held yet.
#[must_use = "requests that wait can profit"]
struct Listed {
    service: Arc<Service>,
    tag: Option<Tag>,
    home: Home,
}

impl Listed {
    /// Tells the requests that wait: from now on, they have it evicted.
    fn publish(self) {
        self.service.engine.shared.publish(Change::Memory);
        if let Home::Reservation(reservation) = self.home {
            let change = Change::Reservation(reservation);
            self.service.engine.shared.publish(change);
        }
        if let Some(tag) = self.tag {
            self.service.relieve(tag);
        }
    }
}

impl<T: Memory> fmt::Debug for Evictable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Shows where the memory is, unless it is gone, and how often it is pinned. It can be evicted meanwhile.
impl<T: Memory> fmt::Debug for SharedMemory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, pins) = {
            let slot = self.slot.lock();
            let block = slot.memory.as_ref().map(|memory| memory.the_block());
            (
                block.map(|block| (block.address(), block.size())),
                slot.pins,
            )
        };
        let (address, bytes) = place.unzip();
        f.debug_struct("Evictable")
            .field("address", &address)
            .field("bytes", &bytes)
            .field("pins", &pins)
            .finish()
    }
}
