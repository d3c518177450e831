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

use super::Presence;
use crate::device::{CaptureId, CapturedWork, Captures, DeviceError, RawStream};
use crate::engine::{Change, captures_of, order};
use crate::heap::{Clock, Fence};
use crate::id::{StreamId, Ticket};
use crate::lane::Lane;
use crate::sync::{Arc, Guards, Mutex, Ordering, SharedNumber, assert_unlocked, plain, yield_now};
use rustc_hash::FxHashSet;
use std::fmt;

/// See the [module](self). Memory that was freed in the capture is complete once the last owner is gone.
pub(crate) struct CaptureClock {
    presence: plain::Arc<Presence>,
    id: plain::OnceLock<CaptureId>,
    branches: Mutex<Vec<Branch>>,
    /// The calls of the device about the capture that have not returned, and [`ENDED`] once it is about to end.
    visits: SharedNumber,
}

/// The bit that is set in the number of visits once the capture is about to end.
const ENDED: u64 = 1 << 63;

/// A call of the device about work of the capture. While it exists, the pool does not end the capture on the device, which
/// destroys that work.
pub(super) struct CaptureVisit<'a>(&'a CaptureClock);

impl Drop for CaptureVisit<'_> {
    fn drop(&mut self) {
        self.0.visits.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A stream of the capture.
struct Branch {
    lane: Arc<Lane>,
    /// Its id in the heap.
    order: StreamId,
    open: Ticket,
    /// Memory waits for the open ticket.
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
            visits: SharedNumber::new(0),
        })
    }

    /// Begins a call of the device about work of the capture; `None` once the capture is about to end.
    pub(super) fn visit(&self) -> Option<CaptureVisit<'_>> {
        let before = self.visits.fetch_add(1, Ordering::AcqRel);
        let visit = CaptureVisit(self);
        (before & ENDED == 0).then_some(visit)
    }

    /// Lets no further call of the device about work of the capture begin, and waits, as for a lock, until those under way
    /// have returned. It is called once.
    pub(crate) fn end(&self) {
        self.visits.fetch_add(ENDED, Ordering::AcqRel);
        while self.visits.load(Ordering::Acquire) & !ENDED > 0 {
            yield_now();
        }
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
    pub(super) fn call<R>(
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
    pub(super) fn frontier(&self, lane: &Lane) -> Option<Vec<CapturedWork>> {
        let _visit = self.visit()?;
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

    /// Returns whether the device captures the stream, in this capture.
    pub(crate) fn is_live(&self, lane: &Lane) -> bool {
        self.frontier(lane).is_some()
    }

    /// Returns the id of a stream in the capture, and makes it a branch if it is new.
    pub(crate) fn order_of(&self, lane: &Arc<Lane>) -> StreamId {
        let known = |branches: &[Branch]| {
            let known = branches.iter().find(|branch| branch.lane.id == lane.id);
            known.map(|branch| branch.order)
        };
        if let Some(order) = known(&self.branches.lock()) {
            return order;
        }
        let engine = &self.presence.service.engine;
        let order = order::create(&engine.streams, &engine.store);
        let mut branches = self.branches.lock();
        if let Some(known) = known(&branches) {
            drop(branches);
            order::end(&engine.store, order);
            return known;
        }
        branches.push(Branch {
            lane: lane.clone(),
            order,
            open: Ticket::FIRST,
            is_open_used: false,
            ends: Vec::new(),
            after: Clock::default(),
            earlier: FxHashSet::default(),
        });
        order
    }

    /// Returns whether a stream is part of the capture, which it can be without a word to the pool.
    pub(crate) fn contains(&self, lane: &Arc<Lane>) -> bool {
        let is_routed = |branch: &Branch| {
            branch.lane.id == lane.id && lane.cache.capture_order() == Some(branch.order)
        };
        if self.branches.lock().iter().any(is_routed) {
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

    /// Closes the open ticket of a stream, and asks where it ends. Returns the work that the stream's next work comes after;
    /// `None` if that cannot be told: no other stream comes after the ticket then.
    pub(super) fn close(&self, lane: &Arc<Lane>) -> Option<Vec<CapturedWork>> {
        self.order_of(lane);
        let (ticket, is_used) = {
            let mut branches = self.branches.lock();
            let branch = branch_of(&mut branches, lane);
            let closed = branch.open;
            branch.open = closed.next();
            (closed, std::mem::take(&mut branch.is_open_used))
        };
        let end = self.frontier(lane)?;
        if is_used {
            let mut branches = self.branches.lock();
            let ends = &mut branch_of(&mut branches, lane).ends;
            let at = ends.partition_point(|(earlier, _)| *earlier < ticket);
            ends.insert(at, (ticket, end.clone()));
        }
        Some(end)
    }

    /// Returns the tickets of other streams that a stream is known to come after.
    pub(crate) fn after(&self, order: StreamId) -> Clock {
        let branches = self.branches.lock();
        let branch = branches.iter().find(|branch| branch.order == order);
        branch
            .map(|branch| branch.after.clone())
            .unwrap_or_default()
    }

    /// Asks the device what a stream comes after by now. Each piece of work is looked at once for each stream.
    pub(crate) fn refresh(&self, lane: &Arc<Lane>) {
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
            return;
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
        branch.after.join_all(&passed);
        // Another thread may have looked at some meanwhile.
        if branch.earlier.len() > earlier.len() {
            std::mem::swap(&mut branch.earlier, &mut earlier);
        }
        let fewer = std::mem::replace(&mut branch.earlier, earlier);
        branch.earlier.extend(fewer);
    }

    fn before(&self, lane: &Lane, work: CapturedWork) -> Vec<CapturedWork> {
        let Some(_visit) = self.visit() else {
            return Vec::new();
        };
        let before = self.call(lane, "before", |captures, stream| {
            // SAFETY: as in `frontier`; the work is of the capture that the stream is part of.
            #[allow(unsafe_code, reason = "device call on the lane's stream")]
            unsafe {
                captures.before(stream, work)
            }
        });
        before.unwrap_or_default()
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
            order::end(&service.engine.store, branch.order);
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
