//! Pools over the memory pools of the simulated driver. What every driver must show is among the tests of the root,
//! `tests/conformance/driver_pools.rs`.
//!
//! | file | about |
//! |---|---|
//! | `calls` | the device calls that passing through takes |
//! | `pools` | what a pool takes from a pool of the driver, and when |
//! | `random` | random use of one pool of the driver by two pools |
//! | `short_path` | blocks that are passed through without a search |
//! | `spares` | the room that freed blocks leave to the next ones |

#[path = "../../../../tests/common/mod.rs"]
mod common;

mod calls;
mod pools;
mod random;
mod short_path;
mod spares;
