//! Access of other devices to the memory of a pool: given as the program gives it to the driver's memory.

use super::answer::Answer;
use super::context::Context;
use super::message::say;
use super::{contexts, driver, pools};
use std::ffi::{c_int, c_uint};
use weirpool::AccessError;

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
    let pools =
        contexts::of(owner).and_then(|owner| contexts::of_current().map(|peer| (owner, peer)));
    if let Answer::Served((owner, peer)) = pools {
        set(owner, peer, is_given);
    }
}

/// Gives devices access to the memory of a pool of the driver's that is served here, or takes it back.
pub(super) fn allow(pool: usize, access: &[Access]) {
    let Some(device) = pools::device_of(pool) else {
        return;
    };
    let primary = |device| driver::primary(device).map(contexts::of);
    let Some(Answer::Served(owner)) = primary(device) else {
        return;
    };
    let others = access
        .iter()
        .filter(|access| access.location_kind == DEVICE && access.location != device);
    for access in others {
        if let Some(Answer::Served(peer)) = primary(access.location) {
            set(owner, peer, access.flags != 0);
        }
    }
}

fn set(owner: &Context, peer: &Context, is_given: bool) {
    let peers = owner.pool.peers();
    let done: Result<bool, AccessError> = match is_given {
        true => peers.enable(&peer.cuda),
        false => peers.disable(&peer.cuda),
    };
    if let Err(error) = done {
        say(&format!(
            "device {} has no access to the pool of device {}: {error}",
            peer.device, owner.device
        ));
    }
}
