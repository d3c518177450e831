//! The allocations that the pending blocks of a snapshot stem from.
//!
//! Pending neighbours with the same fences are one block of the heap. A viewer that goes back in time expects each
//! freed block to turn into the used one, so such a block is cut along the frees that it consists of.

use crate::{HistoryEntry, HistoryEvent};
use std::collections::BTreeMap;
use weirpool::device::DeviceAddress;
use weirpool::{BlockInfo, BlockState};

/// A part of a block of the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) address: DeviceAddress,
    pub(super) size: u64,
    /// The allocation that a pending part stems from, if that is known.
    pub(super) number: Option<u64>,
}

/// The last life of each address that was freed and not used again: its bytes and the number of its allocation.
#[derive(Debug)]
pub(super) struct LastFrees(BTreeMap<DeviceAddress, (u64, u64)>);

impl LastFrees {
    pub(super) fn of(entries: &[HistoryEntry]) -> Self {
        let mut frees = Self(BTreeMap::new());
        for entry in entries {
            match entry.event {
                HistoryEvent::Allocated { address, size, .. } => frees.forget(address, size),
                HistoryEvent::Freed {
                    number,
                    address,
                    size,
                    ..
                } => {
                    frees.forget(address, size);
                    frees.0.insert(address, (size, number));
                }
                HistoryEvent::Released { address, bytes } => frees.forget(address, bytes),
                HistoryEvent::Remapped { from, bytes, .. } => frees.forget(from, bytes),
                _ => {}
            }
        }
        frees
    }

    fn forget(&mut self, address: DeviceAddress, size: u64) {
        let before = self.0.range(..address + size).rev();
        // The ranges do not overlap: the first one that ends before the range ends the search.
        let overlapping = before.take_while(|(start, (bytes, _))| **start + *bytes > address);
        let overlapping: Vec<_> = overlapping.map(|(start, _)| *start).collect();
        for start in overlapping {
            self.0.remove(&start);
        }
    }

    /// Cuts a block into the parts that were freed separately. A block that is not pending is one part.
    pub(super) fn cut(&self, block: &BlockInfo) -> Vec<Piece> {
        let end = block.address + block.size;
        let mut pieces = Vec::new();
        let mut at = block.address;
        if block.state == BlockState::Pending {
            for (start, (bytes, number)) in self.0.range(block.address..end) {
                let stop = *start + *bytes;
                if stop <= end {
                    pieces.extend(piece(at, *start, None));
                    pieces.extend(piece(*start, stop, Some(*number)));
                    at = stop;
                }
            }
        }
        pieces.extend(piece(at, end, None));
        pieces
    }
}

fn piece(start: DeviceAddress, end: DeviceAddress, number: Option<u64>) -> Option<Piece> {
    let size = end.offset_from(start).filter(|size| *size > 0)?;
    Some(Piece {
        address: start,
        size,
        number,
    })
}
