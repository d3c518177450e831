//! Requests: the order in which they are served, waiting, limits, reservations, services.
//!
//! | module | about |
//! |---|---|
//! | `cancellation` | every future, ended in every way |
//! | `charges` | charges that are awaited |
//! | `order` | deadlines, priorities, overtaking, deadlocks |
//! | `pool` | the pool's own policies |
//! | `printing` | what futures and handles print |
//! | `races` | races with device calls |
//! | `reservations` | memory set aside, and several blocks at once |
//! | `services` | waiting in services: blocking, draining, admission, stalled requests |
//! | `tenant_deadlocks` | time limits at the limit of a tag |
//! | `tenants` | tags as tenants |
//! | `waiting` | waiting for memory: wake-ups, and the tasks that drive the queue |
//! | `work` | the work of waiting, counted |

#[path = "../common/mod.rs"]
mod common;

mod cancellation;
mod charges;
mod order;
mod pool;
mod printing;
mod races;
mod reservations;
mod services;
mod tenant_deadlocks;
mod tenants;
mod waiting;
#[cfg(debug_assertions)]
mod work;
