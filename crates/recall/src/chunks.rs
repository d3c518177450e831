//! The listed blocks of each chunk, and the chunks by the age of their youngest one.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use weirpool_device::DeviceAddress;

/// A position on the list of evictable memory: memory at a later one was used later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListPosition(pub(crate) u64);

/// The chunks in which listed blocks lie, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    blocks: BTreeMap<u64, BTreeSet<ListPosition>>,
    /// By the last of their blocks.
    youngest: BTreeSet<(ListPosition, u64)>,
}

/// Returns the chunks that stand for a block: the first one that it fills, or else those that it shares with others.
pub(crate) fn chunks_of(
    address: DeviceAddress,
    bytes: u64,
    chunk_bytes: u64,
) -> impl Iterator<Item = u64> {
    let (start, end) = (address.to_bits(), address.to_bits() + bytes);
    let (filled, end_of_filled) = (start.div_ceil(chunk_bytes), end / chunk_bytes);
    if filled < end_of_filled {
        filled..filled + 1
    } else {
        start / chunk_bytes..end.div_ceil(chunk_bytes)
    }
}

impl Chunks {
    pub(crate) fn insert(&mut self, chunk: u64, position: ListPosition) {
        let blocks = self.blocks.entry(chunk).or_default();
        let youngest = blocks.last().copied();
        blocks.insert(position);
        if youngest < Some(position) {
            self.youngest.insert((position, chunk));
            if let Some(youngest) = youngest {
                self.youngest.remove(&(youngest, chunk));
            }
        }
    }

    pub(crate) fn remove(&mut self, chunk: u64, position: ListPosition) {
        let Entry::Occupied(mut blocks) = self.blocks.entry(chunk) else {
            return;
        };
        blocks.get_mut().remove(&position);
        if self.youngest.remove(&(position, chunk))
            && let Some(youngest) = blocks.get().last()
        {
            self.youngest.insert((*youngest, chunk));
        }
        if blocks.get().is_empty() {
            blocks.remove();
        }
    }

    /// Returns the youngest block of each chunk, the oldest one first.
    pub(crate) fn by_youngest(&self) -> impl Iterator<Item = ListPosition> {
        self.youngest.iter().map(|(position, _)| *position)
    }
}
