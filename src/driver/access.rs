//! Access of other devices to the memory of the pool: how it is given and taken back.

use super::neighbours::Stage;
use super::supply::Supply;
use crate::device::{Device, Peer};
use crate::error::AccessError;
use crate::sync::plain;

impl Supply {
    /// Returns whether a device could be given access to the pool's memory.
    pub(crate) fn is_access_supported(&self, device: &dyn Device) -> bool {
        let id = device.id();
        if id == self.device.id() {
            return true;
        }
        let (own, kind) = (self.device.ordinal(), self.settings.kind);
        // All devices see the host's memory, and managed memory.
        let is_everywhere = kind.is_of_host() || kind.is_seen_by_host();
        self.neighbours.is_beside(id)
            && (is_everywhere || device.capabilities().peers.contains(own))
    }

    /// Gives a device access to the pool's memory. Returns whether it had none.
    ///
    /// # Errors
    /// Returns an error if that is not supported, another thread changes the access, or a device call fails. Nothing
    /// has changed then.
    pub(crate) fn enable_access(
        &self,
        device: &plain::Arc<dyn Device>,
    ) -> Result<bool, AccessError> {
        if device.id() == self.device.id() {
            return Ok(false);
        }
        if !self.is_access_supported(&**device) {
            return Err(AccessError::Unsupported {
                device: device.describe(),
                owner: self.device.describe(),
            });
        }
        self.neighbours.enter(device);
        self.change(device, Stage::Open)
    }

    /// Takes the access of a device back. Returns whether it had any.
    ///
    /// # Errors
    /// Returns an error if streams of the device are registered or have work left, another thread changes the access,
    /// or a device call fails. The pool then counts the access as enabled.
    pub(crate) fn disable_access(
        &self,
        device: &plain::Arc<dyn Device>,
    ) -> Result<bool, AccessError> {
        if device.id() == self.device.id() {
            return Err(AccessError::OwnDevice);
        }
        // Lanes of streams that are gone are dropped once their work is complete.
        self.settle()?;
        self.change(device, Stage::Closed)
    }

    fn change(&self, device: &plain::Arc<dyn Device>, target: Stage) -> Result<bool, AccessError> {
        let id = device.id();
        if !self.neighbours.begin(id, target)? {
            return Ok(false);
        }
        let before = match target {
            Stage::Open => Stage::Closed,
            _ => Stage::Open,
        };
        let peer = Peer {
            id,
            ordinal: device.ordinal(),
        };
        let changed = match target {
            Stage::Open => self.memory.allow(peer),
            _ => self.memory.forbid(peer),
        };
        let stage = if changed.is_ok() { target } else { before };
        self.neighbours.end(id, stage);
        self.noted(changed)?;
        Ok(true)
    }
}
