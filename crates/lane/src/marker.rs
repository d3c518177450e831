//! Markers: points of a stream, each with the pooled event that proves its ticket.

#![allow(unsafe_code, reason = "records events by device calls")]

use crate::device::{Device, DeviceError, RawEvent, RawStream};
use crate::heap::Clock;
use crate::id::Ticket;
use crate::measure::{Histogram, Recorder};
use crate::sync::plain::AtomicBool;
use crate::sync::{Arc, Busy, Guards, Ordering, assert_unlocked, plain};
use std::fmt;
use std::time::Duration;

/// The pool's events; spare ones are used again, so that the steady state creates none (bounded-events).
pub struct Events {
    device: plain::Arc<dyn Device>,
    spare: Busy<Spare>,
    /// How long freed blocks were pending, as far as queries showed.
    ages: Recorder,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Spare {
    events: Vec<RawEvent>,
    created: u64,
    recorded: u64,
}

impl Events {
    /// Has no event yet.
    pub fn new(device: plain::Arc<dyn Device>) -> Self {
        Self {
            device,
            spare: Busy::new(Guards::Events, Spare::default()),
            ages: Recorder::default(),
        }
    }

    /// Number of events created so far; each is in use or spare.
    pub fn created(&self) -> u64 {
        self.spare.lock().created
    }

    /// Returns the times from recording an event that covers frees to seeing it complete.
    pub fn ages(&self) -> Histogram {
        self.ages.histogram()
    }

    /// Returns an event, and the number of its record.
    fn take(&self) -> Result<(RawEvent, u64), DeviceError> {
        let number = {
            let mut spare = self.spare.lock();
            spare.recorded += 1;
            if let Some(event) = spare.events.pop() {
                return Ok((event, spare.recorded));
            }
            spare.recorded
        };
        assert_unlocked("create_event");
        let event = self.device.create_event()?;
        self.spare.lock().created += 1;
        Ok((event, number))
    }

    /// Records an event behind all work submitted to `stream` so far.
    ///
    /// # Errors
    /// Returns an error if the device cannot create or record an event.
    ///
    /// # Safety
    /// The stream is one of the device, and usable during the call.
    pub unsafe fn record(this: &Arc<Self>, stream: RawStream) -> Result<Recorded, DeviceError> {
        let (event, number) = this.take()?;
        let recorded = Recorded {
            event,
            number,
            events: this.clone(),
        };
        assert_unlocked("record");
        // SAFETY: the event is destroyed only when `this` is dropped; the caller guarantees the stream.
        unsafe { this.device.record(event, stream) }?;
        Ok(recorded)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        assert_unlocked("destroy_event");
        for event in std::mem::take(&mut self.spare.get_mut().events) {
            // The device cleans up an event that cannot be destroyed.
            // SAFETY: nothing names the event any more: each record of it holds `self`.
            let _ = unsafe { self.device.destroy_event(event) };
        }
    }
}

/// A recorded event. Dropping it makes the event spare again.
#[derive(Debug)]
pub struct Recorded {
    event: RawEvent,
    /// Counts all records of all streams, from 1.
    number: u64,
    events: Arc<Events>,
}

impl Recorded {
    /// Returns the event and its device.
    pub(super) fn names(&self) -> (&dyn Device, RawEvent) {
        (&*self.events.device, self.event)
    }

    /// Returns whether the work behind the record is complete.
    ///
    /// # Errors
    /// Returns the error of the work or of the device.
    pub fn is_complete(&self) -> Result<bool, DeviceError> {
        assert_unlocked("query");
        // SAFETY: `self` keeps the pool of events, which destroys them when it is dropped.
        unsafe { self.events.device.query(self.event) }
    }

    /// Makes later work of a stream of `device` start only after the record.
    ///
    /// # Errors
    /// Returns an error if the device call fails; the stream does not wait then.
    ///
    /// # Safety
    /// The stream is one of `device`, which is the event's or beside it, and usable during the call.
    pub unsafe fn delay(&self, device: &dyn Device, stream: RawStream) -> Result<(), DeviceError> {
        assert_unlocked("wait");
        // SAFETY: as in `is_complete`; the caller guarantees the stream.
        unsafe { device.wait(stream, self.event) }
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.events.spare.lock().events.push(self.event);
    }
}

/// A point of a stream, and the event that proves it.
#[derive(Debug)]
pub struct Marker {
    /// Complete, with all earlier tickets of the stream, once the event is.
    pub ticket: Ticket,
    /// What the point comes after: a stream that waits for the event comes after all of it.
    pub clock: Clock,
    /// When its ticket was closed.
    pub sealed_at: Duration,
    /// When the event was expected to be complete, as of its publication.
    pub expected_at: Duration,
    /// Whether any free joined the ticket.
    pub covers_frees: bool,
    /// `None` for a point of the host, which is complete from the start.
    pub recorded: Option<Recorded>,
    /// The last query of the event reported an error.
    pub(super) has_erred: AtomicBool,
}

// With its two counts at most 120 bytes: glibc frees such an allocation without merging it with its neighbours.
#[cfg(all(target_pointer_width = "64", target_env = "gnu", not(weirpool_loom)))]
const _: () = assert!(size_of::<Marker>() + 2 * size_of::<usize>() <= 120);

impl Marker {
    /// Returns whether there is an event to wait for.
    pub fn has_event(&self) -> bool {
        self.recorded.is_some()
    }

    /// Returns the event.
    ///
    /// # Panics
    /// For a marker of the host, which has no event and is complete from the start.
    pub fn event(&self) -> &Recorded {
        let recorded = self.recorded.as_ref();
        recorded.expect("a point that is awaited has an event")
    }

    /// Asks the device whether the event is complete.
    ///
    /// # Errors
    /// Returns the device's error. It proves nothing; the marker counts as [in error](Self::has_erred) until a query
    /// succeeds.
    pub(super) fn query(&self) -> Result<bool, DeviceError> {
        let answer = self.event().is_complete();
        if answer.is_err() != self.has_erred() {
            self.has_erred.store(answer.is_err(), Ordering::Relaxed);
        }
        answer
    }

    /// Returns whether the last query of the event reported an error. A later marker then tells more than this one.
    pub(super) fn has_erred(&self) -> bool {
        self.has_erred.load(Ordering::Relaxed)
    }

    /// Number of events recorded on all streams up to this one.
    pub fn number(&self) -> u64 {
        self.recorded.as_ref().map_or(0, |recorded| recorded.number)
    }

    /// Notes how long the frees that these complete markers cover were pending.
    pub(super) fn record_complete(markers: &[Arc<Self>], now: Duration) {
        let covering = || markers.iter().filter(|marker| marker.covers_frees);
        let recorded = covering().find_map(|marker| marker.recorded.as_ref());
        if let Some(recorded) = recorded {
            let ages = covering().map(|marker| now.saturating_sub(marker.sealed_at));
            recorded.events.ages.record_all(ages);
        }
    }
}
