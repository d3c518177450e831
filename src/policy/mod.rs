//! Policies: pure functions that decide, and the settings that they follow. They know no device, lock or clock.
//!
//! | file | about |
//! |---|---|
//! | `search` | which allocation source is tried next |
//! | `remapping` | how much time may go into moving memory |
//! | `settings` | the settings of a pool that say where memory comes from and when it goes back; how long a stream may be made to wait |

mod remapping;
mod search;
mod settings;

pub(crate) use remapping::Budget;
pub use remapping::Remapping;
pub(crate) use search::{Action, Facts, Prepare, Rules, State, Try};
pub use settings::{Order, ReleaseThreshold, Reuse, Sealing, WaitLimit};
