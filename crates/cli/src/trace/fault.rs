//! The faults that a trace can have, each with its location and the expected contents.

use super::limits;
use crate::units;
use std::fmt;

/// A location in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// The whole file.
    File,
    /// A line, counted from 1.
    Line(u64),
    /// A byte, counted from 0.
    Byte(u64),
    /// An event of a snapshot, both counted from 0, as Python indexes them.
    Event { device: usize, index: usize },
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => formatter.write_str("the file"),
            Self::Line(line) => write!(formatter, "line {line}"),
            Self::Byte(byte) => write!(formatter, "byte {byte}"),
            Self::Event { device, index } => write!(formatter, "device_traces[{device}][{index}]"),
        }
    }
}

/// A fault of a row of a trace, or of the whole trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("the header is `{found}`, expected {expected}")]
    Header { found: String, expected: String },
    #[error("{found} fields, expected the {} of `{expected}`", expected.split(',').count())]
    Fields {
        found: usize,
        expected: &'static str,
    },
    #[error("{field} is `{text}`, expected a whole number from {least} to {most}")]
    Number {
        field: &'static str,
        text: String,
        least: u64,
        most: u64,
    },
    #[error("{field} is `{text}`, expected {expected}")]
    Field {
        field: &'static str,
        text: String,
        expected: &'static str,
    },
    #[error("unknown op `{text}`, expected `a` (allocate) or `f` (free)")]
    UnknownOp { text: String },
    #[error("allocation {id} is freed but unknown, expected an id that an earlier line allocates")]
    UnknownId { id: u64 },
    #[error("double free of allocation {id}, expected one free only, the one in line {first}")]
    DoubleFree { id: u64, first: u64 },
    #[error("id {id} is allocated again, expected a new id: line {first} has used this one")]
    DuplicateAllocation { id: u64, first: u64 },
    #[error(
        "allocation {id} is freed with {freed} bytes, expected the {allocated} of line {first} or 0"
    )]
    SizeChanged {
        id: u64,
        allocated: u64,
        freed: u64,
        first: u64,
    },
    #[error("{address:#x} is allocated again, expected a free of it since {first}")]
    LiveAddress { address: u64, first: Location },
    #[error("{address:#x} is freed with {freed} bytes, expected the {allocated} of {first}")]
    AddressSizeChanged {
        address: u64,
        allocated: u64,
        freed: u64,
        first: Location,
    },
    #[error("time goes back to {time_us} us, expected {last_us} us or later")]
    TimeWentBack { time_us: u64, last_us: u64 },
    #[error("the time is nine years after the first event or later, expected a shorter recording")]
    TooLate,
    #[error("no operation follows, expected at least one")]
    Empty,
    #[error("no request follows, expected at least one")]
    NoRequest,
    #[error("more than {} {what}, expected a trace within that limit", units::count(*most))]
    TooMany { what: &'static str, most: u64 },
    #[error(
        "the line is longer than {} bytes, expected a shorter one",
        limits::LINE_BYTES
    )]
    LineTooLong,
    #[error("truncated gzip: the compressed data ends too early, expected a whole file")]
    Truncated,
    #[error("bytes follow the end of the gzip data, expected nothing behind it")]
    TrailingBytes,
    #[error("the line cannot be read ({reason}), expected text")]
    Unreadable { reason: String },
    #[error("the gzip data is damaged ({reason}), expected a whole file")]
    Damaged { reason: String },
    #[error("the pickle is damaged ({reason}), expected a whole one, of protocol 2 to 5")]
    Pickle { reason: String },
    #[error(
        "the pickle is no snapshot of PyTorch ({reason}), \
         expected a file that `torch.cuda.memory._dump_snapshot` wrote"
    )]
    Snapshot { reason: String },
    #[error("{key} is {found}, expected {expected}")]
    Value {
        key: &'static str,
        found: String,
        expected: &'static str,
    },
    #[error(
        "the snapshot has no allocation in `device_traces`, expected a recording: \
         call `torch.cuda.memory._record_memory_history()` before the workload runs"
    )]
    NoRecording,
    #[error("nothing is allocated on device {device}, expected one of the devices {recorded}")]
    OtherDevice { device: usize, recorded: String },
    #[error("a text file has no devices, expected a snapshot of PyTorch with --trace-device")]
    NoDevices,
}
