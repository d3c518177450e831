//! When to make the free memory of a pool contiguous, and how much of it: decisions as pure functions of its figures.
//!
//! The heuristics, their names and their figures are Umpire's: `PoolCoalesceHeuristic`, `blocks_releasable`,
//! `percent_releasable` and their `_hwm` forms.

use super::Heap;
use crate::sync::plain::Arc;
use std::fmt;

/// A pool's figures, as heuristics see them, in bytes unless stated otherwise. The names are Umpire's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PoolFigures {
    /// Held from the device.
    pub actual_size: u64,
    /// Used, pending, or cached by lanes.
    pub current_size: u64,
    /// The highest that `current_size` was since the pool was built or the high-water marks were reset.
    pub high_water_mark: u64,
    /// The number of free blocks from which memory can be released: those that hold a whole chunk, or where memory is
    /// plain, segments that are wholly free.
    pub releasable_blocks: u64,
    /// What can be released of them.
    pub releasable_bytes: u64,
    /// The largest free block.
    pub largest_available: u64,
    /// The number of blocks in any state.
    pub blocks_in_pool: u64,
}

impl PoolFigures {
    /// Computes the figures, in time proportional to the number of blocks.
    pub(crate) fn of(heap: &Heap) -> Self {
        let (map, totals) = (&heap.map, heap.totals());
        let free = map.index().free.at_least(0);
        let is_releasable = |id| map.units().releasable(&map.blocks()[id]).1 > 0;
        let releasable = free.filter(|(_, id)| is_releasable(*id));
        let blocks = map.blocks().iter();
        let backed = blocks.filter(|(_, block)| block.state.is_backed());
        Self {
            actual_size: totals.reserved.current,
            current_size: totals.in_use.current,
            high_water_mark: totals.in_use.high,
            releasable_blocks: releasable.count() as u64,
            releasable_bytes: totals.releasable,
            largest_available: map.index().free.largest(),
            blocks_in_pool: backed.count() as u64,
        }
    }

    /// Returns how many bytes to make contiguous, so that the pool holds `total` bytes in all: no more than can be
    /// released. A multiple of the `step` in which memory is taken.
    pub(crate) fn piece_for(&self, total: u64, step: u64) -> u64 {
        let fixed = self.actual_size - self.releasable_bytes;
        let wanted = total.saturating_sub(fixed).min(self.releasable_bytes);
        wanted.next_multiple_of(step).min(self.releasable_bytes)
    }
}

/// Decides when to coalesce, and to how many bytes.
///
/// A heuristic returns the [actual size](PoolFigures::actual_size) that the pool is to have afterwards, with all of its
/// free memory in one block; or 0 to do nothing now.
///
/// ```
/// use weirpool::{CoalesceHeuristic, Pool, device::sim::SimDevice};
///
/// // Once more than 3 free blocks could be released: shrink to the most that was in use.
/// let heuristic = CoalesceHeuristic::blocks_releasable_hwm(3);
/// let pool = Pool::builder(SimDevice::new()).coalesce(heuristic).build()?;
/// // Or a function: whenever half of the pool is free, in several blocks.
/// let own = CoalesceHeuristic::new(|figures| {
///     let is_due = figures.releasable_bytes > figures.actual_size / 2
///         && figures.largest_available < figures.releasable_bytes;
///     if is_due { figures.actual_size } else { 0 }
/// });
/// # let _ = (pool, own);
/// # Ok::<(), weirpool::BuildError>(())
/// ```
#[derive(Clone)]
pub struct CoalesceHeuristic(Kind);

#[derive(Clone)]
enum Kind {
    Blocks { more_than: u64, to: To },
    Percent { percent: u8, to: To },
    Own(Arc<Function>),
}

type Function = dyn Fn(&PoolFigures) -> u64 + Send + Sync;

/// The size that the pool is to have afterwards.
#[derive(Clone, Copy, Debug)]
enum To {
    ActualSize,
    HighWaterMark,
}

impl To {
    fn of(self, figures: &PoolFigures) -> u64 {
        match self {
            Self::ActualSize => figures.actual_size,
            Self::HighWaterMark => figures.high_water_mark,
        }
    }
}

impl CoalesceHeuristic {
    /// Coalesces once more than `count` free blocks could be released.
    pub fn blocks_releasable(count: u64) -> Self {
        let to = To::ActualSize;
        Self(Kind::Blocks {
            more_than: count,
            to,
        })
    }

    /// Coalesces once more than `count` free blocks could be released, and shrinks the pool to its high-water mark.
    pub fn blocks_releasable_hwm(count: u64) -> Self {
        let to = To::HighWaterMark;
        Self(Kind::Blocks {
            more_than: count,
            to,
        })
    }

    /// Coalesces once this percentage of the pool could be released. 0 means never. 100 means once nothing is in use, and
    /// larger values count as 100.
    pub fn percent_releasable(percent: u8) -> Self {
        let to = To::ActualSize;
        Self(Kind::Percent { percent, to })
    }

    /// Coalesces once this percentage of the pool could be released, and shrinks the pool to its high-water mark. See
    /// [`percent_releasable`](Self::percent_releasable).
    pub fn percent_releasable_hwm(percent: u8) -> Self {
        let to = To::HighWaterMark;
        Self(Kind::Percent { percent, to })
    }

    /// Decides by a function. It is called off the hot path with no lock held, so it may take a while.
    pub fn new(function: impl Fn(&PoolFigures) -> u64 + Send + Sync + 'static) -> Self {
        Self(Kind::Own(Arc::new(function)))
    }

    /// Returns the bytes that the pool is to have afterwards, or `None` to do nothing now.
    ///
    /// Where all releasable memory is one block already, only a heuristic that shrinks the pool, or a function, returns a
    /// size.
    pub fn decide(&self, figures: &PoolFigures) -> Option<u64> {
        let (is_due, to) = match &self.0 {
            Kind::Blocks { more_than, to } => (figures.releasable_blocks > *more_than, *to),
            Kind::Percent { percent, to } => (is_percent_due(*percent, figures), *to),
            Kind::Own(function) => return Some(function(figures)).filter(|bytes| *bytes > 0),
        };
        let target = to.of(figures);
        let is_in_pieces = figures.releasable_blocks > 1;
        let does_something = is_in_pieces || target < figures.actual_size;
        (is_due && does_something).then_some(target)
    }
}

fn is_percent_due(percent: u8, figures: &PoolFigures) -> bool {
    match percent {
        0 => false,
        1..=99 => {
            let releasable = u128::from(figures.releasable_bytes) * 100;
            releasable >= u128::from(figures.actual_size) * u128::from(percent)
                && figures.releasable_bytes > 0
        }
        100.. => figures.current_size == 0 && figures.actual_size > 0,
    }
}

impl fmt::Debug for CoalesceHeuristic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Blocks { more_than, to } => write!(f, "blocks_releasable({more_than}) to {to:?}"),
            Kind::Percent { percent, to } => write!(f, "percent_releasable({percent}) to {to:?}"),
            Kind::Own(_) => write!(f, "a function"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURES: PoolFigures = PoolFigures {
        actual_size: 100,
        current_size: 40,
        high_water_mark: 70,
        releasable_blocks: 3,
        releasable_bytes: 60,
        largest_available: 30,
        blocks_in_pool: 6,
    };

    #[test]
    fn blocks_above_the_bound_are_due() {
        assert_eq!(
            CoalesceHeuristic::blocks_releasable(3).decide(&FIGURES),
            None
        );
        let due = CoalesceHeuristic::blocks_releasable(2);
        assert_eq!(due.decide(&FIGURES), Some(100));
        let due = CoalesceHeuristic::blocks_releasable_hwm(2);
        assert_eq!(due.decide(&FIGURES), Some(70));
    }

    #[test]
    fn percentage_is_due_from_the_bound_on() {
        let decide = |percent| CoalesceHeuristic::percent_releasable(percent).decide(&FIGURES);
        assert_eq!([decide(0), decide(60), decide(61)], [None, Some(100), None]);
        assert_eq!(decide(100), None, "something is in use");
        let idle = PoolFigures {
            current_size: 0,
            ..FIGURES
        };
        let all = CoalesceHeuristic::percent_releasable_hwm(100);
        assert_eq!(all.decide(&idle), Some(70));
    }

    #[test]
    fn contiguous_memory_is_left_alone() {
        let one = PoolFigures {
            releasable_blocks: 1,
            ..FIGURES
        };
        assert_eq!(CoalesceHeuristic::blocks_releasable(0).decide(&one), None);
        let shrinks = CoalesceHeuristic::blocks_releasable_hwm(0);
        assert_eq!(shrinks.decide(&one), Some(70));
    }

    #[test]
    fn function_that_returns_zero_does_nothing() {
        let own = CoalesceHeuristic::new(|figures| figures.blocks_in_pool - 6);
        assert_eq!(own.decide(&FIGURES), None);
    }

    #[test]
    fn piece_is_what_can_be_released_beside_the_rest() {
        assert_eq!(FIGURES.piece_for(100, 10), 60);
        assert_eq!(FIGURES.piece_for(70, 10), 30);
        assert_eq!(FIGURES.piece_for(71, 10), 40);
        assert_eq!(
            FIGURES.piece_for(99, 50),
            60,
            "no more than can be released"
        );
        assert_eq!(FIGURES.piece_for(40, 10), 0);
        assert_eq!(FIGURES.piece_for(500, 10), 60);
    }
}
