//! How much is taken from the device at a time.

use super::block::{BlockId, State};
use super::plan::{Mapping, Plan};
use super::{GRANULE, Heap, Request};

/// How much a pool takes from the device when it grows; always within its capacity.
///
/// ```
/// use weirpool::{GrowBy, Pool, device::sim::SimDevice};
///
/// let device = SimDevice::new();
/// let pool = Pool::builder(device.clone())
///     .initial_size(256 << 20)
///     .growth(GrowBy::AtLeast(64 << 20))
///     .build()?;
/// let stream = pool.register(&device.create_stream())?;
/// let first = pool.try_allocate(&stream, 256 << 20)?;
/// let second = pool.try_allocate(&stream, 1 << 20)?;
/// assert_eq!(pool.statistics().reserved.current, 320 << 20);
/// # drop((first, second));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum GrowBy {
    /// What the request needs, in whole handles. The default: growing costs tens of microseconds, and what
    /// is not taken is left to others.
    #[default]
    Chunks,
    /// At least so many bytes at a time. Umpire's minimal size of a next allocation.
    AtLeast(u64),
    /// To at least this many times what the pool has; more than 1. The number of growths then goes with the
    /// logarithm of the size.
    Factor(f64),
}

impl GrowBy {
    /// What is wrong with it, for a pool of this capacity.
    pub(crate) fn fault(self, capacity: u64) -> Option<&'static str> {
        match self {
            Self::AtLeast(0) => Some("growing by nothing is no growth"),
            Self::AtLeast(bytes) if bytes > capacity => Some("it is over the capacity"),
            Self::Factor(factor) if !(factor.is_finite() && factor > 1.0) => {
                Some("a factor is a number larger than 1")
            }
            Self::Chunks | Self::AtLeast(_) | Self::Factor(_) => None,
        }
    }

    /// How many bytes are to be taken, where a request needs `needed` and `reserved` are held already.
    fn step(self, reserved: u64, needed: u64) -> u64 {
        let wanted = match self {
            Self::Chunks => 0,
            Self::AtLeast(bytes) => bytes,
            // The cast saturates, and a capacity bounds it.
            Self::Factor(factor) => (reserved as f64 * (factor - 1.0)) as u64,
        };
        wanted.max(needed)
    }
}

impl Heap {
    /// Claims addresses for so many new bytes, rounded up to whole handles, and no further than the capacity
    /// and one hole go: as one block, to be freed. Nothing, if there is no room for any.
    pub(crate) fn plan_new(&mut self, bytes: u64) -> Option<Plan> {
        if !self.geometry.virtual_memory {
            return self.plan_segment(bytes);
        }
        let chunk = self.geometry.chunk_bytes;
        let count = bytes.div_ceil(chunk).min(self.chunks_left());
        let hole = self.hole_of(count * chunk)?;
        let count = count.min(self.blocks[hole].bytes / chunk);
        let mapping = (count > 0).then(|| self.claim_new(hole, count))?;
        Some(Plan::Map(mapping))
    }

    /// The rest of a growth, of which a request has had so many bytes.
    pub(crate) fn plan_ahead(&mut self, grown: u64) -> Option<Plan> {
        let before = self.totals.reserved.current.saturating_sub(grown);
        let rest = self.geometry.growth.step(before, grown) - grown;
        if rest == 0 { None } else { self.plan_new(rest) }
    }

    /// New memory for one more request like this, if nothing that is free does for it, and there may be as much more.
    pub(crate) fn plan_one_more(&mut self, request: Request) -> Option<Plan> {
        let does = |id| self.placement(id, request).is_some();
        let is_there = self.free.best(request.bytes, usize::MAX, does).is_some();
        let may_grow = !is_there && request.bytes <= self.bytes_left();
        may_grow.then(|| self.plan_new(request.bytes))?
    }

    /// How many bytes are to be taken, where a request needs `needed`.
    pub(super) fn growth_step(&self, needed: u64) -> u64 {
        let reserved = self.totals.reserved.current;
        self.geometry.growth.step(reserved, needed)
    }

    fn plan_segment(&mut self, bytes: u64) -> Option<Plan> {
        let bytes = bytes.checked_next_multiple_of(self.geometry.granularity)?;
        let request = Request {
            bytes,
            alignment: GRANULE,
        };
        let is_room = bytes > 0 && bytes <= self.bytes_left();
        is_room.then(|| {
            self.totals.planned += bytes;
            Plan::Memory(bytes, request)
        })
    }

    /// Bytes that the device may still be asked for.
    pub(super) fn bytes_left(&self) -> u64 {
        let taken = self.totals.reserved.current + self.totals.planned;
        self.geometry.capacity.saturating_sub(taken)
    }

    /// The first hole that is large enough, or the largest.
    fn hole_of(&self, bytes: u64) -> Option<BlockId> {
        let mut largest = None;
        let segments = self.segments.iter().flatten();
        let blocks = segments.flat_map(|segment| self.blocks.from(segment.first));
        for (id, block) in blocks.filter(|(_, block)| block.state == State::Hole) {
            if block.bytes >= bytes {
                return Some(id);
            }
            if largest.is_none_or(|(most, _)| block.bytes > most) {
                largest = Some((block.bytes, id));
            }
        }
        largest.map(|(_, id)| id)
    }

    fn claim_new(&mut self, hole: BlockId, count: u64) -> Mapping {
        let bytes = count * self.geometry.chunk_bytes;
        if self.blocks[hole].bytes > bytes {
            self.cut(hole, bytes);
        }
        let start = self.blocks[hole].address;
        self.claim_block(hole);
        self.totals.planned += bytes;
        Mapping::of_new(hole, start, bytes, self.geometry.chunk_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_what_is_needed_or_more() {
        assert_eq!(GrowBy::Chunks.step(100, 7), 7);
        assert_eq!(GrowBy::AtLeast(50).step(100, 7), 50);
        assert_eq!(GrowBy::AtLeast(50).step(100, 70), 70);
        assert_eq!(GrowBy::Factor(1.5).step(100, 7), 50);
        assert_eq!(GrowBy::Factor(1.5).step(0, 7), 7);
    }

    #[test]
    fn nonsense_is_found() {
        for growth in [
            GrowBy::AtLeast(0),
            GrowBy::AtLeast(101),
            GrowBy::Factor(1.0),
            GrowBy::Factor(f64::NAN),
            GrowBy::Factor(f64::INFINITY),
        ] {
            assert!(growth.fault(100).is_some(), "{growth:?}");
        }
        for growth in [GrowBy::Chunks, GrowBy::AtLeast(100), GrowBy::Factor(1.01)] {
            assert!(growth.fault(100).is_none(), "{growth:?}");
        }
    }
}
