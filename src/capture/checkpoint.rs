//! Going back to an earlier state of memory for graphs.

use super::GraphMemory;
use crate::block::Block;
use crate::device::DeviceAddress;
use crate::error::AllocError;
use crate::handles::{Allocated, GraphShare};
use crate::measure::{BlockInfo, BlockState, Bytes};
use crate::pool::captured;
use crate::stream::Stream;
use crate::sync::plain;
use std::panic::Location;

/// The ranges of a [`GraphMemory`] that were allocated at one moment. Made by [`GraphMemory::checkpoint`], and given
/// back to [`GraphMemory::restore`].
///
/// It owns no memory, and does not keep the memory of the graphs set aside. But while it exists, its ranges stay where
/// they are.
#[derive(Clone, Debug)]
pub struct GraphCheckpoint {
    share: plain::Weak<GraphShare>,
    ranges: plain::Arc<Allocated>,
}

impl GraphCheckpoint {
    /// Returns the address of each range and its size in bytes, lowest first.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = (DeviceAddress, u64)> + '_ {
        let ranges = self.ranges.iter();
        ranges.map(|(address, bytes)| (DeviceAddress::from_bits(*address), *bytes))
    }
}

/// The reason why a [checkpoint](GraphCheckpoint) was not restored. The memory is as before.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The checkpoint was taken of other memory. Restore it there.
    #[error("the checkpoint was taken of other memory for graphs; restore it there")]
    ForeignCheckpoint,
    /// A range of the checkpoint is not available.
    #[error(
        "{} at {address:#x} cannot be restored: {}",
        Bytes(*bytes), why_not(*address, found.as_deref())
    )]
    Unavailable {
        /// The first address of the range.
        address: DeviceAddress,
        /// The size of the range in bytes.
        bytes: u64,
        /// A block that lies in the range, and is not available.
        found: Option<Box<BlockInfo>>,
    },
    /// The stream belongs to another pool or is being captured, the pool is closed, or the device failed.
    #[error(transparent)]
    Refused(#[from] AllocError),
}

fn why_not(range: DeviceAddress, found: Option<&BlockInfo>) -> String {
    let Some(block) = found else {
        return format!("the memory has no block at {range:#x} any more; capture again");
    };
    let (at, size) = (block.address, Bytes(block.size));
    match block.state {
        BlockState::Used => format!("{size} at {at:#x} are in use; free that block first"),
        _ => {
            let streams = &block.waits_for;
            format!(
                "{size} at {at:#x} wait for work of the streams {streams:?}; synchronize with them, and call again"
            )
        }
    }
}

impl GraphMemory {
    /// Returns the ranges that are allocated now: the blocks of captures, and those that were
    /// [allocated](Self::allocate) outside them. Takes time proportional to the number of blocks in the pool, under the
    /// heap's lock.
    ///
    /// Graphs that share memory form a tree if each capture continues from the state in which another one ended. To add
    /// a branch, [restore](Self::restore) the state at its root first. Then the new capture does not overwrite what the
    /// launches so far left in the blocks of the checkpoint.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// let memory = pool.graph_memory();
    /// let capture = memory.capture(&stream)?;
    /// let result = pool.try_allocate(&stream, 1 << 20)?; // the step that both branches continue from
    /// let root = capture.end()?;
    /// let (at_root, address) = (memory.checkpoint(), result.address());
    ///
    /// drop(result); // the first branch does not need it, and reuses its memory
    /// let capture = memory.capture(&stream)?;
    /// let reused = pool.try_allocate(&stream, 1 << 20)?;
    /// let first = capture.end()?;
    /// drop(reused);
    ///
    /// let restored = memory.restore(&at_root, &stream)?; // as the launch of `root` leaves it
    /// assert_eq!(restored[0].address(), address);
    /// let capture = memory.capture(&stream)?;
    /// let other = pool.try_allocate(&stream, 1 << 20)?; // the second branch
    /// assert_ne!(other.address(), address);
    /// let second = capture.end()?;
    /// # drop((root, first, second, restored, other));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// (The semantics are those of the checkpoints that PyTorch's trees of graphs take of their pools.)
    pub fn checkpoint(&self) -> GraphCheckpoint {
        GraphCheckpoint {
            share: plain::Arc::downgrade(self.share()),
            ranges: self.share().keep_allocated(),
        }
    }

    /// Allocates exactly the ranges of a checkpoint again, for use in the order of `stream`, and returns them as blocks
    /// in the order of [`GraphCheckpoint::ranges`]. Their bytes stay as they are, also in a pool that fills its blocks.
    ///
    /// Free the blocks of the memory first. Those that are still allocated stay so, and must not overlap the
    /// checkpoint. If the stream does not come after the last free of a range yet, it is made to wait on the device.
    /// Launches of graphs are not frees: order the stream after those that write the ranges.
    ///
    /// # Errors
    /// Returns [`RestoreError`]. No range stays allocated then.
    #[track_caller]
    pub fn restore(
        &self,
        checkpoint: &GraphCheckpoint,
        stream: &Stream,
    ) -> Result<Vec<Block>, RestoreError> {
        let share = self.share();
        if !std::ptr::eq(checkpoint.share.as_ptr(), plain::Arc::as_ptr(share)) {
            return Err(RestoreError::ForeignCheckpoint);
        }
        let (registration, caller) = (&stream.registration, captured::at(Location::caller()));
        captured::expect_outside(registration, share, caller)?;
        let blocks = checkpoint.ranges.iter().map(|range| {
            let block = captured::allocate_at(registration, share, *range, caller)?;
            block.ok_or_else(|| self.unavailable(*range))
        });
        blocks.collect()
    }

    #[cold]
    fn unavailable(&self, (address, bytes): (u64, u64)) -> RestoreError {
        let pool = self.pool();
        let mut at = address;
        let mut found = None;
        while let Some(block) = pool.inspect().block_at(at).filter(|_| at < address + bytes) {
            at = block.address.to_bits() + block.size;
            let is_free = block.state == BlockState::Reserved && block.waits_for.is_empty();
            if !is_free {
                found = Some(Box::new(block));
                break;
            }
        }
        RestoreError::Unavailable {
            address: DeviceAddress::from_bits(address),
            bytes,
            found,
        }
    }
}
