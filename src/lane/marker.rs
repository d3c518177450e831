//! Markers: the device's events, pooled, each with the ticket that it proves.

use crate::device::{Device, DeviceError, RawEvent, RawStream};
use crate::heap::Clock;
use crate::id::{StreamId, Ticket};
use crate::measure::{Histogram, Recorder};
use crate::sync::{Arc, Busy, Guards, assert_unlocked, plain};
use std::time::Duration;

/// Events between two uses. I8: the steady state creates none.
#[derive(Debug)]
pub(crate) struct Events {
    device: plain::Arc<dyn Device>,
    spare: Busy<Spare>,
    /// How long frees were pending, as far as was asked.
    ages: Recorder,
}

#[derive(Debug, Default)]
struct Spare {
    events: Vec<RawEvent>,
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

    /// Events made so far; all of them are in use or spare.
    pub(crate) fn created(&self) -> u64 {
        self.spare.lock().created
    }

    /// From the recording of an event that covers frees to its being seen complete.
    pub(crate) fn ages(&self) -> Histogram {
        self.ages.histogram()
    }

    /// An event, and the number of its record.
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

    fn put(&self, event: RawEvent) {
        self.spare.lock().events.push(event);
    }

    /// An event recorded behind all that `stream` was given so far.
    pub(crate) fn record(this: &Arc<Self>, stream: RawStream) -> Result<Recorded, DeviceError> {
        let (event, number) = this.take()?;
        let recorded = Recorded {
            event,
            number,
            events: this.clone(),
        };
        assert_unlocked("record");
        this.device.record(recorded.event, stream)?;
        Ok(recorded)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let events = std::mem::take(&mut self.spare.lock().events);
        for event in events {
            // An event that cannot be destroyed is the device's to clean up.
            let _ = self.device.destroy_event(event);
        }
    }
}

/// An event in use; spare again when dropped.
#[derive(Debug)]
pub(crate) struct Recorded {
    event: RawEvent,
    /// Among all records, of all streams; from 1 on.
    number: u64,
    events: Arc<Events>,
}

impl Recorded {
    pub(crate) fn raw(&self) -> RawEvent {
        self.event
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.events.put(self.event);
    }
}

/// A point of a stream, with the event that proves it.
#[derive(Debug)]
pub(crate) struct Marker {
    pub(crate) stream: StreamId,
    /// Complete, with all before it of the stream, once the event is.
    pub(crate) ticket: Ticket,
    /// What the point comes after: who waits for the event comes after all of it.
    pub(crate) clock: Clock,
    pub(crate) sealed_at: Duration,
    /// When it was expected, as it was published.
    pub(crate) expected_at: Duration,
    /// Whether anything was freed under the ticket.
    pub(crate) covers_frees: bool,
    /// None of the host's: its points are complete from the start.
    pub(crate) recorded: Option<Recorded>,
}

impl Marker {
    /// Whether there is an event to wait for.
    pub(crate) fn has_event(&self) -> bool {
        self.recorded.is_some()
    }

    /// How many events were recorded up to this one, on whatever stream.
    pub(crate) fn number(&self) -> u64 {
        self.recorded.as_ref().map_or(0, |recorded| recorded.number)
    }

    /// # Panics
    /// Of the host's: nobody asks after those.
    pub(crate) fn event(&self) -> RawEvent {
        let recorded = self.recorded.as_ref();
        recorded
            .expect("a point that is awaited has an event")
            .raw()
    }

    /// These were seen complete, by who asked.
    pub(super) fn note_complete(markers: &[Arc<Self>], now: Duration) {
        let covering = || markers.iter().filter(|marker| marker.covers_frees);
        let recorded = covering().find_map(|marker| marker.recorded.as_ref());
        if let Some(recorded) = recorded {
            let ages = covering().map(|marker| now.saturating_sub(marker.sealed_at));
            recorded.events.ages.record_all(ages);
        }
    }
}
