//! Who is told of every block's life: on a device that checks orderings its referee, and the engine's
//! journal, where a history is kept; and what the blocks are filled with. Where there is nothing of that, an
//! allocation and a free look at one pointer, and that is all.

use super::Demand;
use crate::device::{RawStream, Referee};
use crate::engine::{BlockOrigin, Engine, Extent, Fills, Lent};
use crate::lane::Lane;
use crate::sync::{Arc, plain};
use smallvec::SmallVec;
use std::panic::Location;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Onlookers {
    referee: Option<plain::Arc<dyn Referee>>,
    pub(crate) fills: Fills,
    keeps_history: bool,
}

/// A block that was granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted<'a> {
    pub(crate) lent: &'a Lent,
    pub(crate) demand: &'a Demand,
    pub(crate) lane: &'a Lane,
    pub(crate) caller: Caller,
}

/// Who asked for a block, and how it came by it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) place: &'static Location<'static>,
    pub(crate) waited: bool,
}

/// A block that is about to be freed: nobody else can have been given its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending<'a> {
    pub(crate) lent: &'a Lent,
    /// Of all streams that it was used on, its own first.
    pub(crate) lanes: &'a [Arc<Lane>],
    /// Those of them that its memory waits for: the others come before these.
    pub(crate) waits_for: &'a [Arc<Lane>],
    /// Where it was freed, if that is known: not of a drop.
    pub(crate) place: Option<&'static Location<'static>>,
}

impl Onlookers {
    /// Those of a pool, if there are any.
    pub(crate) fn of(engine: &Engine) -> Option<plain::Arc<Self>> {
        let onlookers = Self {
            referee: engine.device.referee(),
            fills: engine.settings.fills,
            keeps_history: engine.has_journal(),
        };
        let are_any = onlookers.referee.is_some()
            || onlookers.fills.are_asked_for()
            || onlookers.keeps_history;
        are_any.then(|| plain::Arc::new(onlookers))
    }

    pub(crate) fn granted(&self, engine: &Engine, block: Granted<'_>) {
        let Granted {
            lent, lane, caller, ..
        } = block;
        if let Some(referee) = &self.referee {
            referee.granted(lent.address, lent.bytes, lane.raw, caller.place);
        }
        if self.keeps_history {
            engine.write_granted(extent(lent, lane), origin(&block));
        }
    }

    /// A block is about to be larger by so many bytes.
    pub(crate) fn grown(
        &self,
        engine: &Engine,
        lent: &Lent,
        bytes: u64,
        lane: &Lane,
        caller: Caller,
    ) {
        if let Some(referee) = &self.referee {
            referee.grown(lent.address, bytes, lane.raw, caller.place);
        }
        if self.keeps_history {
            engine.write_grown(extent(lent, lane), bytes, caller.place.into());
        }
    }

    pub(crate) fn ending(&self, engine: &Engine, block: Ending<'_>) {
        let Ending {
            lent,
            lanes,
            waits_for,
            place,
        } = block;
        if let Some(referee) = &self.referee {
            let streams: SmallVec<[RawStream; 2]> = waits_for.iter().map(|lane| lane.raw).collect();
            referee.freed(lent.address, &streams, place);
        }
        if self.keeps_history {
            let further = lanes[1..].iter().map(|lane| lane.id).collect();
            engine.write_ending(extent(lent, &lanes[0]), further, place.map(Into::into));
        }
    }

    /// What was found earlier, where nobody could be told.
    ///
    /// # Panics
    /// With that.
    pub(crate) fn call_out(&self) {
        if let Some(referee) = &self.referee {
            referee.call_out();
        }
    }
}

fn extent(lent: &Lent, lane: &Lane) -> Extent {
    Extent {
        address: lent.address,
        size: lent.bytes,
        stream: lane.id,
    }
}

/// What is known of a block's allocation; the journal numbers it, and looks at the clock.
fn origin(block: &Granted<'_>) -> BlockOrigin {
    BlockOrigin {
        number: 0,
        site: block.caller.place.into(),
        time: Duration::ZERO,
        requested: block.demand.requested(),
        tag: block.demand.tag,
        rung: block.lent.rung,
        waited: block.caller.waited,
    }
}
