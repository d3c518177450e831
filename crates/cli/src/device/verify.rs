//! Contents: each block gets a pattern of its own when it is allocated, and the pattern is checked before the free.
//! A corruption shows memory that two blocks had at once, or that was remapped without its bytes.

use crate::options::Extent;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weirpool::Block;
use weirpool::device::DeviceAddress;
use weirpool::device::sim::{Memory, Operation};

const PAGE: u64 = 4096;

/// Counts blocks whose contents differ from the written ones.
#[derive(Debug)]
pub(crate) struct Verifier {
    extent: Extent,
    corruptions: Arc<AtomicU64>,
}

/// The contents of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contents {
    /// The allocation; no two have the same pattern.
    pub(crate) id: usize,
    pub(crate) address: DeviceAddress,
    pub(crate) bytes: u64,
}

impl Verifier {
    pub(crate) fn new(extent: Extent) -> Self {
        Self {
            extent,
            corruptions: Arc::default(),
        }
    }

    pub(crate) fn corruptions(&self) -> u64 {
        self.corruptions.load(Ordering::Relaxed)
    }

    /// Makes the operation write the block's pattern.
    pub(crate) fn write(&self, operation: Operation, contents: Contents) -> Operation {
        let extent = self.extent;
        operation.run(move |memory| {
            for (at, word) in contents.pieces(extent) {
                memory.write(at, &word);
            }
        })
    }

    /// Makes the operation check the block's pattern.
    pub(crate) fn check(&self, operation: Operation, contents: Contents) -> Operation {
        let (extent, corruptions) = (self.extent, self.corruptions.clone());
        operation.run(move |memory| {
            if !contents.hold(extent, memory) {
                corruptions.fetch_add(1, Ordering::Relaxed);
            }
        })
    }
}

impl Contents {
    pub(crate) fn of(id: usize, bytes: u64, block: &Block) -> Self {
        let address = block.address();
        Self { id, address, bytes }
    }

    fn hold(self, extent: Extent, memory: &mut Memory) -> bool {
        let mut found = Vec::new();
        self.pieces(extent).all(|(at, expected)| {
            found.resize(expected.len(), 0);
            memory.read(at, &mut found);
            found == expected
        })
    }

    /// Returns the pattern, piece by piece with its address.
    fn pieces(self, extent: Extent) -> impl Iterator<Item = (DeviceAddress, Vec<u8>)> {
        let pages = (0..self.bytes).step_by(PAGE as usize).map(move |offset| {
            let length = match extent {
                Extent::Pages => 8,
                Extent::Full => PAGE,
            };
            let length = length.min(self.bytes - offset);
            (self.address + offset, self.pattern(offset / PAGE, length))
        });
        let last = (self.bytes > 0).then(|| {
            let offset = self.bytes - 1;
            let page = self.pattern(offset / PAGE, PAGE);
            let byte = page[(offset % PAGE) as usize];
            (self.address + offset, vec![byte])
        });
        pages.chain(last)
    }

    fn pattern(self, page: u64, length: u64) -> Vec<u8> {
        let seed = (self.id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ page.rotate_left(32);
        let word = fastrand::Rng::with_seed(seed).u64(..).to_le_bytes();
        word.into_iter().cycle().take(length as usize).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use weirpool::device::sim::{SimDevice, SimStream};
    use weirpool::device::{Device, MemoryKind};

    fn mapped(bytes: u64) -> (SimDevice, SimStream, DeviceAddress) {
        let device = SimDevice::new();
        let address = device.allocate(MemoryKind::Device, bytes).unwrap();
        let stream = device.create_stream();
        (device, stream, address.into())
    }

    fn corruptions(extent: Extent, damaged: Option<u64>) -> u64 {
        let (device, stream, address) = mapped(2 << 20);
        let verifier = Verifier::new(extent);
        let contents = Contents {
            id: 7,
            address,
            bytes: 3 * PAGE + 100,
        };
        let operation = || Operation::new(Duration::ZERO);
        stream.submit(verifier.write(operation(), contents));
        if let Some(offset) = damaged {
            let mut byte = [0];
            device.read(address + offset, &mut byte).unwrap();
            device.write(address + offset, &[!byte[0]]).unwrap();
        }
        stream.submit(verifier.check(operation(), contents));
        verifier.corruptions()
    }

    #[test]
    fn written_pattern_is_found() {
        assert_eq!(corruptions(Extent::Pages, None), 0);
        assert_eq!(corruptions(Extent::Full, None), 0);
    }

    #[test]
    fn damage_of_a_page_or_an_end_is_found() {
        for offset in [0, PAGE, 2 * PAGE + 3, 3 * PAGE + 99] {
            assert_eq!(corruptions(Extent::Pages, Some(offset)), 1, "{offset}");
        }
    }

    #[test]
    fn damage_of_any_byte_is_found_in_full() {
        for offset in [1, 100, PAGE - 1, 2 * PAGE + 1000, 3 * PAGE + 98] {
            assert_eq!(corruptions(Extent::Full, Some(offset)), 1, "{offset}");
        }
    }
}
