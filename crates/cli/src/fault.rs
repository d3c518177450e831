//! What can be wrong with a trace, each said with what was expected instead, and where it can be.

use std::fmt;

/// Where in a file something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In all of it.
    File,
    /// In a line, counted from 1.
    Line(u64),
    /// In an event of a snapshot, both counted from 0, as Python indexes them.
    Event { device: usize, index: usize },
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => formatter.write_str("the file"),
            Self::Line(line) => write!(formatter, "line {line}"),
            Self::Event { device, index } => write!(formatter, "device_traces[{device}][{index}]"),
        }
    }
}

/// What is wrong with a row of a trace, or with the whole of it.
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
    LiveAddress { address: u64, first: Place },
    #[error("{address:#x} is freed with {freed} bytes, expected the {allocated} of {first}")]
    AddressSizeChanged {
        address: u64,
        allocated: u64,
        freed: u64,
        first: Place,
    },
    #[error("time goes back to {time_us} us, expected {last_us} us or later")]
    TimeWentBack { time_us: u64, last_us: u64 },
    #[error("no operation follows, expected at least one")]
    Empty,
    #[error("truncated gzip: the compressed data ends too early, expected a whole file")]
    Truncated,
    #[error("the line cannot be read ({reason}), expected text")]
    Unreadable { reason: String },
    #[error("the gzip data is damaged ({reason}), expected a whole file")]
    Damaged { reason: String },
    #[error("the pickle is damaged ({reason}), expected a whole one, of protocol 2 to 5")]
    Pickle { reason: String },
    #[error(
        "the pickle is no snapshot of PyTorch ({reason}), \
         expected what `torch.cuda.memory._dump_snapshot` writes"
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
         call `torch.cuda.memory._record_memory_history()` before what is to be replayed"
    )]
    NoRecording,
    #[error("nothing is allocated on device {device}, expected one of the devices {recorded}")]
    OtherDevice { device: usize, recorded: String },
}
