//! Several devices of one host: access to each other's memory, and copies between them.

use super::SimDevice;
use super::call::Call;
use super::copy::between_operation;
use super::event_calls::unsupported;
use super::memory::{Refusal, Space};
use weirpool_device::{
    Access, CopyBetween, DeviceAddress, DeviceError, DeviceErrorKind, DeviceId, Peer, PeerAccess,
    Peers, RawStream, Transfer,
};

/// The memory that a peer may use, for tests.
impl SimDevice {
    /// Returns the first address of each range of this device's memory that is mapped, and whether `peer`, a device of
    /// the same host, may use it.
    pub fn mapped_for(&self, peer: &Self) -> Vec<(DeviceAddress, bool)> {
        let (own, peer) = (self.number, peer.number);
        self.engine.peek(|state| state.space.mapped_for(own, peer))
    }
}

impl SimDevice {
    /// Returns the other devices of the host, if they can be given access.
    pub(super) fn reachable_peers(&self) -> Peers {
        let is_reachable = self.engine.settings.peer_access;
        let numbers = 0..self.engine.devices();
        let others = numbers.filter(|number| is_reachable && *number != self.number);
        others.fold(Peers::NONE, Peers::with)
    }

    /// Makes a call on the access of a peer.
    fn access_call<R>(
        &self,
        call: Call,
        peer: Peer,
        bytes: u64,
        change: impl FnOnce(&mut Space) -> Result<R, Refusal>,
    ) -> Result<R, DeviceError> {
        weirpool_device::assert_unlocked(call.name());
        let is_known = self.engine.number_of(peer.id) == Some(peer.ordinal);
        let can_reach = is_known && self.reachable_peers().contains(peer.ordinal);
        self.engine.call(|state| {
            state.enter(call, bytes)?;
            if !can_reach {
                return Err(unsupported(
                    call,
                    "the device cannot reach the memory of this one; copy instead",
                ));
            }
            change(&mut state.space)
                .map_err(|refusal| DeviceError::new(call.name(), refusal.kind, refusal.reason))
        })
    }

    fn check_copy(&self, call: Call, copy: &CopyBetween) -> Result<(), DeviceError> {
        let ends = [copy.from.device, copy.to.device];
        let numbers = ends.map(|device| self.engine.number_of(device));
        if numbers.contains(&None) {
            let kind = DeviceErrorKind::Unsupported;
            let reason = "the memory is of a device of another host; copy through the host";
            return Err(DeviceError::new(call.name(), kind, reason));
        }
        Ok(())
    }
}

// SAFETY: the space keeps the access of each mapping until the mapping ends, and all devices of a host share one
// schedule, whose points are complete for all of them at once.
unsafe impl PeerAccess for SimDevice {
    fn is_beside(&self, other: DeviceId) -> bool {
        self.engine.number_of(other).is_some()
    }

    unsafe fn set_mapped_access(
        &self,
        address: u64,
        bytes: u64,
        peer: Peer,
        access: Access,
    ) -> Result<(), DeviceError> {
        let is_allowed = access != Access::None;
        self.access_call(Call::SetAccess, peer, bytes, |space| {
            space.set_access((address, bytes), peer.ordinal, is_allowed)
        })
    }

    fn allow_plain(&self, peer: Peer) -> Result<(), DeviceError> {
        self.access_call(Call::SetAccess, peer, 0, |space| {
            space.allow_plain(self.number, peer.ordinal);
            Ok(())
        })
    }

    unsafe fn forbid_plain(&self, peer: Peer) -> Result<(), DeviceError> {
        self.access_call(Call::SetAccess, peer, 0, |space| {
            space.forbid_plain(self.number, peer.ordinal);
            Ok(())
        })
    }

    unsafe fn copy(
        &self,
        stream: RawStream,
        copy: &CopyBetween,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        self.check_copy(Call::Copy, copy)?;
        self.on(stream).copy(copy)
    }

    unsafe fn capture_copy(
        &self,
        stream: RawStream,
        copy: &CopyBetween,
    ) -> Result<(), DeviceError> {
        self.check_copy(Call::Copy, copy)?;
        let ends = [copy.from.address, copy.to.address];
        let is_plain = || {
            self.engine
                .peek(|state| ends.iter().all(|end| state.space.is_plain_at(*end)))
        };
        if !copy.is_direct && !is_plain() {
            let reason =
                "a copy that is staged through the host can be captured for plain memory alone";
            return Err(unsupported(Call::Copy, reason));
        }
        self.on(stream).capture(Call::Copy, between_operation(copy))
    }
}
