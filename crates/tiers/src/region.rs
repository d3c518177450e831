//! A region, its builder, and its allocations.

use crate::block::RegionBlock;
use crate::change::{self, Resume};
use crate::copies::Host;
use crate::error::RegionError;
use crate::inner::{Shared, State};
use crate::sleep::Sleep;
use crate::terms::rest_of;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weirpool::device::MemoryKind;
use weirpool::extend::Resident;
use weirpool::{Block, Pool, Stream, Tag, Terms, Upstream};

/// The smallest allocation of the device for a region, unless its builder says otherwise.
const CHUNK: u64 = 32 << 20;

/// The least time between two looks at whether a region is idle.
const LEAST_PAUSE: Duration = Duration::from_millis(1);

/// Where the contents of a region are while it is suspended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// In pinned memory of the host, to and from which the device copies at full speed. Memory that was pinned once is kept
    /// for the next time; to pin 16 GiB took 9.7 s on the host of an H200.
    #[default]
    OnHost,
    /// In pageable memory of the host: nothing is pinned, and copies are several times slower.
    OnHostPageable,
    /// Nowhere: the memory comes back with any contents. For caches.
    Nothing,
}

/// Makes regions of a pool.
pub trait Regions {
    /// Begins a region: memory of the pool's device, within the pool's capacity, that is suspended and resumed as one. See
    /// [`Region`].
    fn region(&self, name: &str) -> RegionBuilder;
}

impl Regions for Pool {
    fn region(&self, name: &str) -> RegionBuilder {
        RegionBuilder {
            pool: self.clone(),
            name: name.into(),
            keep: Keep::default(),
            host: None,
            chunk_bytes: CHUNK,
            tag: None,
        }
    }
}

/// Builds a [`Region`]; made by [`Regions::region`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct RegionBuilder {
    pool: Pool,
    name: Arc<str>,
    keep: Keep,
    host: Option<Pool>,
    chunk_bytes: u64,
    tag: Option<Tag>,
}

impl RegionBuilder {
    /// Sets where the contents are while the region is suspended. Default: [`Keep::OnHost`].
    pub fn keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    /// Sets the host tier: a pool of pinned memory of the same device, whose capacity bounds the copies. Regions may share
    /// it. Its [`initial_size`](weirpool::Tuning::initial_size) pins ahead. Default: a pool of its own without a bound, for
    /// [`Keep::OnHost`].
    pub fn host(mut self, pool: &Pool) -> Self {
        self.host = Some(pool.clone());
        self
    }

    /// Sets the smallest allocation of the device, in bytes: rounded up to the device's granularity. Blocks that are smaller
    /// share one; a larger block has one of its own. Default: 32 MiB.
    pub fn chunk_bytes(mut self, bytes: u64) -> Self {
        self.chunk_bytes = bytes;
        self
    }

    /// Sets the tag that the region's memory is charged to. Default: none.
    pub fn tag(mut self, tag: Tag) -> Self {
        self.tag = Some(tag);
        self
    }

    /// Builds the region, which has no memory yet.
    ///
    /// # Errors
    /// Returns [`RegionError::Unsupported`] if the pool's memory is not virtual memory of its device, or the host tier is not
    /// pinned memory of that device; and an error if the device fails.
    pub fn build(self) -> Result<Region, RegionError> {
        let Self {
            pool,
            name,
            keep,
            host,
            chunk_bytes,
            tag,
        } = self;
        let device = pool.device().clone();
        let capabilities = device.capabilities();
        let kind = pool.inspect().memory_kind();
        let unsupported = |kind: String| RegionError::Unsupported {
            name: name.clone(),
            kind,
        };
        if kind != MemoryKind::Device || !capabilities.virtual_memory {
            return Err(unsupported(format!("plain, of kind {kind:?}")));
        }
        let host = match (keep, host) {
            (Keep::Nothing, _) => Host::Nowhere,
            (Keep::OnHostPageable, _) => Host::Pageable,
            (Keep::OnHost, given) => {
                let tier = match given {
                    Some(tier) => tier,
                    None => Pool::builder(device.clone())
                        .upstream(Upstream::Pinned)
                        .build()?,
                };
                let kind = tier.inspect().memory_kind();
                if kind != MemoryKind::Pinned || tier.device().id() != device.id() {
                    return Err(unsupported(format!(
                        "kept in a host tier of {kind:?} memory"
                    )));
                }
                let stream = tier.create_stream()?;
                Host::Pinned(tier, stream)
            }
        };
        let step = capabilities.granularity;
        // No device has as much, and no sum of it overflows.
        let chunk_bytes = chunk_bytes.clamp(1, 1 << 62).next_multiple_of(step);
        let copies = pool.create_stream()?.named(format!("copies of {name}"));
        let state = State::new(chunk_bytes, step, device.now());
        let residency = pool.residency(&name);
        residency.copied_on(&copies);
        Ok(Region(Arc::new(Shared {
            residency,
            name,
            pool,
            device,
            host,
            copies,
            tag,
            turn: Arc::default(),
            resuming: Arc::default(),
            state: Mutex::new(state),
        })))
    }
}

/// Memory of a pool that is suspended and resumed as one, at the same addresses: weights of a model, a cache of keys and
/// values. This is a handle; clones are the same region.
///
/// Its blocks are ordinary blocks of the pool, and are used, copied, named in graphs and freed as any others. The memory
/// counts against the capacity of the pool, as a [charge](Pool::charge_for). It is not part of the pool's own heap: whole
/// allocations of the device are its own, so that to suspend it gives all of it back.
///
/// While it is suspended, uses of its blocks and launches of graphs that name one fail with
/// [`StreamError::Absent`](weirpool::StreamError::Absent). Blocks may be dropped. Resuming waits in the pool's fair queue, where
/// torch_memory_saver and the sleep modes of servers fail if somebody else took the memory meanwhile.
///
/// ```
/// use weirpool::{Pool, device::sim::SimDevice};
/// use weirpool_tiers::{Keep, Regions};
///
/// let device = SimDevice::new();
/// let pool = Pool::builder(device.clone()).build()?;
/// let stream = pool.create_stream()?;
/// let weights = pool.region("weights").keep(Keep::OnHost).build()?;
/// device.block_on(async {
///     let mut block = weights.allocate(&stream, 64 << 20).await?; // an ordinary block
///     let _written = block.upload(&stream, 0, b"weir")?;
///     weights.suspend().await?; // after the last use; its 64 MiB are the pool's
///     assert!(block.download(&stream, 0..4).is_err());
///     weights.resume().await?; // waits its turn; the same addresses, and the contents
///     assert_eq!(block.download(&stream, 0..4)?.await?, b"weir");
///     Ok::<(), Box<dyn std::error::Error>>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Region(pub(crate) Arc<Shared>);

/// What a region is, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionFigures {
    /// Whether it is suspended.
    pub is_suspended: bool,
    /// In live blocks.
    pub used: u64,
    /// Addresses that are reserved, with memory or without.
    pub addresses: u64,
    /// Memory of the device.
    pub resident: u64,
    /// Copies on the host.
    pub on_host: u64,
}

impl Region {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the pool within whose capacity the region is.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// Returns whether the region is suspended, or about to be.
    pub fn is_suspended(&self) -> bool {
        !self.0.residency.is_resident()
    }

    /// Returns what the region is now.
    pub fn figures(&self) -> RegionFigures {
        let state = self.0.state();
        let mut figures = RegionFigures {
            is_suspended: state.absence.is_some(),
            used: state.heap.totals().used.current,
            ..RegionFigures::default()
        };
        for segment in state.segments.values() {
            figures.addresses += segment.bytes();
            figures.on_host += segment.copies.bytes();
            if segment.memory.is_some() {
                figures.resident += segment.bytes();
            }
        }
        figures
    }

    /// Allocates a block of `bytes` for use on `stream`, and on others as any block. Waits in the pool's queue if the region
    /// needs more memory than it has. See [`allocate_on`](Self::allocate_on) for a tag, a time limit and a priority.
    ///
    /// # Errors
    /// Returns [`RegionError::Suspended`], [`RegionError::OtherPool`], an error for an external stream, and the errors of
    /// [`Pool::charge_for`] and of the device.
    ///
    /// # Cancel safety
    /// Dropping the future gives all of it back.
    #[track_caller]
    pub fn allocate(
        &self,
        stream: &Stream,
        bytes: u64,
    ) -> impl Future<Output = Result<Block, RegionError>> + Send + use<> {
        self.allocate_on(stream, bytes, Terms::default())
    }

    /// [`allocate`](Self::allocate) on terms. The tag of the terms is charged if the region has none; and again after a resumption
    /// whose terms have none, unless other memory of the region was charged to another one.
    ///
    /// # Errors
    /// Returns those of [`allocate`](Self::allocate), and an error when the time is over:
    /// [`TimedOut`](weirpool::AllocError::TimedOut) in the queue, or [`RegionError::DeviceFull`] behind it.
    #[track_caller]
    pub fn allocate_on(
        &self,
        stream: &Stream,
        bytes: u64,
        terms: Terms,
    ) -> impl Future<Output = Result<Block, RegionError>> + Send + use<> {
        let (region, stream, location) = (self.0.clone(), stream.clone(), Location::caller());
        async move {
            if stream.pool() != region.pool {
                return Err(RegionError::OtherPool {
                    name: region.name.clone(),
                });
            }
            let (grant, resident) = region.grant(bytes, terms).await?;
            let block = RegionBlock::adopted(&grant, bytes.max(1), region, &stream, location);
            // Its own stream adds nothing, unless it is external, which is refused.
            block.freed_after(&stream)?;
            drop(resident);
            Ok(block)
        }
    }

    /// Suspends the region: waits for the last use of its blocks on every stream, launches of graphs included, copies the
    /// contents to the host if they are kept, and gives the memory back to the pool. Returns the bytes given back: 0 if the
    /// region was suspended already. Once this call has its turn, no task [enters](Self::enter), and uses fail as soon as no
    /// task is inside.
    ///
    /// # Errors
    /// Returns [`RegionError::HostFull`], or an error of a copy or of the device. The region is resident then, and nothing is
    /// lost. If the device fails to give part of the memory back, the region is suspended, and that part is returned later.
    ///
    /// # Cancel safety
    /// A future that is dropped while it waits for uses, or for memory of the host, has no effect. After that the operation
    /// runs to its end in the background.
    pub async fn suspend(&self) -> Result<u64, RegionError> {
        change::suspend(vec![self.0.clone()]).await
    }

    /// Resumes the region: waits in the pool's fair queue for all of its memory at once, maps it at the same addresses, and
    /// copies the contents back. Nothing happens if it is resident. The result is awaited, on terms if wanted.
    ///
    /// # Errors
    /// When awaited, returns the errors of [`Pool::charge_for`], [`RegionError::Busy`], [`RegionError::DeviceFull`], or an
    /// error of a copy or of the device. The region is suspended then, and its contents are on the host still.
    ///
    /// # Cancel safety
    /// A future that is dropped leaves the queue. If it had its memory, the operation runs to its end in the background, or
    /// gives the memory back.
    pub fn resume(&self) -> Resume {
        Resume::of(vec![self.0.clone()])
    }

    /// Holds the region resident until the result is dropped, and resumes it first if it is suspended. For each request that
    /// a service answers, and for uses that the pool does not see: those of other libraries at addresses of its blocks. Uses and
    /// allocations succeed until then, also if a suspension waits for the result to be dropped.
    ///
    /// A task that is inside must not enter again, nor another region that may be suspended together with this one, nor
    /// await a suspension: such a call may wait for a suspension that waits for this task.
    ///
    /// # Errors
    /// Returns those of [`resume`](Self::resume).
    pub async fn enter(&self) -> Result<Entered, RegionError> {
        self.enter_on(Terms::default()).await
    }

    /// [`enter`](Self::enter), on the terms of a resumption.
    ///
    /// # Errors
    /// Returns those of [`resume`](Self::resume).
    pub async fn enter_on(&self, terms: Terms) -> Result<Entered, RegionError> {
        let begin = self.0.device.now();
        loop {
            if let Ok(resident) = self.0.residency.hold() {
                self.0.state().entered += 1;
                return Ok(Entered {
                    region: self.clone(),
                    _resident: resident,
                });
            }
            let waited = self.0.device.now().saturating_sub(begin);
            self.resume().terms(rest_of(terms, waited)).await?;
        }
    }

    /// Suspends the region whenever nobody has [entered](Self::enter) or resumed it for this long. Ends with an error of a
    /// suspension; otherwise it runs until it is dropped. Spawn it beside a service.
    pub async fn suspend_when_idle(&self, after: Duration) -> RegionError {
        loop {
            let now = self.0.device.now();
            let used_at = self.0.idle_since().unwrap_or(now);
            let rest = after.saturating_sub(now.saturating_sub(used_at));
            if rest.is_zero()
                && let Err(error) = change::suspend_if_idle(&self.0, used_at).await
            {
                return error;
            }
            let pause = if rest.is_zero() { after } else { rest };
            Sleep::after(&self.0.device, pause.max(LEAST_PAUSE)).await;
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("name", &self.0.name)
            .field("figures", &self.figures())
            .finish_non_exhaustive()
    }
}

/// A region that is held resident; see [`Region::enter`].
#[derive(Debug)]
#[must_use = "the region may be suspended as soon as it is dropped"]
pub struct Entered {
    region: Region,
    _resident: Resident,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let now = self.region.0.device.now();
        let mut state = self.region.0.state();
        state.entered -= 1;
        state.used_at = now;
    }
}

/// Suspends several regions of one pool as one: all of them, or none. See [`Region::suspend`].
///
/// # Errors
/// Returns those of [`Region::suspend`], and [`RegionError::OtherPool`].
pub async fn suspend_all(regions: &[&Region]) -> Result<u64, RegionError> {
    change::suspend(inside(regions)).await
}

/// Resumes several regions of one pool as one, with one position in the queue for the memory of all. See
/// [`Region::resume`]. If regions have [tags](RegionBuilder::tag), it is the same tag for all that are suspended: otherwise
/// the result is [`RegionError::OtherTag`].
pub fn resume_all(regions: &[&Region]) -> Resume {
    Resume::of(inside(regions))
}

fn inside(regions: &[&Region]) -> Vec<Arc<Shared>> {
    regions.iter().map(|region| region.0.clone()).collect()
}
