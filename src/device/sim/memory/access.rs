//! Reaching the bytes behind a range of addresses, handle by handle.
//!
//! Reads the book of what is mapped, and never changes it.

use super::bytes::Bytes;
use super::space::Space;
use crate::device::sim::builder::Backing;
use smallvec::SmallVec;

/// A part of a physical handle.
#[derive(Clone, Copy, Debug)]
struct Piece {
    handle: u64,
    offset: u64,
    bytes: u64,
}

impl Space {
    /// Whether all of the range is mapped.
    pub(in crate::device::sim) fn is_mapped(&self, address: u64, bytes: u64) -> bool {
        self.pieces(address, bytes).is_ok()
    }

    /// On failure answers the first address that is not mapped; nothing is read then.
    pub(in crate::device::sim) fn read(&self, address: u64, into: &mut [u8]) -> Result<(), u64> {
        into.fill(0);
        let mut rest = into;
        for piece in self.pieces(address, rest.len() as u64)? {
            let (now, later) = rest.split_at_mut(piece.bytes as usize);
            if let Some(physical) = self.physical.get(&piece.handle) {
                physical.store.read(piece.offset, now);
            }
            rest = later;
        }
        Ok(())
    }

    /// On failure answers the first address that is not mapped; nothing is written then.
    pub(in crate::device::sim) fn write(&mut self, address: u64, from: &[u8]) -> Result<(), u64> {
        let mut at = 0;
        self.change(address, from.len() as u64, |store, piece| {
            let end = at + piece.bytes as usize;
            store.write(piece.offset, &from[at..end]);
            at = end;
        })
    }

    /// On failure answers the first address that is not mapped; nothing is written then.
    pub(in crate::device::sim) fn fill(
        &mut self,
        address: u64,
        bytes: u64,
        value: u8,
    ) -> Result<(), u64> {
        self.change(address, bytes, |store, piece| {
            store.fill(piece.offset, piece.bytes as usize, value);
        })
    }

    fn change(
        &mut self,
        address: u64,
        bytes: u64,
        mut change: impl FnMut(&mut Bytes, Piece),
    ) -> Result<(), u64> {
        let pieces = self.pieces(address, bytes)?;
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

    /// The parts of handles behind a range, or the first address with nothing behind it.
    fn pieces(&self, address: u64, bytes: u64) -> Result<SmallVec<[Piece; 4]>, u64> {
        let end = address.checked_add(bytes).ok_or(address)?;
        let mut pieces = SmallVec::new();
        let mut at = address;
        while at < end {
            let below = self.mappings.range(..=at).next_back();
            let (start, mapping) = below.ok_or(at)?;
            let stop = start + mapping.bytes;
            if stop <= at {
                return Err(at);
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
