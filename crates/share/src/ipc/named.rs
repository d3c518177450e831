//! Memory under a name of the pool's broker.

use super::connection::name_of;
use super::error::IpcError;
use super::memory::{Account, Exportable, Mapped, OwnChunk, Rights, expect_own, sharing_of};
use futures::channel::oneshot;
use std::any::Any;
use std::future::IntoFuture;
use std::os::fd::OwnedFd;
use std::panic::Location;
use std::pin::Pin;
use weirpool::device::MemoryKind;
use weirpool::extend::Passages;
use weirpool::{Block, Pool, Stream};
use weirpool_broker::ledger::Publication;
use weirpool_broker::names::{Extent, Memory, NameError};
use weirpool_broker::{Attachment, Held, Names, names_of};
use weirpool_device::plain::Arc;

/// Why memory was not published or attached.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// No broker leases the capacity of the pool.
    #[error(
        "no broker leases the capacity of the pool; build it with `weirpool_broker::lease_capacity`"
    )]
    NoBroker,
    /// The broker refuses.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A block has a name, or is about to.
    #[error("a block is published already, or twice in one call; publish each block once")]
    Named,
    /// The memory cannot be of this device.
    #[error(
        "a published block of {length} bytes in {bytes} bytes cannot be memory of this device; withdraw the name with `weirpool broker drop`"
    )]
    Size {
        /// The size of its allocation in bytes.
        bytes: u64,
        /// The part of it that is the block.
        length: u64,
    },
    /// The process has no descriptor left, or starts no thread.
    #[error("{reason}; raise the limit of open files, `ulimit -n`")]
    System {
        /// The system's reason.
        reason: String,
    },
    /// The client of the broker has ended.
    #[error("the pool has left its broker")]
    Ended,
    /// The memory cannot be exported or imported.
    #[error(transparent)]
    Ipc(#[from] IpcError),
}

/// Memory that outlives its process: the broker of the pool keeps it under a name.
///
/// The broker keeps a descriptor for each block, and needs no GPU for that. Another process on the same device, or the same
/// one after a crash, attaches the memory in milliseconds, without a copy. For pools whose capacity a
/// [broker](weirpool_broker) leases.
///
/// ```no_run
/// # use weirpool::{Pool, Stream};
/// use weirpool_broker::names::NameError;
/// use weirpool_share::ipc::{AllocateExportable, Attached, Publish, PublishError};
///
/// # type Error = Box<dyn std::error::Error>;
/// async fn weights(pool: &Pool, stream: &Stream, file: &[u8]) -> Result<Attached, Error> {
///     match pool.attach("llama", stream).await {
///         Err(PublishError::Name(NameError::NotPublished { .. })) => {}
///         attached => return Ok(attached?),
///     }
///     let mut block = pool.allocate_exportable(stream, file.len() as u64).await?;
///     let _copied = block.upload(stream, 0, file)?;
///     pool.publish("llama", [&block]).await?; // once the copy is complete
///     Ok(pool.attach("llama", stream).await?)
/// }
/// ```
///
/// # Accounting
/// Published bytes count under their name in the ledger of the broker, and not in the lease of any process: neither in
/// [`Statistics::charged`](weirpool::Statistics::charged) of the publisher, from the moment in which [`publish`](Self::publish)
/// is ready, nor where the memory is attached. They are available again when the name leads elsewhere *and* no living process
/// has the memory mapped. [`Block`]s over them are [`Statistics::foreign`](weirpool::Statistics::foreign).
///
/// # Life
/// | event | what follows |
/// |---|---|
/// | the publisher ends or is killed | the name stays. Killed before `publish` is ready, it has published all blocks or none |
/// | a process that attached ends or is killed | it does not hold the memory any more |
/// | the name is withdrawn or replaced | processes that have the memory mapped keep it, and it counts until they have let go |
/// | the broker ends | mappings stay. The next broker counts the memory while a process that has it mapped lives, and such a process gives the descriptors back by itself: until then, `attach` fails with [`NameError::Lost`]. If there is no such process, the memory is free, and the name is gone |
/// | the device is full | attaching needs no memory |
///
/// # Trust
/// All processes belong to one user. Memory that is attached for reading is mapped so: a kernel that writes it fails, and with
/// it the context of that process. The publisher's own mapping stays writable, and a process of the user that speaks the
/// protocol by itself may map a descriptor as it likes. No order of streams reaches from one process into the other:
/// publish complete memory, and publish a new version in place of writing to one that others read.
pub trait Publish {
    /// Publishes blocks under a name, once all writes to them that were submitted before this call are complete. The future
    /// returns the number of the version, which no other version of the broker has.
    ///
    /// The blocks stay as they are for this process. A name has up to 64 blocks, so put small tensors together into one.
    ///
    /// # Errors
    /// Returns [`PublishError::Name`] if the name is taken or a limit of the broker is reached, and other errors if the
    /// blocks are of another pool, are published already, or cannot be exported. Nothing has changed then.
    ///
    /// # Cancel safety
    /// Dropped early, it has published all blocks or none, which count under the name or in the pool.
    fn publish<'a>(
        &'a self,
        name: &str,
        blocks: impl IntoIterator<Item = &'a Exportable>,
    ) -> Publishing<'a>;

    /// Maps the memory of a name, for use in the order of `stream` and of all others: for reading, unless
    /// [`writing`](Attaching::writing) is asked for.
    ///
    /// # Errors
    /// Returns [`PublishError::Name`] if nothing has the name, or another version or fewer rights than asked for; an error
    /// if the memory is of another device, or is none; or the device's error. Nothing is mapped then.
    ///
    /// # Cancel safety
    /// Dropped early, it maps nothing.
    fn attach<'a>(&'a self, name: &str, stream: &'a Stream) -> Attaching<'a>;
}

impl Publish for Pool {
    fn publish<'a>(
        &'a self,
        name: &str,
        blocks: impl IntoIterator<Item = &'a Exportable>,
    ) -> Publishing<'a> {
        Publishing {
            pool: self,
            name: name.to_owned(),
            blocks: blocks.into_iter().collect(),
            replaces: false,
            is_writable: false,
        }
    }

    #[track_caller]
    fn attach<'a>(&'a self, name: &str, stream: &'a Stream) -> Attaching<'a> {
        Attaching {
            pool: self,
            name: name.to_owned(),
            stream,
            version: None,
            writes: false,
            location: Location::caller(),
        }
    }
}

/// A publication: await it. See [`Publish::publish`].
#[derive(Debug)]
#[must_use = "nothing is published until it is awaited"]
pub struct Publishing<'a> {
    pool: &'a Pool,
    name: String,
    blocks: Vec<&'a Exportable>,
    replaces: bool,
    is_writable: bool,
}

impl Publishing<'_> {
    /// Replaces the memory that has the name, if any has, in one step. Processes that have it mapped keep it.
    pub fn replacing(mut self) -> Self {
        self.replaces = true;
        self
    }

    /// Lets processes attach the memory for writing.
    pub fn writable(mut self) -> Self {
        self.is_writable = true;
        self
    }

    async fn run(self) -> Result<u64, PublishError> {
        let names = names_of(self.pool).ok_or(PublishError::NoBroker)?;
        let mut claims = Vec::new();
        for block in &self.blocks {
            let stream = block.stream();
            expect_own(self.pool, &stream).map_err(IpcError::from)?;
            let chunk = block.chunk.upgrade().expect("the block keeps it");
            claims.push(Claim::new(chunk).ok_or(PublishError::Named)?);
        }
        for block in &self.blocks {
            block
                .writes()
                .map_err(IpcError::from)?
                .await
                .map_err(IpcError::from)?;
        }
        let extents = self.blocks.iter().map(|block| Extent {
            bytes: block.size(),
            length: block.requested(),
        });
        let publication = Publication {
            name: self.name,
            replaces: self.replaces,
            memory: Memory {
                device: name_of(&**self.pool.device())?,
                is_writable: self.is_writable,
                blocks: extents.collect(),
            },
        };
        let (sender, receiver) = oneshot::channel();
        on_thread(self.pool, move || {
            let exported = claims.iter().map(|claim| claim.0.export());
            let exported = exported.collect::<Result<Vec<OwnedFd>, _>>()?;
            send(&names, publication, exported, claims, sender);
            Ok(())
        })
        .await?;
        receiver.await.unwrap_or(Err(PublishError::Ended))
    }
}

/// Asks the broker. The answer moves the bytes of the blocks to the name, whether or not it is awaited.
fn send(
    names: &Names,
    publication: Publication,
    exported: Vec<OwnedFd>,
    claims: Vec<Claim>,
    sender: oneshot::Sender<Result<u64, PublishError>>,
) {
    names.publish(publication, exported, move |published| {
        let published = published.map(|held| {
            let version = held.version();
            let held: Arc<dyn Any + Send + Sync> = Arc::new(held);
            for Claim(chunk) in &claims {
                chunk.recount(|_| {
                    Some(Account::Elsewhere {
                        _held: Some(held.clone()),
                    })
                });
            }
            version
        });
        drop(claims);
        let _ = sender.send(published.map_err(PublishError::from));
    });
}

/// A chunk that is about to have a name. If it gets none, it counts in the pool as before.
struct Claim(Arc<OwnChunk>);

impl Claim {
    /// Returns `None` if the chunk has a name or is about to.
    fn new(chunk: Arc<OwnChunk>) -> Option<Self> {
        let is_claimed = chunk.recount(|account| match account {
            Account::Pool(charge) => Some(Account::Publishing(charge.clone())),
            _ => None,
        });
        is_claimed.then_some(Self(chunk))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.recount(|account| match account {
            Account::Publishing(charge) => Some(Account::Pool(charge.clone())),
            _ => None,
        });
    }
}

impl<'a> IntoFuture for Publishing<'a> {
    type Output = Result<u64, PublishError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// A request for published memory: await it. See [`Publish::attach`].
#[derive(Debug)]
#[must_use = "nothing is attached until it is awaited"]
pub struct Attaching<'a> {
    pool: &'a Pool,
    name: String,
    stream: &'a Stream,
    version: Option<u64>,
    writes: bool,
    location: &'static Location<'static>,
}

impl Attaching<'_> {
    /// Fails if the name leads to another version than this one. By default any is taken.
    pub fn version(mut self, version: u64) -> Self {
        self.version = Some(version);
        self
    }

    /// Maps the memory for writing, if it was published so.
    pub fn writing(mut self) -> Self {
        self.writes = true;
        self
    }

    async fn run(self) -> Result<Attached, PublishError> {
        let names = names_of(self.pool).ok_or(PublishError::NoBroker)?;
        expect_own(self.pool, self.stream).map_err(IpcError::from)?;
        sharing_of(&**self.pool.device())?;
        let (sender, receiver) = oneshot::channel();
        names.attach(self.name.clone(), self.version, self.writes, |attached| {
            let _ = sender.send(attached);
        });
        let attachment = receiver.await.map_err(|_| PublishError::Ended)??;
        let version = attachment.held.version();
        let lengths: Vec<_> = attachment
            .memory
            .blocks
            .iter()
            .map(|block| block.length)
            .collect();
        self.check(&attachment.memory)?;
        let rights = match self.writes {
            true => Rights::ReadWrite,
            false => Rights::Read,
        };
        let pool = self.pool.clone();
        let mapped = on_thread(self.pool, move || map(&pool, attachment, rights)).await?;
        let blocks = mapped.into_iter().zip(lengths);
        let blocks =
            blocks.map(|(memory, length)| memory.into_block(self.stream, length, self.location));
        Ok(Attached {
            name: self.name,
            version,
            blocks: blocks.collect(),
            is_writable: self.writes,
        })
    }

    /// Checks what another process states of the memory.
    fn check(&self, memory: &Memory) -> Result<(), PublishError> {
        let device = self.pool.device();
        let own = name_of(&**device)?;
        if memory.device != own {
            let theirs = memory.device.clone();
            return Err(IpcError::WrongDevice { theirs, own }.into());
        }
        let granularity = device.capabilities().granularity;
        let total = device.memory_info(MemoryKind::Device);
        let total = total.map_err(IpcError::from)?.total;
        let is_whole = |block: &&Extent| {
            let Extent { bytes, length } = **block;
            bytes.is_multiple_of(granularity) && bytes <= total && (1..=bytes).contains(&length)
        };
        match memory.blocks.iter().find(|block| !is_whole(block)) {
            Some(&Extent { bytes, length }) => Err(PublishError::Size { bytes, length }),
            None => Ok(()),
        }
    }
}

/// Maps the blocks of a version. If one cannot be mapped, unmaps the others.
fn map(pool: &Pool, attachment: Attachment, rights: Rights) -> Result<Vec<Mapped>, PublishError> {
    let Attachment {
        memory,
        descriptors,
        held,
    } = attachment;
    let held: Arc<Held> = Arc::new(held);
    let blocks = memory.blocks.iter().zip(&*descriptors);
    let mapped = blocks.map(|(block, descriptor)| {
        // The client keeps its own, to give it to the next broker.
        let descriptor = descriptor
            .try_clone()
            .map_err(|error| PublishError::System {
                reason: error.to_string(),
            })?;
        let origin = (rights, Some(held.clone() as Arc<dyn Any + Send + Sync>));
        let mapped = Mapped::import(pool, descriptor, block.bytes, origin, Box::new(|| ()));
        Ok(mapped?)
    });
    let mapped = mapped.collect();
    // Before `held`, which is the last owner on an error.
    drop(descriptors);
    mapped
}

impl<'a> IntoFuture for Attaching<'a> {
    type Output = Result<Attached, PublishError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// Published memory that this process has mapped. Dropping it unmaps each block once the block's work is complete, and tells
/// the broker.
#[derive(Debug)]
#[must_use = "the memory is unmapped when it is dropped"]
pub struct Attached {
    name: String,
    version: u64,
    blocks: Vec<Block>,
    is_writable: bool,
}

impl Attached {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of the version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the blocks, in the order in which they were published. [`Block::requested`] is the publisher's size.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Returns the blocks for writing; `None` if they were attached for reading. Blocks may be taken out.
    pub fn blocks_mut(&mut self) -> Option<&mut Vec<Block>> {
        self.is_writable.then_some(&mut self.blocks)
    }
}

/// Runs device calls: in the background, where they block.
async fn on_thread<T: Send + 'static>(
    pool: &Pool,
    call: impl FnOnce() -> Result<T, PublishError> + Send + 'static,
) -> Result<T, PublishError> {
    if !pool.device().capabilities().memory_calls_block {
        return call();
    }
    let (sender, receiver) = oneshot::channel();
    Passages::default().then(move || drop(sender.send(call())));
    receiver.await.unwrap_or_else(|_| {
        let reason = "no thread for device calls".to_owned();
        Err(PublishError::System { reason })
    })
}
