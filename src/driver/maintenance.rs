//! The maintenance layer: releases memory that the pool does not need, and coalesces, off the hot path.
//!
//! It releases free memory above the threshold, and coalesces when the heuristic says so. It becomes *due* when memory
//! comes back, to the heap or to a cache: then an alarm of the device is set, and its waker does the maintenance. Only
//! memory that was free throughout the time in between is released (hysteresis), so that a pool whose use goes up and
//! down does not give memory away to take it again. Cached blocks count once their stream has been idle for that long.
//!
//! No free goes unnoticed: the first free after a flush takes the slow path, which sets the alarm, and maintenance ends
//! only when all caches are flushed.
//!
//! The alarm is set again only for what time alone changes. Memory that is pending comes back when a stream gets
//! further: until then its events are watched and no alarm is set. While requests wait, the maintenance is put off, and
//! the last one that leaves the queue resumes it. So an idle pool, or one on a device that stands still, comes to rest.

use super::alarm::MaintenanceAlarm;
use super::supply::Supply;
use super::{Change, CoalesceHeuristic, DriverPool, Group, Trimmed, Watches, gate};
use crate::device::DeviceError;
use crate::fault::injected;
use crate::heap::{Clock, Figures, Growth, Piece, Placement, Request, Target, View};
use crate::id::StreamId;
use crate::lane::{Flush, Lane};
use crate::measure::Mark;
use crate::sync::{Arc, ForeignOption, Guards, Ordering, SharedFlag, SharedNumber};
use std::ops::Deref;
use std::task::Waker;
use std::time::Duration;

/// The shortest interval: maintenance that is due at once would be due again at once.
const SHORTEST_INTERVAL: Duration = Duration::from_micros(100);

/// The settings of a pool's maintenance.
#[derive(Clone, Debug)]
pub(crate) struct MaintenanceSettings {
    /// Free memory is released while more bytes than this are reserved.
    pub(crate) threshold: u64,
    pub(crate) heuristic: Option<CoalesceHeuristic>,
    /// The time from when maintenance is due to when it is done.
    pub(crate) interval: Duration,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Maintenance {
    supply: Supply,
    threshold: SharedNumber,
    heuristic: Option<CoalesceHeuristic>,
    interval: Duration,
    /// The capacity was set below the bytes that were held.
    is_shrunk: SharedFlag,
    /// A caller has synchronized since the last maintenance.
    is_synchronized: SharedFlag,
    /// The maintenance was due while requests waited.
    is_put_off: SharedFlag,
    alarm: MaintenanceAlarm,
    /// Watches on the streams that pending memory waits for, and the waker that they call.
    watches: ForeignOption<Watches>,
    progress: ForeignOption<Waker>,
}

/// What the next maintenance depends on, the nearest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    /// Nothing: there is nothing to do.
    Nothing,
    /// The progress of a stream.
    Progress,
    /// Time.
    Time,
}

impl Deref for Maintenance {
    type Target = Supply;

    #[inline(always)]
    fn deref(&self) -> &Supply {
        &self.supply
    }
}

impl Maintenance {
    pub(super) fn new(supply: Supply) -> Self {
        let settings = supply.settings.maintenance.clone();
        Self {
            supply,
            threshold: SharedNumber::new(settings.threshold),
            heuristic: settings.heuristic,
            interval: settings.interval.max(SHORTEST_INTERVAL),
            is_shrunk: SharedFlag::new(false),
            is_synchronized: SharedFlag::new(false),
            is_put_off: SharedFlag::new(false),
            alarm: MaintenanceAlarm::new(),
            watches: ForeignOption::new(Guards::Registry, None),
            progress: ForeignOption::new(Guards::Registry, None),
        }
    }

    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    pub(crate) fn threshold(&self) -> u64 {
        self.threshold.load(Ordering::Relaxed)
    }

    /// Sets the bytes above which free memory is released.
    pub(crate) fn set_release_threshold(&self, bytes: u64) {
        self.threshold.store(bytes, Ordering::Relaxed);
        self.note_return();
    }

    /// Sets the mark above which the pool warns and releases; `u64::MAX` for none.
    pub(crate) fn set_soft_cap(&self, bytes: u64) {
        self.soft_cap.set(bytes);
        self.tell_of_soft_cap();
        self.note_return();
    }

    /// Starts the maintenance: `keeper` does it when it is due, and `progress` [notes](Self::note_progress) that a stream
    /// has got further.
    pub(crate) fn start_maintenance(&self, keeper: Waker, progress: Waker) {
        self.progress.set(Some(progress));
        self.alarm.set_waker(Some(keeper));
    }

    /// Ends the maintenance.
    pub(crate) fn end_maintenance(&self) {
        self.alarm.set_waker(None);
        self.progress.set(None);
        self.watches.set(None);
    }

    /// Sets the most bytes that may be held from the device, a multiple of the chunks. Free memory above it is
    /// released now, and other memory by the maintenance once it comes back.
    ///
    /// # Errors
    /// Returns an error if the device cannot reserve addresses, and nothing changed; or if it cannot release memory.
    pub(crate) fn resize(&self, capacity: u64) -> Result<Trimmed, DeviceError> {
        self.reserve_addresses(capacity)?;
        if self.set_capacity(capacity) <= capacity {
            return Ok(Trimmed::new(capacity, 0, &self.statistics()));
        }
        self.is_shrunk.store(true, Ordering::Relaxed);
        let released = self.reclaim().and_then(|()| {
            self.release_and_publish(Target::DownTo {
                reserved: capacity,
                most: u64::MAX,
            })
        });
        self.note_return();
        Ok(Trimmed::new(capacity, released?, &self.statistics()))
    }

    /// Returns the reserved bytes above which free memory is released unless it is in use now and then.
    fn most_kept(&self) -> u64 {
        self.threshold().min(self.soft_cap.bytes())
    }

    /// Returns the reserved bytes above which free memory is released.
    fn most_cached(&self) -> u64 {
        let threshold = self.most_kept();
        if self.is_shrunk.load(Ordering::Relaxed) {
            threshold.min(self.capacity())
        } else {
            threshold
        }
    }

    /// Returns whether no memory is ever released or moved unasked.
    pub(super) fn keeps_all(&self) -> bool {
        self.heuristic.is_none() && self.most_cached() == u64::MAX
    }

    /// Sets the alarm, after memory came back, if maintenance may have something to do.
    pub(crate) fn note_return(&self) {
        if self.keeps_all() || self.alarm.is_set() {
            return;
        }
        if self.heuristic.is_some() || self.reserved() > self.most_cached() {
            self.arm();
        }
    }

    /// Notes that a stream has got further, and that the next maintenance may find memory complete.
    pub(crate) fn note_progress(&self) {
        self.note_return();
        self.note_return_under_pressure();
    }

    fn note_return_under_pressure(&self) {
        if self.is_refused() && self.could_release_any() != Next::Nothing {
            self.note_pressure();
        }
    }

    /// Does the maintenance that was put off, if no request waits any more.
    #[inline]
    pub(crate) fn resume(&self) {
        // In one order with the gate, which the caller may just have opened: see `keep_up`.
        if self.is_put_off.load(Ordering::SeqCst) {
            self.resume_if_none_waits();
        }
    }

    #[cold]
    fn resume_if_none_waits(&self) {
        if !self.is_awaited() && self.is_put_off.swap(false, Ordering::SeqCst) {
            self.note_progress();
        }
    }

    fn is_awaited(&self) -> bool {
        self.gate.load(Ordering::SeqCst) & gate::WAITING != 0
    }

    /// Does the maintenance now, after a caller has waited for a stream, if the pool holds more than it is to keep: it
    /// releases all free memory above that, as CUDA's and HIP's pools do at a synchronization.
    pub(crate) fn note_synchronized(&self) {
        let is_due = self.reserved() > self.most_kept() && self.next_release() != Next::Nothing
            || self.driver_pool_to_trim().is_some();
        if !is_due || self.is_synchronized.swap(true, Ordering::AcqRel) {
            return;
        }
        match self.alarm.waker() {
            Some(waker) => waker.wake(),
            None => self.is_synchronized.store(false, Ordering::Release),
        }
    }

    /// Returns the pool of the driver that this pool passes on to, if it has free memory above its threshold, and that
    /// threshold. The driver itself looks only when its own calls synchronize.
    fn driver_pool_to_trim(&self) -> Option<(&DriverPool, u64)> {
        let pool = self.memory.segments().driver_pool();
        let pool = pool.filter(|_| self.settings.passes_through())?;
        let (reserved, used) = (pool.reserved().ok()?, pool.used().ok()?);
        let threshold = pool.release_threshold().ok()?;
        (reserved.current > threshold.max(used.current)).then_some((pool, threshold))
    }

    fn arm(&self) {
        self.alarm.set(&self.device, || {
            self.heap.lock().mark_free();
            self.device.now().saturating_add(self.interval)
        });
    }

    /// Does the maintenance that is due, when the alarm went off. While a request waits, which may need the free memory,
    /// it releases only memory above the capacity, and the rest is put off.
    ///
    /// # Errors
    /// Returns an error if the device call fails; the steps before it keep their effect. Unless the error is sticky,
    /// the rest is tried again later.
    pub(crate) fn keep_up(&self) -> Result<(), DeviceError> {
        let is_synchronized = self.is_synchronized.swap(false, Ordering::AcqRel);
        let free_low = self.totals().free_low;
        self.alarm.note_gone_off();
        if self.fault().is_some() {
            // The device takes nothing back.
            return Ok(());
        }
        // Noted before the gate is read: the last request that leaves either finds the note, or has opened the gate.
        self.is_put_off.store(true, Ordering::SeqCst);
        if self.is_awaited() {
            return self.release_above_capacity().map(drop);
        }
        self.is_put_off.store(false, Ordering::SeqCst);
        let done = self.keep_up_now(free_low, is_synchronized);
        let next = match &done {
            Ok(following) => {
                let of_heuristic = self.heuristic.as_ref().map(|_| *following);
                let of_pressure = self.is_refused().then(|| self.could_release_any());
                let of_all = [of_heuristic, of_pressure, Some(self.next_release())];
                of_all.into_iter().flatten().max().unwrap_or(Next::Nothing)
            }
            Err(error) if error.is_sticky() => Next::Nothing,
            Err(_) => Next::Time,
        };
        match next {
            Next::Time => self.arm_once(),
            Next::Progress => self.watch_progress(),
            Next::Nothing => self.watches.set(None),
        }
        done.map(drop)
    }

    /// Has the streams watched that memory is pending for. While none of them gets further, there is nothing to do.
    fn watch_progress(&self) {
        let Some(waker) = self.progress.read(|progress| progress.cloned()) else {
            return;
        };
        let mut watches = self.watches.take().unwrap_or_default();
        let has_unrecorded = self.watch_streams(&mut watches, &waker);
        self.watches.set(Some(watches));
        // Another thread may have found a stream further just before it was watched, and not told the heap yet.
        let before = self.totals().progress;
        self.active_lanes()
            .iter()
            .for_each(|lane| self.catch_up(lane));
        if has_unrecorded || self.totals().progress != before {
            self.arm_once();
        }
    }

    /// Returns what memory that was pending or cached when the heuristic decided waits for. If it comes back later, no
    /// free reports it.
    fn keep_up_now(&self, free_low: u64, is_synchronized: bool) -> Result<Next, DeviceError> {
        if is_synchronized {
            self.reclaim()?;
            if let Some((pool, threshold)) = self.driver_pool_to_trim() {
                self.noted(pool.trim_to(threshold))?;
            }
        }
        self.flush(Flush::Idle);
        // Whatever the flags of reuse: memory is released once its work is complete.
        self.seal_lanes()?;
        self.reap()?;
        let following = self.coming_back();
        if let Some(heuristic) = &self.heuristic
            && let Some(total) = heuristic.decide(&self.statistics())
        {
            self.reclaim()?;
            self.make_one_piece(total)?;
        }
        // All free memory above the capacity, and memory above the threshold that was free all the time.
        let released = self.release_above_capacity()?;
        let unneeded = match is_synchronized {
            true => u64::MAX,
            false => free_low.saturating_sub(released),
        };
        let kept = if self.is_refused() {
            0
        } else {
            self.most_kept()
        };
        self.release_and_publish(Target::DownTo {
            reserved: kept,
            most: unneeded,
        })?;
        Ok(following)
    }

    fn release_above_capacity(&self) -> Result<u64, DeviceError> {
        self.release_and_publish(Target::DownTo {
            reserved: self.capacity(),
            most: u64::MAX,
        })
    }

    /// Notes outside pressure: the device refused memory within the capacity, because others hold it. Memory that stays
    /// free for the interval is then given back, as with a release threshold of 0: they may need it.
    pub(super) fn note_pressure(&self) {
        self.arm_once();
    }

    fn arm_once(&self) {
        if !self.alarm.is_set() {
            self.arm();
        }
    }

    /// Returns when the next maintenance may release more memory above what the pool is to keep, though no free reports
    /// anything until then.
    fn next_release(&self) -> Next {
        self.next_release_to(self.most_cached())
    }

    /// Returns when the next maintenance may release anything at all.
    fn could_release_any(&self) -> Next {
        self.next_release_to(0)
    }

    fn next_release_to(&self, reserved: u64) -> Next {
        let most = u64::MAX;
        let could_release = {
            let heap = self.heap.lock();
            if heap.totals().reserved.current <= reserved {
                return Next::Nothing;
            }
            heap.could_release(Target::DownTo { reserved, most })
        };
        if could_release {
            Next::Time
        } else {
            self.coming_back()
        }
    }

    /// Returns what brings further memory back.
    fn coming_back(&self) -> Next {
        let may_keep = |lane: &Arc<Lane>| lane.cache.may_keep_unnoticed();
        if self.active_lanes().iter().any(may_keep) {
            Next::Time
        } else if self.totals().pending.current == 0 {
            Next::Nothing
        } else if injected("maintenance-without-end") {
            Next::Time
        } else {
            Next::Progress
        }
    }

    /// Makes one contiguous range of the free memory, so that the pool has `total` bytes in all, or as near to it as
    /// memory in use and the capacity allow. Releases the excess, or takes the rest from the device. Returns the bytes
    /// of the largest free range.
    ///
    /// # Errors
    /// Returns an error if the device call fails; the heap knows how far it came.
    fn make_one_piece(&self, total: u64) -> Result<u64, DeviceError> {
        let total = total.min(self.capacity());
        let figures = || Figures::of(&self.heap.lock(), Mark::RESET);
        let bytes = figures().piece_for(total, self.step());
        let growth = match total > self.totals().reserved.current {
            true => Growth::Allowed,
            false => Growth::Remap,
        };
        // First, so that nothing of the new range is released.
        self.release_and_publish(Target::Keep(total))?;
        if self.settings.geometry.virtual_memory {
            self.assemble(bytes, growth)?;
        } else {
            let smallest = self.settings.geometry.chunk_bytes;
            let is_too_large = figures().releasable_bytes > bytes.max(smallest);
            if figures().largest_free < bytes || is_too_large {
                self.release_and_publish(Target::Keep(0))?;
                self.assemble(bytes, Growth::Allowed)?;
            }
        }
        Ok(figures().largest_free)
    }

    /// Returns the step in which memory is taken, in bytes.
    fn step(&self) -> u64 {
        let geometry = self.settings.geometry;
        if geometry.virtual_memory {
            geometry.chunk_bytes
        } else {
            geometry.granularity
        }
    }

    /// Puts a free range together.
    fn assemble(&self, bytes: u64, growth: Growth) -> Result<(), DeviceError> {
        if bytes == 0 {
            return Ok(());
        }
        let alignment = self.step();
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

    /// Coalesces all free memory, cached blocks included, into one range. Returns the bytes of the largest free range.
    ///
    /// # Errors
    /// Returns an error if the device call fails; the heap knows how far it came.
    pub(crate) fn coalesce(&self) -> Result<u64, DeviceError> {
        self.reclaim()?;
        self.make_one_piece(self.totals().reserved.current)
    }

    /// Reserves memory, as far as the capacity goes, or releases free memory, until `bytes` are reserved.
    ///
    /// # Errors
    /// Returns an error if the device call fails; memory reserved or released before it stays so.
    pub(crate) fn set_reserved(&self, bytes: u64) -> Result<(), DeviceError> {
        let reserved = || self.totals().reserved.current;
        let bytes = bytes.min(self.capacity());
        if reserved() > bytes {
            let _ = self.trim(bytes)?;
        }
        let more = bytes.saturating_sub(reserved());
        let plan = self.heap.lock().plan_new(more);
        let done = self.carry_out_free(plan);
        self.publish(Change::Memory);
        done
    }

    /// Charges the capacity for memory outside of the heap. Releases free memory, cached blocks included, if it lacks
    /// the room.
    ///
    /// # Errors
    /// Returns the bytes that the capacity has left.
    #[cfg(all(feature = "ipc", target_os = "linux"))]
    pub(crate) fn charge_outside(&self, bytes: u64) -> Result<(), u64> {
        let charge = || self.heap.lock().charge_outside(bytes);
        charge().or_else(|left| {
            self.make_room_outside(bytes - left);
            charge()
        })
    }

    /// Releases at least `bytes` bytes of free memory, cached blocks included, or all of it if there is less.
    #[cfg(all(feature = "ipc", target_os = "linux"))]
    pub(crate) fn make_room_outside(&self, bytes: u64) {
        // A failed call is noted, and the caller finds too little room.
        if self.reclaim().is_ok() {
            let _ = self.release_and_publish(Target::Bytes(bytes));
        }
    }

    /// Ends a charge for memory outside of the heap.
    #[cfg(all(feature = "ipc", target_os = "linux"))]
    pub(crate) fn uncharge_outside(&self, bytes: u64) {
        self.heap.lock().uncharge_outside(bytes);
        self.publish(Change::Memory);
    }

    /// Releases free memory, cached blocks included, until `keep` bytes are reserved. Where memory is plain, segments go
    /// whole, so that fewer may stay.
    ///
    /// # Errors
    /// Returns an error if the device call fails; memory released before stays released.
    pub(crate) fn trim(&self, keep: u64) -> Result<Trimmed, DeviceError> {
        self.reclaim()?;
        let target = if self.settings.geometry.virtual_memory {
            Target::Keep(keep)
        } else {
            let (reserved, most) = (keep, u64::MAX);
            Target::DownTo { reserved, most }
        };
        let released = self.release_and_publish(target)?;
        if let Some(pool) = self.memory.segments().driver_pool() {
            self.noted(pool.trim_to(keep))?;
        }
        Ok(Trimmed::new(keep, released, &self.statistics()))
    }
}

/// Methods for a pool that leases its memory.
#[cfg_attr(
    not(any(all(feature = "broker", target_os = "linux"), weirpool_loom)),
    allow(dead_code, reason = "no lender exists without the feature")
)]
impl Maintenance {
    /// Releases free memory until no more than that many bytes are held.
    ///
    /// # Errors
    /// Returns an error if the device call fails; memory released before stays released.
    pub(crate) fn release_above(&self, bytes: u64) -> Result<u64, DeviceError> {
        let most = u64::MAX;
        let reserved = bytes.saturating_sub(self.totals().outside);
        self.release_and_publish(Target::DownTo { reserved, most })
    }

    /// Releases free memory as [`release_above`](Self::release_above) does, including cached memory whose work is
    /// complete.
    ///
    /// # Errors
    /// Returns an error if the device call fails; memory released before stays released.
    pub(crate) fn reclaim_above(&self, bytes: u64) -> Result<u64, DeviceError> {
        self.reclaim()?;
        self.release_above(bytes)
    }

    /// Evicts memory, the least recently used first, and releases it as [`reclaim_above`](Self::reclaim_above) does.
    /// Stops once no more than that many bytes are held, nothing is evictable, or the rest waits for work of the
    /// device.
    ///
    /// # Errors
    /// Returns an error if the device call fails; memory released before stays released.
    pub(crate) fn evict_above(&self, bytes: u64) -> Result<(), DeviceError> {
        loop {
            let beyond = self.held().saturating_sub(bytes);
            let lacking = beyond.saturating_sub(self.totals().pending.current);
            // Blocks that share their chunks with others release nothing: more of them may.
            if lacking == 0 {
                return Ok(());
            }
            let (evictables, piece) = (&self.evictables, Piece::Releasable);
            if evictables.evict_for(&self.heap, lacking, piece, Group::Pool) == 0 {
                return Ok(());
            }
            self.reclaim_above(bytes)?;
        }
    }
}
