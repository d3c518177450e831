//! Random operations, under oracles.
//!
//! | module | about |
//! |---|---|
//! | `driver_pools` | one pool of the driver, used by two pools |
//! | `fuzz` | the sequences of operations that are fuzzed |
//! | `graphs` | captures and launches among allocations |
//! | `oracle` | what comes before what, from the calls of the device |
//! | `property` | against a naive model |
//! | `stress` | many tasks, with an order oracle and a progress oracle |

#[path = "../common/mod.rs"]
mod common;

mod driver_pools;
mod fuzz;
mod graphs;
mod oracle;
mod property;
mod stress;
