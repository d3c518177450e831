//! All segments and blocks of a pool.

use super::History;
use crate::driver::{BlockInfo, BlockState, HeapWalk, SegmentInfo};
use crate::measure::{Bytes, Milliseconds};
use crate::queue::Presence;
use std::fmt;
use std::time::Duration;

/// A pool's segments and blocks at one moment, as plain data: see [`Pool::snapshot`](crate::Pool::snapshot).
///
/// As text it is a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// When, on the device's clock.
    pub time: Duration,
    /// The pool's name, if it has one.
    pub name: Option<String>,
    /// What the pool may hold from the device at most, in bytes.
    pub capacity: u64,
    /// The size of its physical handles, in bytes; the least of its segments, where memory is plain.
    pub chunk_bytes: u64,
    /// Whether segments are ranges of addresses to which memory is mapped, rather than memory.
    pub virtual_memory: bool,
    /// Whether the pool keeps a [history](crate::PoolBuilder::history).
    pub keeps_history: bool,
    /// In the order of their addresses.
    pub segments: Vec<SegmentInfo>,
    /// What led there; nothing, where the pool keeps no history.
    pub history: History,
}

impl Snapshot {
    pub(crate) fn of(presence: &Presence) -> Self {
        let driver = &presence.service.driver;
        let HeapWalk { segments, pages } = driver.heap_walk();
        let geometry = &driver.settings.geometry;
        Self {
            // Not earlier than what is told.
            time: driver.device.now(),
            name: presence.name.as_deref().map(str::to_owned),
            capacity: driver.capacity(),
            chunk_bytes: geometry.chunk_bytes,
            virtual_memory: geometry.virtual_memory,
            keeps_history: driver.has_event_log(),
            segments,
            history: pages.into(),
        }
    }

    /// All blocks, in the order of their addresses.
    pub fn blocks(&self) -> impl Iterator<Item = &BlockInfo> {
        self.segments.iter().flat_map(|segment| &segment.blocks)
    }

    /// The blocks in one state.
    pub fn blocks_in(&self, state: BlockState) -> impl Iterator<Item = &BlockInfo> {
        self.blocks().filter(move |block| block.state == state)
    }

    /// Bytes held from the device.
    pub fn reserved(&self) -> u64 {
        self.segments.iter().map(|segment| segment.mapped).sum()
    }

    /// Bytes in blocks of one state.
    pub fn bytes_in(&self, state: BlockState) -> u64 {
        self.blocks_in(state).map(|block| block.size).sum()
    }

    /// How long a block has lived, if it is in use and the pool keeps a history.
    pub fn age_of(&self, block: &BlockInfo) -> Option<Duration> {
        age(block, self.time)
    }
}

/// How long a block had lived at a time, if that is known.
pub(super) fn age(block: &BlockInfo, time: Duration) -> Option<Duration> {
    let origin = block.origin.as_ref()?;
    Some(time.saturating_sub(origin.time))
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
        let set_aside = self.bytes_in(BlockState::Reserved);
        writeln!(
            f,
            " at {}: {} reserved of {}: {used} used, {pending} pending, {free} free{}",
            Milliseconds(self.time),
            Bytes(self.reserved()),
            Bytes(self.capacity),
            if set_aside > 0 {
                format!(", {} set aside", Bytes(set_aside))
            } else {
                String::new()
            },
        )?;
        self.segments
            .iter()
            .filter(|segment| !segment.blocks.is_empty())
            .try_for_each(|segment| self.write_segment(segment, f))
    }
}

impl Snapshot {
    fn write_segment(&self, segment: &SegmentInfo, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "segment {:#x}: {} in {} blocks",
            segment.address,
            Bytes(segment.mapped),
            segment.blocks.len()
        )?;
        for block in &segment.blocks {
            write!(
                f,
                "  {:#014x} {:>10} {:<8}",
                block.address,
                Bytes(block.size),
                block.state
            )?;
            if let Some(stream) = block.stream {
                write!(f, " {stream}")?;
            }
            if !block.waits_for.is_empty() {
                write!(f, " waits for {}", Listed(&block.waits_for))?;
            }
            if let (Some(origin), Some(age)) = (&block.origin, self.age_of(block)) {
                write!(f, " {} {}", origin.source.name(), Milliseconds(age))?;
                if let Some(tag) = origin.tag {
                    write!(f, " {tag}")?;
                }
                write!(f, " {}", origin.site)?;
            }
            if let Some(reservation) = &block.reservation {
                let age = self.time.saturating_sub(reservation.time);
                write!(f, " {}", Milliseconds(age))?;
                if let Some(tag) = reservation.tag {
                    write!(f, " {tag}")?;
                }
                write!(f, " {}", reservation.site)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// `S1, S2`
struct Listed<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Listed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, item) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{item}")?;
        }
        Ok(())
    }
}
