//! Generates traces: blocks handed from producers to consumers.
//!
//! Equal seeds give equal traces. Every block is consumed, so no block is live at the end.

use super::fault::Fault;
use super::{Builder, Op, Row, Trace};
use fastrand::Rng;
use std::collections::VecDeque;

/// Streams `0..PRODUCERS` allocate; the `CONSUMERS` after them free.
const PRODUCERS: u64 = 4;
const CONSUMERS: u64 = 4;
const SMALLEST: f64 = 4096.0;
const LARGEST: f64 = (32 << 20) as f64;
/// The number of live blocks in the steady state. At about 3.7 MB each, they are several hundred MB.
const LIVE: f64 = 120.0;
/// Consumers take one of this many oldest blocks at random, so that lifetimes differ.
const WINDOW: usize = 24;

/// Generates producers and consumers on different streams: `operations` allocations and frees, half of each.
///
/// # Errors
/// Returns an error for fewer than 2 operations.
pub(crate) fn cross_stream(operations: u64, seed: u64) -> Result<Trace, Fault> {
    let mut handover = Handover::new(seed);
    let mut to_produce = operations / 2;
    while to_produce > 0 || !handover.live.is_empty() {
        if to_produce > 0 && handover.wants_more() {
            handover.produce()?;
            to_produce -= 1;
        } else {
            handover.consume()?;
        }
    }
    handover.builder.finish("cross-stream")
}

/// Blocks on their way from producers to consumers.
struct Handover {
    random: Rng,
    builder: Builder,
    /// Ids that are produced but not consumed, oldest first.
    live: VecDeque<u64>,
    produced: u64,
    time_us: u64,
    line: u64,
}

impl Handover {
    fn new(seed: u64) -> Self {
        Self {
            random: Rng::with_seed(seed),
            builder: Builder::default(),
            live: VecDeque::new(),
            produced: 0,
            time_us: 0,
            line: 0,
        }
    }

    /// Draws whether to produce. Fewer live blocks make it likelier: certain with none, even odds at [`LIVE`].
    fn wants_more(&mut self) -> bool {
        self.random.f64() * 2.0 * LIVE >= self.live.len() as f64
    }

    fn produce(&mut self) -> Result<(), Fault> {
        let (id, bytes) = (self.produced, self.size());
        let stream = self.random.u64(0..PRODUCERS);
        self.produced += 1;
        self.live.push_back(id);
        self.push(Op::Allocate, id, bytes, stream)
    }

    fn consume(&mut self) -> Result<(), Fault> {
        let oldest = self.random.usize(0..WINDOW.min(self.live.len()));
        let Some(id) = self.live.remove(oldest) else {
            return Ok(());
        };
        let stream = PRODUCERS + self.random.u64(0..CONSUMERS);
        self.push(Op::Free, id, 0, stream)
    }

    fn push(&mut self, op: Op, id: u64, bytes: u64, stream: u64) -> Result<(), Fault> {
        self.line += 1;
        self.time_us += self.random.u64(25..=75);
        self.builder.push(Row {
            line: self.line,
            time_us: self.time_us,
            op,
            id,
            bytes,
            stream,
        })
    }

    /// Draws a log-uniform size: 4 to 8 KiB is as likely as 16 to 32 MiB.
    fn size(&mut self) -> u64 {
        let magnitude = self.random.f64() * (LARGEST / SMALLEST).ln();
        (SMALLEST * magnitude.exp()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Kind;
    use std::time::Duration;

    #[test]
    fn same_seed_gives_the_same_trace() {
        assert_eq!(cross_stream(2000, 7), cross_stream(2000, 7));
        assert_ne!(cross_stream(2000, 7), cross_stream(2000, 8));
    }

    #[test]
    fn every_block_is_freed_on_another_stream() {
        let trace = cross_stream(10_000, 1).unwrap();
        assert_eq!((trace.events.len(), trace.streams), (10_000, 8));
        assert_eq!(trace.allocations, 5_000);
        assert!(trace.handed_over().iter().all(|yes| *yes));
    }

    #[test]
    fn sizes_peak_and_pace_are_those_of_a_busy_server() {
        let trace = cross_stream(10_000, 1).unwrap();
        for event in &trace.events {
            if let Kind::Allocate { bytes, .. } = event.kind {
                assert!((4096..=32 << 20).contains(&bytes), "{bytes}");
            }
        }
        let peak = trace.requested_peak;
        assert!((300_000_000..900_000_000).contains(&peak), "{peak}");
        let pace = trace.duration / 10_000;
        assert!(pace > Duration::from_micros(45) && pace < Duration::from_micros(55));
    }

    #[test]
    fn too_few_operations_are_refused() {
        assert_eq!(cross_stream(1, 1), Err(Fault::Empty));
        assert_eq!(cross_stream(2, 1).unwrap().events.len(), 2);
    }
}
