//! What can be wrong with a trace, each said with what was expected instead.

/// What is wrong with a row of a trace, or with the whole of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("the header is `{found}`, expected `{expected}`")]
    Header {
        found: String,
        expected: &'static str,
    },
    #[error("{found} fields, expected the five of `{expected}`")]
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
}
