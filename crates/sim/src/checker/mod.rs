//! The ordering checker: a referee over what streams are given to do with memory.
//!
//! It sees every item at its submission, every grant and free, and what the host asks and learns, and
//! finds uses of memory that nothing orders: not those that happened to go wrong, but those that
//! could. It hears of uses only where operations declare them
//! ([`Operation::reads`](super::Operation::reads), [`writes`](super::Operation::writes)). The guide's
//! page on [testing](https://docs.rs/weirpool/latest/weirpool/guide/testing/) is for its users.
//!
//! | file | about |
//! |---|---|
//! | `clock`, `order` | what comes before what |
//! | `ground` | what was done to which bytes, and whose they are |
//! | `judge`, `scene` | the rules: of blocks, and of one access beside others |
//! | `findings`, `report`, `violation` | what is reported |
//! | `referee` | how it hears of a pool's blocks, and how it is heard |
//!
//! Knows nothing of time, and nothing of how a pool decides.

mod clock;
mod findings;
mod ground;
mod judge;
mod observer;
mod order;
mod report;
mod scene;
mod violation;

pub(super) use judge::Judge;
pub use violation::{Allocation, Usage, Violation, ViolationKind};

/// What becomes of a use of memory that the ordering checker finds wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Checker {
    /// It panics in the call that made it: an allocation, an explicit deallocation, a submission. What
    /// is found elsewhere (in a drop, which must not panic; or when a wait for a flag ends) panics in
    /// the next such call, when time is moved, or in
    /// [`assert_ordered`](super::SimDevice::assert_ordered).
    Panic,
    /// It is kept, for [`violations`](super::SimDevice::violations) and
    /// [`assert_ordered`](super::SimDevice::assert_ordered).
    Collect,
    /// Nothing is looked for, and nothing is paid.
    Off,
}
