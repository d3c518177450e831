//! Logs of RMM's `logging_resource_adaptor`: CSV with the columns of [`HEADER`].
//!
//! The lines of all threads are in the order in which the threads wrote them, and are replayed in that order.
//! `Time` is the time of day, without a date, or a number in some versions. `Pointer` and `Stream` are
//! addresses; a pointer is used again after its free.

use super::addresses::Addresses;
use super::clock::{Clock, Reading, reading};
use super::lines::{Lines, number, shown};
use super::note::Note;
use super::{AtLocation, Recording};
use crate::trace::fault::{Fault, Location};
use crate::trace::limits::{ALLOCATION_BYTES, Limits};
use crate::trace::{Builder, Op, Row};
use std::io::BufRead;

/// The first line of every log.
pub(crate) const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream";

/// Parses the lines after the header.
pub(super) fn parse(
    mut lines: Lines<impl BufRead>,
    name: &str,
    limits: Limits,
) -> Result<Recording, AtLocation> {
    let mut log = Log {
        builder: Builder::new(limits),
        ..Log::default()
    };
    while let Some(line) = lines.advance()? {
        let entry = log.take(&lines, line);
        entry.map_err(|fault| (Location::Line(line), fault))?;
    }
    let notes = log.skipped.notes();
    let trace = log.builder.finish(name);
    let trace = trace.map_err(|fault| (Location::Line(1), fault))?;
    Ok(Recording { trace, notes })
}

/// The log as far as it was read.
#[derive(Default)]
struct Log {
    builder: Builder,
    addresses: Addresses,
    clock: Clock,
    skipped: Skipped,
}

/// Lines that are not replayed.
#[derive(Default)]
struct Skipped {
    unknown_frees: u64,
    failed: u64,
    empty: u64,
}

impl Skipped {
    fn notes(&self) -> Vec<Note> {
        let notes = [
            (self.unknown_frees, Note::UnknownFrees(self.unknown_frees)),
            (self.failed, Note::FailedAllocations(self.failed)),
            (self.empty, Note::Empty(self.empty)),
        ];
        let some = notes.into_iter().filter(|(count, _)| *count > 0);
        some.map(|(_, note)| note).collect()
    }
}

/// A line of the log.
struct Entry {
    line: u64,
    time_us: u64,
    pointer: u64,
    bytes: u64,
    stream: u64,
}

impl Log {
    fn take(&mut self, lines: &Lines<impl BufRead>, line: u64) -> Result<(), Fault> {
        let [_thread, time, action, pointer, size, stream] = lines.fields(HEADER)?;
        let action = self::action(action)?;
        let entry = Entry {
            line,
            time_us: self.clock.advance(self::time(time)?)?,
            pointer: address("Pointer", pointer, 16)?,
            bytes: number("Size", size, 0, ALLOCATION_BYTES)?,
            stream: address("Stream", stream, 10)?,
        };
        match action {
            Action::Failure => self.skipped.failed += 1,
            // RMM allocates nothing for them, and logs them nevertheless.
            _ if entry.bytes == 0 => self.skipped.empty += 1,
            Action::Allocate => self.allocate(&entry)?,
            Action::Free => self.free(&entry)?,
        }
        Ok(())
    }

    fn allocate(&mut self, entry: &Entry) -> Result<(), Fault> {
        let location = Location::Line(entry.line);
        let id = self
            .addresses
            .allocate(entry.pointer, entry.bytes, location)?;
        self.push(entry, Op::Allocate, id)
    }

    fn free(&mut self, entry: &Entry) -> Result<(), Fault> {
        match self.addresses.free(entry.pointer) {
            None => self.skipped.unknown_frees += 1,
            Some(live) if live.bytes == entry.bytes => self.push(entry, Op::Free, live.id)?,
            Some(live) => {
                return Err(Fault::AddressSizeChanged {
                    address: entry.pointer,
                    allocated: live.bytes,
                    freed: entry.bytes,
                    first: live.location,
                });
            }
        }
        Ok(())
    }

    fn push(&mut self, entry: &Entry, op: Op, id: u64) -> Result<(), Fault> {
        self.builder.push(Row {
            line: entry.line,
            time_us: entry.time_us,
            op,
            id,
            bytes: entry.bytes,
            stream: entry.stream,
        })
    }
}

enum Action {
    Allocate,
    Failure,
    Free,
}

fn action(text: &[u8]) -> Result<Action, Fault> {
    match text {
        b"allocate" => Ok(Action::Allocate),
        b"allocate failure" => Ok(Action::Failure),
        b"free" | b"deallocate" => Ok(Action::Free),
        _ => Err(Fault::Field {
            field: "Action",
            text: shown(text),
            expected: "`allocate`, `allocate failure` or `free`",
        }),
    }
}

fn time(text: &[u8]) -> Result<Reading, Fault> {
    let time = std::str::from_utf8(text).ok().and_then(reading);
    time.ok_or_else(|| Fault::Field {
        field: "Time",
        text: shown(text),
        expected: "hours, minutes, seconds and microseconds as 11:53:05.642000, \
                   microseconds as 53642, or seconds as 1634567890.123456",
    })
}

/// Parses an address: hexadecimal behind `0x`, of base `radix` without it, and 0 as `(nil)`.
fn address(field: &'static str, text: &[u8], radix: u32) -> Result<u64, Fault> {
    let address = match std::str::from_utf8(text) {
        Ok("(nil)") => Some(0),
        Ok(text) => match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => u64::from_str_radix(text, radix).ok(),
        },
        Err(_) => None,
    };
    address.ok_or_else(|| Fault::Field {
        field,
        text: shown(text),
        expected: "an address as 0x7f8a40000000",
    })
}

#[cfg(test)]
mod tests;
