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
//! | `observer` | how it hears of a pool's blocks, and how it reports |
//!
//! Knows nothing of time, and nothing of how a pool decides.

mod clock;
mod findings;
mod judge;
mod known;
mod observer;
mod order;
mod report;
mod scene;
mod shadow;
mod violation;

pub(super) use judge::Judge;
pub use violation::{Allocation, Usage, Violation, ViolationKind};

/// What happens when the ordering checker finds a use of memory that nothing orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Checker {
    /// The call that made the violation panics: an allocation, an explicit deallocation, a submission. A violation
    /// that is found elsewhere (in a drop, which must not panic; or when a wait for a flag ends) panics in the next
    /// such call, when time is moved, or in [`assert_ordered`](super::SimDevice::assert_ordered). The last one also
    /// panics if a runtime caught an earlier panic, and so does [`block_on`](super::SimDevice::block_on).
    Panic,
    /// Violations are kept for [`violations`](super::SimDevice::violations) and
    /// [`assert_ordered`](super::SimDevice::assert_ordered).
    Collect,
    /// Nothing is checked, which costs nothing.
    Off,
}
