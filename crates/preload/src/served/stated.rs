//! What the program states of the driver's pools before there is a pool for their device.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weirpool::Pool;
use weirpool::device::PoolAttribute;

/// The attributes that the program has set, by device and number.
static ATTRIBUTES: Mutex<BTreeMap<(c_int, c_int), u64>> = Mutex::new(BTreeMap::new());
/// Whether a device has access to the driver's pools of another one: owner and peer.
static ACCESS: Mutex<BTreeMap<(c_int, c_int), bool>> = Mutex::new(BTreeMap::new());

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`: the attributes behind it are figures.
const RELEASE_THRESHOLD: c_int = 4;

fn locked<T>(stated: &'static Mutex<T>) -> MutexGuard<'static, T> {
    stated.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns an attribute, and whether it is a number of 32 bits.
pub(super) fn attribute(number: c_int) -> Option<(PoolAttribute, bool)> {
    Some(match number {
        1 => (PoolAttribute::ReuseFollowEventDependencies, true),
        2 => (PoolAttribute::ReuseAllowOpportunistic, true),
        3 => (PoolAttribute::ReuseAllowInternalDependencies, true),
        4 => (PoolAttribute::ReleaseThreshold, false),
        5 => (PoolAttribute::ReservedMemCurrent, false),
        6 => (PoolAttribute::ReservedMemHigh, false),
        7 => (PoolAttribute::UsedMemCurrent, false),
        8 => (PoolAttribute::UsedMemHigh, false),
        _ => return None,
    })
}

/// Keeps the value of an attribute for the pools that are made later.
pub(super) fn set_attribute(device: c_int, number: c_int, value: u64) {
    if number <= RELEASE_THRESHOLD {
        locked(&ATTRIBUTES).insert((device, number), value);
    }
}

/// Sets the attributes of a device's new pool.
pub(super) fn set_up(pool: &Pool, device: c_int) {
    for ((_, number), value) in locked(&ATTRIBUTES).range((device, 0)..=(device, c_int::MAX)) {
        if let Some((attribute, _)) = attribute(*number) {
            let _ = pool.maintain().set_attribute(attribute, *value);
        }
    }
}

/// Keeps whether a peer has access to the memory of an owner.
pub(super) fn set_access(owner: c_int, peer: c_int, is_given: bool) {
    locked(&ACCESS).insert((owner, peer), is_given);
}

/// Returns the stated access that a device has or gives: owner, peer, and whether it is given.
pub(super) fn access_of(device: c_int) -> Vec<(c_int, c_int, bool)> {
    let stated = locked(&ACCESS);
    let all = stated.iter().map(|(of, is_given)| (of.0, of.1, *is_given));
    all.filter(|(owner, peer, _)| [*owner, *peer].contains(&device))
        .collect()
}
