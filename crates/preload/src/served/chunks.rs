//! Physical memory that the program maps itself: XLA and PyTorch's expandable segments allocate so. It is the driver's; the pool
//! admits it, as long as it exists: until its handle is released, and no address maps it.

use super::answer::Answer;
use super::counts::Passed;
use super::driver::{self, Status};
use super::{contexts, frees};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_uint};
use std::ops::Bound;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use weirpool::extend::Charge;

/// The beginning of `CUmemAllocationProp`.
#[repr(C)]
pub(super) struct Properties {
    kind: c_uint,
    handle_types: c_uint,
    location_kind: c_uint,
    location: c_int,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`
const DEVICE: c_uint = 1;

#[derive(Default)]
struct Chunks {
    /// The charge of each chunk, and how many handles and mappings it has.
    owners: HashMap<u64, (Charge, usize)>,
    /// The chunk behind each mapping, by its address.
    mappings: BTreeMap<u64, u64>,
}

static CHUNKS: LazyLock<Mutex<Chunks>> = LazyLock::new(Mutex::default);

fn chunks() -> MutexGuard<'static, Chunks> {
    CHUNKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Admits a chunk of the current context's device, and has the driver create it.
pub(super) fn create(
    bytes: u64,
    properties: &Properties,
    create: impl Fn() -> Result<u64, Status>,
) -> Answer<u64> {
    let device = (properties.location_kind == DEVICE).then_some(properties.location);
    let is_current = driver::device_of_current().is_ok_and(|current| Some(current) == device);
    let context = match is_current {
        true => contexts::of_current(),
        false => Answer::Passed(Passed::Chunk),
    };
    let admitted = context.and_then(|context| context.admit(bytes, frees::free_deferred, create));
    admitted.map(|(handle, charge)| {
        chunks().owners.insert(handle, (charge, 1));
        handle
    })
}

/// Adds a handle of a chunk.
pub(super) fn retained(handle: u64) {
    if let Some((_, owners)) = chunks().owners.get_mut(&handle) {
        *owners += 1;
    }
}

/// Adds a mapping of a chunk.
pub(super) fn mapped(address: u64, handle: u64) {
    let mut chunks = chunks();
    if let Some((_, owners)) = chunks.owners.get_mut(&handle) {
        *owners += 1;
        chunks.mappings.insert(address, handle);
    }
}

/// An owner that was removed: its address if it is a mapping, its chunk, and the charge if it was the last owner.
pub(super) struct Removed(Option<u64>, u64, Option<Charge>);

/// Removes a handle of a chunk, before the driver can give its number to another.
pub(super) fn release(handle: u64) -> Vec<Removed> {
    let mut chunks = chunks();
    let removed = chunks.disown(handle);
    removed
        .map(|charge| Removed(None, handle, charge))
        .into_iter()
        .collect()
}

/// Restores owners whose removal the driver refused.
pub(super) fn restore(removed: Vec<Removed>) {
    let mut chunks = chunks();
    for Removed(mapping, handle, charge) in removed {
        match charge {
            Some(charge) => {
                chunks.owners.insert(handle, (charge, 1));
            }
            None => {
                if let Some((_, owners)) = chunks.owners.get_mut(&handle) {
                    *owners += 1;
                }
            }
        }
        chunks
            .mappings
            .extend(mapping.map(|address| (address, handle)));
    }
}

/// Removes the mappings of a range.
pub(super) fn unmap(address: u64, bytes: u64) -> Vec<Removed> {
    let mut chunks = chunks();
    let end = Bound::Excluded(address.saturating_add(bytes));
    let inside = chunks.mappings.range((Bound::Included(address), end));
    let inside: Vec<_> = inside
        .map(|(address, handle)| (*address, *handle))
        .collect();
    let mut removed = Vec::new();
    for (address, handle) in inside {
        chunks.mappings.remove(&address);
        let charge = chunks.disown(handle);
        removed.extend(charge.map(|charge| Removed(Some(address), handle, charge)));
    }
    removed
}

impl Chunks {
    /// Removes an owner of a chunk that is known. Returns its charge if this was the last one.
    fn disown(&mut self, handle: u64) -> Option<Option<Charge>> {
        let (_, owners) = self.owners.get_mut(&handle)?;
        *owners -= 1;
        let is_last = *owners == 0;
        let charge = is_last.then(|| self.owners.remove(&handle)).flatten();
        Some(charge.map(|(charge, _)| charge))
    }
}
