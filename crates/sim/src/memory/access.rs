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
    /// Work of the device with that number.
    Device(u32),
    /// A copy between devices, staged through the host where the device has no access.
    Copier,
    /// The host, by loads and stores of its own.
    Host,
    /// A test, which sees everything.
    Debugger,
}

impl Viewer {
    fn sees(self, kind: MemoryKind) -> bool {
        match self {
            Self::Device(_) | Self::Copier => kind.is_seen_by_device(),
            Self::Host => kind.is_seen_by_host(),
            Self::Debugger => true,
        }
    }
}

/// The first address that could not be accessed, and why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Illegal {
    address: u64,
    why: Why,
}

#[derive(Clone, Copy, Debug)]
enum Why {
    /// Nothing is mapped there.
    Unmapped,
    /// The viewer does not see the kind.
    Unseen(MemoryKind),
    /// The memory is mapped for reading.
    ReadOnly,
    /// The memory is of the device `owner`, and `device` has no access.
    NoAccess { owner: u32, device: u32 },
}

impl fmt::Display for Illegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address;
        match self.why {
            Why::Unseen(kind) => write!(
                f,
                "{address:#x}, in {kind}, which this processor cannot access"
            ),
            Why::Unmapped => write!(f, "{address:#x}, where nothing is mapped"),
            Why::ReadOnly => write!(f, "{address:#x}, which is mapped for reading only"),
            Why::NoAccess { owner, device } => write!(
                f,
                "{address:#x}, in memory of device {owner}, which device {device} has no access to: enable it with \
                 `pool.peers().enable` of the memory's pool"
            ),
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
    /// # Errors
    /// Returns the first address of the range where nothing is mapped or, with `writes`, where memory is mapped for reading
    /// only.
    pub(crate) fn expect_mapped(
        &self,
        address: u64,
        bytes: u64,
        writes: bool,
    ) -> Result<(), Illegal> {
        self.pieces(Viewer::Debugger, address, bytes)?;
        match self.read_only_in(address, bytes).filter(|_| writes) {
            Some(address) => Err(Illegal {
                address,
                why: Why::ReadOnly,
            }),
            None => Ok(()),
        }
    }

    /// Returns the first address of a range that is mapped for reading only.
    fn read_only_in(&self, address: u64, bytes: u64) -> Option<u64> {
        let end = address.saturating_add(bytes);
        let below = self.mappings.range(..=address).next_back();
        let below = below.filter(|(start, mapping)| *start + mapping.bytes > address);
        let inside = self
            .mappings
            .range(address.saturating_add(1)..end.max(address + 1));
        let mut mappings = below.into_iter().chain(inside);
        let found = mappings.find(|(_, mapping)| mapping.is_read_only);
        found.map(|(start, _)| address.max(*start))
    }

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
        if viewer != Viewer::Debugger {
            self.expect_mapped(address, bytes, true)?;
        }
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
        let illegal = |address, why| Illegal { address, why };
        let end = address
            .checked_add(bytes)
            .ok_or_else(|| illegal(address, Why::Unmapped))?;
        let mut pieces = SmallVec::new();
        let mut at = address;
        while at < end {
            let below = self.mappings.range(..=at).next_back();
            let (start, mapping) = below.ok_or_else(|| illegal(at, Why::Unmapped))?;
            let stop = start + mapping.bytes;
            if stop <= at {
                return Err(illegal(at, Why::Unmapped));
            }
            let kind = self.physical[&mapping.handle].kind;
            if !viewer.sees(kind) {
                return Err(illegal(at, Why::Unseen(kind)));
            }
            if let Viewer::Device(device) = viewer
                && !self.may_use(device, mapping)
            {
                let owner = self.physical[&mapping.handle].device;
                return Err(illegal(at, Why::NoAccess { owner, device }));
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
