//! When to coalesce, and to which size: decisions as pure functions of the pool's statistics.
//!
//! The heuristics and their names are Umpire's (`PoolCoalesceHeuristic`, `blocks_releasable`, `percent_releasable` and
//! their `_hwm` forms).

use crate::Statistics;
use std::fmt;
use weirpool_sync::plain::Arc;

/// Decides when a pool coalesces its free memory into one range, and how much it then keeps.
///
/// A heuristic returns the [reserved](Statistics::reserved) bytes that the pool is to have afterwards, or 0 to do
/// nothing now.
///
/// ```
/// use weirpool::{CoalesceHeuristic, Pool, device::sim::SimDevice};
///
/// // Once more than 3 free blocks could be released; the pool shrinks to the most that was in use.
/// let heuristic = CoalesceHeuristic::blocks_releasable_hwm(3);
/// let pool = Pool::builder(SimDevice::new()).tuning(|tuning| tuning.coalesce = Some(heuristic)).build()?;
/// // Or a function: whenever half of the pool is free and fragmented.
/// let own = CoalesceHeuristic::new(|figures| {
///     let reserved = figures.reserved.current;
///     let is_due = figures.releasable_bytes > reserved / 2
///         && figures.largest_free < figures.releasable_bytes;
///     if is_due { reserved } else { 0 }
/// });
/// # let _ = (pool, own);
/// # Ok::<(), weirpool::BuildError>(())
/// ```
#[derive(Clone)]
pub struct CoalesceHeuristic(HeuristicKind);

#[derive(Clone)]
enum HeuristicKind {
    Blocks { more_than: u64, to: To },
    Percent { percent: u8, to: To },
    Own(Arc<Function>),
}

type Function = dyn Fn(&Statistics) -> u64 + Send + Sync;

/// The reserved bytes that the pool is to have afterwards.
#[derive(Clone, Copy, Debug)]
enum To {
    Current,
    MostInUse,
}

impl To {
    fn of(self, figures: &Statistics) -> u64 {
        match self {
            Self::Current => figures.reserved.current,
            Self::MostInUse => figures.in_use.high,
        }
    }
}

impl CoalesceHeuristic {
    /// Coalesces once more than `count` free blocks could be released.
    pub fn blocks_releasable(count: u64) -> Self {
        let to = To::Current;
        Self(HeuristicKind::Blocks {
            more_than: count,
            to,
        })
    }

    /// Coalesces once more than `count` free blocks could be released, and shrinks or grows the pool to the most that
    /// was [in use](Statistics::in_use).
    pub fn blocks_releasable_hwm(count: u64) -> Self {
        let to = To::MostInUse;
        Self(HeuristicKind::Blocks {
            more_than: count,
            to,
        })
    }

    /// Coalesces once `percent` of the pool could be released. 0 means never; 100 and more means once no block lives
    /// and nothing is pending, whatever the lanes cache.
    pub fn percent_releasable(percent: u8) -> Self {
        let to = To::Current;
        Self(HeuristicKind::Percent { percent, to })
    }

    /// Coalesces once `percent` of the pool could be released, as [`percent_releasable`](Self::percent_releasable)
    /// does, and shrinks or grows the pool to the most that was [in use](Statistics::in_use).
    pub fn percent_releasable_hwm(percent: u8) -> Self {
        let to = To::MostInUse;
        Self(HeuristicKind::Percent { percent, to })
    }

    /// Decides by a function, which is called off the hot path, with no lock held, and may take a while.
    pub fn new(function: impl Fn(&Statistics) -> u64 + Send + Sync + 'static) -> Self {
        Self(HeuristicKind::Own(Arc::new(function)))
    }

    /// Returns the reserved bytes that the pool is to have afterwards, or `None` to do nothing now.
    ///
    /// If the free memory is contiguous already, only a heuristic that changes the pool's size, or a user's function,
    /// has something to do.
    pub fn decide(&self, figures: &Statistics) -> Option<u64> {
        let (is_due, to) = match &self.0 {
            HeuristicKind::Blocks { more_than, to } => {
                (figures.releasable_blocks > *more_than, *to)
            }
            HeuristicKind::Percent { percent, to } => (is_percent_due(*percent, figures), *to),
            HeuristicKind::Own(function) => {
                return Some(function(figures)).filter(|bytes| *bytes > 0);
            }
        };
        let target = to.of(figures);
        let does_something = is_in_pieces(figures) || target != figures.reserved.current;
        (is_due && does_something).then_some(target)
    }
}

/// Returns whether the free memory could be contiguous and is not.
fn is_in_pieces(figures: &Statistics) -> bool {
    figures.releasable_blocks > 1 || is_idle(figures) && figures.free > figures.largest_free
}

/// Returns whether no block lives and no work touches the memory. Blocks that lanes cache may be left.
fn is_idle(figures: &Statistics) -> bool {
    figures.used.current + figures.pending.current == 0
}

fn is_percent_due(percent: u8, figures: &Statistics) -> bool {
    match percent {
        0 => false,
        1..=99 => {
            let releasable = u128::from(figures.releasable_bytes) * 100;
            releasable >= u128::from(figures.reserved.current) * u128::from(percent)
                && figures.releasable_bytes > 0
        }
        100.. => is_idle(figures) && figures.reserved.current > 0,
    }
}

impl fmt::Debug for CoalesceHeuristic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            HeuristicKind::Blocks { more_than, to } => {
                write!(f, "blocks_releasable({more_than}) to {to:?}")
            }
            HeuristicKind::Percent { percent, to } => {
                write!(f, "percent_releasable({percent}) to {to:?}")
            }
            HeuristicKind::Own(_) => write!(f, "a function"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weirpool_heap::Level;

    fn figures() -> Statistics {
        let level = |current, high| Level { current, high };
        Statistics {
            reserved: level(100, 100),
            used: level(40, 70),
            in_use: level(40, 70),
            releasable_blocks: 3,
            releasable_bytes: 60,
            largest_free: 30,
            ..Statistics::default()
        }
    }

    #[test]
    fn blocks_releasable_is_due_above_its_count() {
        assert_eq!(
            CoalesceHeuristic::blocks_releasable(3).decide(&figures()),
            None
        );
        let due = CoalesceHeuristic::blocks_releasable(2);
        assert_eq!(due.decide(&figures()), Some(100));
        let due = CoalesceHeuristic::blocks_releasable_hwm(2);
        assert_eq!(due.decide(&figures()), Some(70));
    }

    #[test]
    fn percent_releasable_is_due_from_its_percentage_on() {
        let decide = |percent| CoalesceHeuristic::percent_releasable(percent).decide(&figures());
        assert_eq!([decide(0), decide(60), decide(61)], [None, Some(100), None]);
        assert_eq!(decide(100), None, "something is in use");
        // A lane caches all that is in use.
        let used = Level::default();
        let idle = Statistics { used, ..figures() };
        let all = CoalesceHeuristic::percent_releasable_hwm(100);
        assert_eq!(all.decide(&idle), Some(70));
    }

    #[test]
    fn contiguous_free_memory_is_not_coalesced() {
        let one = Statistics {
            releasable_blocks: 1,
            ..figures()
        };
        assert_eq!(CoalesceHeuristic::blocks_releasable(0).decide(&one), None);
        let shrinks = CoalesceHeuristic::blocks_releasable_hwm(0);
        assert_eq!(shrinks.decide(&one), Some(70));
    }

    #[test]
    fn function_that_returns_zero_does_nothing() {
        let own = CoalesceHeuristic::new(|figures| figures.releasable_blocks - 3);
        assert_eq!(own.decide(&figures()), None);
    }
}
