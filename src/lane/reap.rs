//! Asking how far a stream has come: what is complete, with few queries.
//!
//! A query takes time, and so does each that is answered with no. Where the stream's pace says that all is passed, its
//! newest event comes first; otherwise the oldest, which settles that nothing is.

use super::marker::Marker;
use super::timeline::Timeline;
use crate::device::{Device, DeviceError};
use crate::id::Ticket;
use crate::sync::{Arc, Ordering};
use std::time::Duration;

impl Timeline {
    /// Asks the device how far the stream has come. No lock is held while it is asked; who asks at
    /// the same time learns the same, and a ticket completes once whoever hears of it (I4).
    ///
    /// # Errors
    /// What the device says instead of an answer (I10): nothing is complete by it, and what others proved is.
    pub(crate) fn reap(&self, device: &dyn Device) -> Result<Option<Ticket>, DeviceError> {
        self.ask(device, true)
    }

    /// The same, as far as no event is seen late: the oldest comes first.
    ///
    /// # Errors
    /// As [`reap`](Self::reap).
    pub(crate) fn reap_in_order(&self, device: &dyn Device) -> Result<Option<Ticket>, DeviceError> {
        self.ask(device, false)
    }

    fn ask(&self, device: &dyn Device, asks_late: bool) -> Result<Option<Ticket>, DeviceError> {
        let Some((oldest, newest)) = self.ends() else {
            return Ok(None);
        };
        // All of them, most often, if that is to be expected.
        let is_likely = newest.ticket > oldest.ticket && self.is_due(&newest, device.now());
        if is_likely {
            match is_complete(&newest) {
                Ok(true) => return Ok(Some(self.note_complete(&newest, device.now()))),
                Err(error) if error.is_sticky() => return Err(error),
                // The oldest may be complete all the same.
                _ => {}
            }
        }
        match is_complete(&oldest) {
            Ok(true) => self.reap_from(oldest, newest, is_likely, device),
            // What errs is not worth waiting for: the others are asked at once.
            answer if !is_likely && (asks_late || answer.is_err()) => {
                let later = self.reap_late(device)?;
                later.map_or(answer.map(|_| None), |later| Ok(Some(later)))
            }
            answer => answer.map(|_| None),
        }
    }

    /// How many more are complete, where the oldest is. What it proves counts even if another event errs.
    fn reap_from(
        &self,
        oldest: Arc<Marker>,
        newest: Arc<Marker>,
        was_newest_asked: bool,
        device: &dyn Device,
    ) -> Result<Option<Ticket>, DeviceError> {
        let mut markers = self.from(oldest);
        if was_newest_asked {
            markers.retain(|marker| marker.ticket < newest.ticket);
        }
        let (complete, asked) = complete_prefix(&markers);
        let Some(last) = markers[..complete].last() else {
            return asked.map(|()| None);
        };
        let last = self.note_complete(last, device.now());
        asked.map(|()| Some(last))
    }

    fn is_due(&self, marker: &Marker, now: Duration) -> bool {
        let markers = self.markers.lock();
        markers
            .due(now)
            .is_some_and(|due| due.ticket >= marker.ticket)
    }

    /// The oldest event is not complete, or errs. A later one proves it all the same: an event may be
    /// seen late while the stream goes on.
    ///
    /// # Errors
    /// As [`reap`](Self::reap).
    pub(crate) fn reap_late(&self, device: &dyn Device) -> Result<Option<Ticket>, DeviceError> {
        let Some((oldest, newest)) = self.ends() else {
            return Ok(None);
        };
        if Arc::ptr_eq(&oldest, &newest) || !is_complete(&newest)? {
            return Ok(None);
        }
        Ok(Some(self.note_complete(&newest, device.now())))
    }

    /// Whether a point is worth asking after: it has an event, and the stream was not asked in vain just now.
    pub(crate) fn may_be_asked(&self, ticket: Ticket, now: Duration) -> bool {
        let markers = self.markers.lock();
        let newest = markers.on_their_way.back().map(|marker| marker.ticket);
        let has_event = now >= markers.quiet_until && newest >= Some(ticket);
        has_event || self.completed() >= ticket
    }

    /// Asks after one point, and at once after all that can be expected to have been passed by now. Says whether it is;
    /// asked in vain, the stream is not to be asked again for a while.
    ///
    /// # Errors
    /// What the device says instead of an answer.
    pub(crate) fn reap_due(
        &self,
        ticket: Ticket,
        device: &dyn Device,
    ) -> Result<bool, DeviceError> {
        let now = device.now();
        let due = self.markers.lock().due(now).cloned();
        let answer = match due {
            _ if self.completed() >= ticket => Ok(()),
            Some(due) if due.ticket > ticket => self.reap_from_due(&due, ticket, device),
            _ => self.reap_up_to(ticket, device).map(drop),
        };
        let is_passed = self.completed() >= ticket;
        if !is_passed {
            self.note_vain(ticket, now);
        }
        answer.map(|()| is_passed)
    }

    fn reap_from_due(
        &self,
        due: &Arc<Marker>,
        ticket: Ticket,
        device: &dyn Device,
    ) -> Result<(), DeviceError> {
        if is_complete(due)? {
            self.note_complete(due, device.now());
            return Ok(());
        }
        let covering = self.covering(ticket);
        if covering.is_some_and(|covering| covering.ticket < due.ticket) {
            self.reap_up_to(ticket, device)?;
        }
        Ok(())
    }

    /// It was asked for what is not there yet: the longer that is late, the longer it is not asked again.
    fn note_vain(&self, ticket: Ticket, now: Duration) {
        let covering = self.covering(ticket);
        let late = covering.map_or(Duration::ZERO, |marker| {
            now.saturating_sub(marker.expected_at)
        });
        let mut markers = self.markers.lock();
        markers.quiet_until = now + markers.pace.margin() + late / 2;
    }

    /// Asks after one point: its own marker may be complete while older ones are seen late. Says
    /// whether it is.
    ///
    /// # Errors
    /// What the device says instead of an answer.
    pub(crate) fn reap_up_to(
        &self,
        ticket: Ticket,
        device: &dyn Device,
    ) -> Result<bool, DeviceError> {
        if let Some(marker) = self.covering(ticket) {
            if is_complete(&marker)? {
                self.note_complete(&marker, device.now());
            }
        }
        Ok(self.completed() >= ticket)
    }

    /// A marker and all later ones. It comes first even if somebody else saw it complete meanwhile, and
    /// drained it: what comes first then was not asked after.
    fn from(&self, oldest: Arc<Marker>) -> Vec<Arc<Marker>> {
        let markers = &self.markers.lock().on_their_way;
        let at = markers.partition_point(|marker| marker.ticket <= oldest.ticket);
        std::iter::once(oldest)
            .chain(markers.range(at..).cloned())
            .collect()
    }

    /// Returns the marker's ticket.
    fn note_complete(&self, last: &Marker, now: Duration) -> Ticket {
        self.completed.fetch_max(last.ticket.0, Ordering::AcqRel);
        self.note_latency(now.saturating_sub(last.sealed_at));
        let done: Vec<_> = {
            let mut markers = self.markers.lock();
            let on_their_way = &mut markers.on_their_way;
            let count = on_their_way.partition_point(|marker| marker.ticket <= last.ticket);
            let done: Vec<_> = on_their_way.drain(..count).collect();
            if let Some(first) = done.first() {
                let expected_at = last.expected_at;
                markers
                    .pace
                    .note(first.sealed_at, count as u32, expected_at, now);
            }
            done
        };
        Marker::note_complete(&done, now);
        // Outside the lock: the last owner of a marker puts its event back, under another lock.
        drop(done);
        last.ticket
    }

    /// The newest marker of a reap counts: it was seen soonest after it completed.
    fn note_latency(&self, latency: Duration) {
        let sample = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let mean = self.latency.load(Ordering::Relaxed);
        let next = if mean == 0 {
            sample
        } else {
            mean - mean / 8 + sample / 8
        };
        self.latency.store(next, Ordering::Relaxed);
    }
}

fn is_complete(marker: &Marker) -> Result<bool, DeviceError> {
    marker.event().is_complete()
}

/// How many markers, from the oldest, are complete, given that the first is; and what the device said instead of an
/// answer, where it did. A stream runs in order, so one question settles the common case (all), and halving the others.
fn complete_prefix(markers: &[Arc<Marker>]) -> (usize, Result<(), DeviceError>) {
    let (mut done, mut open, mut asked) = (0, markers.len(), Ok(()));
    let mut next = open.saturating_sub(1);
    while open - done > 1 {
        match is_complete(&markers[next]) {
            Ok(true) => done = next,
            Ok(false) => open = next,
            // It proves nothing; those before it may.
            Err(error) => (open, asked) = (next, Err(error)),
        }
        next = done.midpoint(open);
    }
    (open, asked)
}
