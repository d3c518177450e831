//! Markers: points of a stream, each with the pooled event that proves its ticket.

#![allow(unsafe_code, reason = "records events by device calls")]

use crate::device::{Device, DeviceError, Event, OwnsEvent, RawStream};
use crate::heap::Clock;
use crate::id::{StreamId, Ticket};
use crate::measure::{Histogram, Recorder};
use crate::sync::plain::AtomicBool;
use crate::sync::{Arc, Busy, Guards, Ordering, plain};
use std::time::Duration;

/// The pool's events; spare ones are used again, so that the steady state creates none (bounded-events).
#[derive(Debug)]
pub(crate) struct Events {
    device: plain::Arc<dyn Device>,
    spare: Busy<Spare>,
    /// How long freed blocks were pending, as far as queries showed.
    ages: Recorder,
}

#[derive(Debug, Default)]
struct Spare {
    events: Vec<Event>,
    created: u64,
    recorded: u64,
}

impl Events {
    pub(crate) fn new(device: plain::Arc<dyn Device>) -> Self {
        Self {
            device,
            spare: Busy::new(Guards::Events, Spare::default()),
            ages: Recorder::default(),
        }
    }

    /// Number of events created so far; each is in use or spare.
    pub(crate) fn created(&self) -> u64 {
        self.spare.lock().created
    }

    /// Returns the times from recording an event that covers frees to seeing it complete.
    pub(crate) fn ages(&self) -> Histogram {
        self.ages.histogram()
    }

    /// Returns an event, and the number of its record.
    fn take(&self) -> Result<(Event, u64), DeviceError> {
        let number = {
            let mut spare = self.spare.lock();
            spare.recorded += 1;
            if let Some(event) = spare.events.pop() {
                return Ok((event, spare.recorded));
            }
            spare.recorded
        };
        let event = Event::new(&self.device)?;
        self.spare.lock().created += 1;
        Ok((event, number))
    }

    fn put(&self, event: Event) {
        self.spare.lock().events.push(event);
    }

    /// Records an event behind all work submitted to `stream` so far.
    ///
    /// # Errors
    /// Returns an error if the device cannot create or record an event.
    ///
    /// # Safety
    /// The stream is one of the device, and usable during the call.
    pub(crate) unsafe fn record(
        this: &Arc<Self>,
        stream: RawStream,
    ) -> Result<Recorded, DeviceError> {
        let (event, number) = this.take()?;
        let recorded = Recorded {
            event: Some(event),
            number,
            events: this.clone(),
        };
        // SAFETY: the caller guarantees the stream.
        unsafe { recorded.event().record(stream) }?;
        Ok(recorded)
    }
}

/// A recorded event. Dropping it makes the event spare again.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// `None` only while it is dropped.
    event: Option<Event>,
    /// Counts all records of all streams, from 1.
    number: u64,
    events: Arc<Events>,
}

impl Recorded {
    fn event(&self) -> &Event {
        self.event.as_ref().expect("held until it is dropped")
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.events
            .put(self.event.take().expect("held until it is dropped"));
    }
}

/// A point of a stream, and the event that proves it.
#[derive(Debug)]
pub(crate) struct Marker {
    pub(crate) stream: StreamId,
    /// Complete, with all earlier tickets of the stream, once the event is.
    pub(crate) ticket: Ticket,
    /// What the point comes after: a stream that waits for the event comes after all of it.
    pub(crate) clock: Clock,
    pub(crate) sealed_at: Duration,
    /// When the event was expected to be complete, as of its publication.
    pub(crate) expected_at: Duration,
    /// Whether any free joined the ticket.
    pub(crate) covers_frees: bool,
    /// `None` for a point of the host, which is complete from the start.
    pub(crate) recorded: Option<Recorded>,
    /// The last query of the event reported an error.
    pub(super) has_erred: AtomicBool,
}

impl Marker {
    /// Returns whether there is an event to wait for.
    pub(crate) fn has_event(&self) -> bool {
        self.recorded.is_some()
    }

    /// Returns the event.
    ///
    /// # Panics
    /// For a marker of the host, which has no event and is complete from the start.
    pub(crate) fn event(&self) -> &Event {
        let recorded = self.recorded.as_ref();
        recorded
            .expect("a point that is awaited has an event")
            .event()
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
    pub(crate) fn number(&self) -> u64 {
        self.recorded.as_ref().map_or(0, |recorded| recorded.number)
    }

    /// Notes how long the frees that these complete markers cover were pending.
    pub(super) fn note_complete(markers: &[Arc<Self>], now: Duration) {
        let covering = || markers.iter().filter(|marker| marker.covers_frees);
        let recorded = covering().find_map(|marker| marker.recorded.as_ref());
        if let Some(recorded) = recorded {
            let ages = covering().map(|marker| now.saturating_sub(marker.sealed_at));
            recorded.events.ages.record_all(ages);
        }
    }
}

impl OwnsEvent for Marker {
    fn event(&self) -> &Event {
        self.event()
    }
}
