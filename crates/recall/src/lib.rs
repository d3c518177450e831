//! Recalls: a source takes capacity back from a pool of weirpool, and the pool takes evictable memory back from its users. This
//! crate knows no waiting request, and calls no device.
//!
//! | file | contents |
//! |---|---|
//! | `capacity_source` | the trait for a source that lends capacity to a pool |
//! | `lease` | the part of the capacity that it lends |
//! | `evictables` | memory that the pool may take back from its users, and which of it goes first |
//! | `chunks` | the chunks that it lies in, by the age of their youngest block |
#![deny(unsafe_code)]
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the documentation is read beside the source"
)]

mod capacity_source;
mod chunks;
mod evictables;
mod lease;

pub use capacity_source::{ApplyBounds, BoundedPool, Bounds, CapacitySource, Holding, Joining};
pub use chunks::ListPosition;
pub use evictables::{Candidate, Evict, Evictables, Group, Home};
pub use lease::{Lease, Lender};
