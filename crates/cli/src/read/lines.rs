//! The lines of a text file and their fields.

use super::AtPlace;
use crate::fault::{Fault, Place};
use csv::{ByteRecord, Reader, ReaderBuilder, Terminator, Trim};
use std::io::{self, Chain, Read};

/// The lines of a file, numbered as an editor numbers them.
pub(super) struct Lines<R> {
    reader: Reader<Chain<R, &'static [u8]>>,
    pub(super) record: ByteRecord,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(source: R) -> Self {
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
    pub(super) fn advance(&mut self) -> Result<Option<u64>, AtPlace> {
        while self.read()? {
            if self.record.iter().ne([b""]) {
                return Ok(Some(self.reader.position().line() - 1));
            }
        }
        Ok(None)
    }

    /// Whether the line has the fields of `header`.
    pub(super) fn are(&self, header: &str) -> bool {
        self.record.iter().eq(header.split(',').map(str::as_bytes))
    }

    /// The line as a message can show it.
    pub(super) fn shown(&self) -> String {
        let fields: Vec<_> = self.record.iter().map(String::from_utf8_lossy).collect();
        shortened(&fields.join(","))
    }

    fn read(&mut self) -> Result<bool, AtPlace> {
        let read = self.reader.read_byte_record(&mut self.record);
        read.map_err(|error| {
            let line = self.reader.position().line();
            (Place::Line(line), unreadable(error))
        })
    }
}

/// The fields of a line, which has those of `header`.
pub(super) fn fields<'a, const N: usize>(
    record: &'a ByteRecord,
    header: &'static str,
) -> Result<[&'a [u8]; N], Fault> {
    let (found, expected) = (record.len(), header);
    let fields: Vec<_> = record.iter().collect();
    let wrong = |_| Fault::Fields { found, expected };
    fields.try_into().map_err(wrong)
}

pub(super) fn number(
    field: &'static str,
    text: &[u8],
    least: u64,
    most: u64,
) -> Result<u64, Fault> {
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

/// What an error of the source means for a trace.
pub(super) fn broken(error: &io::Error) -> Fault {
    let reason = error.to_string();
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Fault::Truncated,
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => Fault::Damaged { reason },
        _ => Fault::Unreadable { reason },
    }
}

fn unreadable(error: csv::Error) -> Fault {
    let reason = error.to_string();
    match error.into_kind() {
        csv::ErrorKind::Io(error) => broken(&error),
        _ => Fault::Unreadable { reason },
    }
}

/// The text as a message can show it: of a binary file, a line may be very long.
pub(super) fn shortened(text: &str) -> String {
    const LONGEST: usize = 60;
    let printable = text.escape_debug().to_string();
    match printable.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &printable[..end]),
        None => printable,
    }
}
