//! Observers of each block's life: the checker of a device that checks orderings, and the
//! [observers](crate::extend::Observer) of the pool. They also hold the fills. A pool without any of these has no
//! observers, and an allocation or a free only looks at one pointer.

use crate::device::{BlockObserver, RawStream};
use crate::engine::{Allocation, Engine, Fill, Fills};
use crate::id::StreamId;
use crate::lane::Lane;
use crate::measure::Tag;
use crate::queue::Demand;
use crate::seam::Fact;
use crate::sync::{Arc, plain};
use smallvec::SmallVec;
use std::panic::Location;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Observers {
    checker: Option<plain::Arc<dyn BlockObserver>>,
    pub(crate) fills: Fills,
    /// Whether there are [observers of the pool](crate::extend::Observer).
    is_told: bool,
}

/// A block that was granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted<'a> {
    pub(crate) allocation: &'a Allocation,
    pub(crate) demand: &'a Demand,
    pub(crate) lane: &'a Lane,
    pub(crate) caller: Caller,
}

/// The caller of an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) location: &'static Location<'static>,
    pub(crate) waited: bool,
    /// The block belongs to the graph that its stream is being captured into.
    pub(crate) is_captured: bool,
    /// The memory is that of graphs, whose launches may use it too.
    pub(crate) shares_with_graphs: bool,
    /// The fill that the request asked for, instead of the pool's.
    pub(crate) fill: Option<Fill>,
}

impl Caller {
    /// Describes a caller that did not wait, of memory that is not a graph's.
    #[inline(always)]
    pub(crate) fn at(location: &'static Location<'static>) -> Self {
        Self {
            location,
            waited: false,
            is_captured: false,
            shares_with_graphs: false,
            fill: None,
        }
    }
}

/// A block that is about to be freed: its memory cannot have been granted again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending<'a> {
    pub(crate) allocation: &'a Allocation,
    /// The lanes of all streams that it was used on, the home stream first.
    pub(crate) lanes: &'a [Arc<Lane>],
    /// The lanes whose points its memory waits for: all others come before these.
    pub(crate) waits_for: &'a [Arc<Lane>],
    /// The location of the free, if it is known: a drop has none.
    pub(crate) location: Option<&'static Location<'static>>,
    pub(crate) tag: Option<Tag>,
}

impl Observers {
    /// Returns the observers of a pool, if it has any.
    pub(crate) fn of(engine: &Engine) -> Option<plain::Arc<Self>> {
        let observers = Self {
            checker: engine.shared.device.block_observer(),
            fills: engine.shared.settings.fills,
            is_told: engine.store.announcer.is_open(),
        };
        let are_any = observers.checker.is_some()
            || observers.fills.on_allocate.is_some()
            || observers.fills.on_free.is_some()
            || observers.is_told;
        are_any.then(|| plain::Arc::new(observers))
    }

    pub(crate) fn granted(&self, engine: &Engine, block: Granted<'_>) {
        let Granted {
            allocation,
            lane,
            caller,
            ..
        } = block;
        if let Some(checker) = &self.checker {
            let Allocation { address, bytes, .. } = *allocation;
            match caller.shares_with_graphs {
                true => checker.block_of_graphs(address, bytes, lane.raw, caller.location),
                false => checker.block_allocated(address, bytes, lane.raw, caller.location),
            }
        }
        if self.is_told {
            engine.store.tell(|| Fact::Granted {
                address: allocation.address.into(),
                size: allocation.bytes,
                requested: block.demand.requested(),
                stream: lane.id,
                tag: block.demand.tag,
                source: allocation.source,
                waited: caller.waited,
                site: caller.location,
            });
        }
    }

    /// Tells the checker that memory was granted by which a block is about to grow. The growth may still fail, so the
    /// memory counts as a block of its own until then.
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

    /// Tells the checker that the block did not grow.
    pub(crate) fn extension_freed(&self, extension: &Allocation, lane: &Lane) {
        if let Some(checker) = &self.checker {
            checker.block_freed(extension.address, &[lane.raw], None);
        }
    }

    /// Tells the checker of a block whose memory is not in the heap. The history is one of the heap.
    pub(crate) fn outside_granted(
        &self,
        allocation: &Allocation,
        lane: &Lane,
        location: &'static Location<'static>,
    ) {
        if let Some(checker) = &self.checker {
            checker.block_allocated(allocation.address, allocation.bytes, lane.raw, location);
        }
    }

    /// Tells the checker of the end of a block whose memory is not in the heap.
    pub(crate) fn outside_freed(
        &self,
        allocation: &Allocation,
        lanes: &[Arc<Lane>],
        location: Option<&'static Location<'static>>,
    ) {
        if let Some(checker) = &self.checker {
            let streams: SmallVec<[RawStream; 2]> = lanes.iter().map(|lane| lane.raw).collect();
            checker.block_freed(allocation.address, &streams, location);
        }
    }

    /// Tells that a block is about to grow by this many bytes.
    pub(crate) fn grown(
        &self,
        engine: &Engine,
        allocation: &Allocation,
        bytes: u64,
        lane: &Lane,
        caller: Caller,
    ) {
        if let Some(checker) = &self.checker {
            checker.block_grown(allocation.address, bytes, lane.raw, caller.location);
        }
        if self.is_told {
            engine.store.tell(|| Fact::Extended {
                address: allocation.address.into(),
                bytes,
                stream: lane.id,
                site: caller.location,
            });
        }
    }

    pub(crate) fn ending(&self, engine: &Engine, block: Ending<'_>) {
        let Ending {
            allocation,
            lanes,
            waits_for,
            location,
            tag,
        } = block;
        if let Some(checker) = &self.checker {
            let streams: SmallVec<[RawStream; 2]> = waits_for.iter().map(|lane| lane.raw).collect();
            checker.block_freed(allocation.address, &streams, location);
        }
        if self.is_told {
            let further: SmallVec<[StreamId; 2]> = lanes[1..].iter().map(|lane| lane.id).collect();
            engine.store.tell(|| Fact::Freed {
                address: allocation.address.into(),
                size: allocation.bytes,
                stream: lanes[0].id,
                further: &further,
                tag,
                site: location,
            });
        }
    }

    /// Tells the checker the name that the user gave a stream.
    pub(crate) fn named(&self, lane: &Lane, name: &str) {
        if let Some(checker) = &self.checker {
            checker.stream_named(lane.raw, name);
        }
    }

    /// Raises violations that were found earlier, in places that could not report them, and names the user's call.
    ///
    /// # Panics
    /// If there are any.
    pub(crate) fn call_out(&self, call: &'static Location<'static>) {
        if let Some(checker) = &self.checker {
            checker.raise_violations(call);
        }
    }
}
