//! Chunks that processes share: their mapping here, their end, and their charge against the pool's capacity.
#![allow(unsafe_code, reason = "device calls on chunks and ranges")]

use super::error::IpcError;
use futures::channel::oneshot;
use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::panic::Location;
use weirpool::device::{Chunk, Device, DeviceAddress, DeviceError, DeviceErrorKind, Sharing};
use weirpool::extend::{Charge, ForeignMemory, Passages};
use weirpool::{AllocError, Block, Pool, Stream, StreamError};
use weirpool_device::plain::{Arc, Mutex, Weak};

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

/// A chunk, mapped at addresses of its own.
struct Mapping {
    /// Present until it is released; without it, the memory is leaked.
    chunk: Arc<OwnChunk>,
    address: u64,
    bytes: u64,
}

impl Mapping {
    fn new(chunk: OwnChunk, rights: Rights) -> Result<Self, DeviceError> {
        let OwnChunk {
            ref device,
            chunk: raw,
            bytes,
            ..
        } = chunk;
        let address = device.reserve(bytes)?;
        let sharing = device.sharing().filter(|_| rights == Rights::Read);
        // SAFETY: the range was just reserved, and the chunk is not mapped. A wrong size of an imported chunk is
        // refused here.
        let mapped = unsafe {
            match sharing {
                Some(sharing) => sharing.map_read_only(address, raw, bytes),
                None => device.map(address, raw, bytes),
            }
        };
        if let Err(error) = mapped {
            // SAFETY: nothing is mapped in the range.
            let _ = unsafe { device.unreserve(address, bytes) };
            return Err(error);
        }
        Ok(Self {
            chunk: Arc::new(chunk),
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
}

/// What the device may do with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    Read,
    ReadWrite,
}

/// Where the bytes of a chunk count. Dropped after the chunk was destroyed, and after the last peer has let go of it.
#[derive(Clone)]
pub(super) enum Account {
    /// In the capacity of the pool.
    Pool(Arc<Charge>),
    /// In the capacity of the pool, until a broker counts them under a name.
    #[cfg(feature = "publish")]
    Publishing(Arc<Charge>),
    /// Elsewhere: under a name, which the value holds, or at the exporter.
    Elsewhere {
        _held: Option<Arc<dyn Any + Send + Sync>>,
    },
}

/// A chunk that is destroyed with its last owner.
pub(super) struct OwnChunk {
    device: Arc<dyn Device>,
    chunk: Chunk,
    pub(super) bytes: u64,
    is_imported: bool,
    account: Mutex<Account>,
}

impl Drop for OwnChunk {
    fn drop(&mut self) {
        // SAFETY: the mapping, if there was one, is undone before it drops its reference.
        let _ = unsafe { self.device.destroy(self.chunk) };
    }
}

impl OwnChunk {
    /// Returns where the bytes count now.
    pub(super) fn account(&self) -> Account {
        self.account.lock().clone()
    }

    /// Replaces the account by what `change` makes of it; `None` leaves it as it is. Returns whether it did.
    #[cfg(feature = "publish")]
    pub(super) fn recount(&self, change: impl FnOnce(&Account) -> Option<Account>) -> bool {
        let mut account = self.account.lock();
        let changed = change(&account);
        let earlier = changed.map(|changed| std::mem::replace(&mut *account, changed));
        drop(account);
        // The end of a charge serves requests.
        earlier.is_some()
    }

    /// Exports the chunk.
    ///
    /// # Errors
    /// Returns the device's error.
    pub(super) fn export(&self) -> Result<OwnedFd, IpcError> {
        let sharing = sharing_of(&*self.device)?;
        // SAFETY: the chunk is destroyed with `self`.
        Ok(unsafe { sharing.export(self.chunk) }?)
    }
}

/// The owner of the memory of an exportable or an imported block. It gives the memory back once the block has ended and
/// its work is complete, or when it is dropped without having been a block.
pub(super) struct Mapped {
    /// Present until the memory is given back.
    mapping: Option<Mapping>,
    /// Called after that.
    then: Option<Box<dyn FnOnce() + Send + Sync>>,
    requested: u64,
    location: &'static Location<'static>,
}

impl Mapped {
    #[track_caller]
    fn new(
        chunk: OwnChunk,
        rights: Rights,
        then: Box<dyn FnOnce() + Send + Sync>,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            mapping: Some(Mapping::new(chunk, rights)?),
            then: Some(then),
            requested: 0,
            location: Location::caller(),
        })
    }

    /// Makes memory of a chunk of its own.
    fn make(pool: &Pool, requested: u64) -> Result<Self, IpcError> {
        let device = pool.device();
        let sharing = sharing_of(&**device)?;
        let granularity = device.capabilities().granularity;
        let bytes = requested.max(1).checked_next_multiple_of(granularity);
        let bytes = bytes.ok_or_else(|| AllocError::TooLarge {
            requested,
            capacity: pool.capacity(),
        })?;
        let charge = Arc::new(pool.charge(bytes)?);
        let created = match sharing.create_shareable(bytes) {
            Err(error) if error.kind() == DeviceErrorKind::OutOfMemory => {
                let reserved = pool.inspect().statistics().reserved.current;
                let _ = pool.trim_to(reserved.saturating_sub(bytes));
                sharing.create_shareable(bytes)
            }
            created => created,
        };
        let chunk = OwnChunk {
            chunk: created?,
            device: device.clone(),
            bytes,
            is_imported: false,
            account: Mutex::new(Account::Pool(charge)),
        };
        Ok(Self::new(chunk, Rights::ReadWrite, Box::new(|| ()))?)
    }

    /// Imports a chunk that another process exported, whose bytes count under the name that `held` holds, or at the
    /// exporter.
    ///
    /// # Errors
    /// Returns the device's error. Nothing is imported then.
    pub(super) fn import(
        pool: &Pool,
        descriptor: OwnedFd,
        bytes: u64,
        (rights, held): (Rights, Option<Arc<dyn Any + Send + Sync>>),
        then: Box<dyn FnOnce() + Send + Sync>,
    ) -> Result<Self, IpcError> {
        let device = pool.device();
        let chunk = OwnChunk {
            chunk: sharing_of(&**device)?.import(descriptor, bytes)?,
            device: device.clone(),
            bytes,
            is_imported: true,
            account: Mutex::new(Account::Elsewhere { _held: held }),
        };
        Ok(Self::new(chunk, rights, then)?)
    }

    fn mapping(&self) -> &Mapping {
        let mapping = self.mapping.as_ref();
        mapping.expect("present until the memory is given back")
    }

    /// Makes a block of the memory.
    pub(super) fn into_block(
        mut self,
        stream: &Stream,
        requested: u64,
        location: &'static Location<'static>,
    ) -> Block {
        self.requested = requested;
        self.location = location;
        // SAFETY: the chunk is one of the pool's device, which its streams can use.
        unsafe { stream.adopt(Box::new(self)) }
    }

    /// Gives the memory back, in the background. If the device is broken, it is leaked.
    fn give_back(&mut self, after: Passages) {
        if let (Some(mapping), Some(then)) = (self.mapping.take(), self.then.take()) {
            after.then(move || {
                // SAFETY: the block has ended, and all work of its streams up to then is complete.
                if unsafe { mapping.release() }.is_ok() {
                    then();
                }
            });
        }
    }
}

// SAFETY: the chunk stays mapped, at addresses of its own, until it is given back after the passages.
unsafe impl ForeignMemory for Mapped {
    fn range(&self) -> (DeviceAddress, u64) {
        let Mapping { address, bytes, .. } = *self.mapping();
        (DeviceAddress::from_bits(address), bytes)
    }

    fn requested(&self) -> u64 {
        self.requested
    }

    /// The exporter sent it once its writes were complete.
    fn is_ready(&self) -> bool {
        self.mapping().chunk.is_imported
    }

    fn location(&self) -> Option<&'static Location<'static>> {
        Some(self.location)
    }

    fn release(mut self: Box<Self>, after: Passages) {
        self.give_back(after);
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.give_back(Passages::default());
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mapping = self.mapping.as_ref();
        f.debug_struct("Mapped")
            .field("address", &mapping.map(|mapping| mapping.address))
            .field("bytes", &mapping.map(|mapping| mapping.bytes))
            .finish_non_exhaustive()
    }
}

/// A block of memory that other processes can import: a [`Block`] with a chunk of its own.
///
/// [`allocate_exportable`](AllocateExportable::allocate_exportable) allocates it, and
/// [`Connection::send`](super::Connection::send) exports it. See the [module](super) for its costs and its life.
///
/// It dereferences to its block for reading. It gives out no `&mut Block`, so that it always exports its own memory:
///
/// ```compile_fail,E0596
/// # fn swap(exportable: &mut weirpool_share::ipc::Exportable, ordinary: &mut weirpool::Block) {
/// std::mem::swap(&mut **exportable, ordinary);
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a block is freed when it is dropped"]
pub struct Exportable {
    block: Block,
    pub(super) chunk: Weak<OwnChunk>,
}

impl Exportable {
    /// Fills the memory with zeros, and makes a block of it.
    fn begin(
        memory: Mapped,
        stream: &Stream,
        requested: u64,
        location: &'static Location<'static>,
    ) -> Result<Self, IpcError> {
        let Mapping {
            chunk,
            address,
            bytes,
        } = memory.mapping();
        // SAFETY: the handle keeps the stream usable, and the memory stays mapped until the block's streams have passed
        // its end. If the call fails, it has submitted nothing.
        unsafe { (chunk.device).fill(stream.raw(), *address, *bytes, 0, location) }?;
        let chunk = Arc::downgrade(chunk);
        let block = memory.into_block(stream, requested.max(1), location);
        Ok(Self { block, chunk })
    }

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

/// Exportable memory of a [`Pool`].
pub trait AllocateExportable {
    /// Allocates a block with a chunk of its own, filled with zeros, if the capacity has room for it and the device has
    /// the memory now. Free memory of the pool is released for it.
    ///
    /// # Errors
    /// Returns the errors of [`Pool::charge`], [`IpcError::Unsupported`], an error if the stream belongs to another
    /// pool, or the device's error.
    #[track_caller]
    fn try_allocate_exportable(&self, stream: &Stream, bytes: u64) -> Result<Exportable, IpcError>;

    /// Allocates a block with a chunk of its own, and waits for room in the capacity like any request of the pool.
    ///
    /// The request waits in the pool's queue for memory of that size, releases it to the device, and takes it as a
    /// chunk of its own. Another request may take the room in between: then it waits again, up to 8 times.
    ///
    /// # Errors
    /// Returns the errors of [`try_allocate_exportable`](Self::try_allocate_exportable) and of [`Pool::allocate`].
    ///
    /// # Cancel safety
    /// Dropped early, it leaves nothing behind.
    #[track_caller]
    fn allocate_exportable(
        &self,
        stream: &Stream,
        bytes: u64,
    ) -> impl Future<Output = Result<Exportable, IpcError>> + Send;
}

impl AllocateExportable for Pool {
    #[track_caller]
    fn try_allocate_exportable(&self, stream: &Stream, bytes: u64) -> Result<Exportable, IpcError> {
        let location = Location::caller();
        expect_own(self, stream)?;
        Exportable::begin(Mapped::make(self, bytes)?, stream, bytes, location)
    }

    #[track_caller]
    fn allocate_exportable(
        &self,
        stream: &Stream,
        bytes: u64,
    ) -> impl Future<Output = Result<Exportable, IpcError>> + Send {
        let location = Location::caller();
        async move {
            expect_own(self, stream)?;
            for _ in 0..ROUNDS {
                let refused = match make_on_thread(self, bytes).await {
                    Ok(memory) => return Exportable::begin(memory, stream, bytes, location),
                    Err(error) => error,
                };
                let is_short = match &refused {
                    IpcError::Alloc(AllocError::Exhausted(_)) => true,
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
            let memory = make_on_thread(self, bytes).await?;
            Exportable::begin(memory, stream, bytes, location)
        }
    }
}

/// # Errors
/// Returns an error if the stream belongs to another pool.
pub(super) fn expect_own(pool: &Pool, stream: &Stream) -> Result<(), StreamError> {
    let is_own = stream.pool() == *pool;
    is_own
        .then_some(())
        .ok_or(StreamError::ForeignPool(Box::default()))
}

/// Makes memory: in the background, where device calls block. A request that was cancelled gives its memory back.
async fn make_on_thread(pool: &Pool, bytes: u64) -> Result<Mapped, IpcError> {
    if !pool.device().capabilities().memory_calls_block {
        return Mapped::make(pool, bytes);
    }
    let (sender, receiver) = oneshot::channel();
    let own = pool.clone();
    Passages::default().then(move || drop(sender.send(Mapped::make(&own, bytes))));
    match receiver.await {
        Ok(made) => made,
        Err(_) => Mapped::make(pool, bytes),
    }
}
