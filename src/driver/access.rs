//! Access of other devices to the memory of the pool: how it is given and taken back.

use super::neighbours::{AccessScope, CompleteCopies, Stage};
use super::supply::Supply;
use crate::device::{Device, DeviceId, Peer};
use crate::error::AccessError;
use crate::lane::Lane;
use crate::sync::{Arc, plain};

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
        self.set_access(device, true)
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
        self.neighbours.enter(device);
        self.set_access(device, false)
    }

    fn set_access(
        &self,
        device: &plain::Arc<dyn Device>,
        is_open: bool,
    ) -> Result<bool, AccessError> {
        let (before, ()) = self.neighbours.wish(device.id(), |wish| wish.set(is_open));
        self.change(device).inspect_err(|_| {
            self.neighbours
                .wish(device.id(), |wish| wish.unset(&before));
        })
    }

    /// Begins a scope in which a device has access, or has none; `None` if it is the pool's own.
    ///
    /// # Errors
    /// Returns the errors of [`enable_access`](Self::enable_access) and [`disable_access`](Self::disable_access).
    pub(crate) fn begin_access(
        &self,
        device: &plain::Arc<dyn Device>,
        is_open: bool,
    ) -> Result<Option<AccessScope>, AccessError> {
        if device.id() == self.device.id() {
            return if is_open {
                Ok(None)
            } else {
                Err(AccessError::OwnDevice)
            };
        }
        if is_open && !self.is_access_supported(&**device) {
            return Err(AccessError::Unsupported {
                device: device.describe(),
                owner: self.device.describe(),
            });
        }
        self.neighbours.enter(device);
        let (_, scope) = self
            .neighbours
            .wish(device.id(), |wish| wish.begin(is_open));
        match self.change(device) {
            Ok(_) => Ok(Some(scope)),
            Err(error) => {
                self.neighbours.wish(device.id(), |wish| wish.end(scope));
                Err(error)
            }
        }
    }

    /// Ends a scope. If the memory is in use on the device, the access is taken back once it is not.
    ///
    /// # Errors
    /// Returns an error if a device call fails; it is tried again with the next use that ends.
    pub(crate) fn end_access(
        &self,
        device: &plain::Arc<dyn Device>,
        scope: AccessScope,
    ) -> Result<(), AccessError> {
        self.neighbours.wish(device.id(), |wish| wish.end(scope));
        let changed = self.change(device);
        if changed.is_err() {
            self.neighbours.note_due();
        }
        match changed {
            Err(AccessError::InUse { .. } | AccessError::Changing) => Ok(()),
            changed => changed.map(drop),
        }
    }

    /// Changes each access that was to change when a scope ended, if the memory is not in use any more.
    pub(crate) fn settle_access(&self) {
        for device in self.neighbours.due() {
            // It is in use still, or a failure is noted: it is tried again.
            if self.change(&device).is_err() {
                self.neighbours.note_due();
            }
        }
    }

    /// Brings the access of a device to what it is to be. Returns whether that is new.
    fn change(&self, device: &plain::Arc<dyn Device>) -> Result<bool, AccessError> {
        let id = device.id();
        let mut copies = CompleteCopies::default();
        if self.neighbours.is_closing(id) {
            // Lanes of streams that are gone are dropped once their work is complete.
            self.settle()?;
            copies = self.complete_copies(id);
        }
        let Some(target) = self.neighbours.begin(id, &copies)? else {
            return Ok(false);
        };
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

    /// Returns the lanes of a device on which only copies are noted, all of which are complete.
    fn complete_copies(&self, device: DeviceId) -> CompleteCopies {
        let begun = self.neighbours.copies_begun(device);
        let is_complete = |lane: &Arc<Lane>| {
            let point = self.present_point(lane);
            let marker = self.marker_for(lane, point);
            marker.is_ok() && matches!(self.has_passed(lane, point), Ok(true))
        };
        let lanes = self.lanes();
        let of_copies = lanes.iter().filter(|lane| lane.is_for_copies_of(device));
        let lanes = of_copies.filter(|lane| is_complete(lane)).cloned();
        CompleteCopies {
            lanes: lanes.collect(),
            begun,
        }
    }
}
