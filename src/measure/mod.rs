//! Kinds of figures. The layers above decide what they count.
//!
//! | file | contents |
//! |---|---|
//! | `level` | a figure with its high-water mark, and the marks since several moments |
//! | `histogram` | distributions of times |
//! | `waits` | how requests waited |
//! | `tag` | names of tenants |
//! | `account` | the bytes that each tenant holds of one pool |
//! | `units` | sizes and times as text |

mod account;
mod histogram;
mod level;
mod tag;
mod units;
mod waits;

pub(crate) use account::{Account, Accounts, LimitReached};
pub(crate) use histogram::Recorder;
pub use histogram::{Bucket, Histogram};
pub use level::Level;
pub(crate) use level::{Highs, Mark, fragmentation};
pub use tag::Tag;
pub(crate) use units::{Bytes, Counted, InUnits, Milliseconds, debug_in_units};
pub(crate) use waits::Waits;
pub use waits::{WaitOutcome, WaitStatistics};
