//! The ordering checker: it finds uses of memory that nothing orders.
//!
//! It sees every item at its submission, every grant and free, and everything that the host queries and learns. So it
//! finds not only the uses that went wrong in this run, but all that could go wrong. It knows only the uses that
//! operations declare ([`Operation::reads`](super::Operation::reads), [`writes`](super::Operation::writes)). The
//! guide's page on [testing](https://docs.rs/weirpool/latest/weirpool/guide/testing/) explains its use.
//!
//! | file | contents |
//! |---|---|
//! | `clock`, `known`, `order` | the order between points |
//! | `shadow` | the accesses to each byte, and the block that owns it |
//! | `judge`, `scene` | the rules for blocks, and for one access among others |
//! | `judge/graphs` | the rules for blocks that were allocated in a capture |
//! | `findings`, `report`, `violation` | the reports |
//!
//! The checker knows neither time nor how a pool decides.

mod clock;
mod findings;
mod judge;
mod known;
mod order;
mod report;
mod scene;
mod shadow;
mod violation;

pub(super) use clock::Stamp;
pub(super) use judge::{GraphId, Judge};
pub use violation::{Allocation, Strangers, Usage, Violation, ViolationKind};
