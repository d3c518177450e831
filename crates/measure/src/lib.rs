//! Kinds of figures of `weirpool`. The pool decides what they count. No stable API.
//!
//! | file | contents |
//! |---|---|
//! | `histogram` | distributions of times |
//! | `waits` | how requests waited |
//! | `source` | where a grant came from |
#![deny(unsafe_code)]

mod histogram;
mod source;
mod waits;

pub use histogram::{Bucket, Histogram, Recorder};
pub use source::Source;
pub use waits::{WaitOutcome, WaitStatistics, Waits};
