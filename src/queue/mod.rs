//! Waiting: the queue, the futures, and the reclaimer.
//!
//! A request that cannot be served joins the [queue](waiters). It closes the *gate* first, a word that every allocation
//! and free reads, and then searches for memory. A free that reads an open gate has put its block where that search
//! finds it; a free that reads a closed gate [publishes](funnel) it. One thread at a time *serves* the queue. A thread
//! that finds it busy leaves a note and goes on, so no thread waits for a lock while the device is called.
//!
//! The waiting requests and the [reclaimer] drive the serving: they serve when they are polled. The [funnel],
//! through which every change goes that makes memory reachable, notifies them, so no task polls in between.
//!
//! | file | contents |
//! |---|---|
//! | `service` | the engine with its queue |
//! | `serving` | the one thread that serves at a time; memory calls that block, away from the runtime's workers |
//! | `funnel` | notifies requests and reclaimers of changes |
//! | `pass` | one pass over the queue: grants what the engine finds |
//! | `deadlock`, `throttled` | what happens when nothing changes any more; for requests that wait for the limit of a tag |
//! | `waiters` | all requests that wait: executes what `weirpool-queue` decides |
//! | `waiter` | one of them, its grant, and whether its owner is told that nothing can serve it |
//! | `unclaimed` | memory found for it, and not yet granted |
//! | `scopes` | the requests made in scopes of reservations |
//! | `charge` | bytes charged to a tag for a request under way |
//! | `demand` | size, alignment and account of a request |
//! | `attempt`, `waiting` | a request without waiting; its position in the queue |
//! | `reclaimer`, `spawned` | the future that serves the queue; the pool's side of one that was spawned |
//! | `blocking`, `runtime` | waiting on a thread, without an executor; what tokio knows of the thread |
//! | `drain`, `drains` | waiting until all memory is back |
//! | `passage` | waiting for a point of a stream: events, synchronization, deallocation |
//! | `tenancy` | applies what a source of capacity grants and recalls |
//! | `wakers` | what timer and device call |

mod attempt;
mod blocking;
mod charge;
mod deadlock;
mod demand;
mod drain;
mod drains;
mod funnel;
mod pass;
mod passage;
mod reclaimer;
mod runtime;
mod scopes;
mod service;
pub(crate) mod serving;
mod spawned;
mod tenancy;
mod throttled;
mod unclaimed;
mod waiter;
mod waiters;
mod waiting;
mod wakers;

pub(crate) use attempt::{Ask, Asker, Denied, error_of, try_now};
pub(crate) use blocking::{block_on_unless_in_task, is_far_from_tasks, may_block};
pub(crate) use charge::TagCharge;
pub(crate) use demand::Demand;
pub use drain::Drain;
pub(crate) use passage::Passage;
pub use passage::Passages;
pub use reclaimer::Reclaimer;
pub(crate) use service::Service;
pub(crate) use tenancy::Tenant;
pub(crate) use waiting::{Made, Waiting};
pub(crate) use wakers::start;
pub use weirpool_measure::WaitingRequest;
pub(crate) use weirpool_queue::Rules;
pub use weirpool_queue::{Overtaking, QueueLimit, Terms};
