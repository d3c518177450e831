//! The names and the ways of other libraries, on the simulated device, in detail; the behaviours that every device must
//! show are in `tests/conformance` of the pool.
//!
//! | module | about |
//! |---|---|
//! | `names`, `addresses` | by what a pool is found |
//! | `current`, `scopes` | the pool that is there by default, and the one that is current where |
//! | `origins` | the examples of other libraries' pages |
//! | `raw` | addresses and handles |

#[path = "../../../../tests/common/mod.rs"]
mod common;

mod addresses;
mod current;
mod names;
mod origins;
mod raw;
mod scopes;

use common::{MIB, eventually, manual, now, poll, run, stream, streams, us, use_block};
use static_assertions::{assert_impl_all, assert_not_impl_any};
use weirpool::device::sim::SimDevice;
use weirpool::{Pool, PoolBuilder, Sealing};
use weirpool_compat::{AttributeError, Current, Entered, RawError, RawPool, Scope, Scoped};

assert_impl_all!(Current: Send, Sync, Clone);
assert_impl_all!(Scope: Send, Sync, Clone);
assert_impl_all!(Scoped<std::future::Ready<()>>: Send, Sync, Unpin);
assert_impl_all!(RawPool: Send, Sync);
assert_impl_all!(RawError: Send, Sync, std::error::Error);
assert_impl_all!(AttributeError: Send, Sync, std::error::Error);
// A scope that was entered on one thread is not left on another.
assert_not_impl_any!(Entered: Send, Sync);

fn small(device: &SimDevice) -> PoolBuilder {
    common::builder(device, 8 * MIB)
}

/// Blocks are complete as soon as their stream has passed the free.
fn exact(device: &SimDevice) -> PoolBuilder {
    small(device).sealing(Sealing::EveryFree)
}

#[cfg(feature = "serde")]
#[test]
fn attributes_are_written_by_their_names() {
    let written = serde_json::to_value(weirpool_compat::Attribute::UsedMemHigh).unwrap();
    assert_eq!(written, "used_mem_high");
    let read: weirpool_compat::Attribute = serde_json::from_value(written).unwrap();
    assert_eq!(read, weirpool_compat::Attribute::UsedMemHigh);
}
