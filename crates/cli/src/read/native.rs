//! The format of the recorded traces: CSV with the columns of [`HEADER`].

use super::lines::{Lines, number, shown};
use super::{AtLocation, Recording};
use crate::trace::fault::{Fault, Location};
use crate::trace::limits::{ALLOCATION_BYTES, DURATION_US, Limits};
use crate::trace::{Builder, Op, Row};
use std::io::BufRead;

/// The first line of every trace.
pub(crate) const HEADER: &str = "time_us,op,id,bytes,stream";
/// Streams are numbered by small integers.
const LARGEST_STREAM: u64 = u16::MAX as u64;

/// Parses the lines after the header.
pub(super) fn parse(
    mut lines: Lines<impl BufRead>,
    name: &str,
    limits: Limits,
) -> Result<Recording, AtLocation> {
    let mut builder = Builder::new(limits);
    while let Some(line) = lines.advance()? {
        let row = row(&lines, line).and_then(|row| builder.push(row));
        row.map_err(|fault| (Location::Line(line), fault))?;
    }
    let trace = builder.finish(name);
    let trace = trace.map_err(|fault| (Location::Line(1), fault))?;
    Ok(Recording {
        trace,
        notes: Vec::new(),
    })
}

fn row(lines: &Lines<impl BufRead>, line: u64) -> Result<Row, Fault> {
    let [time_us, op, id, bytes, stream] = lines.fields(HEADER)?;
    let op = self::op(op)?;
    // A free need not repeat the size.
    let smallest = u64::from(op == Op::Allocate);
    Ok(Row {
        line,
        time_us: number("time_us", time_us, 0, DURATION_US)?,
        op,
        id: number("id", id, 0, u64::MAX)?,
        bytes: number("bytes", bytes, smallest, ALLOCATION_BYTES)?,
        stream: number("stream", stream, 0, LARGEST_STREAM)?,
    })
}

fn op(text: &[u8]) -> Result<Op, Fault> {
    match text {
        b"a" => Ok(Op::Allocate),
        b"f" => Ok(Op::Free),
        _ => Err(Fault::UnknownOp { text: shown(text) }),
    }
}
