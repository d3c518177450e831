//! Reads recordings from files, plain or gzip: of this example, of RMM, of PyTorch.
//!
//! Which of them a file is, is known by how it begins. Whatever is wrong is reported as
//! `file:line: what is wrong, expected what`, by [`TraceError`].
//!
//! | module | what it is for |
//! |---|---|
//! | [`native`] | the CSV of the recorded traces |
//! | [`rmm`] | the CSV that RMM's logging adaptor writes |
//! | [`torch`] | the pickle of PyTorch's memory snapshots |
//! | [`lines`] | lines and fields of a text |
//! | [`addresses`], [`clock`] | allocations named by reused addresses; times of day |
//! | [`note`] | what a recording lacks |

mod addresses;
mod clock;
mod lines;
mod native;
mod note;
mod rmm;
mod torch;

use crate::fault::{Fault, Place};
use crate::trace::Trace;
use anyhow::Context;
use flate2::read::MultiGzDecoder;
use lines::Lines;
use note::Note;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// What the name of a trace leaves out of its file's.
const EXTENSIONS: [&str; 3] = [".csv", ".pickle", ".pkl"];

/// A trace that was read, and what is to be said of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recording {
    pub(crate) trace: Trace,
    pub(crate) notes: Vec<Note>,
}

/// A malformed trace: where, and how.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) struct TraceError {
    pub(crate) file: String,
    pub(crate) place: Place,
    pub(crate) fault: Fault,
}

impl fmt::Display for TraceError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, place, fault } = self;
        match place {
            Place::File => write!(formatter, "{file}: {fault}"),
            Place::Line(line) => write!(formatter, "{file}:{line}: {fault}"),
            Place::Event { .. } => write!(formatter, "{file}: {place}: {fault}"),
        }
    }
}

/// A fault and what has it.
type AtPlace = (Place, Fault);

/// The trace in the file at `path`, named like the file without its extensions; of a snapshot of
/// several devices, that of `device`.
pub(crate) fn read(path: &Path, device: Option<usize>) -> anyhow::Result<Recording> {
    let file = path.display().to_string();
    let unreadable =
        || format!("{file}: cannot be opened, expected a trace (.csv, .pickle or .gz)");
    let mut source = BufReader::new(File::open(path).with_context(unreadable)?);
    let compressed = is_gzip(path, source.fill_buf().with_context(unreadable)?);
    let recording = if compressed {
        parse(MultiGzDecoder::new(source), &name(path), device)
    } else {
        parse(source, &name(path), device)
    };
    Ok(recording.map_err(|(place, fault)| TraceError { file, place, fault })?)
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
    let mut stems = EXTENSIONS.iter().filter_map(|end| stem.strip_suffix(end));
    stems.next().unwrap_or(stem).to_owned()
}

/// Whatever format the source begins like.
fn parse(source: impl Read, name: &str, device: Option<usize>) -> Result<Recording, AtPlace> {
    let mut source = BufReader::new(source);
    let start = source.fill_buf();
    let start = start.map_err(|error| (Place::Line(1), lines::broken(&error)))?;
    if start.starts_with(&[torch::MAGIC]) {
        return torch::parse(source, name, device);
    }
    let mut lines = Lines::new(source);
    let line = lines.advance()?.unwrap_or(1);
    match () {
        () if lines.are(native::HEADER) => native::parse(lines, name),
        () if lines.are(rmm::HEADER) => rmm::parse(lines, name),
        () => Err((Place::Line(line), unknown(lines.shown()))),
    }
}

fn unknown(found: String) -> Fault {
    let (native, rmm) = (native::HEADER, rmm::HEADER);
    let expected = format!("`{native}`, RMM's `{rmm}` or a pickle of PyTorch");
    Fault::Header { found, expected }
}

#[cfg(test)]
mod tests;
