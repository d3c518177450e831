//! Access of other devices to the memory of a pool: given as the program gives it to the driver's memory.

use super::answer::Answer;
use super::context::Context;
use super::message::say;
use super::{contexts, driver, pools};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::sync::{Mutex, MutexGuard, PoisonError};
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

/// Whether a device has access to the driver's pools of another one: owner and peer.
static ALLOWED: Mutex<BTreeMap<(c_int, c_int), bool>> = Mutex::new(BTreeMap::new());

fn allowed() -> MutexGuard<'static, BTreeMap<(c_int, c_int), bool>> {
    ALLOWED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the current context access to the memory of another one, or takes it back.
pub(super) fn change(owner: usize, is_given: bool) {
    let Some(peer) = driver::current() else {
        return;
    };
    let pools = contexts::of(owner).and_then(|owner| contexts::of(peer).map(|peer| (owner, peer)));
    if let Answer::Served((owner, peer)) = pools {
        set(owner, peer, is_given);
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
        allowed().insert((device, access.location), is_given);
        set_between(device, access.location, is_given);
    }
}

/// Gives or takes the access that the program stated before a pool was made.
pub(super) fn set_up(context: &Context) {
    let of_it = |((owner, peer), is_given): (&(c_int, c_int), &bool)| {
        [*owner, *peer]
            .contains(&context.device)
            .then_some((*owner, *peer, *is_given))
    };
    let stated: Vec<_> = allowed().iter().filter_map(of_it).collect();
    for (owner, peer, is_given) in stated {
        set_between(owner, peer, is_given);
    }
}

/// Gives a device access to the pool of another one, if the program holds the primary contexts of both.
fn set_between(owner: c_int, peer: c_int, is_given: bool) {
    let primary = |device| driver::primary(device).map(contexts::of);
    if let (Some(Answer::Served(owner)), Some(Answer::Served(peer))) =
        (primary(owner), primary(peer))
    {
        set(owner, peer, is_given);
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
