//! Reads traces from files: CSV, plain or gzip, with the columns of [`HEADER`].
//!
//! Whatever is wrong is reported as `file:line: what is wrong, expected what`, by [`TraceError`].

use crate::fault::Fault;
use crate::trace::{Builder, LARGEST_SIZE, Op, Row, Trace};
use anyhow::Context;
use csv::{ByteRecord, Reader, ReaderBuilder, Terminator, Trim};
use flate2::read::MultiGzDecoder;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Chain, Read};
use std::path::Path;

/// The first line of every trace.
pub(crate) const HEADER: &str = "time_us,op,id,bytes,stream";
/// Nine years: later times are taken for damage.
const LATEST_US: u64 = 1 << 48;
/// Streams are numbered by small integers.
const LARGEST_STREAM: u64 = u16::MAX as u64;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A malformed trace: where, and how.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {fault}")]
pub(crate) struct TraceError {
    pub(crate) file: String,
    pub(crate) line: u64,
    pub(crate) fault: Fault,
}

/// The trace in the file at `path`, named like the file without its extensions.
pub(crate) fn read(path: &Path) -> anyhow::Result<Trace> {
    let file = path.display().to_string();
    let unreadable = || format!("{file}: cannot be opened, expected a trace (.csv or .csv.gz)");
    let mut source = BufReader::new(File::open(path).with_context(unreadable)?);
    let compressed = is_gzip(path, source.fill_buf().with_context(unreadable)?);
    let trace = if compressed {
        parse(MultiGzDecoder::new(source), &name(path))
    } else {
        parse(source, &name(path))
    };
    Ok(trace.map_err(|(line, fault)| TraceError { file, line, fault })?)
}

fn is_gzip(path: &Path, start: &[u8]) -> bool {
    start.starts_with(&GZIP_MAGIC) || path.extension() == Some(OsStr::new("gz"))
}

fn name(path: &Path) -> String {
    let file = path
        .file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy();
    let stem = file.strip_suffix(".gz").unwrap_or(&file);
    stem.strip_suffix(".csv").unwrap_or(stem).to_owned()
}

/// A fault and the line that has it.
type AtLine = (u64, Fault);

fn parse(source: impl Read, name: &str) -> Result<Trace, AtLine> {
    let mut lines = Lines::new(source);
    header(&mut lines)?;
    let mut builder = Builder::default();
    while let Some(line) = lines.advance()? {
        let row = row(&lines.record, line).and_then(|row| builder.push(row));
        row.map_err(|fault| (line, fault))?;
    }
    builder.finish(name).map_err(|fault| (1, fault))
}

/// The lines of a file, numbered as an editor numbers them.
struct Lines<R> {
    reader: Reader<Chain<R, &'static [u8]>>,
    record: ByteRecord,
}

impl<R: Read> Lines<R> {
    fn new(source: R) -> Self {
        let reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            // A stray quote would join lines, and the error would name a wrong one.
            .quoting(false)
            // The carriage return of a Windows line is trimmed: as a terminator of its own it
            // would end the record before the line is counted.
            .terminator(Terminator::Any(b'\n'))
            .trim(Trim::All)
            // The last line is ended as the others are, so that each is counted when it is read.
            .from_reader(source.chain(&b"\n"[..]));
        Self {
            reader,
            record: ByteRecord::new(),
        }
    }

    /// Reads the next line that is not blank, and gives its number; `None` at the end.
    fn advance(&mut self) -> Result<Option<u64>, AtLine> {
        while self.read()? {
            if self.record.iter().ne([b""]) {
                return Ok(Some(self.reader.position().line() - 1));
            }
        }
        Ok(None)
    }

    fn read(&mut self) -> Result<bool, AtLine> {
        let read = self.reader.read_byte_record(&mut self.record);
        read.map_err(|error| (self.reader.position().line(), unreadable(error)))
    }
}

fn header<R: Read>(lines: &mut Lines<R>) -> Result<(), AtLine> {
    let line = lines.advance()?.unwrap_or(1);
    if lines.record.iter().eq(HEADER.split(',').map(str::as_bytes)) {
        return Ok(());
    }
    let fields: Vec<_> = lines.record.iter().map(String::from_utf8_lossy).collect();
    let found = shortened(&fields.join(","));
    let expected = HEADER;
    Err((line, Fault::Header { found, expected }))
}

fn unreadable(error: csv::Error) -> Fault {
    let reason = error.to_string();
    match error.into_kind() {
        csv::ErrorKind::Io(error) => match error.kind() {
            io::ErrorKind::UnexpectedEof => Fault::Truncated,
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => Fault::Damaged { reason },
            _ => Fault::Unreadable { reason },
        },
        _ => Fault::Unreadable { reason },
    }
}

fn row(record: &ByteRecord, line: u64) -> Result<Row, Fault> {
    if record.len() != 5 {
        let (found, expected) = (record.len(), HEADER);
        return Err(Fault::Fields { found, expected });
    }
    let op = op(&record[1])?;
    // A free need not repeat the size.
    let smallest = u64::from(op == Op::Allocate);
    Ok(Row {
        line,
        time_us: number("time_us", &record[0], 0, LATEST_US)?,
        op,
        id: number("id", &record[2], 0, u64::MAX)?,
        bytes: number("bytes", &record[3], smallest, LARGEST_SIZE)?,
        stream: number("stream", &record[4], 0, LARGEST_STREAM)?,
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

fn number(field: &'static str, text: &[u8], least: u64, most: u64) -> Result<u64, Fault> {
    let text = String::from_utf8_lossy(text);
    match text.parse() {
        Ok(value) if (least..=most).contains(&value) => Ok(value),
        _ => Err(Fault::Number {
            field,
            text: shortened(&text),
            least,
            most,
        }),
    }
}

/// The text as a message can show it: of a binary file, a line may be very long.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 60;
    let printable = text.escape_debug().to_string();
    match printable.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &printable[..end]),
        None => printable,
    }
}

#[cfg(test)]
mod tests;
