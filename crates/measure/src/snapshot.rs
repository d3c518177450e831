//! All segments and blocks of a pool.

use crate::{BlockInfo, BlockState, ReservationInfo, SegmentInfo, Site};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::panic::Location;
use std::time::Duration;
use weirpool_heap::debug_in_units;
use weirpool_heap::id::{StreamId, StreamLabel};
use weirpool_heap::units::{Bytes, Counted, Milliseconds};
use weirpool_queue::Tag;

const LISTED: usize = 20;

/// The segments and blocks of a pool at one moment, as plain data: see `Inspect::snapshot`.
/// Displayed as a table.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// The time of the snapshot, on the device's clock.
    pub time: Duration,
    /// The pool's name, if it has one.
    pub name: Option<String>,
    /// The most bytes that the pool may reserve.
    pub capacity: u64,
    /// The size of the pool's chunks in bytes; where memory is plain, the least size of a segment.
    pub chunk_bytes: u64,
    /// Whether segments are ranges of addresses to which memory is mapped, rather than memory.
    pub virtual_memory: bool,
    /// The segments in the order of their addresses.
    pub segments: Vec<SegmentInfo>,
    /// The live reservations in the order of their creation, with the bytes that are not allocated.
    pub reservations: Vec<ReservationInfo>,
    /// The names of the registered streams that have one.
    pub streams: BTreeMap<StreamId, String>,
    /// The number of the last event of mapped or released memory that led here, or a later
    /// one; 0 without observers.
    pub events: u64,
}

debug_in_units!(struct Snapshot { time, name, capacity as bytes, chunk_bytes as bytes, virtual_memory, segments, reservations, streams, events });

impl Snapshot {
    /// Describes a pool at a time by its capacity, its segments and its reservations.
    #[doc(hidden)]
    pub fn of(
        time: Duration,
        capacity: u64,
        segments: Vec<SegmentInfo>,
        reservations: Vec<ReservationInfo>,
    ) -> Self {
        Self {
            time,
            name: None,
            capacity,
            chunk_bytes: 0,
            virtual_memory: false,
            segments,
            reservations,
            streams: BTreeMap::new(),
            events: 0,
        }
    }

    /// Returns all blocks, in the order of their addresses.
    pub fn blocks(&self) -> impl Iterator<Item = &BlockInfo> {
        self.segments.iter().flat_map(|segment| &segment.blocks)
    }

    /// Returns the blocks in one state.
    pub fn blocks_in(&self, state: BlockState) -> impl Iterator<Item = &BlockInfo> {
        self.blocks().filter(move |block| block.state == state)
    }

    /// Describes the largest blocks that are in use or set aside, a line each; `site` tells where a block was allocated
    /// whose origin no observer remembers.
    #[doc(hidden)]
    pub fn describe_held(
        &self,
        site: impl Fn(u64) -> Option<&'static Location<'static>>,
    ) -> String {
        let is_held =
            |block: &&BlockInfo| matches!(block.state, BlockState::Used | BlockState::Reserved);
        let mut held: Vec<_> = self.blocks().filter(is_held).collect();
        held.sort_by_key(|block| Reverse(block.size));
        let mut text = String::new();
        for block in held.iter().take(LISTED) {
            let _ = write!(text, "\n{}", Line(self, block));
            let is_unknown = block.origin.is_none() && block.reservation.is_none();
            if let Some(site) = site(block.address.to_bits()).filter(|_| is_unknown) {
                let _ = write!(text, " allocated at {site}");
            }
        }
        if held.len() > LISTED {
            let _ = write!(text, "\n  and {} more", held.len() - LISTED);
        }
        text
    }

    /// Returns the bytes reserved from the device.
    pub fn reserved(&self) -> u64 {
        self.segments.iter().map(|segment| segment.mapped).sum()
    }

    /// Returns the bytes of the blocks in one state.
    pub fn bytes_in(&self, state: BlockState) -> u64 {
        self.blocks_in(state).map(|block| block.size).sum()
    }

    /// Returns how long a block has been in use; `None` for another block, or if no observer remembers.
    pub fn age_of(&self, block: &BlockInfo) -> Option<Duration> {
        age(block, self.time)
    }

    fn label(&self, stream: StreamId) -> StreamLabel<'_> {
        StreamLabel::new(stream, &self.streams)
    }
}

/// Returns how long a block had been in use at a time, if that is known.
fn age(block: &BlockInfo, time: Duration) -> Option<Duration> {
    let origin = block.origin.as_ref()?;
    Some(time.saturating_sub(origin.time))
}

struct Line<'a>(&'a Snapshot, &'a BlockInfo);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write_block(self.1, f)
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "pool {name:?}")?,
            None => f.write_str("pool")?,
        }
        let bytes = |state| Bytes(self.bytes_in(state));
        let [used, pending, free] =
            [BlockState::Used, BlockState::Pending, BlockState::Free].map(bytes);
        write!(
            f,
            " at {}: {} reserved of {}: {used} used, {pending} pending, {free} free",
            Milliseconds(self.time),
            Bytes(self.reserved()),
            Bytes(self.capacity),
        )?;
        let set_aside = bytes(BlockState::Reserved);
        if set_aside.0 > 0 {
            write!(f, ", {set_aside} set aside")?;
        }
        writeln!(f)?;
        let segments = self.segments.iter();
        segments
            .filter(|segment| !segment.blocks.is_empty())
            .try_for_each(|segment| self.write_segment(segment, f))
    }
}

impl Snapshot {
    fn write_segment(&self, segment: &SegmentInfo, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, blocks) = (Bytes(segment.mapped), &segment.blocks);
        let counted = Counted(blocks.len() as u64, "block");
        writeln!(f, "segment {:#x}: {size} in {counted}", segment.address)?;
        blocks.iter().try_for_each(|block| {
            self.write_block(block, f)?;
            writeln!(f)
        })
    }

    fn write_block(&self, block: &BlockInfo, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, size, state) = (block.address, Bytes(block.size), block.state);
        write!(f, "  {address:#014x} {size:>10} {state:<8}")?;
        if let Some(stream) = block.stream {
            write!(f, " {}", self.label(stream))?;
        }
        for (at, stream) in block.waits_for.iter().enumerate() {
            let before = if at == 0 { " waits for " } else { ", " };
            write!(f, "{before}{}", self.label(*stream))?;
        }
        if let Some(origin) = &block.origin {
            write!(f, " {}", origin.source.name())?;
            self.write_origin(origin.time, origin.tag, &origin.site, f)?;
        }
        if let Some(origin) = &block.reservation {
            self.write_origin(origin.time, origin.tag, &origin.site, f)?;
        }
        Ok(())
    }

    fn write_origin(
        &self,
        time: Duration,
        tag: Option<Tag>,
        site: &Site,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        write!(f, " {}", Milliseconds(self.time.saturating_sub(time)))?;
        if let Some(tag) = tag {
            write!(f, " {tag}")?;
        }
        write!(f, " {site}")
    }
}
