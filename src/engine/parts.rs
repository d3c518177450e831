//! Requests for several blocks: all of them are granted, or none.
//!
//! The stream is made to wait for nothing before all parts are found. While parts are searched, the stream counts as
//! coming after the points that it will be made to wait for. The parts are its own once the waits are submitted.

use super::allocation::Allocations;
use super::recipient::Found;
use super::search::{Search, may_submit};
use super::{Engine, Mode, NoMemory, Source, charging, maintenance, ordering, spill, supply};
use crate::device::{DeviceError, DeviceErrorKind};
use crate::heap::{Fence, Fences, Placement, Request, Target, inspect};
use crate::lane::Lane;
use crate::sync::Arc;
use smallvec::SmallVec;

/// One of the blocks that are requested together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) request: Request,
    /// The part of its bytes that was not asked for.
    pub(crate) rounding: u32,
}

/// What a request asks for: mostly one block, or several together, in the order of the answer.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) all: SmallVec<[Part; 1]>,
    /// The memory must be complete on every stream, and not only safe for the one that asks.
    pub(crate) is_for_all: bool,
    /// Where the only part must lie.
    pub(crate) placement: Placement,
    /// Instead of parts: this many bytes of the capacity, for memory of others.
    pub(crate) charge: Option<u64>,
}

impl Parts {
    /// Creates a request for one part at that address.
    #[inline]
    pub(crate) fn one(request: Request, rounding: u32, placement: Placement) -> Self {
        Self {
            all: SmallVec::from_buf([Part { request, rounding }]),
            is_for_all: false,
            placement,
            charge: None,
        }
    }

    /// Creates a request for a charge, which has no parts.
    pub(crate) fn charge(bytes: u64) -> Self {
        Self {
            all: SmallVec::new(),
            is_for_all: true,
            placement: Placement::Anywhere,
            charge: Some(bytes),
        }
    }

    /// Returns the part, if it is the only one, for the stream that asks, and may lie anywhere.
    pub(crate) fn plain(&self) -> Option<Part> {
        let is_plain = !self.is_for_all && self.placement == Placement::Anywhere;
        match &self.all[..] {
            [part] if is_plain => Some(*part),
            _ => None,
        }
    }

    /// Makes parts of a chunk or more begin with a chunk, so that the pieces they are cut into can be remapped.
    pub(crate) fn align_to_chunks(&mut self, chunk_bytes: u64) {
        for part in &mut self.all {
            if part.request.bytes >= chunk_bytes {
                part.request.alignment = chunk_bytes;
            }
        }
    }
}

/// The parts that were found, with their positions.
type FoundParts = SmallVec<[(usize, Found); 4]>;

/// A search for all parts of one request.
pub(super) struct PartsSearch<'a> {
    pub(super) engine: &'a Engine,
    pub(super) lane: &'a Arc<Lane>,
    pub(super) parts: &'a Parts,
    pub(super) mode: Mode<'a>,
}

impl PartsSearch<'_> {
    /// # Errors
    /// Returns an error if one of the parts gets no memory; then none does.
    pub(super) fn run(&self) -> Result<Allocations, NoMemory> {
        if let Some(bytes) = self.parts.charge {
            charging::charge(self.engine, bytes, self.mode)?;
            return Ok(Allocations::new());
        }
        if let [part] = &self.parts.all[..] {
            let found = self.find_part(part.request, self.mode, None)?;
            return Ok(Allocations::from_buf([found.allocation]));
        }
        let mut found = match self.find() {
            Err(NoMemory::Short(_)) => self.find_again()?,
            found => found?,
        };
        found.sort_by_key(|(at, _)| *at);
        Ok(found
            .into_iter()
            .map(|(_, found)| found.allocation)
            .collect())
    }

    /// Searches once more after a search in vain. It may have polled, flushed or evicted after it placed the first part,
    /// which then lies where it leaves too little for the others. Then releases the free memory in the way.
    fn find_again(&self) -> Result<FoundParts, NoMemory> {
        match self.find() {
            Err(NoMemory::Short(_)) if self.release_for_parts()? => {}
            found => return found,
        }
        let is_refused = self.engine.supply.is_refused();
        let found = self.find();
        if is_refused && matches!(found, Err(NoMemory::Short(_))) {
            // Growing for the first part succeeded, and made it forgotten: the device is to be asked again.
            self.engine.supply.record_refused(true);
        }
        found
    }

    /// Releases the free memory of parts that were found for nothing. The first part may lie in a segment that is too
    /// large for it, and leave too little for the others: once that segment is released, each part gets one of its own.
    /// Where the capacity does not hold those, which are rounded up, takes one segment for all parts. Memory whose chunks
    /// can be remapped needs none of this. Returns whether to search again.
    ///
    /// # Errors
    /// Returns an error if the device fails, or memory calls are needed that may not be made here.
    fn release_for_parts(&self) -> Result<bool, NoMemory> {
        let engine = self.engine;
        if engine.shared.settings.geometry.virtual_memory || engine.store.totals().releasable == 0 {
            return Ok(false);
        }
        if !engine.shared.may_call(self.mode.effort) {
            return Err(NoMemory::NeedsThread);
        }
        let released = supply::release(engine, Target::Keep(0)).into_result();
        if engine.shared.noted(released)? == 0 {
            return Ok(false);
        }
        let mut spills = 0;
        while self.was_refused_together()? && spill::spill_for(engine, self.together(), spills) {
            spills += 1;
        }
        Ok(true)
    }

    /// Takes one segment for all parts, if the capacity does not hold one for each. Returns whether the device has too
    /// little for it.
    fn was_refused_together(&self) -> Result<bool, DeviceError> {
        let engine = self.engine;
        let granularity = engine.shared.settings.geometry.granularity;
        let plan = {
            let mut heap = engine.store.heap.lock();
            let (left, _) = inspect::left_and_free(&heap);
            let are_too_much = self.in_steps_of(granularity) > left;
            are_too_much.then(|| heap.plan_new(self.together()))
        };
        match supply::carry_out_free(engine, plan.flatten()) {
            Err(error) if error.kind() == DeviceErrorKind::OutOfMemory => {
                engine.supply.record_refused(true);
                Ok(true)
            }
            carried_out => carried_out.map(|()| false),
        }
    }

    /// Returns the bytes of a segment that holds all parts.
    fn together(&self) -> u64 {
        let alignments = self.parts.all.iter().map(|part| part.request.alignment);
        self.in_steps_of(alignments.max().unwrap_or(1))
    }

    fn in_steps_of(&self, step: u64) -> u64 {
        let sizes = self.parts.all.iter().map(|part| part.request.bytes);
        sizes.map(|bytes| bytes.next_multiple_of(step)).sum()
    }

    fn find(&self) -> Result<FoundParts, NoMemory> {
        if !self.parts.is_for_all && may_submit(self.lane, self.mode) {
            self.find_then_wait()
        } else {
            self.find_parts(None)
        }
    }

    /// Finds all parts, and then makes the stream wait for the points that they come after. If one of the streams
    /// takes no event or no wait now because it is captured, each part is searched with its own waits.
    fn find_then_wait(&self) -> Result<FoundParts, NoMemory> {
        let mut deferred = Fences::default();
        let mut found = self.find_parts(Some(&mut deferred))?;
        let Err(error) = self.wait_for_parts(&deferred, &mut found) else {
            return Ok(found);
        };
        self.restore(found);
        match error.kind() {
            DeviceErrorKind::Unsupported => self.find_parts(None),
            _ => Err(error.into()),
        }
    }

    fn find_parts(&self, mut deferred: Option<&mut Fences>) -> Result<FoundParts, NoMemory> {
        let mut order: SmallVec<[usize; 8]> = (0..self.parts.all.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(self.parts.all[*at].request.bytes));
        let (mut found, mut mode) = (FoundParts::new(), self.mode);
        for at in order {
            let request = self.parts.all[at].request;
            match self.find_part(request, mode, deferred.as_deref_mut()) {
                Ok(part) => {
                    mode.chunks = mode.chunks.saturating_sub(part.mapped);
                    found.push((at, part));
                }
                Err(refusal) => {
                    self.restore(found);
                    return Err(refusal);
                }
            }
        }
        Ok(found)
    }

    /// Searches one part.
    fn find_part(
        &self,
        request: Request,
        mode: Mode<'_>,
        deferred: Option<&mut Fences>,
    ) -> Result<Found, NoMemory> {
        let Self { engine, lane, .. } = *self;
        let at = (request, self.parts.placement);
        if self.parts.is_for_all {
            return Search::for_all(engine, lane, at, mode).run();
        }
        Search::for_stream(engine, lane, at, mode, deferred).run()
    }

    /// Submits the deferred waits, and notes behind which point of the stream each part is safe.
    ///
    /// # Errors
    /// Returns an error if the device call fails; then no part may be used.
    fn wait_for_parts(&self, deferred: &Fences, found: &mut FoundParts) -> Result<(), DeviceError> {
        let has_waited = ordering::wait_for_all(self.engine, self.lane, deferred.iter())?;
        let is_own = |fence: Fence| fence.stream == self.lane.id;
        let mut point = None;
        for (_, part) in found {
            let Found {
                allocation, fences, ..
            } = part;
            if allocation.source == Source::DeviceWait && !has_waited {
                // Its fences were complete by then.
                allocation.source = Source::Ordered;
            }
            if !fences.is_empty() && !fences.single().is_some_and(is_own) {
                // A point from now on: behind the waits.
                allocation.after =
                    *point.get_or_insert_with(|| ordering::present_point(self.engine, self.lane));
            }
        }
        Ok(())
    }

    /// Puts parts back that were found in vain, with the fences that their memory came with: it was not used since.
    /// No waiter is notified: the request they were found for knows, and would wake itself.
    fn restore(&self, found: FoundParts) {
        for (_, Found { fences, .. }) in &found {
            // The point at which memory was allocated in the order of the stream.
            self.lane.cache.expect_seal(fences.of(self.lane.id));
        }
        {
            let mut heap = self.engine.store.heap.lock();
            for (_, part) in found {
                heap.give_back(part.allocation.id, part.fences);
            }
        }
        maintenance::schedule_after_return(self.engine);
    }
}
