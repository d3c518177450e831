//! Waiting: the queue, the futures, the reclaimer.
//!
//! Who cannot be served joins the [queue](queue), in the order in which they are due. Raising the gate comes
//! first, then the look at memory: a free that reads an open gate has put its block where the look
//! finds it; one that reads a raised gate rings the notifier. *Serving* the queue is done by one thread
//! at a time; who finds it busy leaves a note and goes, so nobody waits for a lock while the device
//! is called.
//!
//! Serving is driven by the members of the [notifier]: the [reclaimer](reclaimer) that
//! was spawned on the runtime, and the waiters. They are woken by frees while somebody waits, but for those to a
//! reservation, by the device when a stream gets further that memory is pending for, and when growth or a release that held memory has ended; nobody
//! polls in between.
//!
//! | file | about |
//! |---|---|
//! | `queue` | who waits, and what each gets |
//! | `quota_queue` | who waits outside of it, for the limit of a tag |
//! | `fair_queue` | in which order |
//! | `charge` | what a tag may have |
//! | `terms` | on what terms, and by what rules |
//! | `service` | the driver with its queue, and when that is served |
//! | `serving` | granting the queue from the driver |
//! | `deadlock` | when nothing moves any more |
//! | `quota_deadlock` | when nothing of a tag does, at its limit |
//! | `idle` | whether streams have anything to do |
//! | `reclaimer` | who drives, as a future |
//! | `demand` | what is asked for, and for whom |
//! | `allocate` | the future of an allocation |
//! | `passage` | the future of a stream's point: events, synchronization, deallocation |
//! | `reserved` | what a reservation and its blocks hold in common |
//! | `registration` | what a stream's handle and its blocks hold in common |
//! | `natives` | streams by the backend's names and objects |
//! | `observers` | who is told of every block's life |
//! | `fills` | blocks that are filled at their beginning and their end |
//! | `spawn` | where a runtime may drive |
//! | `admission` | who may join the queue |
//! | `hook` | whom the pool asks to free something |
//! | `blocking` | the same on a thread, without an executor |
//! | `drain` | waiting until everything came back |
//! | `grower` | memory calls that block, off the runtime's workers |

mod admission;
mod allocate;
mod blocking;
mod charge;
mod deadlock;
mod demand;
mod drain;
mod fair_queue;
mod fills;
mod funnel;
mod grower;
mod hook;
mod link;
mod natives;
mod observers;
mod passage;
mod quota_queue;
mod reclaimer;
mod registration;
mod reserved;
mod scan;
mod scopes;
mod service;
mod serving;
mod spawn;
mod terms;
#[cfg(all(test, debug_assertions, not(weirpool_loom)))]
mod tests;
mod throttled;
mod waiter;
mod waiters;

pub use admission::QueueLimit;
pub(crate) use allocate::{
    Ask, Asker, Denial, Grant, Late, Made, Waiting, take_own, try_all_now, try_now,
};
#[cfg(feature = "cuda")]
pub(crate) use blocking::block_on;
pub(crate) use blocking::block_on_unless_in_task;
pub(crate) use charge::Charge;
pub(crate) use demand::{Demand, Wants};
pub use drain::Drain;
use fair_queue::Position;
pub(crate) use hook::Hook;
pub use hook::PressureHook;
pub(crate) use hook::hooks_entered;
pub(crate) use natives::Roll;
pub(crate) use observers::{Caller, Ending, Granted, Observers};
pub(crate) use passage::{Passage, Passages};
pub use reclaimer::Reclaimer;
pub(crate) use registration::{Presence, Registration};
pub(crate) use reserved::Reserved;
pub(crate) use service::Service;
pub use terms::Overtaking;
pub(crate) use terms::{Rules, Terms};
