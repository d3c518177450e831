//! A block's beginning: a loan becomes one, before the eyes of who looks on.

use super::charge::Charge;
use super::hold::Hold;
use super::{Block, Extra};
use crate::device::DeviceError;
use crate::driver::Allocation;
use crate::error::AllocError;
use crate::id::Ticket;
use crate::measure::Tag;
use crate::queue::{Caller, Demand, Ending, Granted, Observers, Registration, Reserved};
use crate::rare::Rare;
use crate::sync::{Arc, Guards, Mutex};
use crate::trace;

impl Block {
    /// # Errors
    /// When it was to be filled, and could not be; it is freed then.
    #[inline]
    pub(crate) fn new(
        registration: &Arc<Registration>,
        mut allocation: Allocation,
        demand: &Demand,
        caller: Caller,
    ) -> Result<Self, AllocError> {
        // Before the block is made: a call while it lives would cost every allocation some nanoseconds.
        if let Some(tag) = demand.tag {
            registration.note_granted(tag, allocation.bytes - demand.request.bytes);
        }
        if let Some(observers) = registration.observers.as_deref() {
            // Of a copy, so that where nobody looks on it stays in registers.
            allocation.after =
                begin_charged(registration, observers, &allocation.seen(), demand, caller)?;
        }
        tell_granted(registration, &allocation, demand.tag);
        let rounding = demand.rounding_of(allocation.bytes);
        Ok(Self {
            registration: Hold::new(registration.clone()),
            allocation: Some(allocation),
            charge: Charge::new(rounding, demand.tag),
            further: Mutex::new(Guards::Block, Rare::NONE),
        })
    }

    /// A block that the lane had, of nobody's account, and nobody looks on.
    #[inline(always)]
    pub(crate) fn at_once(
        registration: Arc<Registration>,
        allocation: Allocation,
        rounding: u32,
    ) -> Self {
        tell_granted(&registration, &allocation, None);
        Self {
            registration: Hold::new(registration),
            allocation: Some(allocation),
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
        mut allocation: Allocation,
        demand: &Demand,
        caller: Caller,
        reserved: &Arc<Reserved>,
    ) -> Result<Self, AllocError> {
        // Who looks on is told the tag; what it has is the reservation's business.
        let demand = Demand {
            tag: reserved.tag(),
            ..*demand
        };
        if let Some(observers) = registration.observers.as_deref() {
            allocation.after = begin(registration, observers, &allocation, &demand, caller)
                .inspect_err(|_| reserved.note_freed(allocation.bytes))?;
        }
        tell_granted(registration, &allocation, demand.tag);
        let extra = Extra {
            reserved: Some(reserved.clone()),
            ..Extra::default()
        };
        let rounding = demand.rounding_of(allocation.bytes);
        Ok(Self {
            registration: Hold::new(registration.clone()),
            allocation: Some(allocation),
            charge: Charge::new(rounding, None),
            further: Mutex::new(Guards::Block, Rare::new(extra)),
        })
    }
}

/// With as many bytes as are told of when it is freed.
#[inline(always)]
fn tell_granted(registration: &Registration, allocation: &Allocation, tag: Option<Tag>) {
    let asked = trace::Asked {
        stream: registration.lane.id,
        bytes: allocation.bytes,
        tag,
    };
    trace::granted(asked, &allocation.source, allocation.address);
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
    observers: &Observers,
    allocation: &Allocation,
    demand: &Demand,
    caller: Caller,
) -> Result<Ticket, DeviceError> {
    let (driver, lane) = (&registration.service.driver, &registration.lane);
    let granted = Granted {
        allocation,
        demand,
        lane,
        caller,
    };
    observers.granted(driver, granted);
    let block = allocation.as_used(demand.rounding_of(allocation.bytes));
    let filled = registration.fill_granted(observers, allocation.after, block, caller.location);
    if filled.is_err() {
        let lanes = std::slice::from_ref(lane);
        let ending = Ending {
            allocation,
            lanes,
            waits_for: lanes,
            location: None,
        };
        observers.ending(driver, ending);
        // Past the lane: it may be a reservation's.
        driver.free_many(lane, lanes, None, &block);
    }
    filled
}

/// The same of one that its tag was charged for. The error is the caller's whole: taken apart there, it would
/// keep the block out of registers.
#[cold]
#[inline(never)]
fn begin_charged(
    registration: &Registration,
    observers: &Observers,
    allocation: &Allocation,
    demand: &Demand,
    caller: Caller,
) -> Result<Ticket, AllocError> {
    let begun = begin(registration, observers, allocation, demand, caller);
    if let (Err(_), Some(tag)) = (&begun, demand.tag) {
        registration.note_freed(tag, allocation.bytes);
    }
    Ok(begun?)
}
