//! The queue of weirpool: which waiting request is next, which one may join, and which one loses its place.
//!
//! It decides and executes nothing. It knows no lock, waker, device or clock: a request is a [position](Position), times are
//! arguments, and what should happen is returned. The pool keeps a [`Queue`] under a lock, beside its waiters, and executes
//! its answers.
//!
//! | file | contents |
//! |---|---|
//! | `queue` | all requests that wait |
//! | `entry` | what the queue knows of one of them |
//! | `queued`, `fair_queue` | the requests that wait for memory; their order |
//! | `quota_queue` | the requests that wait for the limit of a tag |
//! | `admission`, `shares`, `amount` | whether a request may join, which ones it displaces, and how long it would wait |
//! | `queue_limit`, `full_queue` | how many may wait; the queue as a refused request sees it |
//! | `listing` | the expected waits of all requests |
//! | `scan`, `standstill` | the search for every request when nothing moves; deadlocks |
//! | `terms` | terms and rules of waiting |
//! | `tag` | names of tenants |
//! | `visits` | the work of the queue, counted for tests |

#![forbid(unsafe_code)]
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the documentation is read beside the source"
)]

mod admission;
mod amount;
mod entry;
mod fair_queue;
mod full_queue;
mod listing;
mod queue;
mod queue_limit;
mod queued;
mod quota_queue;
mod scan;
mod shares;
mod standstill;
mod tag;
mod terms;
#[cfg(debug_assertions)]
#[doc(hidden)]
pub mod visits;

pub use entry::Entry;
pub use fair_queue::{Flow, Position, SortKey};
pub use full_queue::FullQueue;
pub use queue::{Admitted, Left, Listed, Moved, Newcomer, Queue, Refused};
pub use queue_limit::QueueLimit;
pub use scan::Pieces;
pub use standstill::{Standstill, TagStandstill, Verdict};
pub use tag::Tag;
pub use terms::{DUE_AFTER, Overtaking, PRIORITY_STEP, Rules, Terms, due, longest_wait};
