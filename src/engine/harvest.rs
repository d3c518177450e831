//! What has completed, and what lanes keep: making memory count for everybody.

use super::Engine;
use crate::device::{DeviceError, Watch};
use crate::id::{StreamId, Ticket};
use crate::lane::{Kept, Lane, Marker};
use crate::ledger::Fences;
use crate::sync::{Arc, assert_unlocked};
use std::collections::BTreeMap;
use std::task::Waker;

/// Watches on points of streams. The marker is held for as long as its event is watched: it must not
/// be recorded anew.
pub(crate) type Watches = BTreeMap<(StreamId, Ticket), (Watch, Arc<Marker>)>;

impl Engine {
    /// Asks every stream how far it has come, and frees what that proves free. Says whether there
    /// was anything new.
    ///
    /// # Errors
    /// What the device says instead of an answer. Whatever the kind, an event that reports an error
    /// proves nothing, and what it covers stays pending (I10).
    pub(crate) fn harvest(&self) -> Result<bool, DeviceError> {
        let mut has_news = false;
        for lane in self.lanes().iter() {
            has_news |= self.harvest_lane(lane)?;
        }
        if has_news {
            self.drop_done_lanes();
        }
        Ok(has_news)
    }

    /// The same for one stream.
    ///
    /// # Errors
    /// As [`harvest`](Self::harvest).
    pub(crate) fn harvest_lane(&self, lane: &Lane) -> Result<bool, DeviceError> {
        let completed = self.noted(lane.timeline.harvest(&*self.device))?;
        if let Some(ticket) = completed {
            self.ledger.lock().complete(lane.id, ticket);
        }
        Ok(completed.is_some())
    }

    /// Moves what lanes keep to the ledger, where neighbours merge and every stream can have it.
    ///
    /// Under the ledger's lock throughout, so that nobody finds a block in neither place and reports
    /// an out-of-memory that is none. A lane's lock is taken inside the ledger's here, and the ledger's
    /// never inside a lane's.
    pub(crate) fn drain_lanes(&self) {
        let lanes = self.lanes();
        let mut ledger = self.ledger.lock();
        for lane in lanes.iter() {
            for Kept { id, ticket, .. } in lane.drain() {
                ledger.give_back(id, Fences::one(lane.id, ticket));
            }
        }
    }

    /// Records an event on every stream that freed something no event covers.
    ///
    /// # Errors
    /// When the device cannot; what was freed stays pending.
    pub(crate) fn seal_lanes(&self) -> Result<(), DeviceError> {
        for lane in self.lanes().iter() {
            self.seal(lane)?;
        }
        Ok(())
    }

    /// # Errors
    /// When the device cannot; what was freed stays pending.
    pub(crate) fn seal(&self, lane: &Lane) -> Result<(), DeviceError> {
        if lane.is_dirty() {
            self.noted(lane.seal(&*self.device, &self.events))?;
        }
        Ok(())
    }

    /// An event behind everything the stream was given so far.
    ///
    /// # Errors
    /// When the device cannot.
    pub(crate) fn mark(&self, lane: &Lane) -> Result<Arc<Marker>, DeviceError> {
        self.noted(lane.mark(&*self.device, &self.events))
    }

    /// A marker that proves a ticket, sealed now if it was not; `None` if the ticket is complete.
    ///
    /// # Errors
    /// When the device cannot.
    pub(crate) fn marker_for(
        &self,
        lane: &Lane,
        ticket: Ticket,
    ) -> Result<Option<Arc<Marker>>, DeviceError> {
        self.noted(lane.marker_for(ticket, &*self.device, &self.events))
    }

    /// Makes a stream wait for a marker on the device, and remembers that it does.
    ///
    /// # Errors
    /// When the device cannot; the order is then not counted on.
    pub(crate) fn order_behind(&self, lane: &Lane, marker: &Marker) -> Result<(), DeviceError> {
        assert_unlocked("wait");
        self.noted(self.device.wait(lane.raw, marker.event()))?;
        // After the call: see `Timeline::join`.
        lane.timeline.join(&marker.clock);
        Ok(())
    }

    /// Has `waker` called when any stream gets further than it is known to be.
    pub(crate) fn watch_streams(&self, watches: &mut Watches, waker: &Waker) {
        let mut kept = Watches::new();
        for lane in self.lanes().iter() {
            for marker in lane.timeline.to_watch() {
                let point = (lane.id, marker.ticket);
                let watched = watches.remove(&point).unwrap_or_else(|| {
                    let watch = Watch::new(&self.device, marker.event(), waker);
                    (watch, marker)
                });
                kept.insert(point, watched);
            }
        }
        *watches = kept;
    }
}
