//! Reads recordings from files, plain or gzip: the tool's own traces, RMM's logs, PyTorch's snapshots and
//! instances of static memory planning; and arrivals of requests.
//!
//! The beginning of a file tells its format. Faults are reported as `file:line: fault, expected what` by
//! [`TraceError`], and every reader keeps to the [limits](crate::trace::limits).
//!
//! | module | reads |
//! |---|---|
//! | [`native`] | the CSV of the recorded traces |
//! | [`rmm`] | the CSV that RMM's logging adaptor writes |
//! | [`instance`] | the CSV of MiniMalloc's and idealloc's instances |
//! | [`arrivals`] | the arrivals of Azure's and Mooncake's traces of requests |
//! | [`torch`], [`pickle`] | PyTorch's memory snapshots, and the pickles that hold them |
//! | [`gzip`], [`lines`] | compressed files; lines and fields of a text |
//! | [`addresses`], [`clock`] | allocations named by reused addresses; times of day |
//! | [`note`] | what a recording lacks |

mod addresses;
pub(crate) mod arrivals;
mod clock;
mod gzip;
mod instance;
mod lines;
mod native;
mod note;
mod pickle;
mod rmm;
mod torch;

use crate::trace::Trace;
use crate::trace::fault::{Fault, Location};
use crate::trace::limits::Limits;
use crate::units;
use anyhow::Context;
use gzip::{Bounded, Inflated};
use lines::Lines;
use note::Note;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// The extensions that the name of a trace leaves out.
const EXTENSIONS: [&str; 3] = [".csv", ".pickle", ".pkl"];

/// A trace that was read, and notes about it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recording {
    pub(crate) trace: Trace,
    pub(crate) notes: Vec<Note>,
}

/// What to read of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    /// The device of a snapshot of several; the first that allocates, if not given.
    pub(crate) device: Option<usize>,
    pub(crate) limits: Limits,
}

/// A fault of a file, with its location.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) struct TraceError {
    pub(crate) file: String,
    pub(crate) location: Location,
    pub(crate) fault: Fault,
}

impl fmt::Display for TraceError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            location,
            fault,
        } = self;
        match location {
            Location::File => write!(formatter, "{file}: {fault}"),
            Location::Line(line) => write!(formatter, "{file}:{line}: {fault}"),
            Location::Byte(_) | Location::Event { .. } => {
                write!(formatter, "{file}: {location}: {fault}")
            }
        }
    }
}

/// A fault and its location.
type AtLocation = (Location, Fault);

/// Reads the trace in the file at `path`, and names it like the file without its extensions.
pub(crate) fn read(path: &Path, request: Request) -> anyhow::Result<Recording> {
    let expected = "a trace (.csv, .pickle or .gz)";
    read_with(path, request.limits, expected, |source| {
        parse(source, &name(path), request)
    })
}

/// Reads the file at `path`, decompressed if it is gzip.
fn read_with<T>(
    path: &Path,
    limits: Limits,
    expected: &str,
    parse: impl FnOnce(&mut dyn Read) -> Result<T, AtLocation>,
) -> anyhow::Result<T> {
    let file = units::path(path);
    let unreadable = || format!("{file}: cannot be read, expected {expected}");
    let source = File::open(path).with_context(unreadable)?;
    let mut source = BufReader::new(Bounded::new(source, limits.file_bytes));
    let compressed = is_gzip(path, source.fill_buf().with_context(unreadable)?);
    let parsed = if compressed {
        // The file may be far larger than its compressed bytes.
        parse(&mut Bounded::new(Inflated::new(source), limits.file_bytes))
    } else {
        parse(&mut source)
    };
    Ok(parsed.map_err(|(location, fault)| TraceError {
        file,
        location,
        fault,
    })?)
}

fn is_gzip(path: &Path, start: &[u8]) -> bool {
    start.starts_with(&gzip::MAGIC) || path.extension() == Some(OsStr::new("gz"))
}

fn name(path: &Path) -> String {
    let file = path.file_name().unwrap_or(path.as_os_str());
    let file = units::printable(&file.to_string_lossy());
    let stem = file.strip_suffix(".gz").unwrap_or(&file);
    let mut stems = EXTENSIONS.iter().filter_map(|end| stem.strip_suffix(end));
    stems.next().unwrap_or(stem).to_owned()
}

/// Parses a source in the format that its beginning tells, decompressed or not.
pub(crate) fn parse_any(source: &[u8], request: Request) -> Result<Recording, String> {
    let parsed = if source.starts_with(&gzip::MAGIC) {
        parse(Inflated::new(source), "", request)
    } else {
        parse(source, "", request)
    };
    parsed.map_err(|(location, fault)| format!("{location}: {fault}"))
}

/// Parses a decompressed source in the format that its beginning tells.
fn parse(source: impl Read, name: &str, request: Request) -> Result<Recording, AtLocation> {
    let mut source = BufReader::new(Bounded::new(source, request.limits.file_bytes));
    let start = source.fill_buf();
    let start = start.map_err(|error| (Location::Line(1), lines::broken(&error)))?;
    if start.starts_with(&[pickle::MAGIC]) {
        return torch::parse(source, name, request);
    }
    let mut lines = Lines::new(source);
    let line = lines.advance()?.unwrap_or(1);
    let recording = match () {
        () if lines.are(native::HEADER) => native::parse(lines, name, request.limits)?,
        () if lines.are(rmm::HEADER) => rmm::parse(lines, name, request.limits)?,
        () if lines.are(instance::HEADER) => instance::parse(lines, name, request.limits)?,
        () => return Err((Location::Line(line), unknown(lines.shown()))),
    };
    match request.device {
        None => Ok(recording),
        Some(_) => Err((Location::File, Fault::NoDevices)),
    }
}

fn unknown(found: String) -> Fault {
    let (native, rmm, instance) = (native::HEADER, rmm::HEADER, instance::HEADER);
    let expected =
        format!("`{native}`, RMM's `{rmm}`, MiniMalloc's `{instance}` or a pickle of PyTorch");
    Fault::Header { found, expected }
}

#[cfg(test)]
mod tests;
