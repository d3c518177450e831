//! Chunks that processes share: their mapping here, their end, and their charge against the pool's capacity.
#![allow(unsafe_code, reason = "device calls on chunks and ranges")]

use super::error::IpcError;
use crate::block::{Block, Outside};
use crate::device::{Chunk, Device, DeviceError, DeviceErrorKind, Sharing};
use crate::engine::maintenance;
use crate::handles::Presence;
use crate::id::Ticket;
use crate::pool::Pool;
use crate::queue::Passages;
use crate::stream::Stream;
use crate::sync::plain;
use crate::worker::{self, release_later};
use futures::channel::oneshot;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::panic::Location;

/// How often a request for exportable memory waits in the pool's queue before it fails: others may take the memory that
/// was freed for it.
const ROUNDS: usize = 8;

/// Returns the calls of a device that shares memory.
///
/// # Errors
/// Returns [`IpcError::Unsupported`] for any other device.
pub(super) fn sharing_of(device: &dyn Device) -> Result<&dyn Sharing, IpcError> {
    device.sharing().ok_or_else(|| IpcError::Unsupported {
        device: device.describe(),
    })
}

/// Bytes of a pool's capacity. They are free again once the last owner drops them.
#[derive(Debug)]
pub(super) struct Charge {
    pool: plain::Weak<Presence>,
    bytes: u64,
}

impl Charge {
    /// Charges a pool, which releases free memory if it needs the room.
    ///
    /// # Errors
    /// Returns [`IpcError::NoRoom`].
    fn take(pool: &plain::Arc<Presence>, bytes: u64) -> Result<Self, IpcError> {
        let engine = &pool.service.engine;
        maintenance::charge_outside(engine, bytes).map_err(|left| IpcError::NoRoom {
            requested: bytes,
            left,
        })?;
        Ok(Self {
            pool: plain::Arc::downgrade(pool),
            bytes,
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            maintenance::uncharge_outside(
                &pool.service.engine.shared,
                &pool.service.engine.store,
                self.bytes,
            );
        }
    }
}

/// A chunk, mapped at addresses of its own.
struct Mapping {
    /// Present until it is released; without it, the memory is leaked.
    chunk: plain::Arc<OwnChunk>,
    address: u64,
    bytes: u64,
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("address", &self.address)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Mapping {
    fn new(chunk: OwnChunk) -> Result<Self, DeviceError> {
        let OwnChunk {
            ref device,
            chunk: raw,
            bytes,
            ..
        } = chunk;
        let address = device.reserve(bytes)?;
        // SAFETY: the range was just reserved, and the chunk is not mapped. A wrong size of an imported chunk is
        // refused here.
        if let Err(error) = unsafe { device.map(address, raw, bytes) } {
            // SAFETY: nothing is mapped in the range.
            let _ = unsafe { device.unreserve(address, bytes) };
            return Err(error);
        }
        Ok(Self {
            chunk: plain::Arc::new(chunk),
            address,
            bytes,
        })
    }

    /// Gives the memory back to the device, unless it is still being exported. Memory that the device refuses to take
    /// back is leaked.
    ///
    /// # Safety
    /// No work that touches the memory is running or submitted.
    unsafe fn release(self) -> Result<(), DeviceError> {
        let Self {
            chunk,
            address,
            bytes,
        } = self;
        // Until it is unmapped, it must not be destroyed.
        let chunk = ManuallyDrop::new(chunk);
        let device = &chunk.device;
        // SAFETY: the range is mapped, and no work touches it, as the caller guarantees. Then nothing is mapped there.
        unsafe {
            device.unmap(address, bytes)?;
            let _ = device.unreserve(address, bytes);
        }
        drop(ManuallyDrop::into_inner(chunk));
        Ok(())
    }

    /// Gives the memory back, on the worker, once the passages are over; then calls `then`. If the device is broken,
    /// the memory is leaked, and `then` is dropped.
    fn release_after(self, passages: Option<Passages>, then: impl FnOnce() + Send + 'static) {
        release_later(self.chunk.device.clone(), passages, move || {
            // SAFETY: the block has ended, and all work of its streams up to then is complete.
            if unsafe { self.release() }.is_ok() {
                then();
            }
        });
    }
}

/// A chunk that is destroyed with its last owner.
pub(super) struct OwnChunk {
    device: plain::Arc<dyn Device>,
    chunk: Chunk,
    pub(super) bytes: u64,
    /// For a chunk of this process.
    pub(super) charge: Option<plain::Arc<Charge>>,
}

impl Drop for OwnChunk {
    fn drop(&mut self) {
        // SAFETY: the mapping, if there was one, is undone before it drops its reference.
        let _ = unsafe { self.device.destroy(self.chunk) };
    }
}

impl OwnChunk {
    /// Exports the chunk.
    ///
    /// # Errors
    /// Returns the device's error.
    pub(super) fn export(&self) -> Result<OwnedFd, IpcError> {
        let sharing = sharing_of(&*self.device)?;
        crate::sync::assert_unlocked("export");
        // SAFETY: the chunk is destroyed with `self`.
        Ok(unsafe { sharing.export(self.chunk) }?)
    }
}

/// The owner of an exportable block's memory.
#[derive(Debug)]
struct OwnMemory(Mapping);

impl Outside for OwnMemory {
    fn ended(self: Box<Self>, passages: Passages) {
        self.0.release_after(Some(passages), || ());
    }
}

/// A block of memory that other processes can import: a [`Block`] with a chunk of its own.
///
/// [`Pool::allocate_exportable`] allocates it, and [`Connection::send`](super::Connection::send) exports it. See the
/// [module](super) for its costs and its life.
///
/// It dereferences to its block for reading. It gives out no `&mut Block`, so that it always exports its own memory:
///
/// ```compile_fail,E0596
/// # fn swap(exportable: &mut weirpool::ipc::Exportable, ordinary: &mut weirpool::Block) {
/// std::mem::swap(&mut **exportable, ordinary);
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a block is freed when it is dropped"]
pub struct Exportable {
    block: Block,
    pub(super) chunk: plain::Weak<OwnChunk>,
}

impl Exportable {
    /// Returns the block. It can be used like any other, and not be exported any more.
    pub fn into_block(self) -> Block {
        self.block
    }
}

impl Deref for Exportable {
    type Target = Block;

    fn deref(&self) -> &Block {
        &self.block
    }
}

super::writes::writes!(Exportable);

/// Makes memory of a chunk of its own.
fn make(pool: &plain::Arc<Presence>, requested: u64) -> Result<OwnMemory, IpcError> {
    let device = pool.service.engine.shared.device.clone();
    let sharing = sharing_of(&*device)?;
    let granularity = device.capabilities().granularity;
    let bytes = requested.max(1).checked_next_multiple_of(granularity);
    let too_large = AllocTooLarge {
        requested,
        capacity: pool.service.engine.store.capacity(),
    };
    let bytes = bytes
        .filter(|bytes| *bytes <= too_large.capacity)
        .ok_or_else(|| too_large.error())?;
    let charge = plain::Arc::new(Charge::take(pool, bytes)?);
    let created = match sharing.create_shareable(bytes) {
        Err(error) if error.kind() == DeviceErrorKind::OutOfMemory => {
            maintenance::make_room_outside(&pool.service.engine, bytes);
            sharing.create_shareable(bytes)
        }
        created => created,
    };
    let chunk = OwnChunk {
        chunk: pool.service.engine.shared.noted(created)?,
        device: device.clone(),
        bytes,
        charge: Some(charge),
    };
    let mapping = pool.service.engine.shared.noted(Mapping::new(chunk))?;
    Ok(OwnMemory(mapping))
}

struct AllocTooLarge {
    requested: u64,
    capacity: u64,
}

impl AllocTooLarge {
    fn error(&self) -> IpcError {
        let &Self {
            requested,
            capacity,
        } = self;
        let error = crate::AllocError::TooLarge {
            requested,
            capacity,
        };
        error.into()
    }
}

/// Makes a block of the memory, filled with zeros.
fn begin(
    memory: OwnMemory,
    stream: &Stream,
    requested: u64,
    location: &'static Location<'static>,
) -> Result<Exportable, IpcError> {
    let registration = stream.registration();
    let OwnMemory(mapping) = &memory;
    let range = (mapping.address, mapping.bytes);
    let chunk = plain::Arc::downgrade(&mapping.chunk);
    let block = Block::of_outside(
        registration,
        range,
        (requested.max(1), Ticket::ZERO),
        Box::new(memory),
        location,
    );
    let lane = &registration.lane;
    let engine = &registration.service.engine;
    // SAFETY: the lane keeps the stream's owner, and the memory stays mapped until the block's streams have passed its
    // end.
    let filled = unsafe {
        let device = &engine.shared.device;
        device.fill(lane.raw, range.0, range.1, 0, location)
    };
    engine.shared.noted(filled)?;
    Ok(Exportable { block, chunk })
}

/// Exportable memory.
impl Pool {
    /// Allocates a block with a chunk of its own, filled with zeros, if the capacity has room for it and the device has
    /// the memory now. Free memory of the pool is released for it.
    ///
    /// # Errors
    /// Returns [`IpcError::NoRoom`], [`IpcError::Unsupported`], an error if the stream belongs to another pool, or the
    /// device's error.
    #[track_caller]
    #[cfg_attr(docsrs, doc(cfg(feature = "ipc")))]
    pub fn try_allocate_exportable(
        &self,
        stream: &Stream,
        bytes: u64,
    ) -> Result<Exportable, IpcError> {
        let location = Location::caller();
        self.check_granting(stream)?;
        begin(make(self.presence(), bytes)?, stream, bytes, location)
    }

    /// Allocates a block with a chunk of its own, and waits for room in the capacity like any request of the pool.
    ///
    /// The request waits in the pool's queue for memory of that size, releases it to the device, and takes it as a
    /// chunk of its own. Another request may take the room in between: then it waits again, up to 8 times.
    ///
    /// # Errors
    /// Returns the errors of [`try_allocate_exportable`](Self::try_allocate_exportable) and of
    /// [`allocate`](Self::allocate).
    ///
    /// # Cancel safety
    /// Dropped early, it leaves nothing behind.
    #[track_caller]
    #[cfg_attr(docsrs, doc(cfg(feature = "ipc")))]
    pub fn allocate_exportable(
        &self,
        stream: &Stream,
        bytes: u64,
    ) -> impl Future<Output = Result<Exportable, IpcError>> {
        let location = Location::caller();
        async move {
            for _ in 0..ROUNDS {
                self.check_granting(stream)?;
                let refused = match self.make_on_thread(bytes).await {
                    Ok(memory) => return begin(memory, stream, bytes, location),
                    Err(error) => error,
                };
                let is_short = match &refused {
                    IpcError::NoRoom { .. } => true,
                    IpcError::Device(error) => error.kind() == DeviceErrorKind::OutOfMemory,
                    _ => false,
                };
                if !is_short {
                    return Err(refused);
                }
                // In its turn: it is free, and nothing used it.
                let block = self.allocate(stream, bytes.max(1)).await?;
                block.deallocate().await?;
            }
            self.check_granting(stream)?;
            let memory = self.make_on_thread(bytes).await?;
            begin(memory, stream, bytes, location)
        }
    }

    /// # Errors
    /// Returns an error if the stream belongs to another pool, or the pool is closed.
    fn check_granting(&self, stream: &Stream) -> Result<(), IpcError> {
        if !stream.is_of(self.presence()) {
            return Err(crate::StreamError::ForeignPool.into());
        }
        match self.is_closed() {
            true => Err(crate::AllocError::Closed.into()),
            false => Ok(()),
        }
    }

    /// Makes memory: on the worker, where device calls block.
    async fn make_on_thread(&self, bytes: u64) -> Result<OwnMemory, IpcError> {
        if !self.service().engine.shared.capabilities.memory_calls_block {
            return make(self.presence(), bytes);
        }
        let (sender, receiver) = oneshot::channel();
        let pool = self.presence().clone();
        worker::run(async move {
            // A request that was cancelled gives its memory back.
            if let Err(Ok(OwnMemory(unused))) = sender.send(make(&pool, bytes)) {
                // SAFETY: no block was made of it.
                let _ = unsafe { unused.release() };
            }
        });
        match receiver.await {
            Ok(made) => made,
            Err(_) => make(self.presence(), bytes),
        }
    }
}

/// The owner of an imported block's memory.
pub(super) struct ImportedMemory {
    mapping: Option<Mapping>,
    /// Tells the exporter.
    then: Option<Box<dyn FnOnce() + Send + Sync>>,
    /// Counts it as imported.
    count: Count,
}

impl fmt::Debug for ImportedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.mapping.fmt(f)
    }
}

/// Bytes that a pool has imported.
struct Count {
    pool: plain::Weak<Presence>,
    bytes: u64,
}

impl Drop for Count {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.service
                .engine
                .shared
                .counters
                .note_imported_less(self.bytes);
        }
    }
}

impl ImportedMemory {
    /// Imports a chunk that another process exported.
    ///
    /// # Errors
    /// Returns the device's error. Nothing is imported then.
    pub(super) fn import(
        pool: &plain::Arc<Presence>,
        descriptor: OwnedFd,
        bytes: u64,
        then: Box<dyn FnOnce() + Send + Sync>,
    ) -> Result<Self, IpcError> {
        let device = pool.service.engine.shared.device.clone();
        let chunk = OwnChunk {
            chunk: sharing_of(&*device)?.import(descriptor, bytes)?,
            device: device.clone(),
            bytes,
            charge: None,
        };
        let mapping = Mapping::new(chunk)?;
        pool.service.engine.shared.counters.note_imported(bytes);
        Ok(Self {
            mapping: Some(mapping),
            then: Some(then),
            count: Count {
                pool: plain::Arc::downgrade(pool),
                bytes,
            },
        })
    }

    /// Makes a block of the memory.
    pub(super) fn into_block(
        self,
        stream: &Stream,
        length: u64,
        location: &'static Location<'static>,
    ) -> Block {
        let mapping = self.mapping.as_ref();
        let range = mapping.map(|mapping| (mapping.address, mapping.bytes));
        let range = range.expect("present until the block has ended");
        let registration = stream.registration();
        let length = (length, Ticket::ZERO);
        Block::of_outside(registration, range, length, Box::new(self), location)
    }

    fn release(mut self, passages: Option<Passages>) {
        let (mapping, then) = (self.mapping.take(), self.then.take());
        if let (Some(mapping), Some(then)) = (mapping, then) {
            mapping.release_after(passages, move || {
                drop(self);
                then();
            });
        }
    }
}

impl Outside for ImportedMemory {
    fn ended(self: Box<Self>, passages: Passages) {
        (*self).release(Some(passages));
    }
}

impl Drop for ImportedMemory {
    fn drop(&mut self) {
        if self.mapping.is_some() {
            let count = Count {
                pool: plain::Weak::new(),
                bytes: 0,
            };
            let unused = Self {
                mapping: self.mapping.take(),
                then: self.then.take(),
                count: std::mem::replace(&mut self.count, count),
            };
            unused.release(None);
        }
    }
}
