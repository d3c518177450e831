//! A block of device memory, owned.
//!
//! | file | about |
//! |---|---|
//! | `charge` | to whom it is charged |
//! | `order` | its use as an argument of work, and what that comes after |
//! | `further` | on which further streams it was used, and for what |
//! | `hold` | its count of its stream's owners |
//! | `leave` | its end in the order of another stream |
//! | `copies` | copies between host and device |
//! | `host` | the host's own use of memory that it sees |

mod charge;
mod copies;
mod further;
mod hold;
mod host;
mod leave;
mod order;

pub(crate) use further::Access;
pub use host::HostGuard;
#[cfg(feature = "cuda")]
pub(crate) use order::Point;

use crate::device::{DeviceAddress, DeviceError};
use crate::engine::{Lent, Loans, Rung, Use};
use crate::error::{AllocError, StreamError};
use crate::id::Ticket;
use crate::lane::Entered;
use crate::ledger::Place;
use crate::measure::Tag;
use crate::rare::Rare;
use crate::stream::Stream;
use crate::sync::{Arc, Guards, Mutex};
use crate::trace;
use crate::wait::{
    Caller, Demand, Ending, Granted, Left, Onlookers, Passages, Registration, Reserved,
};
use charge::Charge;
use further::FurtherStreams;
use hold::Hold;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Device memory, owned: for use in the order of the stream that it was allocated on, and of those it
/// was [used on](Self::used_on) since.
///
/// Dropped, it is freed in the order of those streams: work submitted before the drop may still use
/// it. A drop never blocks and never panics. It makes at most the one event record for each of those
/// streams that the [sealing policy](crate::Sealing) asks for, and once in a while a few queries to have
/// events back. Where the pool [fills](crate::PoolBuilder::fill_on_free) what is freed, it makes the calls for
/// that as well.
#[must_use = "a block is freed when it is dropped"]
pub struct Block {
    registration: Hold,
    lent: Option<Lent>,
    charge: Charge,
    /// Further streams that it was used on.
    further: Mutex<Rare<Extra>>,
}

/// What few blocks have.
#[derive(Default)]
struct Extra {
    streams: FurtherStreams,
    /// Whose it is again when it is freed.
    reserved: Option<Arc<Reserved>>,
    /// Addresses above it are kept for it.
    has_room: bool,
    /// It is freed in the order of those streams alone, and not of its own, which may be gone: with the point of
    /// its own behind which the memory's earlier life lies.
    left_at: Option<Ticket>,
}

impl Extra {
    #[cold]
    fn note_freed(&self, bytes: u64) {
        if let Some(reserved) = &self.reserved {
            reserved.note_freed(bytes);
        }
    }
}

impl Block {
    /// # Errors
    /// When it was to be filled, and could not be; it is freed then.
    #[inline]
    pub(crate) fn new(
        registration: &Arc<Registration>,
        mut lent: Lent,
        demand: &Demand,
        caller: Caller,
    ) -> Result<Self, AllocError> {
        // Before the block is made: a call while it lives would cost every allocation some nanoseconds.
        if let Some(tag) = demand.tag {
            registration.note_granted(tag, lent.bytes - demand.request.bytes);
        }
        if let Some(onlookers) = registration.onlookers.as_deref() {
            // Of a copy, so that where nobody looks on it stays in registers.
            lent.after = begin_charged(registration, onlookers, &lent.seen(), demand, caller)?;
        }
        tell_granted(registration, &lent, demand.tag);
        let rounding = demand.rounding_of(lent.bytes);
        Ok(Self {
            registration: Hold::new(registration.clone()),
            lent: Some(lent),
            charge: Charge::new(rounding, demand.tag),
            further: Mutex::new(Guards::Block, Rare::NONE),
        })
    }

    /// A block that the lane had, of nobody's account, and nobody looks on.
    #[inline(always)]
    pub(crate) fn at_once(registration: Arc<Registration>, lent: Lent, rounding: u32) -> Self {
        tell_granted(&registration, &lent, None);
        Self {
            registration: Hold::new(registration),
            lent: Some(lent),
            charge: Charge::new(rounding, None),
            further: Mutex::new(Guards::Block, Rare::NONE),
        }
    }

    /// A block of a reservation.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn reserved(
        registration: &Arc<Registration>,
        mut lent: Lent,
        demand: &Demand,
        caller: Caller,
        reserved: &Arc<Reserved>,
    ) -> Result<Self, AllocError> {
        // Who looks on is told the tag; what it has is the reservation's business.
        let demand = Demand {
            tag: reserved.tag(),
            ..*demand
        };
        if let Some(onlookers) = registration.onlookers.as_deref() {
            lent.after = begin(registration, onlookers, &lent, &demand, caller)
                .inspect_err(|_| reserved.note_freed(lent.bytes))?;
        }
        tell_granted(registration, &lent, demand.tag);
        let extra = Extra {
            reserved: Some(reserved.clone()),
            ..Extra::default()
        };
        let rounding = demand.rounding_of(lent.bytes);
        Ok(Self {
            registration: Hold::new(registration.clone()),
            lent: Some(lent),
            charge: Charge::new(rounding, None),
            further: Mutex::new(Guards::Block, Rare::new(extra)),
        })
    }

    pub(crate) fn registration(&self) -> &Arc<Registration> {
        &self.registration
    }

    /// Addresses above it are kept for it. It bypasses the lane when it is freed, so that they do not stay kept.
    pub(crate) fn give_room(&mut self) {
        self.further.get_mut().get_or_insert_default().has_room = true;
    }

    pub(crate) fn has_room(&self) -> bool {
        let extra = self.further.lock();
        extra.as_ref().is_some_and(|extra| extra.has_room)
    }

    pub(crate) fn is_reserved(&self) -> bool {
        let extra = self.further.lock();
        extra.as_ref().is_some_and(|extra| extra.reserved.is_some())
    }

    pub(crate) fn place_above(&self) -> Place {
        let lent = self.lent();
        Place::Above(lent.id, lent.address + lent.bytes)
    }

    /// It has grown by what was lent right above it.
    ///
    /// # Errors
    /// When a further stream cannot be ordered after that, or it cannot be filled; the block is as it was, then.
    pub(crate) fn extend(
        &mut self,
        loans: Loans,
        demand: &Demand,
        caller: Caller,
    ) -> Result<(), AllocError> {
        let mut extension = loans.into_iter().next().expect("one was asked for");
        let registration = Arc::clone(&self.registration);
        let engine = &registration.service.engine;
        if let Err(error) = self.order_after(&mut extension, caller) {
            let lanes = std::slice::from_ref(&registration.lane);
            engine.free_many(&lanes[0], lanes, None, &extension.as_used(0));
            if let Some(tag) = demand.tag {
                registration.service.disclaim(tag, extension.bytes);
            }
            return Err(error.into());
        }
        if let Some(onlookers) = registration.onlookers.as_deref() {
            let (lent, lane) = (self.lent(), &*registration.lane);
            onlookers.grown(engine, lent, extension.bytes, lane, caller);
        }
        engine.join_lent(self.lent(), &extension);
        let lent = self.lent.as_mut().expect("taken only when the block ends");
        lent.bytes += extension.bytes;
        lent.after = lent.after.max(extension.after);
        self.charge.add_rounding(demand.rounding);
        if let Some(tag) = demand.tag {
            registration.note_more(tag);
        }
        Ok(())
    }

    /// Fills what it is to grow by, and orders the further streams after that.
    fn order_after(&self, extension: &mut Lent, caller: Caller) -> Result<(), DeviceError> {
        let Registration { service, lane, .. } = &**self.registration;
        if let Some(onlookers) = self.registration.onlookers.as_deref() {
            let (after, block) = (extension.after, extension.as_used(0));
            extension.after =
                self.registration
                    .fill_granted(onlookers, after, block, caller.place)?;
        }
        let mut further = self.lanes().into_iter().skip(1);
        further.try_for_each(|further| {
            let engine = &service.engine;
            engine.order_after_grant(lane, extension.after, &further)
        })
    }

    #[inline]
    fn lent(&self) -> &Lent {
        self.lent.as_ref().expect("taken only when the block ends")
    }

    /// The device address of the first byte.
    ///
    /// For other libraries, and for people. Work on another stream than the block's own that is given it is not
    /// known to the pool: call [`used_on`](Self::used_on) first, or give it [`on`](Self::on) instead, which does.
    #[inline]
    pub fn address(&self) -> DeviceAddress {
        DeviceAddress::from_bits(self.lent().address)
    }

    /// The bytes that may be used: what was requested, rounded up; or up to an eighth more, where the stream had freed
    /// a block of that size.
    #[inline]
    pub fn size(&self) -> u64 {
        self.lent().bytes
    }

    /// The bytes that were requested.
    #[inline]
    pub fn requested(&self) -> u64 {
        self.size() - u64::from(self.charge.rounding())
    }

    /// To whose account it goes, if it was allocated with a [tag](crate::Allocate::tag).
    #[inline]
    pub fn tag(&self) -> Option<Tag> {
        self.charge.tag().or_else(|| {
            let extra = self.further.lock();
            extra.as_ref()?.reserved.as_ref()?.tag()
        })
    }

    /// Where the memory came from.
    pub fn rung(&self) -> Rung {
        self.lent().rung
    }

    /// The stream that it was allocated on.
    pub fn stream(&self) -> Stream {
        Stream::from_registration(Arc::clone(&self.registration))
    }

    /// Frees the block in the order of the streams that it was used on, as dropping it does, and gives
    /// a future for the moment at which no device work can touch it any more.
    #[track_caller]
    pub fn deallocate(mut self) -> Deallocation {
        let deallocation = self.free_awaited(Location::caller());
        // Only now: the block is freed even if this panics.
        if let Some(onlookers) = self.registration.onlookers.as_deref() {
            onlookers.call_out();
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

    /// The onlookers hear of it before anybody else can be given the memory.
    fn end(&mut self, place: Option<&'static Location<'static>>) -> Option<Use> {
        if self.registration.onlookers.is_some() {
            self.renounce(place);
        }
        self.take()
    }

    #[inline]
    fn take(&mut self) -> Option<Use> {
        // Field by field, which stays in registers.
        let Lent {
            id, address, bytes, ..
        } = self.lent.take()?;
        Some(Use {
            id,
            address,
            bytes,
            rounding: self.charge.rounding(),
        })
    }

    #[cold]
    #[inline(never)]
    fn renounce(&mut self, place: Option<&'static Location<'static>>) {
        let lanes = self.lanes();
        if let (Some(onlookers), Some(lent)) = (&self.registration.onlookers, &self.lent) {
            let mut waits_for = &lanes[..];
            let block = lent.as_used(self.charge.rounding());
            let registration = &self.registration;
            let left_at = self.left_at();
            let is_first_after_all =
                registration.fill_ending(onlookers, &lanes, left_at, block, place);
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
                lent,
                lanes: &lanes,
                waits_for,
                place,
            };
            onlookers.ending(&self.registration.service.engine, ending);
        }
    }

    /// Of what the block says itself: what the plain case has of it is in registers.
    #[cold]
    #[inline(never)]
    fn free_slowly(&self, entered: Entered<'_, Left>) {
        let registration = &self.registration;
        let (engine, lane) = (&registration.service.engine, &registration.lane);
        let block = self.lent().as_used(self.charge.rounding());
        engine.free_slowly(lane, &registration.slot, block, entered);
    }

    #[cold]
    #[inline(never)]
    fn end_slowly(&mut self) {
        let Some(block) = self.end(None) else {
            return;
        };
        if self.further.get_mut().is_none() {
            let registration = &self.registration;
            let (engine, lane) = (&registration.service.engine, &registration.lane);
            engine.free(lane, &registration.slot, block);
        } else {
            self.free_further(&block);
        }
        self.note_freed(block.bytes, block.address);
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

    fn free_awaited(&mut self, place: &'static Location<'static>) -> Deallocation {
        let block = self
            .end(Some(place))
            .expect("taken only when the block ends");
        let (lanes, earlier) = (self.lanes(), self.earlier());
        let service = &self.registration.service;
        let is_its_streams_alone = self.further.get_mut().is_none();
        let fences = if is_its_streams_alone {
            let lane = &self.registration.lane;
            let slot = &self.registration.slot;
            let ticket: Ticket = service.engine.free(lane, slot, block);
            std::iter::once(lane.fence(ticket)).collect()
        } else {
            let home = &self.registration.lane;
            service.engine.free_many(home, &lanes, earlier, &block)
        };
        let passages = Passages::new(service, &lanes, &fences);
        self.note_freed(block.bytes, block.address);
        Deallocation(passages)
    }
}

/// With as many bytes as are told of when it is freed.
#[inline(always)]
fn tell_granted(registration: &Registration, lent: &Lent, tag: Option<Tag>) {
    let asked = trace::Asked {
        stream: registration.lane.id,
        bytes: lent.bytes,
        tag,
    };
    trace::granted(asked, &lent.rung, lent.address);
}

/// A block is granted after that point of its stream, and somebody looks on. Returns the point that a further
/// stream must come after.
///
/// # Errors
/// As [`Block::new`].
#[cold]
#[inline(never)]
fn begin(
    registration: &Registration,
    onlookers: &Onlookers,
    lent: &Lent,
    demand: &Demand,
    caller: Caller,
) -> Result<Ticket, DeviceError> {
    let (engine, lane) = (&registration.service.engine, &registration.lane);
    let granted = Granted {
        lent,
        demand,
        lane,
        caller,
    };
    onlookers.granted(engine, granted);
    let block = lent.as_used(demand.rounding_of(lent.bytes));
    let filled = registration.fill_granted(onlookers, lent.after, block, caller.place);
    if filled.is_err() {
        let lanes = std::slice::from_ref(lane);
        let ending = Ending {
            lent,
            lanes,
            waits_for: lanes,
            place: None,
        };
        onlookers.ending(engine, ending);
        // Past the lane: it may be a reservation's.
        engine.free_many(lane, lanes, None, &block);
    }
    filled
}

/// The same of one that its tag was charged for. The error is the caller's whole: taken apart there, it would
/// keep the block out of registers.
#[cold]
#[inline(never)]
fn begin_charged(
    registration: &Registration,
    onlookers: &Onlookers,
    lent: &Lent,
    demand: &Demand,
    caller: Caller,
) -> Result<Ticket, AllocError> {
    let begun = begin(registration, onlookers, lent, demand, caller);
    if let (Err(_), Some(tag)) = (&begun, demand.tag) {
        registration.note_freed(tag, lent.bytes);
    }
    Ok(begun?)
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        let is_plain = self.registration.onlookers.is_none()
            && self.charge.is_nobodys()
            && self.further.get_mut().is_none();
        if !is_plain {
            return self.end_slowly();
        }
        let Some(lent) = &self.lent else {
            return;
        };
        let Registration {
            service,
            lane,
            slot,
            ..
        } = &**self.registration;
        let (stream, slot) = (lane.id, slot.clone());
        let block = || lent.as_used(self.charge.rounding());
        match service.engine.free_at_once(lane, &slot, lent.bytes, block) {
            Ok(mut front) => front.left.put(&mut self.registration.0),
            Err(entered) => self.free_slowly(entered),
        }
        trace::freed(stream, lent.bytes, lent.address);
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("address", &self.address())
            .field("size", &self.size())
            .field("stream", &self.registration.lane.id)
            .field("rung", &self.rung())
            .finish_non_exhaustive()
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
