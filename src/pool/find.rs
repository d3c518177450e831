//! Pools by name, and by what is theirs.

use super::Pool;
use crate::block::Block;
use crate::device::DeviceAddress;
use crate::driver::BlockInfo;
use crate::registry;

/// The pool of that [name](crate::PoolBuilder::name), if one lives. What it finds is a handle like any
/// other, and keeps the pool alive.
///
/// Names are the process's: as in Umpire, a second pool of the same name is refused, on whatever device.
/// One is free again once the last handle of its pool (pool, stream, block) is gone.
///
/// ```
/// use weirpool::{BuildError, Pool, device::sim::SimDevice, find_pool};
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

/// Every pool that lives, with a name or without, in the order in which they were built.
pub fn pools() -> Vec<Pool> {
    registry::all().map(Pool::of_presence).collect()
}

/// The pool, and the block of it, that a device address is in.
///
/// It is for people and their tools: every living pool is asked, and the one that has the address looks
/// through its blocks under its heap's lock, in time proportional to their number. Allocations and frees
/// pay nothing for it. A pool that is being asked is held for that long.
///
/// ```
/// use weirpool::{BlockState, Pool, device::sim::SimDevice, pool_of};
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

impl Pool {
    /// The block of this pool that a device address is in, used or not; see [`pool_of`].
    pub fn block_at(&self, address: impl Into<DeviceAddress>) -> Option<BlockInfo> {
        self.service().driver.block_at(address.into().to_bits())
    }

    /// Whether the block is of this pool.
    pub(crate) fn has(&self, block: &Block) -> bool {
        block.stream().is_of(&self.presence)
    }

    /// The pool's name, if it was given one.
    pub fn name(&self) -> Option<&str> {
        self.presence.name.as_deref()
    }
}

/// Two handles of one pool.
impl PartialEq for Pool {
    fn eq(&self, other: &Self) -> bool {
        crate::sync::plain::Arc::ptr_eq(&self.presence, &other.presence)
    }
}

impl Eq for Pool {}
