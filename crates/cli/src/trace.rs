//! A trace: what was allocated and freed, when, and on which stream.
//!
//! [`Builder`] takes the rows of any source one by one and refuses those that make no sense, so a
//! [`Trace`] that exists is one that can be replayed: every free has its allocation before it, and
//! frees it once. It knows neither files nor pools.

use crate::fault::Fault;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Sizes above this are taken for damage: no device has an address space as large.
pub(crate) const LARGEST_SIZE: u64 = 1 << 48;

/// Allocations and frees in the order in which they happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trace {
    pub(crate) name: String,
    pub(crate) events: Vec<Event>,
    /// How many streams there are; events name them by `0..streams`.
    pub(crate) streams: usize,
    /// How many allocations there are; events name them by `0..allocations`.
    pub(crate) allocations: usize,
    /// From the first event to the last.
    pub(crate) duration: Duration,
    /// The most bytes that were asked for and not yet freed, at any time.
    pub(crate) requested_peak: u64,
}

/// One allocation or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Since the first event. Events of one microsecond are told apart by nanoseconds, so that
    /// streams replayed side by side keep the order of the recording.
    pub(crate) time: Duration,
    pub(crate) stream: usize,
    pub(crate) kind: Kind,
}

/// What an event does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Allocate { id: usize, bytes: u64 },
    Free { id: usize },
}

impl Trace {
    /// For each allocation, whether it is freed on another stream than it was made on.
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

    /// The events of each stream, in order.
    pub(crate) fn by_stream(&self) -> Vec<Vec<Event>> {
        let mut streams = vec![Vec::new(); self.streams];
        for event in &self.events {
            streams[event.stream].push(*event);
        }
        streams
    }
}

/// A row of a trace as its source has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Where the source has it; errors about later rows refer to it.
    pub(crate) line: u64,
    pub(crate) time_us: u64,
    pub(crate) op: Op,
    pub(crate) id: u64,
    pub(crate) bytes: u64,
    pub(crate) stream: u64,
}

/// The operation of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Allocate,
    Free,
}

/// What is known of an id that a row named.
#[derive(Debug)]
struct Known {
    id: usize,
    bytes: u64,
    allocated_at: u64,
    freed_at: Option<u64>,
}

/// Makes a [`Trace`] of rows.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    events: Vec<Event>,
    known: HashMap<u64, Known>,
    /// The source's numbers of streams, each with its place by first appearance.
    streams: BTreeMap<u64, usize>,
    times: Times,
    live: u64,
    peak: u64,
}

impl Builder {
    /// Takes the next row, or says why it cannot be.
    pub(crate) fn push(&mut self, row: Row) -> Result<(), Fault> {
        let time = self.times.next(row.time_us)?;
        let kind = match row.op {
            Op::Allocate => self.allocate(row)?,
            Op::Free => self.free(row)?,
        };
        let stream = self.stream(row.stream);
        self.events.push(Event { time, stream, kind });
        Ok(())
    }

    fn allocate(&mut self, row: Row) -> Result<Kind, Fault> {
        let id = self.known.len();
        match self.known.entry(row.id) {
            Entry::Occupied(known) => Err(Fault::DuplicateAllocation {
                id: row.id,
                first: known.get().allocated_at,
            }),
            Entry::Vacant(unknown) => {
                unknown.insert(Known {
                    id,
                    bytes: row.bytes,
                    allocated_at: row.line,
                    freed_at: None,
                });
                self.live += row.bytes;
                self.peak = self.peak.max(self.live);
                let bytes = row.bytes;
                Ok(Kind::Allocate { id, bytes })
            }
        }
    }

    fn free(&mut self, row: Row) -> Result<Kind, Fault> {
        let id = row.id;
        let known = self.known.get_mut(&id).ok_or(Fault::UnknownId { id })?;
        if let Some(first) = known.freed_at {
            return Err(Fault::DoubleFree { id, first });
        }
        // Some recorders do not repeat the size at the free and write 0.
        if row.bytes != 0 && row.bytes != known.bytes {
            return Err(Fault::SizeChanged {
                id,
                allocated: known.bytes,
                freed: row.bytes,
                first: known.allocated_at,
            });
        }
        known.freed_at = Some(row.line);
        self.live -= known.bytes;
        Ok(Kind::Free { id: known.id })
    }

    fn stream(&mut self, number: u64) -> usize {
        let place = self.streams.len();
        *self.streams.entry(number).or_insert(place)
    }

    /// The trace of all rows so far, its streams in the order of the source's numbers.
    pub(crate) fn finish(mut self, name: impl Into<String>) -> Result<Trace, Fault> {
        if self.events.is_empty() {
            return Err(Fault::Empty);
        }
        let ranks = ranks(&self.streams);
        for event in &mut self.events {
            event.stream = ranks[event.stream];
        }
        Ok(Trace {
            name: name.into(),
            events: self.events,
            streams: ranks.len(),
            allocations: self.known.len(),
            duration: self.times.span(),
            requested_peak: self.peak,
        })
    }
}

/// For each place by first appearance, the place among the numbers in order.
fn ranks(streams: &BTreeMap<u64, usize>) -> Vec<usize> {
    let mut ranks = vec![0; streams.len()];
    for (rank, place) in streams.values().enumerate() {
        ranks[*place] = rank;
    }
    ranks
}

/// The clock of a trace: from the source's microseconds to times since the first event.
#[derive(Debug, Default)]
struct Times {
    first: Option<u64>,
    last: u64,
    same: u64,
}

impl Times {
    fn next(&mut self, time_us: u64) -> Result<Duration, Fault> {
        let is_first = self.first.is_none();
        let first = *self.first.get_or_insert(time_us);
        if time_us < self.last {
            return Err(Fault::TimeWentBack {
                time_us,
                last_us: self.last,
            });
        }
        self.same = if time_us == self.last && !is_first {
            self.same + 1
        } else {
            0
        };
        self.last = time_us;
        let nanoseconds = Duration::from_nanos(self.same.min(999));
        Ok(Duration::from_micros(time_us - first) + nanoseconds)
    }

    fn span(&self) -> Duration {
        Duration::from_micros(self.last - self.first.unwrap_or(self.last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(time_us: u64, op: Op, id: u64, bytes: u64, stream: u64) -> Row {
        Row {
            line: time_us + 2,
            time_us,
            op,
            id,
            bytes,
            stream,
        }
    }

    fn build(rows: &[Row]) -> Result<Trace, Fault> {
        let mut builder = Builder::default();
        rows.iter().try_for_each(|row| builder.push(*row))?;
        builder.finish("test")
    }

    #[test]
    fn ids_and_streams_are_compacted_and_the_peak_is_of_live_bytes() {
        let trace = build(&[
            row(10, Op::Allocate, 70, 100, 9),
            row(20, Op::Allocate, 50, 30, 4),
            row(30, Op::Free, 70, 100, 4),
            row(40, Op::Allocate, 60, 90, 9),
        ])
        .unwrap();
        assert_eq!((trace.streams, trace.allocations), (2, 3));
        assert_eq!(trace.requested_peak, 130);
        assert_eq!(trace.duration, Duration::from_micros(30));
        assert_eq!(trace.handed_over(), [true, false, false]);
        assert_eq!(trace.events[0].time, Duration::ZERO);
        assert_eq!(trace.events[0].stream, 1);
        assert_eq!(trace.events[2].kind, Kind::Free { id: 0 });
        let lengths: Vec<_> = trace.by_stream().iter().map(Vec::len).collect();
        assert_eq!(lengths, [2, 2]);
    }

    #[test]
    fn events_of_one_microsecond_keep_their_order() {
        let trace = build(&[
            row(0, Op::Allocate, 0, 1, 0),
            row(5, Op::Allocate, 1, 1, 1),
            row(5, Op::Allocate, 2, 1, 0),
            row(6, Op::Free, 2, 1, 0),
        ])
        .unwrap();
        assert!(trace.events.windows(2).all(|two| two[0].time < two[1].time));
        assert_eq!(trace.events[0].time, Duration::ZERO);
        assert_eq!(trace.duration, Duration::from_micros(6));
    }

    #[test]
    fn an_id_is_allocated_once_and_freed_once() {
        let allocate = row(0, Op::Allocate, 3, 8, 0);
        let free = row(1, Op::Free, 3, 8, 0);
        let again = build(&[allocate, free, row(2, Op::Free, 3, 8, 0)]);
        assert_eq!(again, Err(Fault::DoubleFree { id: 3, first: 3 }));
        let twice = build(&[allocate, row(1, Op::Allocate, 3, 8, 0)]);
        assert_eq!(twice, Err(Fault::DuplicateAllocation { id: 3, first: 2 }));
        assert_eq!(build(&[free]), Err(Fault::UnknownId { id: 3 }));
    }

    #[test]
    fn a_free_repeats_the_size_or_leaves_it_out() {
        let allocate = row(0, Op::Allocate, 3, 8, 0);
        assert!(build(&[allocate, row(1, Op::Free, 3, 0, 0)]).is_ok());
        let changed = build(&[allocate, row(1, Op::Free, 3, 9, 0)]);
        assert!(matches!(changed, Err(Fault::SizeChanged { .. })));
    }

    #[test]
    fn time_never_goes_back_and_nothing_is_no_trace() {
        let back = build(&[row(9, Op::Allocate, 0, 1, 0), row(8, Op::Allocate, 1, 1, 0)]);
        assert!(matches!(back, Err(Fault::TimeWentBack { .. })));
        assert_eq!(build(&[]), Err(Fault::Empty));
    }
}
