//! A trace: the allocations and frees of a recording, with their times and streams.
//!
//! [`Builder`] takes the rows of any source one by one and refuses rows that make no sense, so every [`Trace`] can be
//! replayed: each free follows its allocation, and frees it once. This module knows neither files nor pools.

mod builder;
pub(crate) mod fault;
pub(crate) mod generate;
pub(crate) mod limits;
pub(crate) mod steps;

pub(crate) use builder::{Builder, Op, Row};
use fault::Fault;
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
    /// Returns this trace with sizes `factor` times as large; its name says so.
    ///
    /// # Errors
    /// Returns a fault if an allocation, or the sum of live bytes at one time, exceeds the [`limits`].
    pub(crate) fn scaled(mut self, factor: u64) -> Result<Self, Fault> {
        if factor == 1 {
            return Ok(self);
        }
        let scaled = |bytes: u64, what, most| {
            let product = bytes.checked_mul(factor).filter(|bytes| *bytes <= most);
            product.ok_or(Fault::TooMany { what, most })
        };
        self.requested_peak = scaled(self.requested_peak, "live bytes", limits::LIVE_BYTES)?;
        for event in &mut self.events {
            if let Kind::Allocate { bytes, .. } = &mut event.kind {
                let most = limits::ALLOCATION_BYTES;
                *bytes = scaled(*bytes, "bytes of one allocation", most)?;
            }
        }
        self.name = format!("{}-x{factor}", self.name);
        Ok(self)
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaled_trace_has_larger_sizes_within_the_limits() {
        let trace = generate::cross_stream(200, 1).unwrap();
        let scaled = trace.clone().scaled(3).unwrap();
        assert_eq!(scaled.requested_peak, 3 * trace.requested_peak);
        assert_eq!(scaled.name, format!("{}-x3", trace.name));
        for (one, other) in trace.events.iter().zip(&scaled.events) {
            assert_eq!((one.time, one.stream), (other.time, other.stream));
            if let (Kind::Allocate { bytes, .. }, Kind::Allocate { bytes: more, .. }) =
                (one.kind, other.kind)
            {
                assert_eq!(3 * bytes, more);
            }
        }
        assert_eq!(trace.clone().scaled(1).as_ref(), Ok(&trace));
        for factor in [1 << 40, u64::MAX] {
            let refused = trace.clone().scaled(factor);
            assert!(matches!(refused, Err(Fault::TooMany { .. })), "{factor}");
        }
    }
}
