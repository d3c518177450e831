//! A block's end: dropped, or deallocated and awaited.

use super::Block;
use crate::device::DeviceError;
use crate::driver::{Allocation, Use};
use crate::error::StreamError;
use crate::id::Ticket;
use crate::lane::StreamCache;
use crate::queue::{Ending, Passages};
use crate::stream::Stream;
use crate::trace;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

impl Block {
    /// Frees the block in the order of the streams that it was used on, as dropping it does, and gives
    /// a future for the moment at which no device work can touch it any more.
    #[track_caller]
    pub fn deallocate(mut self) -> Deallocation {
        let deallocation = self.free_awaited(Location::caller());
        // Only now: the block is freed even if this panics.
        if let Some(observers) = self.registration.observers.as_deref() {
            observers.call_out();
        }
        deallocation
    }

    /// Frees the block in the order of `stream`, and of all that it was used on: its own stream's
    /// order is kept as well.
    ///
    /// # Errors
    /// As [`used_on`](Self::used_on); the block is in the error, still allocated.
    #[track_caller]
    pub fn deallocate_on(self, stream: &Stream) -> Result<Deallocation, DeallocateError> {
        match self.used_on(stream) {
            Ok(()) => Ok(self.deallocate()),
            Err(reason) => Err(DeallocateError {
                block: self,
                reason,
            }),
        }
    }

    fn free_awaited(&mut self, location: &'static Location<'static>) -> Deallocation {
        let block = self
            .end(Some(location))
            .expect("taken only when the block ends");
        let (lanes, earlier) = (self.lanes(), self.earlier());
        let service = &self.registration.service;
        let is_its_streams_alone = self.further.get_mut().is_none();
        let fences = if is_its_streams_alone {
            let lane = &self.registration.lane;
            let ticket: Ticket = service.driver.free(lane, block);
            std::iter::once(lane.fence(ticket)).collect()
        } else {
            let home = &self.registration.lane;
            service.driver.free_many(home, &lanes, earlier, &block)
        };
        let passages = Passages::new(service, &lanes, &fences);
        self.note_freed(block.bytes, block.address);
        Deallocation(passages)
    }

    /// The observers hear of it before anybody else can be given the memory.
    fn end(&mut self, location: Option<&'static Location<'static>>) -> Option<Use> {
        if self.registration.observers.is_some() {
            self.renounce(location);
        }
        self.take()
    }

    #[inline]
    fn take(&mut self) -> Option<Use> {
        // Field by field, which stays in registers.
        let Allocation {
            id, address, bytes, ..
        } = self.allocation.take()?;
        Some(Use {
            id,
            address,
            bytes,
            rounding: self.charge.rounding(),
        })
    }

    #[cold]
    #[inline(never)]
    fn renounce(&mut self, location: Option<&'static Location<'static>>) {
        let lanes = self.lanes();
        if let (Some(observers), Some(allocation)) =
            (&self.registration.observers, &self.allocation)
        {
            let mut waits_for = &lanes[..];
            let block = allocation.as_used(self.charge.rounding());
            let registration = &self.registration;
            let left_at = self.left_at();
            let is_first_after_all =
                registration.fill_ending(observers, &lanes, left_at, block, location);
            if is_first_after_all && left_at.is_none() {
                // Its own stream comes after the others by now: it is freed in the order of that alone.
                waits_for = &lanes[..1];
                let further = self.further.get_mut();
                match &mut **further {
                    Some(extra) if extra.reserved.is_some() || extra.has_room => {
                        extra.streams.clear();
                    }
                    _ => drop(further.take()),
                }
            }
            let ending = Ending {
                allocation,
                lanes: &lanes,
                waits_for,
                location,
            };
            observers.ending(&self.registration.service.driver, ending);
        }
    }

    #[cold]
    #[inline(never)]
    fn end_slowly(&mut self) {
        let Some(block) = self.end(None) else {
            return;
        };
        if self.further.get_mut().is_none() {
            let registration = &self.registration;
            let (driver, lane) = (&registration.service.driver, &registration.lane);
            driver.free(lane, block);
        } else {
            self.free_further(&block);
        }
        self.note_freed(block.bytes, block.address);
    }

    /// Of what the block says itself: what the plain case has of it is in registers.
    #[cold]
    #[inline(never)]
    fn free_slowly(&self) {
        let registration = &self.registration;
        let (driver, lane) = (&registration.service.driver, &registration.lane);
        let block = self.allocation().as_used(self.charge.rounding());
        driver.free(lane, block);
    }

    /// Takes the block off its tag's account, once it is freed.
    #[inline]
    fn note_freed(&mut self, bytes: u64, address: u64) {
        if let Some(tag) = self.charge.tag() {
            self.registration.note_freed(tag, bytes);
        }
        if let Some(extra) = &**self.further.get_mut() {
            extra.note_freed(bytes);
        }
        trace::freed(self.registration.lane.id, bytes, address);
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        let is_plain = self.registration.observers.is_none()
            && self.charge.is_nobodys()
            && self.further.get_mut().is_none();
        if !is_plain {
            return self.end_slowly();
        }
        let Some(allocation) = &self.allocation else {
            return;
        };
        let stream = self.registration.lane.id;
        let block = || allocation.as_used(self.charge.rounding());
        if !StreamCache::free_at_once(&mut self.registration.0, allocation.bytes, block) {
            self.free_slowly();
        }
        trace::freed(stream, allocation.bytes, allocation.address);
    }
}

/// A deallocation on its way: ready once no device work can touch the memory any more, whoever has it
/// by then. It may be dropped: the deallocation takes place all the same.
///
/// # Errors
/// When the device cannot say, or record, whether its streams have passed. If the error is sticky, the
/// memory is leaked rather than reused; if not, it is reused once a later event proves it.
///
/// # Cancel safety
/// Dropping it stops the waiting and nothing else.
#[derive(Debug)]
pub struct Deallocation(Passages);

impl Future for Deallocation {
    type Output = Result<(), DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context)
    }
}

/// A deallocation that was refused; nothing is lost.
#[derive(Debug, thiserror::Error)]
#[error("the block was not freed: {reason}")]
pub struct DeallocateError {
    /// The block, still allocated.
    pub block: Block,
    /// Why.
    #[source]
    pub reason: StreamError,
}
