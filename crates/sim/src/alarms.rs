//! Alarms by their time.
//!
//! This module does not know what else is due.

use std::collections::{BTreeMap, HashMap};
use std::task::Waker;
use std::time::Duration;
use weirpool_device::AlarmId;

#[derive(Debug, Default)]
pub(super) struct Alarms {
    /// Alarms of the same instant are in order of arrival.
    by_time: BTreeMap<(Duration, AlarmId), Waker>,
    times: HashMap<AlarmId, Duration>,
}

impl Alarms {
    pub(super) fn set(&mut self, id: AlarmId, at: Duration, waker: Waker) {
        self.by_time.insert((at, id), waker);
        self.times.insert(id, at);
    }

    /// Removes an alarm. Returns the waker, because dropping it may call the device.
    pub(super) fn cancel(&mut self, id: AlarmId) -> Option<Waker> {
        let at = self.times.remove(&id)?;
        self.by_time.remove(&(at, id))
    }

    /// Returns the time of the first alarm; an alarm at [`Duration::MAX`] never comes.
    pub(super) fn next(&self) -> Option<Duration> {
        let ((at, _), _) = self.by_time.first_key_value()?;
        (*at < Duration::MAX).then_some(*at)
    }

    pub(super) fn pop_due(&mut self, now: Duration) -> Option<Waker> {
        if self.next()? > now {
            return None;
        }
        let ((_, id), waker) = self.by_time.pop_first()?;
        self.times.remove(&id);
        Some(waker)
    }

    pub(super) fn len(&self) -> usize {
        self.by_time.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }
}
