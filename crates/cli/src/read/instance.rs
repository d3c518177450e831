//! Instances of static memory planning: CSV with the columns of [`HEADER`], as MiniMalloc and idealloc publish them.
//!
//! Each line is a buffer that lives from the moment `lower` until the moment `upper`, on one stream. A buffer that ends
//! at a moment leaves its memory to buffers that begin then. Moments have no unit: the replay takes them as microseconds.
//! Lines are in any order, and `id` is any text; both are of no consequence.

use super::lines::{Lines, number};
use super::{AtLocation, Recording};
use crate::trace::fault::{Fault, Location};
use crate::trace::limits::{ALLOCATION_BYTES, DURATION_US, Limits};
use crate::trace::{Builder, Op, Row};
use std::io::BufRead;

/// The first line of every instance.
pub(crate) const HEADER: &str = "id,lower,upper,size";

/// Parses the lines after the header.
pub(super) fn parse(
    mut lines: Lines<impl BufRead>,
    name: &str,
    limits: Limits,
) -> Result<Recording, AtLocation> {
    let mut rows = Vec::new();
    while let Some(line) = lines.advance()? {
        let lifetime = lifetime(&lines, line).and_then(|lifetime| {
            let what = "operations";
            let most = limits.events as u64;
            // Both rows are held until the end of the file, so they are counted here.
            let is_within = rows.len() + lifetime.len() <= limits.events;
            is_within
                .then_some(lifetime)
                .ok_or(Fault::TooMany { what, most })
        });
        rows.extend(lifetime.map_err(|fault| (Location::Line(line), fault))?);
    }
    // The sort is stable: buffers that begin at one moment keep the order of the file.
    rows.sort_by_key(|row| (row.time_us, row.op == Op::Allocate));
    let mut builder = Builder::new(limits);
    for row in rows {
        let pushed = builder.push(row);
        pushed.map_err(|fault| (Location::Line(row.line), fault))?;
    }
    let trace = builder.finish(name);
    let trace = trace.map_err(|fault| (Location::Line(1), fault))?;
    Ok(Recording {
        trace,
        notes: Vec::new(),
    })
}

/// Returns the allocation and the free of a buffer.
fn lifetime(lines: &Lines<impl BufRead>, line: u64) -> Result<[Row; 2], Fault> {
    let [_id, lower, upper, size] = lines.fields(HEADER)?;
    let lower = number("lower", lower, 0, DURATION_US - 1)?;
    let upper = number("upper", upper, lower + 1, DURATION_US)?;
    let allocation = Row {
        line,
        time_us: lower,
        op: Op::Allocate,
        id: line,
        bytes: number("size", size, 1, ALLOCATION_BYTES)?,
        stream: 0,
    };
    let free = Row {
        time_us: upper,
        op: Op::Free,
        ..allocation
    };
    Ok([allocation, free])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::{Request, parse};
    use crate::trace::{Event, Kind, Trace};
    use std::time::Duration;

    fn trace(rows: &str) -> Result<Trace, AtLocation> {
        let text = format!("{HEADER}\n{rows}");
        let recording = parse(text.as_bytes(), "test", Request::default())?;
        assert_eq!(recording.notes, []);
        Ok(recording.trace)
    }

    /// Returns the most bytes that live at one moment, by looking at every moment.
    fn peak(buffers: &[(u64, u64, u64)]) -> u64 {
        let last = buffers.iter().map(|(_, upper, _)| *upper).max();
        let at = |moment| {
            let live = |(lower, upper, _): &&(u64, u64, u64)| (*lower..*upper).contains(&moment);
            let sizes = buffers.iter().filter(live).map(|(_, _, size)| size);
            sizes.sum::<u64>()
        };
        (0..last.unwrap_or(0)).map(at).max().unwrap_or(0)
    }

    #[test]
    fn buffer_that_ends_leaves_its_memory_to_one_that_begins() {
        let trace = trace("b2,3,9,4\nb1,0,3,4\nb3,0,9,5\n").unwrap();
        assert_eq!((trace.requested_peak, trace.streams), (9, 1));
        assert_eq!((trace.allocations, trace.events.len()), (3, 6));
        assert_eq!(trace.duration, Duration::from_micros(9));
        let kinds: Vec<_> = trace.events.iter().map(|event| event.kind).collect();
        assert_eq!(kinds[2], Kind::Free { id: 0 }, "b1 ends before b2 begins");
        assert_eq!(kinds[3], Kind::Allocate { id: 2, bytes: 4 });
        let at = |event: &Event| event.time.as_micros();
        assert_eq!(
            trace.events.iter().map(at).collect::<Vec<_>>(),
            [0, 0, 3, 3, 9, 9]
        );
    }

    #[test]
    fn peak_is_that_of_the_fullest_moment() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..100 {
            let buffers: Vec<_> = (0..random.u64(1..40))
                .map(|_| {
                    let lower = random.u64(..30);
                    (lower, lower + random.u64(1..10), random.u64(1..1000))
                })
                .collect();
            let row =
                |(lower, upper, size): &(u64, u64, u64)| format!("x,{lower},{upper},{size}\n");
            let rows: String = buffers.iter().map(row).collect();
            let trace = trace(&rows).unwrap();
            assert_eq!(trace.requested_peak, peak(&buffers), "{rows}");
            assert_eq!(trace.events.len(), 2 * buffers.len());
        }
    }

    #[test]
    fn malformed_buffer_is_named_by_its_line() {
        let most = ALLOCATION_BYTES + 1;
        for (row, wrong) in [
            (
                "b,5,5,1".to_owned(),
                "upper is `5`, expected a whole number from 6",
            ),
            ("b,5,4,1".to_owned(), "upper is `4`"),
            ("b,-1,4,1".to_owned(), "lower is `-1`"),
            ("b,18446744073709551615,1,1".to_owned(), "lower is"),
            (format!("b,{},1,1", DURATION_US), "lower is"),
            (format!("b,0,{},1", DURATION_US + 1), "upper is"),
            (
                "b,0,1,0".to_owned(),
                "size is `0`, expected a whole number from 1",
            ),
            (format!("b,0,1,{most}"), "size is"),
            ("b,0,1".to_owned(), "3 fields, expected the 4"),
            ("b,0,1,1,7".to_owned(), "5 fields"),
            ("b,0.5,1,1".to_owned(), "lower is `0.5`"),
        ] {
            let (location, fault) = trace(&format!("a,9,12,8\n{row}\n")).unwrap_err();
            assert_eq!(location, Location::Line(3), "{row}");
            assert!(fault.to_string().contains(wrong), "{row}: {fault}");
        }
        assert_eq!(trace(""), Err((Location::Line(1), Fault::Empty)));
    }

    #[test]
    fn instance_over_a_limit_is_refused_at_its_line() {
        let text = format!("{HEADER}\n{}", "b,0,1,1\n".repeat(4));
        let limits = |events| Limits {
            events,
            ..Limits::default()
        };
        let read = |events| {
            let request = Request {
                limits: limits(events),
                ..Request::default()
            };
            parse(text.as_bytes(), "test", request)
        };
        assert_eq!(read(8).unwrap().trace.events.len(), 8);
        for (events, line) in [(7, 5), (6, 5), (1, 2)] {
            let (location, fault) = read(events).unwrap_err();
            assert_eq!(location, Location::Line(line));
            assert!(fault.to_string().contains("operations"), "{fault}");
        }
    }
}
