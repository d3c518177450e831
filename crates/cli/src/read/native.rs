//! The format of the recorded traces: CSV with the columns of [`HEADER`].

use super::lines::{Lines, fields, number, shortened};
use super::{AtPlace, Recording};
use crate::fault::{Fault, Place};
use crate::trace::{Builder, LARGEST_SIZE, Op, Row};
use csv::ByteRecord;
use std::io::Read;

/// The first line of every trace.
pub(crate) const HEADER: &str = "time_us,op,id,bytes,stream";
/// Nine years: later times are taken for damage.
const LATEST_US: u64 = 1 << 48;
/// Streams are numbered by small integers.
const LARGEST_STREAM: u64 = u16::MAX as u64;

/// The trace of the lines after the header.
pub(super) fn parse<R: Read>(mut lines: Lines<R>, name: &str) -> Result<Recording, AtPlace> {
    let mut builder = Builder::default();
    while let Some(line) = lines.advance()? {
        let row = row(&lines.record, line).and_then(|row| builder.push(row));
        row.map_err(|fault| (Place::Line(line), fault))?;
    }
    let trace = builder.finish(name);
    let trace = trace.map_err(|fault| (Place::Line(1), fault))?;
    Ok(Recording {
        trace,
        notes: Vec::new(),
    })
}

fn row(record: &ByteRecord, line: u64) -> Result<Row, Fault> {
    let [time_us, op, id, bytes, stream] = fields(record, HEADER)?;
    let op = self::op(op)?;
    // A free need not repeat the size.
    let smallest = u64::from(op == Op::Allocate);
    Ok(Row {
        line,
        time_us: number("time_us", time_us, 0, LATEST_US)?,
        op,
        id: number("id", id, 0, u64::MAX)?,
        bytes: number("bytes", bytes, smallest, LARGEST_SIZE)?,
        stream: number("stream", stream, 0, LARGEST_STREAM)?,
    })
}

fn op(text: &[u8]) -> Result<Op, Fault> {
    match text {
        b"a" => Ok(Op::Allocate),
        b"f" => Ok(Op::Free),
        _ => Err(Fault::UnknownOp {
            text: shortened(&String::from_utf8_lossy(text)),
        }),
    }
}
