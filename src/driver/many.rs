//! Several grants, all or none; and memory that is complete for everybody.

use super::deferred_waits::DeferredWaits;
use super::ladder::{Allocation, Effort, Patience, Refusal, may_submit};
use super::{Change, Driver};
use crate::device::DeviceErrorKind;
use crate::heap::{Fences, Placement, Request};
use crate::id::Ticket;
use crate::lane::Lane;
use crate::sync::{Arc, plain};
use smallvec::SmallVec;

/// Memory on its way to its user: of one block, mostly.
pub(crate) type Allocations = SmallVec<[Allocation; 1]>;

/// One of several requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) request: Request,
    /// What was not asked for of its bytes.
    pub(crate) rounding: u32,
}

/// Several requests, in the order of their answers.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) all: plain::Arc<[Part]>,
    /// What is granted is complete on every stream, and not only for the one that asks.
    pub(crate) is_for_everybody: bool,
    /// Where the only one is to lie.
    pub(crate) placement: Placement,
}

impl Parts {
    /// One, there.
    pub(crate) fn one(part: Part, placement: Placement) -> Self {
        Self {
            all: plain::Arc::new([part]),
            is_for_everybody: false,
            placement,
        }
    }

    /// Those that are as large begin with a handle: what they are cut into can be mapped elsewhere, then.
    pub(crate) fn align_to_chunks(&mut self, chunk_bytes: u64) {
        let all = plain::Arc::get_mut(&mut self.all).expect("parts that nobody has yet");
        for part in all {
            if part.request.bytes >= chunk_bytes {
                part.request.alignment = chunk_bytes;
            }
        }
    }
}

/// Loans with their places among the parts, and what their memory's earlier lives had left.
type Found = SmallVec<[(usize, Allocation, Fences); 8]>;

impl Driver {
    /// The ladder for each of the parts, the largest first. The stream is made to wait for nothing before all are
    /// had.
    ///
    /// # Errors
    /// When one of them gets nothing; nothing is lent then.
    pub(crate) fn climb_all(
        &self,
        lane: &Arc<Lane>,
        parts: &Parts,
        effort: Effort,
        patience: Patience<'_>,
    ) -> Result<Allocations, Refusal> {
        let is_several = parts.all.len() > 1 && !parts.is_for_everybody;
        let mut found = if is_several && may_submit(lane, patience) {
            self.find_then_wait(lane, parts, effort, patience)?
        } else {
            self.find_all(lane, parts, effort, patience, None)?
        };
        found.sort_by_key(|(at, ..)| *at);
        found
            .iter()
            .for_each(|(_, allocation, _)| self.counters.count(allocation.source));
        Ok(found
            .into_iter()
            .map(|(_, allocation, _)| allocation)
            .collect())
    }

    /// Finds all parts, and then has the stream wait for what they must come after. Where one of the streams takes no
    /// event or no wait now, being captured, each part is looked for with that in mind.
    fn find_then_wait(
        &self,
        lane: &Arc<Lane>,
        parts: &Parts,
        effort: Effort,
        patience: Patience<'_>,
    ) -> Result<Found, Refusal> {
        let deferred_waits = DeferredWaits::default();
        let mut found = self.find_all(lane, parts, effort, patience, Some(&deferred_waits))?;
        let allocations = found
            .iter_mut()
            .map(|(_, allocation, fences)| (allocation, &*fences));
        let Err(error) = self.wait_for_all(lane, &deferred_waits, allocations) else {
            return Ok(found);
        };
        self.restore(found);
        match error.kind() {
            DeviceErrorKind::Unsupported => self.find_all(lane, parts, effort, patience, None),
            _ => Err(error.into()),
        }
    }

    fn find_all(
        &self,
        lane: &Arc<Lane>,
        parts: &Parts,
        effort: Effort,
        patience: Patience<'_>,
        deferred_waits: Option<&DeferredWaits>,
    ) -> Result<Found, Refusal> {
        let mut order: SmallVec<[usize; 8]> = (0..parts.all.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(parts.all[*at].request.bytes));
        let mut found = Found::new();
        for at in order {
            let request = parts.all[at].request;
            let climbed = if parts.is_for_everybody {
                self.climb_for_everybody(lane, request, effort, patience)
            } else {
                self.climb_uncounted(
                    lane,
                    (request, parts.placement),
                    effort,
                    patience,
                    deferred_waits,
                )
            };
            match climbed {
                Ok((allocation, fences)) => found.push((at, allocation, fences)),
                Err(refusal) => {
                    self.restore(found);
                    return Err(refusal);
                }
            }
        }
        Ok(found)
    }

    /// Puts loans back that were not made, with what is left of their memory's earlier lives: nothing was done
    /// with it since. Without ringing: who asked for them knows, and would wake itself.
    fn restore(&self, allocations: Found) {
        let mut bytes = 0;
        {
            let mut heap = self.heap.lock();
            for (_, allocation, fences) in allocations {
                bytes += allocation.bytes;
                heap.give_back(allocation.id, fences);
            }
        }
        if self.settings.is_pooled {
            self.note_return();
        } else if bytes > 0 {
            self.return_at_once(bytes);
        }
    }

    /// Where nothing is pooled, gives back to the device what was taken for nothing. Who waits is source only if
    /// that was not all: other memory may be had now.
    fn return_at_once(&self, bytes: u64) {
        let trimmed = self.trim_quietly_to(0);
        if let Some(error) = &trimmed.error {
            self.note(error);
        }
        if trimmed.bytes > bytes {
            self.publish(Change::Memory);
        }
    }

    /// What was lent right above a block is a part of it from here on.
    pub(crate) fn join_used(&self, lower: &Allocation, upper: &Allocation) {
        self.heap.lock().join_used(lower.id, upper.id);
    }

    /// What is left to come before the memory of a loan that was never used is anybody's.
    pub(super) fn fences_of(&self, lane: &Lane, allocation: &Allocation) -> Fences {
        if allocation.after == Ticket::ZERO {
            return Fences::default();
        }
        lane.expect_seal(allocation.after);
        Fences::one(lane.id, allocation.after)
    }

    /// Takes back loans that nobody took.
    pub(crate) fn give_all_back(&self, lane: &Lane, allocations: Allocations) {
        for allocation in allocations {
            self.give_back(lane, allocation);
        }
    }

    /// How much was given back so far, if nothing is on its way: nothing pending, kept by a lane, or being moved.
    pub(crate) fn returns_if_quiet(&self) -> Option<u64> {
        let totals = self.totals();
        let is_quiet = totals.pending.current + totals.claimed + totals.planned == 0;
        let is_kept = || self.lanes().iter().any(|lane| lane.is_keeping());
        (is_quiet && !is_kept()).then_some(totals.returns)
    }
}
