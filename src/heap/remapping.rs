//! How much of the time goes into mapping free memory elsewhere: a policy, and the budget that it gives.

use super::window::Growth;
use std::time::Duration;

/// How much of the time goes into mapping free memory elsewhere, where it lies in pieces and a request needs one,
/// rather than taking more from the device.
///
/// A handle that moves takes some 64 us of the host's time, and saves one. A new one takes as long, once, and is there
/// from then on. So a service that allocates every 50 us is best off if all that is free is moved before any more is
/// taken: that is a percent or two of its time. One that allocates every 300 ns would do little else.
///
/// Beyond its share of the time a pool takes new memory, where the capacity and the device have it, and is no larger
/// for that than twice the most that was in use. Where there is no new memory, what is free is moved whatever the
/// policy: nothing fails for it. Where [waiting] comes first, a request that may wait does so before
/// more is moved, as before more is taken.
///
/// What is asked for is neither limited nor counted: [`Pool::coalesce`], and a [`CoalesceHeuristic`]. Without
/// [virtual memory](crate::Upstream::Virtual) nothing is moved at all.
///
/// ```
/// use weirpool::{Pool, Remapping, device::sim::SimDevice};
///
/// /// MiB held, once half of 16 are free, in pieces, and somebody wants that in one.
/// fn held(remapping: Remapping) -> Result<u64, Box<dyn std::error::Error>> {
///     let pool = Pool::builder(SimDevice::new())
///         .chunk_bytes(2 << 20)
///         .lane_bytes(0)
///         .remapping(remapping)
///         .build()?;
///     let stream = pool.create_stream()?;
///     let blocks: Vec<_> = (0..8).map(|_| pool.try_allocate(&stream, 2 << 20)).collect::<Result<_, _>>()?;
///     let _every_second: Vec<_> = blocks.into_iter().skip(1).step_by(2).collect(); // the others are freed
///     let _whole = pool.try_allocate(&stream, 8 << 20)?;
///     Ok(pool.statistics().reserved.current >> 20)
/// }
///
/// assert_eq!(held(Remapping::Always)?, 16);
/// assert_eq!(held(Remapping::default())?, 16); // it does not come often
/// assert_eq!(held(Remapping::Never)?, 24);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`CoalesceHeuristic`]: crate::CoalesceHeuristic
/// [`Pool::coalesce`]: crate::Pool::coalesce
/// [waiting]: crate::Order::WaitFirst
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Remapping {
    /// What is free is moved before more is taken, however often. The least memory.
    Always,
    /// This share of the time at most: more than 0, and up to 1. The default is an eighth, and
    /// [`guide::performance`](crate::guide::performance) says why.
    ///
    /// It is the pool's, on the device's clock, however many threads there are: 1953 moves a second for an eighth. Up to
    /// 256 moves that were not made are saved for when they are needed, and each new handle comes with 1: a pool that
    /// grows to its size packs on its way.
    Share(f64),
    /// Only where there is no new memory. The least time of the host's, and the most memory: the capacity is its only
    /// bound, and not twice what was in use.
    Never,
}

impl Default for Remapping {
    fn default() -> Self {
        Self::Share(0.125)
    }
}

impl Remapping {
    pub(crate) fn is_valid(self) -> bool {
        match self {
            Self::Share(share) => share > 0.0 && share <= 1.0,
            Self::Always | Self::Never => true,
        }
    }
}

/// What a move costs: on an H200, 36 us to map a handle and 30 to unmap it, in the midst of other work.
const MOVE: Duration = Duration::from_micros(64);

/// Moves that are saved up at most, and that a pool begins with.
const BURST: u32 = 256;

/// Moves that a new handle comes with.
const WITH_NEW: u32 = 1;

/// What accrues at a time at least: so much, rounded to nanoseconds, is nearly exact.
const LEAST: Duration = Duration::from_nanos(100);

/// What may be moved, by the clock: a bucket into which a share of the time flows.
#[derive(Debug)]
pub(crate) struct Budget {
    remapping: Remapping,
    /// Time that may go into moves.
    credit: Duration,
    /// When that was so.
    at: Duration,
}

impl Budget {
    pub(crate) fn new(remapping: Remapping) -> Self {
        Self {
            remapping,
            credit: MOVE * BURST,
            at: Duration::ZERO,
        }
    }

    /// How a request is to grow now.
    pub(crate) fn growth(&mut self, now: Duration) -> Growth {
        match self.remapping {
            Remapping::Always => Growth::Allowed,
            Remapping::Never => Growth::New,
            Remapping::Share(share) => {
                self.accrue(now, share);
                let moves = self.credit.as_nanos() / MOVE.as_nanos();
                Growth::Sparing(moves as u64)
            }
        }
    }

    /// So many handles were moved, and so many are new. What was moved beyond the credit, since there was no new memory, is
    /// not owed.
    pub(crate) fn note(&mut self, moved: u64, new: u64) {
        let times = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let spent = MOVE.saturating_mul(times(moved));
        let earned = MOVE.saturating_mul(WITH_NEW.saturating_mul(times(new)));
        self.add(earned);
        self.credit = self.credit.saturating_sub(spent);
    }

    fn accrue(&mut self, now: Duration, share: f64) {
        // Of several who look at the clock the latest may be first.
        let elapsed = now.saturating_sub(self.at);
        let accrued = Duration::try_from_secs_f64(elapsed.as_secs_f64() * share);
        let accrued = accrued.unwrap_or(Duration::MAX);
        // A part of a nanosecond would be lost, at each look: it is left until it has become more.
        if accrued >= LEAST {
            self.at += elapsed;
            self.add(accrued);
        }
    }

    fn add(&mut self, credit: Duration) {
        self.credit = self.credit.saturating_add(credit).min(MOVE * BURST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(microseconds: u64) -> Duration {
        Duration::from_micros(microseconds)
    }

    fn an_eighth() -> Budget {
        Budget::new(Remapping::default())
    }

    fn moves(budget: &mut Budget, now: Duration) -> u64 {
        match budget.growth(now) {
            Growth::Sparing(moves) => moves,
            growth => panic!("a share is sparing, and not {growth:?}"),
        }
    }

    #[test]
    fn a_share_of_the_time_accrues() {
        let mut budget = an_eighth();
        budget.note(256, 0);
        assert_eq!(moves(&mut budget, us(0)), 0);
        assert_eq!(moves(&mut budget, us(511)), 0);
        assert_eq!(moves(&mut budget, us(512)), 1, "in parts, too");
        assert_eq!(moves(&mut budget, us(10 * 512)), 10);
        budget.note(7, 0);
        assert_eq!(moves(&mut budget, us(11 * 512)), 4);
    }

    #[test]
    fn it_begins_with_a_burst_and_saves_no_more_than_that() {
        let mut budget = an_eighth();
        assert_eq!(moves(&mut budget, us(0)), 256);
        assert_eq!(moves(&mut budget, Duration::from_secs(3600)), 256);
        budget.note(100, 0);
        assert_eq!(moves(&mut budget, Duration::from_secs(3600)), 156);
        assert_eq!(moves(&mut budget, Duration::MAX), 256);
    }

    #[test]
    fn what_is_moved_beyond_it_is_not_owed() {
        let mut budget = an_eighth();
        budget.note(u64::MAX, 0);
        assert_eq!(moves(&mut budget, us(0)), 0);
        assert_eq!(moves(&mut budget, us(512)), 1);
    }

    #[test]
    fn new_handles_come_with_moves() {
        let mut budget = an_eighth();
        budget.note(256, 0);
        budget.note(0, 3);
        assert_eq!(moves(&mut budget, us(0)), 3);
        budget.note(2, 4);
        assert_eq!(moves(&mut budget, us(0)), 5);
        budget.note(0, u64::MAX);
        assert_eq!(moves(&mut budget, us(0)), 256);
    }

    #[test]
    fn a_clock_that_stands_still_or_is_seen_late_gives_nothing() {
        let mut budget = an_eighth();
        budget.growth(us(10_000));
        budget.note(256, 0);
        assert_eq!(moves(&mut budget, us(10_000)), 0);
        assert_eq!(moves(&mut budget, us(5_000)), 0);
        assert_eq!(moves(&mut budget, us(10_512)), 1, "and takes nothing away");
    }

    #[test]
    fn a_small_share_accrues_however_often_it_is_looked_at() {
        let mut budget = Budget::new(Remapping::Share(0.0001));
        budget.note(256, 0);
        // 64 us in 640 ms, but for what is rounded.
        let moves: Vec<_> = (1..165_000)
            .map(|look| moves(&mut budget, us(4 * look)))
            .collect();
        let first = moves.iter().position(|moves| *moves == 1);
        assert!(first.is_some_and(|first| (155_000..165_000).contains(&first)));
    }

    #[test]
    fn the_other_policies_keep_no_account() {
        for (remapping, growth) in [
            (Remapping::Always, Growth::Allowed),
            (Remapping::Never, Growth::New),
        ] {
            let mut budget = Budget::new(remapping);
            budget.note(1_000_000, 0);
            assert_eq!(budget.growth(us(0)), growth);
            assert_eq!(budget.growth(us(1)), growth);
        }
    }

    #[test]
    fn a_share_is_of_the_whole() {
        for share in [1e-9, 0.5, 1.0] {
            assert!(Remapping::Share(share).is_valid(), "{share}");
        }
        for share in [0.0, -0.1, 1.001, f64::NAN, f64::INFINITY] {
            assert!(!Remapping::Share(share).is_valid(), "{share}");
        }
    }
}
