//! The inside of a region: its heap and its segments, and how it takes memory.

use crate::copies::{Contents, Host};
use crate::error::RegionError;
use crate::segment::{Segment, Taken};
use crate::sleep::Sleep;
use crate::terms::end_of;
use futures::lock::Mutex as Turn;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weirpool::device::{Device, DeviceErrorKind};
use weirpool::extend::{Absence, Charge, Residency, Resident};
use weirpool::{AllocError, Pool, Stream, StreamId, Tag, Terms};
use weirpool_heap::{
    BlockId, Clock, Fences, GRANULE, Geometry, Grant, GrowBy, Heap, NewSegment, Placement, Request,
    Target, View,
};

/// How long the device is left alone after it had no memory.
const ASKED_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// What the handles of a region and its blocks share.
pub(crate) struct Shared {
    pub(crate) name: Arc<str>,
    pub(crate) pool: Pool,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) residency: Residency,
    pub(crate) host: Host,
    /// The stream of the copies.
    pub(crate) copies: Stream,
    pub(crate) tag: Option<Tag>,
    /// Held by the one operation that suspends or resumes, but not while it waits for memory.
    pub(crate) turn: Arc<Turn<()>>,
    /// Held by the one operation that resumes, from before it waits for memory. Taken before `turn`.
    pub(crate) resuming: Arc<Turn<()>>,
    pub(crate) state: Mutex<State>,
}

pub(crate) struct State {
    pub(crate) heap: Heap,
    pub(crate) segments: BTreeMap<u64, Segment>,
    /// While the region is suspended.
    pub(crate) absence: Option<Absence>,
    /// Whether an operation uses the segments: none is removed meanwhile.
    is_changing: bool,
    /// Blocks that were to be freed meanwhile.
    freed: Vec<BlockId>,
    /// The bytes of live blocks by address. Work may use others still that ended and are not freed yet, but nobody their
    /// contents.
    pub(crate) live: BTreeMap<u64, u64>,
    /// Number of [`Entered`].
    pub(crate) entered: usize,
    /// When the last one was dropped.
    pub(crate) used_at: Duration,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({:?})", self.name)
    }
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
    /// time of its clock.
    pub(crate) async fn take(
        &self,
        mut charge: Charge,
        until: Option<Duration>,
    ) -> Result<Taken, RegionError> {
        let (bytes, since) = (charge.bytes(), self.device.now());
        loop {
            let (error, returned) = match Taken::from_device(&self.device, charge) {
                Ok(taken) => return Ok(taken),
                Err(refused) => refused,
            };
            charge = returned;
            if error.kind() != DeviceErrorKind::OutOfMemory {
                return Err(error.into());
            }
            // The pool may keep free memory, within its capacity, that the device lacks.
            if self.pool.trim_to(0)?.released > 0 {
                continue;
            }
            let now = self.device.now();
            if until.is_some_and(|until| now >= until) {
                let waited = now.saturating_sub(since);
                return Err(RegionError::DeviceFull { bytes, waited });
            }
            Sleep::after(&self.device, ASKED_AGAIN_AFTER).await;
        }
    }

    /// Grants a range of the region, which stays resident until the hold is dropped.
    pub(crate) async fn grant(
        &self,
        bytes: u64,
        terms: Terms,
    ) -> Result<(Grant, Resident), RegionError> {
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
        let held = || self.residency.hold_for_call().map_err(|_| self.suspended());
        let resident = held()?;
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
                state.live.insert(grant.address, grant.bytes);
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
        let taken = self.take(charge, until).await?;
        let resident = held()?;
        let segment = Segment::new(taken, terms.tag)?;
        let grant = planned.commit(segment);
        Ok((grant.expect("the plan was committed with memory"), resident))
    }

    /// Returns since when nobody has entered the region, if it is resident.
    pub(crate) fn idle_since(&self) -> Option<Duration> {
        let state = self.state();
        (state.entered == 0 && state.absence.is_none()).then_some(state.used_at)
    }

    /// Returns the contents of a segment, for copies.
    pub(crate) fn contents(&self, address: u64) -> Contents<'_> {
        Contents {
            address,
            on: &self.copies,
            live: Box::new(move |range| self.state().live_parts(address, range)),
        }
    }

    /// Charges the region's own tag, if it has one.
    pub(crate) fn terms(&self, terms: Terms) -> Terms {
        Terms {
            tag: self.tag.or(terms.tag),
            ..terms
        }
    }

    /// Frees a block. What becomes free as a whole goes back to the device and the pool.
    pub(crate) fn free(&self, block: BlockId) {
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
    /// A region without memory.
    pub(crate) fn new(chunk_bytes: u64, granularity: u64, now: Duration) -> Self {
        let heap = Heap::new(Geometry {
            capacity: u64::MAX / 2 / granularity * granularity,
            chunk_bytes,
            granularity,
            virtual_memory: false,
            growth: GrowBy::Chunks,
        });
        Self {
            heap,
            segments: BTreeMap::new(),
            absence: None,
            is_changing: false,
            freed: Vec::new(),
            live: BTreeMap::new(),
            entered: 0,
            used_at: now,
        }
    }

    /// Frees blocks. Returns the segments that are free as a whole, to be dropped outside the lock.
    #[must_use = "dropped outside the lock"]
    fn free(&mut self, blocks: impl IntoIterator<Item = BlockId>) -> Vec<Segment> {
        for block in blocks {
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
        self.count_suspended();
        segments
    }

    /// Counts the memory that is not there, while the region is suspended.
    pub(crate) fn count_suspended(&mut self) {
        if let Some(absence) = &mut self.absence {
            let segments = self.segments.values();
            let lacking = segments.filter(|segment| segment.memory.is_none());
            absence.count(lacking.map(Segment::bytes).sum());
        }
    }

    /// Returns the parts of a range of a segment that blocks have, from its address on, lowest first; neighbours are one part.
    pub(crate) fn live_parts(&self, address: u64, range: &Range<u64>) -> Vec<Range<u64>> {
        let (start, end) = (address + range.start, address + range.end);
        let mut parts: Vec<Range<u64>> = Vec::new();
        let first = self.live.range(..=start).next_back();
        let first = first.map_or(start, |(at, _)| *at);
        for (at, bytes) in self.live.range(first..end) {
            let (from, to) = (start.max(*at), end.min(at + bytes));
            if from >= to {
                continue;
            }
            let part = from - address..to - address;
            match parts.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => parts.push(part),
            }
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
        let grant = plan.commit(&mut state.heap, Some(address), Fences::default())?;
        state.live.insert(grant.address, grant.bytes);
        Some(grant)
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
