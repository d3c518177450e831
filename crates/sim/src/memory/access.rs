//! Access to the bytes behind a range of addresses, chunk by chunk.
//!
//! This module reads the table of mappings, and never changes it.

use super::bytes::Bytes;
use super::space::Space;
use crate::builder::Backing;
use smallvec::SmallVec;
use std::fmt;
use weirpool_device::MemoryKind;

/// The source of an access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Viewer {
    /// Work of the device.
    Device,
    /// The host, by loads and stores of its own.
    Host,
    /// A test, which sees everything.
    Debugger,
}

impl Viewer {
    fn sees(self, kind: MemoryKind) -> bool {
        match self {
            Self::Device => kind.is_seen_by_device(),
            Self::Host => kind.is_seen_by_host(),
            Self::Debugger => true,
        }
    }
}

/// The first address that could not be accessed, and why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Illegal {
    address: u64,
    /// The kind of the memory that the viewer does not see; `None` if nothing is mapped there.
    unseen: Option<MemoryKind>,
}

impl fmt::Display for Illegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address;
        match self.unseen {
            Some(kind) => write!(
                f,
                "{address:#x}, in {kind}, which this processor cannot access"
            ),
            None => write!(f, "{address:#x}, where nothing is mapped"),
        }
    }
}

/// A result for a whole range: an error names the first illegal address.
type Legal<T> = Result<T, Illegal>;

/// A part of a physical chunk.
#[derive(Clone, Copy, Debug)]
struct Piece {
    handle: u64,
    offset: u64,
    bytes: u64,
}

impl Space {
    /// Returns whether all of the range is mapped.
    pub(crate) fn is_mapped(&self, address: u64, bytes: u64) -> bool {
        self.pieces(Viewer::Debugger, address, bytes).is_ok()
    }

    /// Reads the bytes of a range. On failure nothing is read.
    pub(crate) fn read(&self, viewer: Viewer, address: u64, into: &mut [u8]) -> Legal<()> {
        into.fill(0);
        let mut rest = into;
        for piece in self.pieces(viewer, address, rest.len() as u64)? {
            let (now, later) = rest.split_at_mut(piece.bytes as usize);
            if let Some(physical) = self.physical.get(&piece.handle) {
                physical.store.read(piece.offset, now);
            }
            rest = later;
        }
        Ok(())
    }

    /// Writes the bytes of a range. On failure nothing is written.
    pub(crate) fn write(&mut self, viewer: Viewer, address: u64, from: &[u8]) -> Legal<()> {
        let mut at = 0;
        self.change(viewer, address, from.len() as u64, |store, piece| {
            let end = at + piece.bytes as usize;
            store.write(piece.offset, &from[at..end]);
            at = end;
        })
    }

    /// Fills the bytes of a range. On failure nothing is written.
    pub(crate) fn fill(
        &mut self,
        viewer: Viewer,
        address: u64,
        bytes: u64,
        value: u8,
    ) -> Legal<()> {
        self.change(viewer, address, bytes, |store, piece| {
            store.fill(piece.offset, piece.bytes as usize, value);
        })
    }

    fn change(
        &mut self,
        viewer: Viewer,
        address: u64,
        bytes: u64,
        mut change: impl FnMut(&mut Bytes, Piece),
    ) -> Legal<()> {
        let pieces = self.pieces(viewer, address, bytes)?;
        if self.backing == Backing::AddressesOnly {
            return Ok(());
        }
        for piece in pieces {
            if let Some(physical) = self.physical.get_mut(&piece.handle) {
                change(&mut physical.store, piece);
            }
        }
        Ok(())
    }

    /// Returns the parts of chunks behind a range, or the first address that is illegal.
    fn pieces(&self, viewer: Viewer, address: u64, bytes: u64) -> Legal<SmallVec<[Piece; 4]>> {
        let illegal = |address, unseen| Illegal { address, unseen };
        let end = address
            .checked_add(bytes)
            .ok_or_else(|| illegal(address, None))?;
        let mut pieces = SmallVec::new();
        let mut at = address;
        while at < end {
            let below = self.mappings.range(..=at).next_back();
            let (start, mapping) = below.ok_or_else(|| illegal(at, None))?;
            let stop = start + mapping.bytes;
            if stop <= at {
                return Err(illegal(at, None));
            }
            let kind = self.physical[&mapping.handle].kind;
            if !viewer.sees(kind) {
                return Err(illegal(at, Some(kind)));
            }
            pieces.push(Piece {
                handle: mapping.handle,
                offset: at - start,
                bytes: stop.min(end) - at,
            });
            at = stop;
        }
        Ok(pieces)
    }
}
