//! A trace: the allocations and frees of a recording, with their times and streams.
//!
//! [`Builder`] takes the rows of any source one by one and refuses rows that make no sense, so every [`Trace`] can be
//! replayed: each free follows its allocation, and frees it once. This module knows neither files nor pools.

mod builder;
pub(crate) mod fault;
pub(crate) mod generate;
pub(crate) mod limits;

pub(crate) use builder::{Builder, Op, Row};
use std::time::Duration;

/// Allocations and frees in the order in which they happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trace {
    pub(crate) name: String,
    pub(crate) events: Vec<Event>,
    /// The number of streams; events name them by `0..streams`.
    pub(crate) streams: usize,
    /// The number of allocations; events name them by `0..allocations`.
    pub(crate) allocations: usize,
    /// From the first event to the last.
    pub(crate) duration: Duration,
    /// The most bytes that were allocated and not yet freed, at any time.
    pub(crate) requested_peak: u64,
}

/// One allocation or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// The time since the first event. Events of one microsecond differ by nanoseconds, so that streams
    /// replayed side by side keep the order of the recording.
    pub(crate) time: Duration,
    pub(crate) stream: usize,
    pub(crate) kind: Kind,
}

/// The operation of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Allocate { id: usize, bytes: u64 },
    Free { id: usize },
}

impl Trace {
    /// Returns for each allocation whether another stream frees it.
    pub(crate) fn handed_over(&self) -> Vec<bool> {
        let mut maker = vec![0; self.allocations];
        let mut handed_over = vec![false; self.allocations];
        for event in &self.events {
            match event.kind {
                Kind::Allocate { id, .. } => maker[id] = event.stream,
                Kind::Free { id } => handed_over[id] = maker[id] != event.stream,
            }
        }
        handed_over
    }

    /// Returns the events of each stream, in order.
    pub(crate) fn by_stream(&self) -> Vec<Vec<Event>> {
        let mut streams = vec![Vec::new(); self.streams];
        for event in &self.events {
            streams[event.stream].push(*event);
        }
        streams
    }
}
