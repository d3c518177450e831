//! When to coalesce, and to how much: decisions as pure functions of a pool's figures.
//!
//! The heuristics, their names and their figures are Umpire's (`PoolCoalesceHeuristic`,
//! `blocks_releasable`, `percent_releasable` and their `_hwm` forms).

use crate::sync::plain::Arc;
use std::fmt;

/// A pool's figures, as heuristics see them; bytes unless said otherwise. The names are Umpire's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PoolFigures {
    /// Held from the device.
    pub actual_size: u64,
    /// Used, pending, or kept by lanes.
    pub current_size: u64,
    /// The highest that `current_size` has been since the pool was made or the highs were reset.
    pub high_water_mark: u64,
    /// Free blocks, in number, from which memory can be released: those with a whole handle in them, or
    /// where memory is plain, segments that are wholly free.
    pub releasable_blocks: u64,
    /// What can be released of them.
    pub releasable_bytes: u64,
    /// The largest of the free blocks.
    pub largest_available: u64,
    /// Blocks, in number, in whatever state.
    pub blocks_in_pool: u64,
}

/// Whether to coalesce now, and to how many bytes.
///
/// A heuristic answers with the [actual size](PoolFigures::actual_size) that the pool is to have
/// afterwards, all that is free of it in one piece, or with 0: not now.
///
/// ```
/// use weirpool::{CoalesceHeuristic, Pool, device::sim::SimDevice};
///
/// // Once more than 3 free blocks could be released; and shrink to what was used at the most.
/// let heuristic = CoalesceHeuristic::blocks_releasable_hwm(3);
/// let pool = Pool::builder(SimDevice::new()).coalesce(heuristic).build()?;
/// // Or one's own: whenever half of the pool is free, in pieces.
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

/// How large the pool is to be afterwards.
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
    /// Once more than `count` free blocks could be released: into one piece.
    pub fn blocks_releasable(count: u64) -> Self {
        let to = To::ActualSize;
        Self(Kind::Blocks {
            more_than: count,
            to,
        })
    }

    /// The same, and the pool shrinks to its high-water mark.
    pub fn blocks_releasable_hwm(count: u64) -> Self {
        let to = To::HighWaterMark;
        Self(Kind::Blocks {
            more_than: count,
            to,
        })
    }

    /// Once so many percent of the pool could be released: into one piece. 0 is never, and 100 is once
    /// nothing is in use; more than 100 counts as 100.
    pub fn percent_releasable(percent: u8) -> Self {
        let to = To::ActualSize;
        Self(Kind::Percent { percent, to })
    }

    /// The same, and the pool shrinks to its high-water mark.
    pub fn percent_releasable_hwm(percent: u8) -> Self {
        let to = To::HighWaterMark;
        Self(Kind::Percent { percent, to })
    }

    /// A function of one's own. It is called off the hot path, with no lock held, and may take a while.
    pub fn new(function: impl Fn(&PoolFigures) -> u64 + Send + Sync + 'static) -> Self {
        Self(Kind::Own(Arc::new(function)))
    }

    /// The bytes that the pool is to have afterwards; `None` for not now.
    ///
    /// One piece is as coalesced as can be: only a heuristic that makes the pool smaller, or a user's
    /// own, has something to do then.
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
    fn blocks_count_above_the_bound() {
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
    fn percents_count_from_the_bound_on() {
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
    fn one_piece_is_left_alone() {
        let one = PoolFigures {
            releasable_blocks: 1,
            ..FIGURES
        };
        assert_eq!(CoalesceHeuristic::blocks_releasable(0).decide(&one), None);
        let shrinks = CoalesceHeuristic::blocks_releasable_hwm(0);
        assert_eq!(shrinks.decide(&one), Some(70));
    }

    #[test]
    fn zero_of_ones_own_is_not_now() {
        let own = CoalesceHeuristic::new(|figures| figures.blocks_in_pool - 6);
        assert_eq!(own.decide(&FIGURES), None);
    }
}
