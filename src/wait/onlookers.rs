//! Who is told of every block's life: on a device that checks orderings its referee, and whoever else was
//! asked for; and what the blocks are filled with. Where there is nothing of that, an allocation and a free look
//! at one pointer, and that is all.

use crate::device::{RawStream, Referee};
use crate::engine::{Engine, Fills};
use crate::sync::plain;
use std::panic::Location;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Onlookers {
    referee: Option<plain::Arc<dyn Referee>>,
    pub(crate) fills: Fills,
}

/// A block that was granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) stream: RawStream,
    pub(crate) place: &'static Location<'static>,
}

/// A block that is about to be freed: nobody else can have been given its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending<'a> {
    pub(crate) address: u64,
    /// All streams that it was used on, its own first.
    pub(crate) streams: &'a [RawStream],
    /// Where it was freed, if that is known: not of a drop.
    pub(crate) place: Option<&'static Location<'static>>,
}

impl Onlookers {
    /// Those of a pool, if there are any.
    pub(crate) fn of(engine: &Engine) -> Option<plain::Arc<Self>> {
        let referee = engine.device.referee();
        let fills = engine.settings.fills;
        let are_any = referee.is_some() || fills.are_asked_for();
        are_any.then(|| plain::Arc::new(Self { referee, fills }))
    }

    pub(crate) fn granted(&self, block: Granted) {
        let Granted {
            address,
            bytes,
            stream,
            place,
        } = block;
        if let Some(referee) = &self.referee {
            referee.granted(address, bytes, stream, place);
        }
    }

    pub(crate) fn ending(&self, block: Ending<'_>) {
        let Ending {
            address,
            streams,
            place,
        } = block;
        if let Some(referee) = &self.referee {
            referee.freed(address, streams, place);
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
