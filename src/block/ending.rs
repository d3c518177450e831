//! The end of a block that is awaited, that has anything extra, or that observers are told of: they hear of the free before
//! any other request can be granted the memory. Any other block ends where it [began](super::life).

use super::{Access, Block, Extra, Part};
use crate::device::DeviceError;
use crate::engine::{Allocation, Use, order, release};
use crate::error::StreamError;
use crate::foreign::ForeignMemory;
use crate::handles::{CaptureClock, Ending, GraphUses, Registration, Route};
use crate::heap::Fences;
use crate::lane::Lane;
use crate::queue::Passages;
use crate::stream::Stream;
use crate::sync::{Arc, Guards, Mutex, Rare, assert_unlocked, plain};
use smallvec::SmallVec;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

impl Block {
    /// Frees the block in the order of the streams that it was used on, as dropping it does. Returns a future that is
    /// ready when no device work can touch the memory any more. A block that a [graph](crate::CapturedGraph) uses passes
    /// to the graph instead: then the future is ready when its uses and the launches so far are complete.
    #[track_caller]
    pub fn deallocate(mut self) -> Deallocation {
        let passages = End(&mut self).run(Some(Location::caller()));
        let passages = passages.expect("it has not ended yet");
        // Last: the block is freed even if this panics.
        if let Some(registration) = &self.registration
            && let Some(observers) = &registration.observers
        {
            observers.call_out(Location::caller());
        }
        Deallocation(passages)
    }

    /// Frees the block in the order of `stream`, and of all streams that it was used on, its own included.
    ///
    /// # Errors
    /// Returns the errors of [`Stream::record_use`]. The error holds the block, which is still allocated.
    #[track_caller]
    pub fn deallocate_on(self, stream: &Stream) -> Result<Deallocation, DeallocateError> {
        let is_awaitable = self.uses().expect_awaitable(&stream.registration);
        let noted = is_awaitable.and_then(|()| {
            Part::whole(&self, Access::Always)
                .argument(stream)
                .map(drop)
        });
        match noted {
            Ok(()) => Ok(self.deallocate()),
            Err(reason) => Err(DeallocateError {
                block: self,
                reason,
            }),
        }
    }
}

/// The end of a block, whose fields are taken out step by step.
pub(super) struct End<'a>(pub(super) &'a mut Block);

impl End<'_> {
    #[cold]
    #[inline(never)]
    pub(super) fn unawaited(self) {
        self.run(None);
    }

    /// Ends any block: one that a graph keeps passes to the graph, a plain one of a reservation may stay with it for the
    /// stream, and any other is freed. Returns what a free that is awaited waits for: `awaited_at` is its place. Nothing
    /// happens to a block that has ended already.
    // In line, so that each of the two callers has what it needs of it.
    #[inline(always)]
    fn run(mut self, awaited_at: Option<&'static Location<'static>>) -> Option<Passages> {
        let is_awaited = awaited_at.is_some();
        // Without the lock here and below, since nothing else has the block.
        let keeper = self
            .0
            .extra
            .get_mut()
            .as_ref()
            .and_then(|extra| extra.keeper());
        if let Some(graph) = keeper.filter(|_| self.0.allocation.is_some()) {
            let passages = is_awaited.then(|| self.passages_with_launches());
            self.leave_to(&graph);
            return passages;
        }
        let registration = self.0.registration.as_ref();
        if registration.is_some_and(|registration| registration.observers.is_some()) {
            self.tell(awaited_at);
        }
        if !is_awaited && self.keep() {
            return None;
        }
        let block = self.memory()?;
        self.0.allocation = None;
        let lanes = is_awaited.then(|| {
            let extra = self.0.extra.get_mut().as_mut();
            match extra.map(|extra| extra.deallocated_at = awaited_at) {
                Some(()) => self.0.uses().lanes_with_launches(),
                None => self.0.uses().lanes(),
            }
        });
        let fences = self.free(block);
        let service = &self.0.registration().service;
        let passages = lanes.map(|lanes| Passages::new(service, &lanes, &fences));
        self.uncharge(block);
        passages
    }

    /// Ends the uses so far, and those of launches. Returns what they wait for.
    fn passages_with_launches(&self) -> Passages {
        let uses = self.0.uses();
        let (_, mut passages) = uses.end(self.0.size());
        for (registration, point) in uses.launches() {
            passages.add(registration.passage(point));
        }
        passages
    }

    /// Returns the memory as it is freed, if the block has not ended.
    fn memory(&self) -> Option<Use> {
        let Allocation {
            id, address, bytes, ..
        } = *self.0.allocation.as_ref()?;
        let rounding = self.0.charge.rounding();
        Some(Use {
            id,
            address,
            bytes,
            rounding,
        })
    }

    /// Leaves the block to a graph, which owns it from then on.
    fn leave_to(self, graph: &GraphUses) {
        let none = Mutex::new(Guards::Block, Rare::NONE);
        graph.keep(Box::new(Block {
            registration: self.0.registration.take(),
            allocation: self.0.allocation.take(),
            charge: self.0.charge,
            extra: std::mem::replace(&mut self.0.extra, none),
        }));
    }

    /// Returns whether the block's stream is being captured in the capture that the block was allocated in, if it was
    /// allocated in one.
    fn is_in_capture(&mut self) -> bool {
        let extra = self.0.extra.get_mut().as_ref();
        let capture = extra.and_then(|extra| extra.capture());
        let order = || self.0.registration().lane.cache.capture_order();
        capture.is_some() && order() == capture
    }

    /// Tells observers.
    #[cold]
    #[inline(never)]
    fn tell(&mut self, location: Option<&'static Location<'static>>) {
        let is_captured = self.is_in_capture();
        let (Some(block), Some(registration), Some(allocation)) =
            (self.memory(), &self.0.registration, &self.0.allocation)
        else {
            return;
        };
        let Some(observers) = &registration.observers else {
            return;
        };
        let (uses, left_at) = (self.0.uses(), self.0.uses().left_at());
        let lanes = match is_captured {
            true => uses.lanes(),
            false => uses.lanes_with_launches(),
        };
        let is_checked = |extra: &Extra| Some(extra.outside.as_ref()?.is_checked());
        match self.0.extra(is_checked) {
            Some(true) => return observers.outside_freed(allocation, &lanes, location),
            Some(false) => return,
            None => {}
        }
        let is_first_after_all =
            registration.fill_ending(observers, &lanes, left_at, block, is_captured, location);
        let mut waits_for = &lanes[..];
        if is_first_after_all && left_at.is_none() {
            // The fill brought the block's own stream after the others: the free follows that stream alone.
            waits_for = &lanes[..1];
            let extra = self.0.extra.get_mut();
            match &mut **extra {
                Some(extra)
                    if extra.reserved.is_some() || extra.has_room || extra.graphs.is_some() =>
                {
                    extra.streams.clear()
                }
                _ => drop(extra.take()),
            }
        }
        let ending = Ending {
            allocation,
            lanes: &lanes,
            waits_for,
            location,
            tag: self.0.charge.tag(),
        };
        observers.ending(&registration.service.engine, ending);
    }

    /// Frees a block of a reservation in the plain case, in which the reservation keeps it for the stream. Returns whether
    /// it was the plain case.
    #[inline]
    fn keep(&mut self) -> bool {
        let extra = self.0.extra.get_mut();
        let is_plain = extra.as_ref().is_some_and(|extra| extra.is_only_reserved());
        let Some(block) = self.memory().filter(|_| is_plain) else {
            return false;
        };
        let mut spare = self.0.extra.get_mut().take();
        let reserved = spare.as_mut().and_then(|extra| extra.reserved.take());
        let reserved = reserved.expect("a block of a reservation");
        let is_kept = reserved.keep(&mut self.0.registration, &block, &mut spare);
        if is_kept {
            self.0.allocation = None;
        } else if let Some(mut extra) = spare {
            extra.reserved = Some(reserved);
            **self.0.extra.get_mut() = Some(extra);
        }
        is_kept
    }

    /// Frees a block that has ended. Returns the points that its memory waits for.
    fn free(&mut self, block: Use) -> Fences {
        let Some(extra) = self.0.extra.get_mut().as_mut() else {
            let Registration { service, lane, .. } = &**self.0.registration();
            return Fences::one(lane.id, release::free(&service.engine, lane, block));
        };
        if let Some(outside) = extra.outside.take() {
            return self.release(outside, block);
        }
        let is_of_one_stream = extra.is_of_one_stream() && extra.graphs.is_none();
        let route = match self.is_in_capture() {
            true => Route::of(self.0.registration()),
            false => None,
        };
        // Where other code has ended the capture, the work since then runs at once.
        if let Some(route) = route
            && route.clock.is_live(&self.0.registration().lane)
        {
            return self.free_captured(&route.clock, block);
        }
        let Registration { service, lane, .. } = &**self.0.registration();
        if is_of_one_stream {
            let lanes = std::slice::from_ref(lane);
            return release::free_many(&service.engine, lane, lanes, None, &block);
        }
        let uses = self.0.uses();
        let (lanes, earlier) = (uses.lanes_with_launches(), uses.fence_left_behind());
        release::free_many(&service.engine, lane, &lanes, earlier, &block)
    }

    /// Gives memory back to its owner.
    fn release(&self, outside: Box<dyn ForeignMemory>, block: Use) -> Fences {
        let (fences, passages) = self.0.uses().end(block.bytes);
        let location = self.0.extra(|extra| extra.deallocated_at);
        let service = &self.0.registration().service;
        let passages = passages.of_foreign(service, block.bytes, location);
        assert_unlocked("foreign memory is released");
        plain::catch(|| outside.release(passages));
        fences
    }

    /// Frees a block in its capture, which happens at each launch. Returns the point of its stream, which its user cannot
    /// await before the capture is over.
    fn free_captured(&self, clock: &CaptureClock, block: Use) -> Fences {
        let lanes = self.0.uses().lanes();
        let (inside, outside): (SmallVec<[_; 2]>, SmallVec<[_; 2]>) =
            lanes.iter().partition(|lane| clock.contains(lane));
        let fences = inside
            .into_iter()
            .map(|lane: &Arc<Lane>| clock.fence(lane))
            .collect();
        let Registration { service, lane, .. } = &**self.0.registration();
        order::free(&service.engine, lane, (fences, &outside), &block);
        Fences::one(lane.id, lane.cache.open_ticket())
    }

    /// Uncharges the tag or the reservation, after the free.
    fn uncharge(self, block: Use) {
        if let Some(tag) = self.0.charge.tag() {
            let service = &self.0.registration().service;
            service.count_freed(tag, block.bytes);
        }
        if let Some(extra) = &**self.0.extra.get_mut()
            && let Some(reserved) = &extra.reserved
        {
            reserved.publish_freed(block.bytes);
        }
    }
}

/// The future of a free: ready when no device work can touch the memory any more, whichever block the memory belongs to
/// by then. Dropping it does not stop the free.
///
/// # Errors
/// Returns an error if the device cannot record an event, or reports an error instead of completion. If the error is
/// sticky, the memory is leaked rather than reused. Otherwise it is reused once a later event proves it complete.
///
/// # Cancel safety
/// Dropping it stops waiting and has no other effect.
#[derive(Debug)]
pub struct Deallocation(pub(super) Passages);

impl Future for Deallocation {
    type Output = Result<(), DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_synchronizing(context)
    }
}

/// The error of a free that was refused. Nothing is lost: it holds the block.
#[derive(Debug, thiserror::Error)]
#[error("the block was not freed, and this error holds it: {reason}")]
pub struct DeallocateError {
    /// The block, still allocated.
    pub block: Block,
    /// Why the free was refused.
    #[source]
    pub reason: StreamError,
}
