//! The order of the streams of a capture: which of its work each of them comes after.
//!
//! A capture has clocks of its own, because its work does not run: no event completes. Each of its streams is a *branch*,
//! with an id in the heap and tickets of its own. Memory that is freed in the capture waits for a ticket of each branch
//! that used it. A branch comes after a ticket if the work that the stream was given before the free is before its next
//! work in the graph; the device tells that, in whichever way the streams were ordered. (The idea is that of PyTorch's allocator, which
//! inserts empty nodes and follows them.)
//!
//! A ticket is closed first, and then the stream's place in the graph is asked for: so the place is behind every use that
//! the free comes after. While a capture has one stream, nobody asks.

use super::{GraphUses, Presence, Registration};
use crate::device::{CaptureId, CapturedWork, Captures, DeviceError, RawStream};
use crate::engine::{Change, captured, captures_of, ordering};
use crate::fault::injected;
use crate::heap::{Clock, Fence};
use crate::id::{StreamId, Ticket};
use crate::lane::{Lane, refused};
use crate::sync::{Arc, Guards, Mutex, assert_unlocked, plain};
use rustc_hash::FxHashSet;
use std::fmt;

/// See the [module](self). Memory that was freed in the capture is complete once the last owner is gone.
pub(crate) struct CaptureClock {
    presence: plain::Arc<Presence>,
    id: plain::OnceLock<CaptureId>,
    branches: Mutex<Vec<Branch>>,
    /// The streams that joined by waiting for a point of the capture.
    joined: Mutex<Vec<Arc<Registration>>>,
}

/// A stream of the capture.
struct Branch {
    lane: Arc<Lane>,
    /// Its id in the heap.
    order: StreamId,
    open: Ticket,
    is_open_used: bool,
    /// Where in the graph its closed tickets end, oldest first, as far as it is known.
    ends: Vec<(Ticket, Vec<CapturedWork>)>,
    /// The tickets of other branches that it comes after.
    after: Clock,
    /// The work that it comes after, as far as it was looked at.
    earlier: FxHashSet<CapturedWork>,
}

impl CaptureClock {
    pub(crate) fn new(presence: plain::Arc<Presence>) -> plain::Arc<Self> {
        plain::Arc::new(Self {
            presence,
            id: plain::OnceLock::new(),
            branches: Mutex::new(Guards::Registry, Vec::new()),
            joined: Mutex::new(Guards::Registry, Vec::new()),
        })
    }

    /// Returns the device's id of the capture, once it is known.
    pub(crate) fn id(&self) -> Option<CaptureId> {
        self.id.get().copied()
    }

    pub(crate) fn set_id(&self, id: CaptureId) {
        let _known = self.id.set(id);
    }

    /// Makes a call of the device about a stream of the capture.
    ///
    /// # Errors
    /// Returns the device's error, or an error if the device has no graphs.
    fn call<R>(
        &self,
        lane: &Lane,
        name: &'static str,
        call: impl FnOnce(&dyn Captures, RawStream) -> Result<R, DeviceError>,
    ) -> Result<R, DeviceError> {
        assert_unlocked(name);
        let shared = &self.presence.service.engine.shared;
        let captures = captures_of(&**lane.device(&shared.device), name)?;
        shared.noted(call(captures, lane.raw))
    }

    /// Returns the work that the stream's next work comes after; `None` if the stream is not part of the capture, or the
    /// device cannot tell.
    fn frontier(&self, lane: &Lane) -> Option<Vec<CapturedWork>> {
        let frontier = self.call(lane, "frontier", |captures, stream| {
            // SAFETY: the lane keeps the stream's owner; an external stream is usable in the caller's call.
            #[allow(unsafe_code, reason = "device call on the lane's stream")]
            unsafe {
                captures.frontier(stream)
            }
        });
        let (id, work) = frontier.ok()??;
        (self.id() == Some(id)).then_some(work)
    }

    /// Returns the id of a stream in the capture. A stream that is new becomes a branch: then the tickets of the others are
    /// closed, since it may come after them.
    pub(crate) fn order_of(&self, lane: &Arc<Lane>) -> StreamId {
        let known = |branches: &[Branch]| {
            let known = branches.iter().find(|branch| branch.lane.id == lane.id);
            known.map(|branch| branch.order)
        };
        if let Some(order) = known(&self.branches.lock()) {
            return order;
        }
        let engine = &self.presence.service.engine;
        let order = captured::further_order(&engine.streams, &engine.store);
        let others: Vec<_> = {
            let mut branches = self.branches.lock();
            if let Some(known) = known(&branches) {
                drop(branches);
                captured::end_order(&engine.store, order);
                return known;
            }
            let used = branches.iter().filter(|branch| branch.is_open_used);
            let used = used.map(|branch| branch.lane.clone()).collect();
            branches.push(Branch {
                lane: lane.clone(),
                order,
                open: Ticket::FIRST,
                is_open_used: false,
                ends: Vec::new(),
                after: Clock::default(),
                earlier: FxHashSet::default(),
            });
            used
        };
        for other in others {
            self.close(&other);
        }
        order
    }

    /// Returns whether a stream is part of the capture, which it can be without a word to the pool.
    pub(crate) fn contains(&self, lane: &Arc<Lane>) -> bool {
        let is_branch = |branch: &Branch| branch.lane.id == lane.id;
        if self.branches.lock().iter().any(is_branch) {
            return true;
        }
        // An external stream may be gone, and the host is part of no capture.
        if lane.is_external || lane.is_host() || lane.is_foreign() || self.frontier(lane).is_none()
        {
            return false;
        }
        self.order_of(lane);
        true
    }

    /// Returns what memory waits for that is freed now, after uses on a stream of the capture.
    pub(crate) fn fence(&self, lane: &Arc<Lane>) -> Fence {
        let stream = self.order_of(lane);
        let (ticket, is_alone) = {
            let mut branches = self.branches.lock();
            let is_alone = branches.len() == 1;
            let branch = branch_of(&mut branches, lane);
            branch.is_open_used = true;
            (branch.open, is_alone)
        };
        if !is_alone {
            self.close(lane);
        }
        Fence { stream, ticket }
    }

    /// Closes the open ticket of a stream, and asks where it ends.
    fn close(&self, lane: &Arc<Lane>) {
        let ticket = {
            let mut branches = self.branches.lock();
            let branch = branch_of(&mut branches, lane);
            let closed = branch.open;
            branch.open = closed.next();
            branch.is_open_used = false;
            closed
        };
        // Where it cannot be told, no other stream comes after the ticket.
        let Some(end) = self.frontier(lane) else {
            return;
        };
        let mut branches = self.branches.lock();
        let ends = &mut branch_of(&mut branches, lane).ends;
        let at = ends.partition_point(|(earlier, _)| *earlier < ticket);
        ends.insert(at, (ticket, end));
    }

    /// Returns the tickets of other streams that a stream is known to come after.
    pub(crate) fn after(&self, order: StreamId) -> Clock {
        let branches = self.branches.lock();
        let branch = branches.iter().find(|branch| branch.order == order);
        branch
            .map(|branch| branch.after.clone())
            .unwrap_or_default()
    }

    /// Asks the device what a stream comes after by now. Returns whether it comes after more tickets than before. Each
    /// piece of work is looked at once for each stream.
    pub(crate) fn refresh(&self, lane: &Arc<Lane>) -> bool {
        let (is_open, mut earlier) = {
            let mut branches = self.branches.lock();
            let own = branch_of(&mut branches, lane).after.clone();
            let mut others = branches.iter().filter(|branch| branch.lane.id != lane.id);
            let is_open = others.any(|other| {
                let last = other.ends.last();
                last.is_some_and(|(ticket, _)| *ticket > own.of(other.order))
            });
            let branch = branch_of(&mut branches, lane);
            let earlier = if is_open {
                std::mem::take(&mut branch.earlier)
            } else {
                FxHashSet::default()
            };
            (is_open, earlier)
        };
        if !is_open {
            return false;
        }
        let mut unseen = self.frontier(lane).unwrap_or_default();
        while let Some(work) = unseen.pop() {
            if earlier.insert(work) {
                unseen.extend(self.before(lane, work));
            }
        }
        let mut branches = self.branches.lock();
        let ends = branches.iter().filter(|branch| branch.lane.id != lane.id);
        let passed: Clock = ends
            .filter_map(|other| {
                let is_passed = |(_, end): &(Ticket, Vec<CapturedWork>)| {
                    end.iter().all(|work| earlier.contains(work))
                        || injected("side-stream-of-a-capture-not-joined")
                };
                let passed = other.ends.partition_point(is_passed);
                let (ticket, _) = other.ends.get(passed.checked_sub(1)?)?;
                Some(Fence {
                    stream: other.order,
                    ticket: *ticket,
                })
            })
            .collect();
        let branch = branch_of(&mut branches, lane);
        let has_more = passed.iter().any(|fence| !branch.after.covers(fence));
        branch.after.join_all(&passed);
        branch.earlier.extend(earlier);
        has_more
    }

    fn before(&self, lane: &Lane, work: CapturedWork) -> Vec<CapturedWork> {
        let before = self.call(lane, "before", |captures, stream| {
            // SAFETY: as in `frontier`; the work is of the capture that the stream is part of.
            #[allow(unsafe_code, reason = "device call on the lane's stream")]
            unsafe {
                captures.before(stream, work)
            }
        });
        before.unwrap_or_default()
    }

    /// Ends the routes of the streams that joined by waiting.
    pub(crate) fn end_joined(&self) {
        let joined = std::mem::take(&mut *self.joined.lock());
        joined
            .iter()
            .for_each(|registration| registration.end_route());
    }
}

fn branch_of<'a>(branches: &'a mut [Branch], lane: &Lane) -> &'a mut Branch {
    let branch = branches.iter_mut().find(|branch| branch.lane.id == lane.id);
    branch.expect("a stream stays a branch of its capture")
}

impl Drop for CaptureClock {
    fn drop(&mut self) {
        let service = &self.presence.service;
        for branch in std::mem::take(self.branches.get_mut()) {
            captured::end_order(&service.engine.store, branch.order);
        }
        service.publish(Change::Memory);
    }
}

impl fmt::Debug for CaptureClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = f.debug_struct("CaptureClock");
        all.field("id", &self.id.get()).finish_non_exhaustive()
    }
}

/// A point in a captured stream: behind the work that it was given so far. Other streams can be ordered after it while the
/// capture goes on; it cannot be awaited.
#[derive(Debug)]
pub(crate) struct CapturedPoint {
    clock: plain::Arc<CaptureClock>,
    /// What the graph of the capture will use.
    uses: plain::Arc<GraphUses>,
    lane: Arc<Lane>,
    work: Vec<CapturedWork>,
}

impl CapturedPoint {
    /// Returns the present point of a stream of the capture.
    ///
    /// # Errors
    /// Returns an error if the device cannot tell.
    pub(crate) fn present(
        clock: &plain::Arc<CaptureClock>,
        uses: &plain::Arc<GraphUses>,
        lane: &Arc<Lane>,
    ) -> Result<Self, DeviceError> {
        let work = clock.frontier(lane).ok_or_else(|| refused("record"))?;
        Ok(Self {
            clock: clock.clone(),
            uses: uses.clone(),
            lane: lane.clone(),
            work,
        })
    }

    /// Makes a stream come after the point. A stream that is not being captured joins the capture.
    ///
    /// # Errors
    /// Returns an error if the capture is over, if the stream is part of another one, or if it cannot be captured.
    pub(crate) fn order(&self, on: &Arc<Registration>) -> Result<(), DeviceError> {
        if on.lane.id == self.lane.id {
            return Ok(());
        }
        // What the device names belongs to this capture alone.
        if self.clock.frontier(&self.lane).is_none() || on.lane.is_host() {
            return Err(refused("wait"));
        }
        let joins = match on.route() {
            Some(route) if plain::Arc::ptr_eq(&route.clock, &self.clock) => false,
            Some(_) => return Err(refused("wait")),
            None => true,
        };
        if joins {
            // Memory that it freed before is available to others, and its earlier tasks can be awaited.
            ordering::mark(&on.service.engine, &on.lane)?;
            on.service.publish(Change::Memory);
            on.begin_route(&self.uses, &self.clock)?;
        }
        let ordered = self.clock.call(&on.lane, "wait", |captures, stream| {
            // SAFETY: the lanes keep their streams' owners; the work is of the capture that the point's stream is part of.
            #[allow(unsafe_code, reason = "device call on the lanes' streams")]
            unsafe {
                captures.come_after(stream, self.lane.raw, &self.work)
            }
        });
        match (&ordered, joins) {
            (Ok(()), true) => self.clock.joined.lock().push(on.clone()),
            (Err(_), true) => on.end_route(),
            (_, false) => {}
        }
        ordered
    }
}
