//! The ordering checker: it finds uses of memory that nothing orders.
//!
//! It sees every item at its submission, every grant and free, and what the host queries and learns. It finds not
//! only the uses that went wrong in this run, but all that could. It knows of uses only where operations declare them
//! ([`Operation::reads`](super::Operation::reads), [`writes`](super::Operation::writes)). The guide's
//! page on [testing](https://docs.rs/weirpool/latest/weirpool/guide/testing/) is for its users.
//!
//! | file | about |
//! |---|---|
//! | `clock`, `known`, `order` | what comes before what |
//! | `shadow` | what was done to which bytes, and which block has them |
//! | `judge`, `scene` | the rules: of blocks, and of one access beside others |
//! | `findings`, `report`, `violation` | what is reported |
//!
//! Knows nothing of time, and nothing of how a pool decides.

mod clock;
mod findings;
mod judge;
mod known;
mod order;
mod report;
mod scene;
mod shadow;
mod violation;

pub(super) use judge::Judge;
pub use violation::{Allocation, Usage, Violation, ViolationKind};
