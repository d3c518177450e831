//! Frames of a replay: the figures and the blocks of its pool, at moments that are evenly apart.
//!
//! A frame reads the pool and steers nothing, so a replay gives the same figures with frames and without.

use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::time::Duration;
use weirpool::device::DeviceAddress;
use weirpool::{BlockInfo, Histogram, Pool, SegmentInfo, StreamId};

/// The most frames of a replay, with the one of its end.
pub(crate) const MOST: usize = 300;
/// The most blocks of a frame: the largest ones.
pub(crate) const BLOCKS: usize = 500;
/// The most bytes of a frame as JSON.
#[cfg(test)]
pub(crate) const FRAME_BYTES: usize = 64 << 10;

/// A block: the offset in its segment, bytes, state and stream.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Block(u64, u64, String, Option<StreamId>);

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Segment {
    /// In hexadecimal: JavaScript's numbers have 53 bits.
    address: String,
    blocks: Vec<Block>,
}

/// The pool at one moment, in bytes unless stated otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Frame {
    pub(crate) at_ns: u64,
    pub(crate) reserved: u64,
    pub(crate) used: u64,
    pub(crate) pending: u64,
    pub(crate) free: u64,
    /// Requested and not yet freed.
    pub(crate) requested: u64,
    /// Number of requests that wait.
    pub(crate) waiting: u64,
    segments: Vec<Segment>,
    /// Number of blocks that are left out, and their bytes.
    pub(crate) small_blocks: usize,
    pub(crate) small_bytes: u64,
}

impl Frame {
    /// Returns the state of `pool` at `at`, when this many bytes are requested.
    pub(crate) fn of(pool: &Pool, at: Duration, requested: u64) -> Self {
        let levels = pool.statistics();
        let snapshot = pool.snapshot();
        let mut shown: Vec<_> = snapshot.blocks().collect();
        shown.sort_by_key(|block| Reverse(block.size));
        let small = shown.split_off(shown.len().min(BLOCKS));
        let shown: HashSet<_> = shown.iter().map(|block| block.address).collect();
        let segments = snapshot.segments.iter();
        Self {
            at_ns: u64::try_from(at.as_nanos()).unwrap_or(u64::MAX),
            reserved: levels.reserved.current,
            used: levels.used.current,
            pending: levels.pending.current,
            free: levels.free,
            requested,
            waiting: levels.waits.waiting as u64,
            segments: segments
                .map(|segment| Segment::of(segment, &shown))
                .filter(|segment| !segment.blocks.is_empty())
                .collect(),
            small_blocks: small.len(),
            small_bytes: small.iter().map(|block| block.size).sum(),
        }
    }
}

impl Segment {
    fn of(segment: &SegmentInfo, shown: &HashSet<DeviceAddress>) -> Self {
        let blocks = segment.blocks.iter();
        Self {
            address: segment.address.to_string(),
            blocks: blocks
                .filter(|block| shown.contains(&block.address))
                .map(|block| Block::of(block, segment.address))
                .collect(),
        }
    }
}

impl Block {
    fn of(block: &BlockInfo, base: DeviceAddress) -> Self {
        let offset = block.address.offset_from(base).unwrap_or_default();
        Self(offset, block.size, block.state.to_string(), block.stream)
    }
}

/// The frames of a run, and the times that it recorded.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    /// In the order of time.
    pub(crate) frames: Vec<Frame>,
    /// How long requests waited that were served.
    pub(crate) waits: Histogram,
    /// From the recording of a free's event until it was seen complete.
    pub(crate) pending_ages: Histogram,
}

impl Recording {
    /// Returns the recording of a run that ends with the frame `last`.
    pub(crate) fn new(mut frames: Vec<Frame>, last: Frame, pool: &Pool) -> Self {
        // The end replaces a frame of the same moment.
        frames.pop_if(|frame| frame.at_ns >= last.at_ns);
        frames.push(last);
        let figures = pool.statistics();
        Self {
            frames,
            waits: figures.waits.times,
            pending_ages: figures.pending_ages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weirpool::device::sim::SimDevice;

    #[test]
    fn largest_frame_is_within_its_bound() {
        let stream = serde_json::from_str("65535").unwrap();
        let block = Block(1 << 52, 1 << 48, "reserved".to_owned(), Some(stream));
        let segment = Segment {
            address: format!("{:#x}", u64::MAX),
            blocks: vec![block],
        };
        let frame = Frame {
            at_ns: u64::MAX,
            reserved: u64::MAX,
            used: u64::MAX,
            pending: u64::MAX,
            free: u64::MAX,
            requested: u64::MAX,
            waiting: u64::MAX,
            segments: vec![segment; BLOCKS],
            small_blocks: usize::MAX,
            small_bytes: u64::MAX,
        };
        let bytes = serde_json::to_string(&frame).unwrap().len();
        assert!(bytes <= FRAME_BYTES, "{bytes}");
    }

    #[test]
    fn frame_has_the_largest_blocks_and_counts_the_others() {
        let device = SimDevice::new();
        let pool = Pool::builder(device.clone()).build().unwrap();
        let stream = pool.register(&device.create_stream()).unwrap();
        let allocate = |bytes| pool.try_allocate(&stream, bytes).unwrap();
        let held: Vec<_> = (0..BLOCKS + 100)
            .map(|number| allocate(if number % 2 == 0 { 1 << 20 } else { 4096 }))
            .collect();
        let frame = Frame::of(&pool, Duration::ZERO, 0);
        let shown: Vec<_> = frame.segments.iter().flat_map(|s| &s.blocks).collect();
        assert_eq!(shown.len(), BLOCKS);
        let large = shown.iter().filter(|block| block.1 >= 1 << 20).count();
        assert!(large >= held.len() / 2, "{large}");
        let bytes: u64 = shown.iter().map(|block| block.1).sum();
        assert_eq!(bytes + frame.small_bytes, frame.reserved);
        assert!(frame.small_blocks >= 100);
        assert_eq!(frame.used + frame.pending + frame.free, frame.reserved);
    }
}
