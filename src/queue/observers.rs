//! Who is told of every block's life: on a device that checks orderings its checker, and the driver's
//! event log, where a history is kept; and what the blocks are filled with. Where there is nothing of that, an
//! allocation and a free look at one pointer, and that is all.

use super::Demand;
use crate::device::{BlockObserver, RawStream};
use crate::driver::{Allocation, BlockOrigin, Driver, Extent, Fill, Fills};
use crate::lane::Lane;
use crate::sync::{Arc, plain};
use smallvec::SmallVec;
use std::panic::Location;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Observers {
    checker: Option<plain::Arc<dyn BlockObserver>>,
    pub(crate) fills: Fills,
    keeps_history: bool,
}

/// A block that was granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted<'a> {
    pub(crate) allocation: &'a Allocation,
    pub(crate) demand: &'a Demand,
    pub(crate) lane: &'a Lane,
    pub(crate) caller: Caller,
}

/// The request that a block was granted to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) location: &'static Location<'static>,
    pub(crate) waited: bool,
    /// The fill that the request asked for, instead of the pool's.
    pub(crate) fill: Option<Fill>,
}

/// A block that is about to be freed: nobody else can have been given its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending<'a> {
    pub(crate) allocation: &'a Allocation,
    /// Of all streams that it was used on, its own first.
    pub(crate) lanes: &'a [Arc<Lane>],
    /// Those of them that its memory waits for: the others come before these.
    pub(crate) waits_for: &'a [Arc<Lane>],
    /// Where it was freed, if that is known: not of a drop.
    pub(crate) location: Option<&'static Location<'static>>,
}

impl Observers {
    /// Those of a pool, if there are any.
    pub(crate) fn of(driver: &Driver) -> Option<plain::Arc<Self>> {
        let observers = Self {
            checker: driver.device.block_observer(),
            fills: driver.settings.fills,
            keeps_history: driver.event_log.is_some(),
        };
        let are_any = observers.checker.is_some()
            || observers.fills.are_asked_for()
            || observers.keeps_history;
        are_any.then(|| plain::Arc::new(observers))
    }

    pub(crate) fn granted(&self, driver: &Driver, block: Granted<'_>) {
        let Granted {
            allocation,
            lane,
            caller,
            ..
        } = block;
        if let Some(checker) = &self.checker {
            checker.block_allocated(
                allocation.address,
                allocation.bytes,
                lane.raw,
                caller.location,
            );
        }
        if self.keeps_history {
            driver.write_entry(|entry, totals| {
                entry.write_granted(totals, extent(allocation, lane), origin(&block));
            });
        }
    }

    /// Memory is granted that a block is about to grow by, which may fail yet: for the checker it is a block of its own
    /// until then.
    pub(crate) fn extension_granted(&self, extension: &Allocation, lane: &Lane, caller: Caller) {
        if let Some(checker) = &self.checker {
            checker.block_allocated(
                extension.address,
                extension.bytes,
                lane.raw,
                caller.location,
            );
        }
    }

    /// The block did not grow.
    pub(crate) fn extension_freed(&self, extension: &Allocation, lane: &Lane) {
        if let Some(checker) = &self.checker {
            checker.block_freed(extension.address, &[lane.raw], None);
        }
    }

    /// A block is about to be larger by so many bytes.
    pub(crate) fn grown(
        &self,
        driver: &Driver,
        allocation: &Allocation,
        bytes: u64,
        lane: &Lane,
        caller: Caller,
    ) {
        if let Some(checker) = &self.checker {
            checker.block_grown(allocation.address, bytes, lane.raw, caller.location);
        }
        if self.keeps_history {
            driver.write_entry(|entry, totals| {
                entry.write_grown(
                    totals,
                    extent(allocation, lane),
                    bytes,
                    caller.location.into(),
                );
            });
        }
    }

    pub(crate) fn ending(&self, driver: &Driver, block: Ending<'_>) {
        let Ending {
            allocation,
            lanes,
            waits_for,
            location,
        } = block;
        if let Some(checker) = &self.checker {
            let streams: SmallVec<[RawStream; 2]> = waits_for.iter().map(|lane| lane.raw).collect();
            checker.block_freed(allocation.address, &streams, location);
        }
        if self.keeps_history {
            let further = lanes[1..].iter().map(|lane| lane.id).collect();
            driver.write_entry(|entry, totals| {
                let block = extent(allocation, &lanes[0]);
                entry.write_ending(totals, block, further, location.map(Into::into));
            });
        }
    }

    /// What was found earlier, where nobody could be told.
    ///
    /// # Panics
    /// With that.
    pub(crate) fn call_out(&self) {
        if let Some(checker) = &self.checker {
            checker.raise_violations();
        }
    }
}

fn extent(allocation: &Allocation, lane: &Lane) -> Extent {
    Extent {
        address: allocation.address,
        size: allocation.bytes,
        stream: lane.id,
    }
}

/// What is known of a block's allocation; the event log numbers it, and looks at the clock.
fn origin(block: &Granted<'_>) -> BlockOrigin {
    BlockOrigin {
        number: 0,
        site: block.caller.location.into(),
        time: Duration::ZERO,
        requested: block.demand.requested(),
        tag: block.demand.tag,
        source: block.allocation.source,
        waited: block.caller.waited,
    }
}
