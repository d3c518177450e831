//! The other devices of the host whose streams use memory of the pool, and which of them have access to it.
//!
//! A stream of another device is registered for its own uses only where that device has access. Copies are made by the
//! device itself, and are noted on streams of any device beside the pool's. The access is changed by one thread at a
//! time, and taken back only while no such stream is registered, nor has work left: each lane counts as an owner of its
//! [`Neighbour`], and lives until its work is complete.

use crate::device::{Device, DeviceId};
use crate::error::{AccessError, StreamError};
use crate::fault::injected;
use crate::lane::Neighbour;
use crate::sync::{Arc, Guards, Mutex, plain};

/// Whether a device has access to the pool's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Closed,
    /// A thread gives or takes back the access.
    Changing,
    Open,
}

#[derive(Debug)]
struct Entry {
    neighbour: Arc<Neighbour>,
    stage: Stage,
}

/// See the [module](self). There are as many entries as the host has devices, at most.
#[derive(Debug)]
pub(crate) struct Neighbours {
    /// The pool's own device.
    device: plain::Arc<dyn Device>,
    entries: Mutex<Vec<Entry>>,
}

impl Neighbours {
    pub(super) fn new(device: plain::Arc<dyn Device>) -> Self {
        Self {
            device,
            entries: Mutex::new(Guards::Registry, Vec::new()),
        }
    }

    fn with<R>(&self, device: DeviceId, look: impl FnOnce(Option<&mut Entry>) -> R) -> R {
        let mut entries = self.entries.lock();
        let mut entries = entries.iter_mut();
        look(entries.find(|entry| entry.neighbour.device.id() == device))
    }

    /// Enters a device, if it is not known.
    pub(super) fn enter(&self, device: &plain::Arc<dyn Device>) {
        let neighbour = Arc::new(Neighbour::new(device.clone()));
        let mut entries = self.entries.lock();
        let id = device.id();
        let is_known = entries
            .iter()
            .any(|entry| entry.neighbour.device.id() == id);
        if !is_known {
            let stage = Stage::Closed;
            entries.push(Entry { neighbour, stage });
        }
    }

    /// Begins to change an access. Returns whether there is anything to change.
    pub(super) fn begin(&self, device: DeviceId, target: Stage) -> Result<bool, AccessError> {
        self.with(device, |entry| {
            let Some(entry) = entry else {
                return Ok(false);
            };
            if entry.stage == Stage::Changing {
                return Err(AccessError::Changing);
            }
            if entry.stage == target {
                return Ok(false);
            }
            let streams = Arc::strong_count(&entry.neighbour) - 1;
            let is_overlooked = injected("access-taken-back-while-in-use");
            if target == Stage::Closed && streams > 0 && !is_overlooked {
                return Err(AccessError::InUse { streams });
            }
            entry.stage = Stage::Changing;
            Ok(true)
        })
    }

    /// Ends a change that [began](Self::begin).
    pub(super) fn end(&self, device: DeviceId, stage: Stage) {
        self.with(device, |entry| {
            entry.expect("entries stay").stage = stage;
        });
    }

    /// Returns whether the device has access to the pool's memory: it is the pool's own, or was given it.
    pub(crate) fn is_accessible_from(&self, device: DeviceId) -> bool {
        device == self.device.id()
            || self.with(device, |entry| {
                entry.is_some_and(|entry| entry.stage == Stage::Open)
            })
    }

    /// Returns whether streams of the two devices can wait for each other's events.
    pub(crate) fn is_beside(&self, other: DeviceId) -> bool {
        let peers = self.device.peer_access();
        other == self.device.id() || peers.is_some_and(|peers| peers.is_beside(other))
    }

    /// Returns the neighbour whose stream is to be registered for its own uses; `None` if it is the pool's own device.
    ///
    /// # Errors
    /// Returns an error if the device has no access.
    pub(super) fn with_access(
        &self,
        device: DeviceId,
    ) -> Result<Option<Arc<Neighbour>>, StreamError> {
        if device == self.device.id() {
            return Ok(None);
        }
        self.with(device, |entry| match entry {
            Some(entry) if entry.stage == Stage::Open => Ok(Some(entry.neighbour.clone())),
            _ => Err(StreamError::ForeignDevice),
        })
    }

    /// Returns the neighbour on whose stream a copy is to be noted; `None` if it is the pool's own device.
    ///
    /// # Errors
    /// Returns an error if the device is not beside the pool's, or while its access is being changed.
    pub(super) fn of_copies(
        &self,
        device: &plain::Arc<dyn Device>,
    ) -> Result<Option<Arc<Neighbour>>, StreamError> {
        let id = device.id();
        if id == self.device.id() {
            return Ok(None);
        }
        if !self.is_beside(id) {
            return Err(StreamError::ForeignDevice);
        }
        self.enter(device);
        self.with(id, |entry| match entry {
            Some(entry) if entry.stage != Stage::Changing => Ok(Some(entry.neighbour.clone())),
            _ => Err(StreamError::AccessChanging),
        })
    }
}
