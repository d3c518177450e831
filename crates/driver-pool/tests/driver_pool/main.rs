//! Pools over the memory pools of the simulated driver. What every driver must show is among the tests of the root,
//! `tests/conformance/driver_pools.rs`.
//!
//! | file | about |
//! |---|---|
//! | `pools` | what a pool takes from a pool of the driver, and when |

#[path = "../../../../tests/common/mod.rs"]
mod common;

mod pools;
