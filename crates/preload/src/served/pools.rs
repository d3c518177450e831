//! The driver's memory pools that the program names. Those of a device's own memory that export nothing are all the one pool
//! of the device here: the default one, and those that the program creates.

use super::answer::Answer;
use super::contexts;
use super::counts::Passed;
use super::driver;
use super::stated::{self, attribute};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use weirpool::Pool;

/// The beginning of `CUmemPoolProps`, in all versions of CUDA.
#[repr(C)]
pub(super) struct Properties {
    kind: c_uint,
    handle_types: c_uint,
    location_kind: c_uint,
    location: c_int,
    security: *const c_void,
    most: usize,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`
const DEVICE: c_uint = 1;

/// The device of each pool that is served, and `None` for pools that are not.
static KNOWN: RwLock<Option<FxHashMap<usize, Option<c_int>>>> = RwLock::new(None);
/// Devices whose current pool is not served, with that pool.
static FOREIGN: RwLock<BTreeMap<c_int, usize>> = RwLock::new(BTreeMap::new());
static HAS_FOREIGN: AtomicBool = AtomicBool::new(false);

/// Returns the device whose pool serves allocations from a pool of the driver's.
pub(super) fn device_of(pool: usize) -> Option<c_int> {
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = known.as_ref().and_then(|known| known.get(&pool)) {
        return *device;
    }
    drop(known);
    let mut devices = 0..driver::devices();
    let device = devices.find(|device| driver::default_pool(*device) == Some(pool));
    note(pool, device);
    device
}

fn note(pool: usize, device: Option<c_int>) {
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    known.get_or_insert_default().insert(pool, device);
}

pub(super) fn created(pool: usize, properties: &Properties) {
    let is_plain =
        properties.location_kind == DEVICE && properties.handle_types == 0 && properties.most == 0;
    note(pool, is_plain.then_some(properties.location));
}

pub(super) fn destroyed(pool: usize) {
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    known.get_or_insert_default().remove(&pool);
    drop(known);
    // The default pool is the device's current one again.
    change_foreign(|foreign| foreign.retain(|_, current| *current != pool));
}

fn change_foreign(change: impl FnOnce(&mut BTreeMap<c_int, usize>)) {
    let mut foreign = FOREIGN.write().unwrap_or_else(PoisonError::into_inner);
    change(&mut foreign);
    HAS_FOREIGN.store(!foreign.is_empty(), Ordering::Release);
}

/// Notes which pool serves a device's `cuMemAllocAsync`.
pub(super) fn made_current(device: c_int, pool: usize) {
    let is_served = device_of(pool).is_some();
    change_foreign(|foreign| {
        _ = match is_served {
            true => foreign.remove(&device),
            false => foreign.insert(device, pool),
        };
    });
}

/// Returns whether the current pool of a device is one that is not served.
#[inline]
pub(super) fn is_foreign(device: c_int) -> bool {
    HAS_FOREIGN.load(Ordering::Acquire)
        && FOREIGN
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains_key(&device)
}

fn serving(pool: usize) -> Option<&'static Pool> {
    Some(&contexts::of_device(device_of(pool)?)?.pool)
}

pub(super) fn trim(pool: usize, bytes: u64) -> Answer<()> {
    let trimmed = serving(pool).map(|pool| pool.trim_to(bytes));
    match trimmed {
        Some(Ok(_)) => Answer::Served(()),
        _ => Answer::Passed(Passed::NoPool),
    }
}

/// # Safety
/// The value is one of the attribute's type.
pub(super) unsafe fn set(pool: usize, number: c_int, value: *const c_void) -> Answer<()> {
    let (Some((attribute, is_short)), Some(device)) = (attribute(number), device_of(pool)) else {
        return Answer::Passed(Passed::NoPool);
    };
    // SAFETY: guaranteed by the caller.
    let value = unsafe {
        match is_short {
            true => u64::from(value.cast::<u32>().read()),
            false => value.cast::<u64>().read(),
        }
    };
    stated::set_attribute(device, number, value);
    if let Some(pool) = serving(pool) {
        // The driver has accepted it.
        let _ = pool.maintain().set_attribute(attribute, value);
    }
    Answer::Served(())
}

/// # Safety
/// The place holds a value of the attribute's type.
pub(super) unsafe fn get(pool: usize, number: c_int, place: *mut c_void) -> Answer<()> {
    let (Some((attribute, is_short)), Some(pool)) = (attribute(number), serving(pool)) else {
        return Answer::Passed(Passed::NoPool);
    };
    let value = pool.inspect().attribute(attribute);
    // SAFETY: guaranteed by the caller.
    unsafe {
        match is_short {
            true => place.cast::<u32>().write(value as u32),
            false => place.cast::<u64>().write(value),
        }
    }
    Answer::Served(())
}
