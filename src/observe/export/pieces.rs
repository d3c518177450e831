//! What the pending blocks of a snapshot were when they were freed.
//!
//! Pending neighbours with the same fences are one block of the heap. A viewer that goes back in time wants
//! to see what was freed turn into what was used, so such a block is cut along the frees that made it.

use crate::device::DeviceAddress;
use crate::driver::{BlockInfo, BlockState, HistoryEntry, HistoryEvent};
use std::collections::BTreeMap;

/// A part of a block of the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) address: DeviceAddress,
    pub(super) size: u64,
    /// Of a part that is pending, which allocation it was, if that is known.
    pub(super) number: Option<u64>,
}

/// The last life of each address that was freed and not used again: by address, its bytes and number.
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
        // They never overlap: the first that ends before the span ends the search.
        let overlapping = before.take_while(|(start, (bytes, _))| **start + *bytes > address);
        let overlapping: Vec<_> = overlapping.map(|(start, _)| *start).collect();
        for start in overlapping {
            self.0.remove(&start);
        }
    }

    /// The parts of a block: all of it, if it is not pending.
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
