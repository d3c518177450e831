//! The seams of the pool: what a crate beside this one implements, and what it may ask for, to add a feature without
//! reading the inside of the pool.
//!
//! | file | seam |
//! |---|---|
//! | `foreign_memory` | memory that others own, as blocks: [`ForeignMemory`], [`Stream::adopt`](crate::Stream::adopt) |
//! | `charge` | bytes that others hold, counted against the capacity: [`Pool::charge`](crate::Pool::charge) |

mod charge;
mod foreign_memory;

pub use crate::queue::Passages;
pub use charge::Charge;
pub use foreign_memory::ForeignMemory;
