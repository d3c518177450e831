//! Pools by their names, and by the addresses of their memory.

use crate::device::DeviceAddress;
use crate::engine::BlockInfo;
use crate::pool::Pool;
use crate::registry;

/// Returns the pool of that [name](crate::PoolBuilder::name), if one lives. The handle keeps the pool alive, as any
/// other does.
///
/// Names belong to the process. As in Umpire, a second pool of the same name is refused, on whatever device. A name
/// is free again once the last handle of its pool (pool, stream, block) is gone.
///
/// ```
/// use weirpool::{BuildError, Pool, compat::find_pool, device::sim::SimDevice};
///
/// let device = SimDevice::new();
/// let weights = Pool::builder(device.clone()).name("weights").build()?;
/// let refused = Pool::builder(device.clone()).name("weights").build();
/// assert!(matches!(refused, Err(BuildError::NameTaken { .. })));
/// assert_eq!(find_pool("weights").as_ref(), Some(&weights));
/// drop(weights);
/// assert_eq!(find_pool("weights"), None);
/// # Ok::<(), BuildError>(())
/// ```
pub fn find_pool(name: &str) -> Option<Pool> {
    registry::find(name).map(Pool::of_presence)
}

/// Returns every living pool, with a name or without, in the order in which they were built.
pub fn pools() -> Vec<Pool> {
    registry::all().map(Pool::of_presence).collect()
}

/// Returns the pool, and the block of it, that a device address lies in.
///
/// This is for people and their tools: it asks every living pool, and the owner looks through its blocks under its
/// heap's lock, in time proportional to their number. It costs allocations and frees nothing. A pool is held
/// while it is asked.
///
/// ```
/// use weirpool::{BlockState, Pool, compat::pool_of, device::sim::SimDevice};
///
/// let device = SimDevice::new();
/// let pool = Pool::builder(device.clone()).name("kv cache").build()?;
/// let stream = pool.register(&device.create_stream())?;
/// let block = pool.try_allocate(&stream, 4096)?;
/// let (owner, found) = pool_of(block.address() + 100).expect("it is in the block");
/// assert_eq!(owner.name(), Some("kv cache"));
/// assert_eq!((found.address, found.size), (block.address(), 4096));
/// assert_eq!((found.state, found.stream), (BlockState::Used, Some(stream.id())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn pool_of(address: impl Into<DeviceAddress>) -> Option<(Pool, BlockInfo)> {
    let address = address.into();
    let mut pools = registry::all().map(Pool::of_presence);
    pools.find_map(|pool| {
        let block = pool.block_at(address)?;
        Some((pool, block))
    })
}
