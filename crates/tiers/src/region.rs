//! A region, its builder, and its allocations.
#![allow(unsafe_code, reason = "the region's memory as blocks")]

use crate::change::{self, Resume, end_of};
use crate::copies::Host;
use crate::error::RegionError;
use crate::segment::{Segment, Taken};
use crate::sleep::Sleep;
use futures::lock::Mutex as Turn;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weirpool::device::{Device, DeviceAddress, DeviceErrorKind, MemoryKind};
use weirpool::extend::{Absence, Charge, ForeignMemory, Passages, Residency, Resident};
use weirpool::{AllocError, Block, Pool, PoolBuilder, Stream, StreamId, Tag, Terms, Upstream};
use weirpool_heap::{
    BlockId, Clock, Fences, GRANULE, Geometry, Grant, GrowBy, Heap, NewSegment, Placement, Request,
    Target, View, inspect,
};

/// The smallest allocation of the device for a region, unless its builder says otherwise.
const CHUNK: u64 = 32 << 20;

/// The least time between two looks at whether a region is idle.
const LEAST_PAUSE: Duration = Duration::from_millis(1);

/// How long the device is left alone after it had no memory.
const ASKED_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Where the contents of a region are while it is suspended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// In pinned memory of the host, to and from which the device copies at full speed. Memory that was pinned once is kept
    /// for the next time; to pin it takes the system about a second for 4 GiB.
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
    /// it. To pin ahead, call [`trim_to`](Pool::trim_to) never and build it with an initial size. Default: a pool of its own
    /// without a bound, for [`Keep::OnHost`].
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
                    None => PoolBuilder::new(device.clone())
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
        let chunk_bytes = chunk_bytes.max(1).next_multiple_of(step);
        let copies = pool.create_stream()?.named(format!("copies of {name}"));
        let heap = Heap::new(Geometry {
            capacity: u64::MAX / 2 / step * step,
            chunk_bytes,
            granularity: step,
            virtual_memory: false,
            growth: GrowBy::Chunks,
        });
        let state = State {
            heap,
            segments: BTreeMap::new(),
            absence: None,
            is_changing: false,
            freed: Vec::new(),
            ended: BTreeSet::new(),
            entered: 0,
            used_at: device.now(),
        };
        Ok(Region(Arc::new(Shared {
            residency: pool.residency(&name),
            name,
            pool,
            device,
            host,
            copies,
            tag,
            turn: Arc::default(),
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

pub(crate) struct Shared {
    pub(crate) name: Arc<str>,
    pub(crate) pool: Pool,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) residency: Residency,
    pub(crate) host: Host,
    /// The stream of the copies.
    pub(crate) copies: Stream,
    pub(crate) tag: Option<Tag>,
    /// Held by the one operation that suspends or resumes.
    pub(crate) turn: Arc<Turn<()>>,
    state: Mutex<State>,
}

pub(crate) struct State {
    heap: Heap,
    pub(crate) segments: BTreeMap<u64, Segment>,
    /// While the region is suspended.
    pub(crate) absence: Option<Absence>,
    /// Whether an operation uses the segments: none is removed meanwhile.
    is_changing: bool,
    /// Blocks that were to be freed meanwhile.
    freed: Vec<(BlockId, u64)>,
    /// The addresses of blocks that ended and are not freed yet: work may use them still, but nobody their contents.
    ended: BTreeSet<u64>,
    /// Number of [`Entered`].
    entered: usize,
    /// When the last one was dropped.
    used_at: Duration,
}

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

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn suspended(&self) -> RegionError {
        RegionError::Suspended {
            name: self.name.clone(),
        }
    }

    /// Takes memory of the device, within a charge. If the device has none, others hold it: it is asked again, up to that
    /// time of its clock, and for as long as the memory is wanted.
    pub(crate) async fn take(
        &self,
        mut charge: Charge,
        until: Option<Duration>,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Taken, RegionError> {
        let (bytes, since) = (charge.bytes(), self.device.now());
        let mut has_trimmed = false;
        loop {
            let (error, returned) = match Taken::from_device(&self.device, charge) {
                Ok(taken) => return Ok(taken),
                Err(refused) => refused,
            };
            charge = returned;
            if error.kind() != DeviceErrorKind::OutOfMemory {
                return Err(error.into());
            }
            if !std::mem::replace(&mut has_trimmed, true) {
                // The pool may keep free memory, within its capacity, that the device lacks.
                let _ = self.pool.trim_to(0)?;
                continue;
            }
            let now = self.device.now();
            if until.is_some_and(|until| now >= until) || !is_wanted() {
                let waited = now.saturating_sub(since);
                return Err(RegionError::DeviceFull { bytes, waited });
            }
            Sleep::after(&self.device, ASKED_AGAIN_AFTER).await;
        }
    }

    /// Frees a block. What becomes free as a whole goes back to the device and the pool.
    fn free(&self, block: (BlockId, u64)) {
        let free = {
            let mut state = self.state();
            if state.is_changing {
                state.freed.push(block);
                return;
            }
            state.free([block])
        };
        drop(free);
    }

    /// Begins an operation that uses the segments.
    pub(crate) fn begin_change(self: &Arc<Self>) -> Changing {
        self.state().is_changing = true;
        Changing(self.clone())
    }
}

impl State {
    /// Frees blocks. Returns the segments that are free as a whole, to be dropped outside the lock.
    #[must_use = "dropped outside the lock"]
    fn free(&mut self, blocks: impl IntoIterator<Item = (BlockId, u64)>) -> Vec<Segment> {
        for (block, address) in blocks {
            self.ended.remove(&address);
            self.heap.free(block, Fences::default());
        }
        let target = Target::DownTo {
            reserved: 0,
            most: u64::MAX,
        };
        let release = self.heap.plan_release(target);
        let spans = release.spans.clone();
        let segments = spans
            .iter()
            .filter_map(|(address, _)| self.segments.remove(address));
        let segments = segments.collect();
        self.heap.commit_release(release, spans.len());
        segments
    }

    /// Returns the parts of a range of a segment that blocks have, from its address on, lowest first; neighbours are one part.
    pub(crate) fn live_parts(&self, address: u64, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut parts: Vec<Range<u64>> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let Some(found) = inspect::Found::at(&self.heap, address + at) else {
                break;
            };
            let end = (found.address + found.bytes - address).min(range.end);
            let is_used = matches!(found.holding, inspect::Holding::Used(_));
            if is_used && !self.ended.contains(&found.address) {
                match parts.last_mut() {
                    Some(last) if last.end == at => last.end = end,
                    _ => parts.push(at..end),
                }
            }
            at = end;
        }
        parts
    }
}

/// An operation that uses the segments. At its end blocks are freed that ended meanwhile.
pub(crate) struct Changing(pub(crate) Arc<Shared>);

impl Changing {
    /// Changes the segment at an address, which is there until the operation ends.
    pub(crate) fn with_segment<R>(
        &self,
        address: u64,
        change: impl FnOnce(&mut Segment) -> R,
    ) -> Option<R> {
        self.0.state().segments.get_mut(&address).map(change)
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        let free = {
            let mut state = self.0.state();
            state.is_changing = false;
            let freed = std::mem::take(&mut state.freed);
            state.free(freed)
        };
        drop(free);
    }
}

/// A segment that is planned. Dropping it ends the plan.
struct Planned<'a> {
    region: &'a Shared,
    plan: Option<NewSegment>,
}

impl Planned<'_> {
    fn bytes(&self) -> u64 {
        self.plan.as_ref().map_or(0, |plan| plan.bytes)
    }

    fn commit(mut self, segment: Segment) -> Option<Grant> {
        let mut state = self.region.state();
        let address = segment.address();
        state.segments.insert(address, segment);
        let plan = self.plan.take()?;
        plan.commit(&mut state.heap, Some(address), Fences::default())
    }
}

impl Drop for Planned<'_> {
    fn drop(&mut self) {
        if let Some(plan) = self.plan.take() {
            let mut state = self.region.state();
            plan.commit(&mut state.heap, None, Fences::default());
        }
    }
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
    /// Returns [`RegionError::Suspended`], [`RegionError::OtherPool`], and the errors of [`Pool::charge_for`] and of the device.
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

    /// [`allocate`](Self::allocate) on terms. The tag of the terms is charged if the region has none.
    ///
    /// # Errors
    /// Returns those of [`allocate`](Self::allocate), and an error when the time is over:
    /// [`TimedOut`](AllocError::TimedOut) in the queue, or [`RegionError::DeviceFull`] behind it.
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
            let memory = RegionBlock {
                id: grant.id,
                address: DeviceAddress::from_bits(grant.address),
                bytes: grant.bytes,
                requested: bytes.max(1),
                location,
                region,
            };
            // SAFETY: the memory is the device's, at addresses that no other block has until this one has ended.
            let block = unsafe { stream.adopt(Box::new(memory)) };
            drop(resident);
            Ok(block)
        }
    }

    /// Suspends the region: waits for the last use of its blocks on every stream, launches of graphs included, copies the
    /// contents to the host if they are kept, and gives the memory back to the pool. Returns the bytes given back: 0 if the
    /// region was suspended already. New uses fail from the call's first poll on.
    ///
    /// # Errors
    /// Returns [`RegionError::HostFull`], or an error of a copy or of the device. The region is resident then, and nothing is
    /// lost. If the device fails to give part of the memory back, the region is suspended, and that part is returned later.
    ///
    /// # Cancel safety
    /// A future that is dropped while it waits for uses, or for memory of the host, has no effect. After that the operation
    /// runs to its end in the background.
    pub async fn suspend(&self) -> Result<u64, RegionError> {
        change::suspend(&[self]).await
    }

    /// Resumes the region: waits in the pool's fair queue for all of its memory at once, maps it at the same addresses, and
    /// copies the contents back. Nothing happens if it is resident. The result is awaited, on terms if wanted.
    ///
    /// # Errors
    /// When awaited, returns the errors of [`Pool::charge_for`], [`RegionError::DeviceFull`], or an error of a copy or of the
    /// device. The region is suspended then, and its contents are on the host still.
    ///
    /// # Cancel safety
    /// A future that is dropped leaves the queue. If it had its memory, the operation runs to its end in the background, or
    /// gives the memory back.
    pub fn resume(&self) -> Resume<'_> {
        Resume::of(vec![self])
    }

    /// Holds the region resident until the result is dropped, and resumes it first if it is suspended. For each request that
    /// a service answers, and for uses that the pool does not see: those of other libraries at addresses of its blocks.
    ///
    /// # Errors
    /// Returns those of [`resume`](Self::resume).
    pub async fn enter(&self) -> Result<Entered, RegionError> {
        loop {
            if let Ok(resident) = self.0.residency.hold() {
                self.0.state().entered += 1;
                return Ok(Entered {
                    region: self.clone(),
                    _resident: resident,
                });
            }
            self.resume().await?;
        }
    }

    /// Suspends the region whenever nobody has [entered](Self::enter) it for this long. Ends with an error of a suspension;
    /// otherwise it runs until it is dropped. Spawn it beside a service.
    pub async fn suspend_when_idle(&self, after: Duration) -> RegionError {
        loop {
            let now = self.0.device.now();
            let used_at = self.idle_since().unwrap_or(now);
            let rest = after.saturating_sub(now.saturating_sub(used_at));
            if rest.is_zero()
                && let Err(error) = change::suspend_if_idle(self, used_at).await
            {
                return error;
            }
            let pause = if rest.is_zero() { after } else { rest };
            Sleep::after(&self.0.device, pause.max(LEAST_PAUSE)).await;
        }
    }

    /// Returns since when nobody has entered the region, if it is resident.
    pub(crate) fn idle_since(&self) -> Option<Duration> {
        let state = self.0.state();
        (state.entered == 0 && state.absence.is_none()).then_some(state.used_at)
    }
}

impl Shared {
    /// Grants a range of the region, which stays resident until the hold is dropped.
    async fn grant(&self, bytes: u64, terms: Terms) -> Result<(Grant, Resident), RegionError> {
        let request = Request {
            bytes: bytes
                .max(1)
                .checked_next_multiple_of(GRANULE)
                .ok_or_else(|| AllocError::TooLarge {
                    requested: bytes,
                    capacity: self.pool.capacity(),
                })?,
            alignment: GRANULE,
        };
        let resident = self.residency.hold().map_err(|_| self.suspended())?;
        let planned = {
            let mut state = self.state();
            let after = Clock::default();
            let view = View {
                stream: StreamId(0),
                after: &after,
                waits: None,
                placement: Placement::Anywhere,
            };
            if let Some(grant) = state.heap.take(request, &view) {
                return Ok((grant, resident));
            }
            let plan = state.heap.plan_segment(request, false);
            Planned { region: self, plan }
        };
        // A suspension is not kept waiting by the queue.
        drop(resident);
        let until = end_of(terms, self.device.now());
        let terms = self.terms(terms);
        let charge = self.pool.charge_for(planned.bytes()).terms(terms).await?;
        let taken = self.take(charge, until, || true).await?;
        let resident = self.residency.hold().map_err(|_| self.suspended())?;
        let segment = Segment::new(taken)?;
        let grant = planned.commit(segment);
        Ok((grant.expect("the plan was committed with memory"), resident))
    }

    /// Charges the region's own tag, if it has one.
    pub(crate) fn terms(&self, terms: Terms) -> Terms {
        Terms {
            tag: self.tag.or(terms.tag),
            ..terms
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

/// A block of a region, as memory of others.
#[derive(Debug)]
struct RegionBlock {
    id: BlockId,
    address: DeviceAddress,
    bytes: u64,
    requested: u64,
    location: &'static Location<'static>,
    region: Arc<Shared>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({:?})", self.name)
    }
}

// SAFETY: the region's heap granted the range, and has it back only after the passages. It is mapped but for absences.
unsafe impl ForeignMemory for RegionBlock {
    fn range(&self) -> (DeviceAddress, u64) {
        (self.address, self.bytes)
    }

    fn requested(&self) -> u64 {
        self.requested
    }

    /// Memory is granted when all of its earlier work is complete.
    fn is_ready(&self) -> bool {
        true
    }

    fn location(&self) -> Option<&'static Location<'static>> {
        Some(self.location)
    }

    fn residency(&self) -> Option<Residency> {
        Some(self.region.residency.clone())
    }

    fn release(self: Box<Self>, after: Passages) {
        let address = self.address.to_bits();
        self.region.state().ended.insert(address);
        after.then(move || self.region.free((self.id, address)));
    }
}
