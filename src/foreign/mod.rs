//! Memory that others own as blocks, and bytes that others hold. They are public in [`extend`](crate::extend).

mod charge;
mod foreign_memory;
mod residency;

pub use charge::Charge;
pub use foreign_memory::ForeignMemory;
pub(crate) use residency::expect_awaitable;
pub use residency::{Absence, Leave, Residency, Resident};
