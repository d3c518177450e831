//! Access of other devices to the memory of the pool: how it is given and taken back.

use super::{Engine, Shared, Streams, ordering, reaping};
use crate::device::{Device, DeviceId, Peer};
use crate::error::AccessError;
use crate::lane::{AccessBusy, AccessScope, AccessStage, CompleteCopies, Lane};
use crate::sync::{Arc, plain};

/// Returns whether a device could be given access to the pool's memory.
pub(crate) fn is_access_supported(shared: &Shared, streams: &Streams, device: &dyn Device) -> bool {
    let id = device.id();
    if id == shared.device.id() {
        return true;
    }
    let (own, kind) = (shared.device.ordinal(), shared.settings.kind);
    // All devices see the host's memory, and managed memory.
    let is_everywhere = kind.is_of_host() || kind.is_seen_by_host();
    streams.neighbours.is_beside(id) && (is_everywhere || device.capabilities().peers.contains(own))
}

/// Gives a device access to the pool's memory. Returns whether it had none.
///
/// # Errors
/// Returns an error if that is not supported, another thread changes the access, or a device call fails. Nothing
/// has changed then.
pub(crate) fn enable_access(
    engine: &Engine,
    device: &plain::Arc<dyn Device>,
) -> Result<bool, AccessError> {
    match expect_other(engine, device, true)? {
        true => set_access(engine, device, true),
        false => Ok(false),
    }
}

/// Takes the access of a device back. Returns whether it had any.
///
/// # Errors
/// Returns an error if streams of the device are registered or have work left, another thread changes the access,
/// or a device call fails. The pool then counts the access as enabled.
pub(crate) fn disable_access(
    engine: &Engine,
    device: &plain::Arc<dyn Device>,
) -> Result<bool, AccessError> {
    expect_other(engine, device, false)?;
    set_access(engine, device, false)
}

/// Lists a device whose access is to be given or taken back. Returns false, and lists none, if it is to be given to the
/// pool's own, which has it.
///
/// # Errors
/// Returns an error if that is not supported.
fn expect_other(
    engine: &Engine,
    device: &plain::Arc<dyn Device>,
    is_open: bool,
) -> Result<bool, AccessError> {
    let Engine {
        shared, streams, ..
    } = engine;
    match device.id() == shared.device.id() {
        true if is_open => return Ok(false),
        true => return Err(AccessError::OwnDevice),
        false => {}
    }
    if is_open && !is_access_supported(shared, streams, &**device) {
        return Err(AccessError::Unsupported {
            device: device.describe(),
            owner: shared.device.describe(),
        });
    }
    streams.neighbours.enter(device);
    Ok(true)
}

fn set_access(
    engine: &Engine,
    device: &plain::Arc<dyn Device>,
    is_open: bool,
) -> Result<bool, AccessError> {
    let streams = &engine.streams;
    let (before, ()) = streams
        .neighbours
        .wish(device.id(), |wish| wish.set(is_open));
    change(engine, device).inspect_err(|_| {
        streams
            .neighbours
            .wish(device.id(), |wish| wish.unset(&before));
    })
}

/// Begins a scope in which a device has access, or has none; `None` if it is the pool's own.
///
/// # Errors
/// Returns the errors of [`enable_access`] and [`disable_access`].
pub(crate) fn begin_access(
    engine: &Engine,
    device: &plain::Arc<dyn Device>,
    is_open: bool,
) -> Result<Option<AccessScope>, AccessError> {
    if !expect_other(engine, device, is_open)? {
        return Ok(None);
    }
    let streams = &engine.streams;
    let (_, scope) = streams
        .neighbours
        .wish(device.id(), |wish| wish.begin(is_open));
    match change(engine, device) {
        Ok(_) => Ok(Some(scope)),
        Err(error) => {
            streams.neighbours.wish(device.id(), |wish| wish.end(scope));
            Err(error)
        }
    }
}

/// Ends a scope. If the memory is in use on the device, the access is taken back once it is not.
///
/// # Errors
/// Returns an error if a device call fails; it is tried again with the next use that ends.
pub(crate) fn end_access(
    engine: &Engine,
    device: &plain::Arc<dyn Device>,
    scope: AccessScope,
) -> Result<(), AccessError> {
    let streams = &engine.streams;
    streams.neighbours.wish(device.id(), |wish| wish.end(scope));
    let changed = change(engine, device);
    if changed.is_err() {
        streams.neighbours.mark_due();
    }
    match changed {
        Err(AccessError::InUse { .. } | AccessError::Changing) => Ok(()),
        changed => changed.map(drop),
    }
}

/// Changes each access that was to change when a scope ended, if the memory is not in use any more.
pub(crate) fn settle_access(engine: &Engine) {
    for device in engine.streams.neighbours.due() {
        // It is in use still, or a failure is noted: it is tried again.
        if change(engine, &device).is_err() {
            engine.streams.neighbours.mark_due();
        }
    }
}

/// Brings the access of a device to what it is to be. Returns whether that is new.
fn change(engine: &Engine, device: &plain::Arc<dyn Device>) -> Result<bool, AccessError> {
    let id = device.id();
    let mut copies = CompleteCopies::default();
    if engine.streams.neighbours.is_closing(id) {
        // Lanes of streams that are gone are dropped once their work is complete.
        reaping::settle(engine)?;
        copies = complete_copies(engine, id);
    }
    let begun = engine.streams.neighbours.begin(id, &copies);
    let begun = begun.map_err(|busy| match busy {
        AccessBusy::Changing => AccessError::Changing,
        AccessBusy::InUse { streams } => AccessError::InUse { streams },
    });
    let Some(target) = begun? else {
        return Ok(false);
    };
    let before = match target {
        AccessStage::Open => AccessStage::Closed,
        _ => AccessStage::Open,
    };
    let peer = Peer {
        id,
        ordinal: device.ordinal(),
    };
    let changed = match target {
        AccessStage::Open => engine.supply.memory.allow(peer),
        _ => engine.supply.memory.forbid(peer),
    };
    let stage = if changed.is_ok() { target } else { before };
    engine.streams.neighbours.end(id, stage);
    engine.shared.noted(changed)?;
    Ok(true)
}

/// Returns the lanes of a device on which only copies are noted, all of which are complete.
fn complete_copies(engine: &Engine, device: DeviceId) -> CompleteCopies {
    let begun = engine.streams.neighbours.copies_begun(device);
    let is_complete = |lane: &Arc<Lane>| {
        // An external stream may be gone: each copy on it has recorded its own point.
        let point = match lane.is_external {
            true => lane.cache.last_closed().0,
            false => ordering::present_point(engine, lane),
        };
        let marker = ordering::marker_for(engine, lane, point);
        marker.is_ok() && matches!(reaping::has_passed(engine, lane, point), Ok(true))
    };
    let lanes = engine.streams.lanes();
    let of_copies = lanes.iter().filter(|lane| lane.is_for_copies_of(device));
    let lanes = of_copies.filter(|lane| is_complete(lane)).cloned();
    CompleteCopies {
        lanes: lanes.collect(),
        begun,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::Neighbours;

    #[test]
    fn scope_that_ends_during_a_change_is_due_after_it() {
        use crate::device::sim::SimDevice;
        let [own, other] = SimDevice::builder().build_host();
        let (own, other): (plain::Arc<dyn Device>, plain::Arc<dyn Device>) =
            (plain::Arc::new(own), plain::Arc::new(other));
        let neighbours = Neighbours::new(own);
        neighbours.enter(&other);
        let id = other.id();
        let (_, scope) = neighbours.wish(id, |wish| wish.begin(true));
        let none = CompleteCopies::default();
        assert_eq!(neighbours.begin(id, &none), Ok(Some(AccessStage::Open)));
        // Another thread ends the scope, and a third one settles.
        neighbours.wish(id, |wish| wish.end(scope));
        assert!(neighbours.begin(id, &none).is_err());
        neighbours.mark_due();
        assert!(neighbours.due().is_empty(), "it is being changed");
        neighbours.end(id, AccessStage::Open);
        assert_eq!(neighbours.due().len(), 1);
    }
}
