//! Pools without pooling, of several upstreams, and what a pool is built with. On the simulated device, in detail; the behaviours that every device must show are
//! in `conformance`.
//!
//! | file | about |
//! |---|---|
//! | `unpooled` | without pooling |
//! | `upstreams`, `host` | where memory comes from, and the host as a stream of memory that it shares |
//! | `settings` | what a pool is built with |

mod host;
mod settings;
mod unpooled;
mod upstreams;

use crate::common::{Count, MIB, eventually, manual, now, poll_with, run, stream, us, use_block};
use weirpool::device::sim::SimDevice;
use weirpool::{Pool, PoolBuilder};

fn small(device: &SimDevice) -> PoolBuilder {
    crate::common::builder(device, 8 * MIB)
}
