//! Makes a [`Trace`] from rows, and checks each row against the ones before it.

use super::fault::Fault;
use super::limits::{self, Limits};
use super::{Event, Kind, Trace, steps};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// A row of a source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The line of the source; errors about later rows refer to it.
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

/// An allocation that a row named.
#[derive(Debug)]
struct Known {
    id: usize,
    bytes: u64,
    allocated_at: u64,
    freed_at: Option<u64>,
}

/// Makes a [`Trace`] from rows.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    limits: Limits,
    events: Vec<Event>,
    known: HashMap<u64, Known>,
    /// The stream numbers of the source, each with its rank by first appearance.
    streams: BTreeMap<u64, usize>,
    times: Times,
    live: u64,
    peak: u64,
}

impl Builder {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Takes the next row, or returns the reason why no trace has such a row.
    pub(crate) fn push(&mut self, row: Row) -> Result<(), Fault> {
        steps::take(1);
        check("operations", self.events.len(), self.limits.events)?;
        let time = self.times.next(row.time_us)?;
        let kind = match row.op {
            Op::Allocate => self.allocate(row)?,
            Op::Free => self.free(row)?,
        };
        let stream = self.stream(row.stream)?;
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
                self.live = self.live.saturating_add(row.bytes);
                self.peak = self.peak.max(self.live);
                if self.live > limits::LIVE_BYTES {
                    let (what, most) = ("live bytes", limits::LIVE_BYTES);
                    return Err(Fault::TooMany { what, most });
                }
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

    fn stream(&mut self, number: u64) -> Result<usize, Fault> {
        let next = self.streams.len();
        let rank = *self.streams.entry(number).or_insert(next);
        check("streams", rank, self.limits.streams)?;
        Ok(rank)
    }

    /// Returns the trace of all rows, its streams in the order of the source's numbers.
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

/// Refuses one more of something that a trace already has `count` times.
fn check(what: &'static str, count: usize, most: usize) -> Result<(), Fault> {
    if count < most {
        return Ok(());
    }
    let most = most as u64;
    Err(Fault::TooMany { what, most })
}

/// Returns for each rank by first appearance the rank by number.
fn ranks(streams: &BTreeMap<u64, usize>) -> Vec<usize> {
    let mut ranks = vec![0; streams.len()];
    for (rank, appeared) in streams.values().enumerate() {
        ranks[*appeared] = rank;
    }
    ranks
}

/// The clock of a trace: turns the source's microseconds into times since the first event.
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
        if time_us - first > limits::DURATION_US {
            return Err(Fault::TooLate);
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
    fn ids_and_streams_are_compacted_and_peak_counts_live_bytes() {
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
    fn id_is_allocated_once_and_freed_once() {
        let allocate = row(0, Op::Allocate, 3, 8, 0);
        let free = row(1, Op::Free, 3, 8, 0);
        let again = build(&[allocate, free, row(2, Op::Free, 3, 8, 0)]);
        assert_eq!(again, Err(Fault::DoubleFree { id: 3, first: 3 }));
        let twice = build(&[allocate, row(1, Op::Allocate, 3, 8, 0)]);
        assert_eq!(twice, Err(Fault::DuplicateAllocation { id: 3, first: 2 }));
        assert_eq!(build(&[free]), Err(Fault::UnknownId { id: 3 }));
    }

    #[test]
    fn free_repeats_the_size_or_leaves_it_out() {
        let allocate = row(0, Op::Allocate, 3, 8, 0);
        assert!(build(&[allocate, row(1, Op::Free, 3, 0, 0)]).is_ok());
        let changed = build(&[allocate, row(1, Op::Free, 3, 9, 0)]);
        assert!(matches!(changed, Err(Fault::SizeChanged { .. })));
    }

    #[test]
    fn time_never_goes_back_and_empty_trace_is_refused() {
        let back = build(&[row(9, Op::Allocate, 0, 1, 0), row(8, Op::Allocate, 1, 1, 0)]);
        assert!(matches!(back, Err(Fault::TimeWentBack { .. })));
        assert_eq!(build(&[]), Err(Fault::Empty));
    }

    #[test]
    fn trace_over_a_limit_is_refused() {
        let allocate = |id, bytes, stream| row(0, Op::Allocate, id, bytes, stream);
        let excess =
            |what| move |fault| matches!(fault, Fault::TooMany { what: of, .. } if of == what);
        let live = |id| allocate(id, limits::ALLOCATION_BYTES, 0);
        let live: Vec<_> = (0..5000).map(live).collect();
        assert!(build(&live).is_err_and(excess("live bytes")));
        let streams = 0..=Limits::default().streams as u64;
        let streams: Vec<_> = streams.map(|stream| allocate(stream, 1, stream)).collect();
        assert!(build(&streams).is_err_and(excess("streams")));
        assert!(build(&streams[1..]).is_ok());
        let late = row(limits::DURATION_US + 1, Op::Allocate, 1, 1, 0);
        assert_eq!(build(&[allocate(0, 1, 0), late]), Err(Fault::TooLate));
        let mut few = Builder::new(Limits {
            events: 1,
            ..Limits::default()
        });
        assert_eq!(few.push(allocate(0, 1, 0)), Ok(()));
        assert!(few.push(allocate(1, 1, 0)).is_err_and(excess("operations")));
    }
}
