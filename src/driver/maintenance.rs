//! Upkeep: what a pool does with memory that nobody needs, now and then and off the hot path.
//!
//! It releases what it holds above its threshold, and coalesces when its heuristic says so. It becomes
//! *due* when memory comes back to the heap: then an alarm of the device is set, and what it wakes does
//! the maintenance. Released is only what was free throughout the time in between (hysteresis): a pool that
//! breathes in and out does not give memory away to take it again. What lanes keep counts once their
//! stream has been idle for that long.

use super::{Change, Driver, gate};
use crate::device::{Alarm, DeviceError};
use crate::heap::{Clock, CoalesceHeuristic, Growth, Placement, PoolFigures, Request, View};
use crate::id::StreamId;
use crate::sync::{Guards, Mutex, Ordering, SharedFlag, SharedNumber};
use std::task::Waker;
use std::time::Duration;

/// Upkeep that is due at once would be due again at once.
const SHORTEST_INTERVAL: Duration = Duration::from_micros(100);

/// What a pool's maintenance was built with.
#[derive(Clone, Debug)]
pub(crate) struct MaintenanceSettings {
    /// Bytes held above which free memory is released.
    pub(crate) threshold: u64,
    pub(crate) heuristic: Option<CoalesceHeuristic>,
    /// From when maintenance is due to when it is done.
    pub(crate) interval: Duration,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Maintenance {
    threshold: SharedNumber,
    heuristic: Option<CoalesceHeuristic>,
    interval: Duration,
    /// An alarm is set. Read by every free that goes to the heap.
    is_armed: SharedFlag,
    armed: Mutex<Armed>,
}

#[derive(Debug, Default)]
struct Armed {
    /// Who does it; none before the pool is whole, and after its last handle is gone.
    waker: Option<Waker>,
    /// With its number.
    alarm: Option<(u64, Alarm)>,
    /// Alarms so far.
    count: u64,
}

impl Armed {
    /// Who is to be woken, and the number of the alarm for that.
    fn next(&mut self) -> Option<(Waker, u64)> {
        let waker = self.waker.clone()?;
        self.count += 1;
        Some((waker, self.count))
    }

    /// Puts an alarm away. It may have source by now, and a later one be here already. Returns what is to be
    /// dropped.
    fn put(&mut self, number: u64, alarm: Alarm) -> Option<(u64, Alarm)> {
        match &self.alarm {
            Some((later, _)) if *later > number => Some((number, alarm)),
            _ => self.alarm.replace((number, alarm)),
        }
    }
}

impl Maintenance {
    pub(super) fn new(settings: MaintenanceSettings) -> Self {
        Self {
            threshold: SharedNumber::new(settings.threshold),
            heuristic: settings.heuristic,
            interval: settings.interval.max(SHORTEST_INTERVAL),
            is_armed: SharedFlag::new(false),
            armed: Mutex::new(Guards::Registry, Armed::default()),
        }
    }

    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    pub(crate) fn threshold(&self) -> u64 {
        self.threshold.load(Ordering::Relaxed)
    }

    fn set_threshold(&self, bytes: u64) {
        self.threshold.store(bytes, Ordering::Relaxed);
    }

    /// From now on, or with none never again, this is woken when maintenance is to be done.
    pub(crate) fn set_waker(&self, waker: Option<Waker>) {
        let old = {
            let mut armed = self.armed.lock();
            let alarm = if waker.is_none() {
                armed.alarm.take()
            } else {
                None
            };
            (std::mem::replace(&mut armed.waker, waker), alarm)
        };
        // The alarm's device is called, and the waker may own anything: outside the lock.
        drop(old);
    }
}

impl Driver {
    /// Held above this, free memory is released.
    fn most_cached(&self) -> u64 {
        let threshold = self.maintenance.threshold();
        if self.is_shrunk.load(Ordering::Relaxed) {
            threshold.min(self.capacity())
        } else {
            threshold
        }
    }

    /// Whether nothing is ever given back, nor moved, unasked.
    pub(super) fn keeps_all(&self) -> bool {
        self.maintenance.heuristic.is_none() && self.most_cached() == u64::MAX
    }

    /// Memory came back to the heap: sets the alarm if maintenance may have something to do.
    pub(crate) fn note_return(&self) {
        let maintenance = &self.maintenance;
        if self.keeps_all() || maintenance.is_armed.load(Ordering::Relaxed) {
            return;
        }
        let totals = self.totals();
        let is_over = totals.reserved.current > self.most_cached();
        let has_returned = totals.free.current + totals.pending.current > 0;
        if is_over || maintenance.heuristic.is_some() && has_returned {
            self.arm();
        }
    }

    fn arm(&self) {
        if self.maintenance.is_armed.swap(true, Ordering::AcqRel) {
            return;
        }
        let next = self.maintenance.armed.lock().next();
        let Some((waker, number)) = next else {
            return self.maintenance.is_armed.store(false, Ordering::Release);
        };
        self.heap.lock().mark_free();
        let at = self.device.now().saturating_add(self.maintenance.interval);
        let alarm = Alarm::new(&self.device, at, &waker);
        let old = self.maintenance.armed.lock().put(number, alarm);
        drop(old);
    }

    /// Does what is due, for who the alarm woke. While anybody waits for memory there is none to give away,
    /// and it is put off.
    ///
    /// # Errors
    /// When the device cannot; what was done before counts, and the rest is tried again later.
    pub(crate) fn keep_up(&self) -> Result<(), DeviceError> {
        let low = self.totals().free_low;
        self.maintenance.is_armed.store(false, Ordering::Release);
        if self.fault().is_some() {
            // What is held is leaked.
            return Ok(());
        }
        let is_put_off = self.gate.load(Ordering::Relaxed) & gate::WAITING != 0;
        let done = if is_put_off {
            Ok(())
        } else {
            self.keep_up_now(low)
        };
        let is_over = done.as_ref().is_err_and(DeviceError::is_sticky);
        let may_be_due = is_put_off && self.maintenance.heuristic.is_some();
        if !is_over && (may_be_due || self.has_more_to_come()) {
            self.note_return();
        }
        done
    }

    fn keep_up_now(&self, low: u64) -> Result<(), DeviceError> {
        self.flush_idle_lanes();
        if self.settings.reuse.opportunistic {
            self.seal_lanes()?;
            self.reap()?;
        }
        if let Some(heuristic) = &self.maintenance.heuristic {
            if let Some(total) = heuristic.decide(&self.figures()) {
                self.make_one_piece(total)?;
            }
        }
        // What was free all the time and is above the threshold; and all that is above the capacity.
        let reserved = self.totals().reserved.current;
        let unneeded = reserved
            .saturating_sub(self.maintenance.threshold())
            .min(low);
        let excess = reserved.saturating_sub(self.capacity()).max(unneeded);
        if excess > 0 {
            self.trim_to(reserved - excess)?;
        }
        Ok(())
    }

    /// Whether the next maintenance may find something, though nothing comes back until then.
    fn has_more_to_come(&self) -> bool {
        let keep = self.most_cached();
        let (is_over, could_trim, is_pending) = {
            let heap = self.heap.lock();
            let totals = heap.totals();
            let is_over = totals.reserved.current > keep;
            let is_pending = totals.pending.current > 0;
            (is_over, heap.could_trim(keep), is_pending)
        };
        let is_kept = || self.lanes().iter().any(|lane| lane.figures().cached > 0);
        is_over && (could_trim || is_kept())
            || is_pending && (is_over || self.maintenance.heuristic.is_some())
    }

    /// The pool's figures, as heuristics see them.
    pub(crate) fn figures(&self) -> PoolFigures {
        self.heap.lock().pool_figures()
    }

    /// Makes what is free one piece, so that the pool has `total` bytes in all, or as near as can be
    /// without touching what is in use. Releases what is over. Returns the bytes of the largest
    /// free piece.
    ///
    /// # Errors
    /// When the device cannot; the heap knows how far it came.
    pub(crate) fn make_one_piece(&self, total: u64) -> Result<u64, DeviceError> {
        let bytes = self.heap.lock().piece_for(total);
        // First, so that nothing of the piece is released.
        self.trim_to(total)?;
        if self.settings.geometry.virtual_memory {
            self.flush_others(bytes, Growth::Remap)?;
        } else if self.figures().largest_available < bytes {
            self.trim_to(0)?;
            self.flush_others(bytes, Growth::Allowed)?;
        }
        Ok(self.figures().largest_available)
    }

    /// Has a span put together, for nobody.
    fn flush_others(&self, bytes: u64, growth: Growth) -> Result<(), DeviceError> {
        if bytes == 0 {
            return Ok(());
        }
        let geometry = self.settings.geometry;
        let alignment = if geometry.virtual_memory {
            geometry.chunk_bytes
        } else {
            geometry.granularity
        };
        let view = View {
            stream: StreamId::NONE,
            after: &Clock::default(),
            waits: None,
            placement: Placement::Anywhere,
        };
        let request = Request { bytes, alignment };
        let plan = self.heap.lock().plan(request, &view, growth);
        let done = self.carry_out_free(plan);
        self.publish(Change::Memory);
        done
    }

    /// Coalesces what is free, with what lanes keep, into one piece.
    ///
    /// # Errors
    /// When the device cannot; the heap knows how far it came.
    pub(crate) fn coalesce(&self) -> Result<u64, DeviceError> {
        self.flush_lanes();
        self.seal_lanes()?;
        self.reap()?;
        self.make_one_piece(self.totals().reserved.current)
    }

    /// Bytes held above which free memory is released, from now on.
    pub(crate) fn set_release_threshold(&self, bytes: u64) {
        self.maintenance.set_threshold(bytes);
        self.note_return();
    }
}
