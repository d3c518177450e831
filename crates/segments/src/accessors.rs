//! The other devices that may use the memory which the device gave to the pool.
//!
//! Virtual memory is made accessible chunk by chunk: all chunks that are mapped when the access is given, and each
//! chunk that is mapped from then on, also when it is mapped anew. Chunks are mapped and unmapped by other threads
//! meanwhile, because no lock is held across device calls. So each change of the list has a number, and a thread that
//! maps a chunk looks at the list again before others can find the chunk.

use crate::chunks::{Accessors, Mapped};
use crate::device::{Access, Chunk, DeviceError, Peer};
use crate::plain_memory::peer_access;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Lets a peer use the chunks, now and from now on.
///
/// # Errors
/// Returns an error if a device call fails. Nothing has changed then.
pub(super) fn allow(memory: &Mapped, peer: Peer) -> Result<(), DeviceError> {
    let chunks = {
        let mut held = memory.held.lock();
        held.accessors.add(peer);
        held.mapped.clone()
    };
    let allowed = set_all(memory, &chunks, peer, Access::ReadWrite);
    if allowed.is_err() {
        // As far as the device can: what stays accessible is memory that no stream of the peer may use.
        let _ = forbid_chunks(memory, peer);
    }
    allowed
}

/// Takes the access of a peer to the chunks back.
///
/// # Errors
/// Returns an error if a device call fails. The peer keeps its access then, to all memory.
pub(super) fn forbid(memory: &Mapped, peer: Peer) -> Result<(), DeviceError> {
    let forbidden = forbid_chunks(memory, peer);
    if forbidden.is_err() {
        // The peer had all of it before.
        let _ = allow(memory, peer);
    }
    forbidden
}

fn forbid_chunks(memory: &Mapped, peer: Peer) -> Result<(), DeviceError> {
    let chunks = {
        let mut held = memory.held.lock();
        held.accessors.remove(peer);
        held.mapped.clone()
    };
    set_all(memory, &chunks, peer, Access::None)
}

/// Sets the access to chunks that were mapped a moment ago. Those that were unmapped since are left out.
fn set_all(
    memory: &Mapped,
    chunks: &BTreeMap<u64, Chunk>,
    peer: Peer,
    access: Access,
) -> Result<(), DeviceError> {
    let mut outcome = Ok(());
    for (address, chunk) in chunks {
        let set = set_access(memory, *address, peer, access);
        let is_there = || memory.held.lock().mapped.get(address) == Some(chunk);
        match set {
            Err(error) if error.is_sticky() => return Err(error),
            // An access that is taken back is taken back wherever it can be.
            Err(error) if is_there() => outcome = outcome.and(Err(error)),
            _ => {}
        }
        if outcome.is_err() && access != Access::None {
            break;
        }
    }
    outcome
}

fn set_access(
    memory: &Mapped,
    address: u64,
    peer: Peer,
    access: Access,
) -> Result<(), DeviceError> {
    let peers = peer_access(&*memory.device)?;
    // SAFETY: the range is one chunk's of this pool, or its address is mapped to nothing. No work loses its access:
    // no stream of the peer is registered when the access is taken back.
    unsafe { peers.set_mapped_access(address, memory.chunk_bytes, peer, access) }
}

/// Gives the accessors access to a chunk that was just mapped, and notes the chunk.
///
/// # Errors
/// Returns an error if a device call fails. The chunk is not noted then.
pub(super) fn record_mapped(
    memory: &Mapped,
    address: u64,
    chunk: Chunk,
) -> Result<(), DeviceError> {
    give_and_record(memory, address, chunk, SmallVec::new())
}

/// Notes a chunk that could not be unmapped, to which the accessors of then have access.
pub(super) fn record_still_mapped(memory: &Mapped, address: u64, chunk: Chunk, then: &Accessors) {
    if give_and_record(memory, address, chunk, then.peers.clone()).is_err() {
        // The device failed twice: a peer that was given access in between lacks it here.
        memory.held.lock().mapped.insert(address, chunk);
    }
}

/// Gives the accessors access, unless they are in `given` and have it, and notes the chunk.
fn give_and_record(
    memory: &Mapped,
    address: u64,
    chunk: Chunk,
    mut given: SmallVec<[Peer; 2]>,
) -> Result<(), DeviceError> {
    let mut seen = memory.held.lock().accessors.clone();
    loop {
        for peer in given.iter().filter(|peer| !seen.peers.contains(peer)) {
            // What stays accessible is memory that no stream of the peer may use.
            let _ = set_access(memory, address, *peer, Access::None);
        }
        given.retain(|peer| seen.peers.contains(peer));
        for peer in &seen.peers {
            if !given.contains(peer) {
                set_access(memory, address, *peer, Access::ReadWrite)?;
                given.push(*peer);
            }
        }
        let mut held = memory.held.lock();
        if held.accessors.changes == seen.changes {
            held.mapped.insert(address, chunk);
            return Ok(());
        }
        seen = held.accessors.clone();
    }
}
