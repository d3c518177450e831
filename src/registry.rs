//! The living pools of the process, and their names.
//!
//! Pools are held weakly: a pool ends when its last handle is dropped, and its name is free from that moment on. Its
//! entry is removed when another pool is built or looked up. Allocations and frees do not use this module.

use crate::device::DeviceId;
use crate::engine::{Engine, OtherPools, spill as between};
use crate::error::BuildError;
use crate::handles::Presence;
use crate::sync::plain::{Arc, Mutex, Weak};

pub(crate) const OTHER_POOLS: OtherPools = OtherPools {
    offers,
    spill,
    evict,
};

static POOLS: Mutex<Vec<LivingPool>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct LivingPool {
    name: Option<Arc<str>>,
    device: DeviceId,
    pool: Weak<Presence>,
}

impl LivingPool {
    /// Returns whether the pool lives. Does not upgrade the reference, since the pool could then end in this call.
    fn lives(&self) -> bool {
        self.pool.strong_count() > 0
    }
}

/// Adds a pool to the registry.
///
/// # Errors
/// Returns an error if another pool has its name.
pub(crate) fn enter(pool: &Arc<Presence>) -> Result<(), BuildError> {
    let mut pools = POOLS.lock();
    pools.retain(LivingPool::lives);
    if let Some(name) = &pool.name {
        refuse_taken(name, &pools)?;
    }
    pools.push(LivingPool {
        name: pool.name.clone(),
        device: pool.service.engine.shared.device.id(),
        pool: Arc::downgrade(pool),
    });
    Ok(())
}

/// # Errors
/// Returns an error if a living pool has the name, or if the name is not valid.
pub(crate) fn check_name(name: &str) -> Result<(), BuildError> {
    refuse_taken(name, &POOLS.lock())
}

fn refuse_taken(name: &str, pools: &[LivingPool]) -> Result<(), BuildError> {
    if name.is_empty() {
        return Err(BuildError::EmptyName);
    }
    let is_taken = |entry: &LivingPool| entry.name.as_deref() == Some(name) && entry.lives();
    if pools.iter().any(is_taken) {
        let name = name.to_owned();
        return Err(BuildError::NameTaken { name });
    }
    Ok(())
}

/// Returns all living pools, in the order in which they were built. Each is upgraded only when the iterator reaches it.
pub(crate) fn all() -> impl Iterator<Item = Arc<Presence>> {
    let mut pools = POOLS.lock();
    pools.retain(LivingPool::lives);
    let all: Vec<_> = pools.iter().map(|entry| entry.pool.clone()).collect();
    all.into_iter().filter_map(|pool| pool.upgrade())
}

/// Returns how many bytes other pools over the same memory as the engine's could release.
fn offers(engine: &Engine) -> u64 {
    let others = others_to_spill(engine);
    let offers = others
        .iter()
        .map(|pool| between::could_give(&pool.service.engine, true));
    offers.sum()
}

/// Has other pools over the same memory as the engine's release what the device lacks of `bytes`, and at least `least`
/// bytes, of their free memory; nothing, if that would not be enough. Returns how many bytes they released.
///
/// A pool in which requests wait for memory itself releases it only for a pool whose oldest request is older. So of all
/// pools of a device, the one with the oldest request gets all free memory that it needs, and none takes back memory
/// that it gave.
fn spill(engine: &Engine, bytes: u64, least: u64) -> u64 {
    let others = others_to_spill(engine);
    let others: Vec<&Engine> = others
        .iter()
        .map(|pool| -> &Engine { &pool.service.engine })
        .collect();
    let left = engine.supply.left_on_device();
    // Memory that is in sight comes first. Caches are flushed and streams are asked only if it is needed.
    for asks in [false, true] {
        let offers: Vec<_> = others
            .iter()
            .map(|other| between::could_give(other, asks))
            .collect();
        if left + offers.iter().sum::<u64>() < bytes {
            continue;
        }
        let lacking = bytes.saturating_sub(left).max(least);
        let released = take_offers(&others, &offers, lacking);
        if released > 0 {
            return released;
        }
    }
    0
}

/// Has other pools over the same memory as the engine's evict memory, if they could release this many more bytes then.
/// Which pools do follows the rule of [`spill`]. Returns how many bytes they evicted.
fn evict(engine: &Engine, bytes: u64) -> u64 {
    let others = others_to_spill(engine);
    let engines = others.iter().map(|pool| &pool.service.engine);
    let offers = engines
        .clone()
        .map(|engine| between::could_evict(&engine.shared, &engine.store));
    if offers.sum::<u64>() < bytes {
        return 0;
    }
    let mut evicted = 0;
    for engine in engines {
        evicted += between::evict_for_others(engine, bytes.saturating_sub(evicted));
    }
    evicted
}

/// Returns the pools that may release memory for the engine's pool.
fn others_to_spill(engine: &Engine) -> Vec<Arc<Presence>> {
    let device = engine.shared.device.id();
    let pools: Vec<_> = {
        let pools = POOLS.lock();
        let same_device = pools.iter().filter(|entry| entry.device == device);
        same_device.map(|entry| entry.pool.clone()).collect()
    };
    let pools: Vec<_> = pools.iter().filter_map(Weak::upgrade).collect();
    let engine_of = |pool: &'_ Presence| -> *const Engine { &pool.service.engine };
    let is_own = |pool: &Presence| std::ptr::eq(engine_of(pool), engine);
    // In the order in which they were built, which decides between requests that came at the same time.
    let age_of = |at: usize| Some((pools[at].service.queue.lock().queue.oldest()?, at));
    let own_age = pools.iter().position(|pool| is_own(pool)).and_then(age_of);
    let may_spill = |at: usize| match (own_age, age_of(at)) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(own), Some(other)) => own < other,
    };
    let others = pools.iter().enumerate().filter(|(at, pool)| {
        let engine = &pool.service.engine;
        !is_own(pool) && engine.shared.shares_memory_with(&engine.shared) && may_spill(*at)
    });
    others.map(|(_, pool)| pool.clone()).collect()
}

fn take_offers(others: &[&Engine], offers: &[u64], mut bytes: u64) -> u64 {
    let mut released = 0;
    for (other, offer) in others.iter().zip(offers) {
        let given = if bytes > 0 {
            between::give(other, bytes.min(*offer))
        } else {
            0
        };
        bytes = bytes.saturating_sub(given);
        released += given;
    }
    released
}
