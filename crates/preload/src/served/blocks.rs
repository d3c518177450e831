//! The memory that the program holds, by its addresses.

use super::context::Context;
use rustc_hash::FxHashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weirpool::Block;
use weirpool::extend::Charge;

/// A power of two; more threads rarely allocate at once.
const SHARDS: usize = 64;

/// An allocation of the program.
pub(super) struct Held {
    pub(super) context: &'static Context,
    pub(super) memory: Memory,
}

pub(super) enum Memory {
    /// A block of the pool.
    Block(Block),
    /// Memory of the driver that is charged to the pool.
    Charged { _charge: Charge, bytes: u64 },
}

type Shard = Mutex<FxHashMap<u64, Held>>;

struct Shards([Shard; SHARDS]);

static HELD: std::sync::LazyLock<Shards> =
    std::sync::LazyLock::new(|| Shards(std::array::from_fn(|_| Mutex::default())));

impl Held {
    fn bytes(&self) -> u64 {
        match &self.memory {
            Memory::Block(block) => block.requested(),
            Memory::Charged { bytes, .. } => *bytes,
        }
    }
}

fn lock(shard: &Shard) -> MutexGuard<'_, FxHashMap<u64, Held>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn shard(address: u64) -> MutexGuard<'static, FxHashMap<u64, Held>> {
    // Blocks begin at multiples of 512, and large ones at multiples of much more.
    let mixed = (address >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    lock(&HELD.0[(mixed >> 58) as usize % SHARDS])
}

/// Adds an allocation at its address.
#[inline]
pub(super) fn put(address: u64, held: Held) {
    shard(address).insert(address, held);
}

/// Takes out the allocation that begins at an address.
#[inline]
pub(super) fn take(address: u64) -> Option<Held> {
    shard(address).remove(&address)
}

/// An allocation that an address lies in.
pub(super) struct Range {
    pub(super) context: &'static Context,
    pub(super) start: u64,
    pub(super) bytes: u64,
    /// Whether it is a block of the pool.
    pub(super) is_block: bool,
    /// Whether it is a block in the order of a stream.
    pub(super) is_ordered: bool,
}

/// Returns the allocation that an address lies in. Unless it begins there, looks through all of them.
pub(super) fn find(address: u64) -> Option<Range> {
    let range = |(start, held): (&u64, &Held)| Range {
        context: held.context,
        start: *start,
        bytes: held.bytes(),
        is_block: matches!(held.memory, Memory::Block(_)),
        is_ordered: matches!(&held.memory, Memory::Block(block) if !held.context.is_synchronous(block)),
    };
    if let Some(found) = shard(address).get_key_value(&address).map(range) {
        return Some(found);
    }
    HELD.0.iter().find_map(|shard| {
        let shard = lock(shard);
        let mut all = shard.iter();
        let inside =
            |(start, held): &(&u64, &Held)| (**start..**start + held.bytes()).contains(&address);
        all.find(inside).map(range)
    })
}

/// Takes out all allocations of a context.
pub(super) fn take_all(context: &'static Context) -> Vec<Held> {
    let mut taken = Vec::new();
    for shard in &HELD.0 {
        let of_it = |_: &u64, held: &mut Held| std::ptr::eq(held.context, context);
        taken.extend(lock(shard).extract_if(of_it).map(|(_, held)| held));
    }
    taken
}
