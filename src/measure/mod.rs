//! Kinds of figures. The layers above decide what they count.
//!
//! | file | contents |
//! |---|---|
//! | `histogram` | distributions of times |
//! | `waits` | how requests waited |
//! | `source` | where a grant came from |
//! | `account` | the bytes that each tenant holds of one pool |

mod account;
mod histogram;
mod source;
mod waits;

pub(crate) use account::{Account, Accounts, LimitReached};
pub use histogram::{Bucket, Histogram, Recorder};
pub use source::Source;
pub(crate) use waits::Waits;
pub use waits::{WaitOutcome, WaitStatistics};
pub use weirpool_heap::Level;
pub(crate) use weirpool_heap::debug_in_units;
pub(crate) use weirpool_heap::units::{Bytes, Counted, Milliseconds};
pub(crate) use weirpool_heap::{Highs, Mark, fragmentation};
pub use weirpool_queue::Tag;
