//! A block's beginning: a loan becomes one, before the eyes of who looks on.

use super::charge::Charge;
use super::hold::Hold;
use super::{Block, Extra};
use crate::device::DeviceError;
use crate::engine::Lent;
use crate::error::AllocError;
use crate::id::Ticket;
use crate::measure::Tag;
use crate::rare::Rare;
use crate::sync::{Arc, Guards, Mutex};
use crate::trace;
use crate::wait::{Caller, Demand, Ending, Granted, Onlookers, Registration, Reserved};

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
