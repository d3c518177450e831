//! The chunks and ranges that the device gave.

use crate::device::{Chunk, Device, Peer};
use crate::sync::{Mutex, plain};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// A device, and the chunks that it gave.
#[derive(Debug)]
pub(super) struct Mapped {
    pub(super) device: plain::Arc<dyn Device>,
    pub(super) chunk_bytes: u64,
    pub(super) held: Mutex<Chunks>,
}

/// The chunks and ranges that the device gave.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    /// Mapped chunks, by address.
    pub(super) mapped: BTreeMap<u64, Chunk>,
    /// Reserved ranges: address and bytes.
    pub(super) ranges: Vec<(u64, u64)>,
    /// Chunks that are mapped nowhere, because the device failed to destroy them. They serve the next growth, or are
    /// destroyed with the next release.
    pub(super) unmapped: Vec<Chunk>,
    /// The peers that may use the memory.
    pub(super) accessors: Accessors,
}

/// The other devices that may use the memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Accessors {
    pub(super) peers: SmallVec<[Peer; 2]>,
    /// How often the list was changed.
    pub(super) changes: u64,
}

impl Accessors {
    pub(super) fn add(&mut self, peer: Peer) {
        self.peers.push(peer);
        self.changes += 1;
    }

    pub(super) fn remove(&mut self, peer: Peer) {
        self.peers.retain(|other| *other != peer);
        self.changes += 1;
    }

    pub(super) fn peers(&self) -> &[Peer] {
        &self.peers
    }
}
