//! Access of other devices to the memory of a pool: given as the program gives it to the driver's memory.

use super::answer::Answer;
use super::{contexts, driver, pools, stated};
use std::ffi::{c_int, c_uint};

/// `CUmemAccessDesc`
#[repr(C)]
pub(super) struct Access {
    location_kind: c_uint,
    location: c_int,
    flags: c_uint,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`
const DEVICE: c_uint = 1;

/// Gives the current context access to the memory of another one, or takes it back.
pub(super) fn change(owner: usize, is_given: bool) {
    let Some(peer) = driver::current() else {
        return;
    };
    let pools = contexts::of(owner).and_then(|owner| contexts::of(peer).map(|peer| (owner, peer)));
    if let Answer::Served((owner, peer)) = pools {
        owner.set_access(peer, is_given);
    }
}

/// Gives devices access to the memory of a pool of the driver's that is served here, or takes it back.
pub(super) fn allow(pool: usize, access: &[Access]) {
    let Some(device) = pools::device_of(pool) else {
        return;
    };
    let others = access
        .iter()
        .filter(|access| access.location_kind == DEVICE && access.location != device);
    for access in others {
        let is_given = access.flags != 0;
        stated::set_access(device, access.location, is_given);
        contexts::set_access(device, access.location, is_given);
    }
}
