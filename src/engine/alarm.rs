//! The alarm of the maintenance: at most one is set, and its waker does the maintenance.

use crate::device::{Alarm, Device};
use crate::sync::{Guards, Mutex, Ordering, SharedFlag, plain};
use std::task::Waker;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct MaintenanceAlarm {
    /// An alarm is set. Every free that does not stay in a cache reads it.
    is_set: SharedFlag,
    armed: Mutex<Armed>,
}

#[derive(Debug, Default)]
struct Armed {
    /// Does the maintenance; none before the pool is complete, and after its last handle is gone.
    waker: Option<Waker>,
    /// The alarm and its number.
    alarm: Option<(u64, Alarm)>,
    /// Alarms so far.
    count: u64,
}

impl Armed {
    /// Returns the waker, and the number of the alarm for it.
    fn next(&mut self) -> Option<(Waker, u64)> {
        let waker = self.waker.clone()?;
        self.count += 1;
        Some((waker, self.count))
    }

    /// Keeps an alarm. It may have gone off by now, and a later one may be here already. Returns the alarm to drop.
    fn put(&mut self, number: u64, alarm: Alarm) -> Option<(u64, Alarm)> {
        match &self.alarm {
            Some((later, _)) if *later > number => Some((number, alarm)),
            _ => self.alarm.replace((number, alarm)),
        }
    }
}

impl MaintenanceAlarm {
    pub(super) fn new() -> Self {
        Self {
            is_set: SharedFlag::new(false),
            armed: Mutex::new(Guards::Registry, Armed::default()),
        }
    }

    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Sets the waker; `None` takes the alarm back, and no other is set from then on.
    pub(super) fn set_waker(&self, waker: Option<Waker>) {
        let old = {
            let mut armed = self.armed.lock();
            let alarm = if waker.is_none() {
                armed.alarm.take()
            } else {
                None
            };
            (std::mem::replace(&mut armed.waker, waker), alarm)
        };
        // Outside the lock: dropping the alarm calls the device, and the waker may own anything.
        drop(old);
    }

    pub(super) fn waker(&self) -> Option<Waker> {
        self.armed.lock().waker.clone()
    }

    /// Sets the alarm to the time that `at` returns, unless one is set or there is no waker. Calls `at` only if it
    /// does.
    pub(super) fn set(&self, device: &plain::Arc<dyn Device>, at: impl FnOnce() -> Duration) {
        if self.is_set.swap(true, Ordering::AcqRel) {
            return;
        }
        let next = self.armed.lock().next();
        let Some((waker, number)) = next else {
            return self.note_gone_off();
        };
        let alarm = Alarm::new(device, at(), &waker);
        let old = self.armed.lock().put(number, alarm);
        drop(old);
    }

    /// Notes that the alarm went off: the next one can be set.
    pub(super) fn note_gone_off(&self) {
        self.is_set.store(false, Ordering::Release);
    }
}
