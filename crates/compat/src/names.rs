//! Pools by their names, and by the addresses of their memory.

use weirpool::device::DeviceAddress;
use weirpool::{BlockInfo, Pool};

/// Returns the pool of that [name](weirpool::PoolBuilder::name), if one lives. The handle keeps the pool alive, as any
/// other does. This asks the living pools in turn; a pool is held while it is asked.
///
/// Names belong to the process. As in Umpire, a second pool of the same name is refused, on whatever device. A name
/// is free again once the last handle of its pool (pool, stream, block) is gone.
///
/// ```
/// use weirpool::{BuildError, Pool, device::sim::SimDevice};
/// use weirpool_compat::find_pool;
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
    Pool::all().find(|pool| pool.name() == Some(name))
}

/// Returns the pool, and the block of it, that a device address lies in.
///
/// This is for people and their tools: it asks every living pool, and the owner looks through its blocks under its
/// heap's lock, in time proportional to their number. It costs allocations and frees nothing. A pool is held
/// while it is asked.
///
/// ```
/// use weirpool::{BlockState, Pool, device::sim::SimDevice};
/// use weirpool_compat::pool_of;
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
    Pool::all().find_map(|pool| {
        let block = pool.inspect().block_at(address)?;
        Some((pool, block))
    })
}
