//! How much time goes into mapping free memory elsewhere: the policy, and the budget that follows from it.

use crate::Growth;
use std::time::Duration;

/// How much time a pool spends on mapping scattered free memory into one range, rather than taking new memory.
///
/// Moving a chunk takes about 64 us of host time and saves one new chunk. A new chunk takes as long, but only once. So
/// a service that allocates every 50 us is best off if all free memory is moved before the pool grows: that costs 1 to
/// 2 % of its time. A service that allocates every 300 ns would do little else.
///
/// When its share of the time is used up, a pool takes new memory instead, as long as the capacity and the device have
/// it, and up to twice the most that was in use. Where there is no new memory, free memory is moved whatever the
/// policy, so no request fails because of it. With [`WhenShort::WaitFirst`](crate::WhenShort::WaitFirst), a request that may
/// wait does so before the pool moves or takes more.
///
/// Explicit coalescing is neither limited nor counted: [`Maintain::coalesce`] and [`CoalesceHeuristic`]. Without
/// [virtual memory](https://docs.rs/weirpool/latest/weirpool/enum.Upstream.html) nothing is moved.
///
/// ```
/// use weirpool::{Pool, Remapping, device::sim::SimDevice};
///
/// /// Returns the MiB held after half of 16 MiB is freed in pieces and requested again as one block.
/// fn held(remapping: Remapping) -> Result<u64, Box<dyn std::error::Error>> {
///     let pool = Pool::builder(SimDevice::new())
///         .chunk_bytes(2 << 20)
///         .tuning(|tuning| (tuning.lane_bytes, tuning.remapping) = (0, remapping))
///         .build()?;
///     let stream = pool.create_stream()?;
///     let blocks: Vec<_> = (0..8).map(|_| pool.try_allocate(&stream, 2 << 20)).collect::<Result<_, _>>()?;
///     let _every_second: Vec<_> = blocks.into_iter().skip(1).step_by(2).collect(); // the others are freed
///     let _whole = pool.try_allocate(&stream, 8 << 20)?;
///     Ok(pool.inspect().statistics().reserved.current >> 20)
/// }
///
/// assert_eq!(held(Remapping::Always)?, 16);
/// assert_eq!(held(Remapping::default())?, 16); // within the share, since it happens once
/// assert_eq!(held(Remapping::Never)?, 24);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`CoalesceHeuristic`]: https://docs.rs/weirpool/latest/weirpool/struct.CoalesceHeuristic.html
/// [`Maintain::coalesce`]: https://docs.rs/weirpool/latest/weirpool/struct.Maintain.html#method.coalesce
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Remapping {
    /// Move free memory before taking more, however often. Needs the least memory.
    Always,
    /// Spend at most this share of the time: more than 0, up to 1. The default is 1/8;
    /// [`guide::performance`](https://docs.rs/weirpool/latest/weirpool/guide/performance/) says why.
    ///
    /// The share is one for the pool, on the device's clock, however many threads there are: 1/8 is 1953 moves a
    /// second. The pool saves up to 256 unused moves, and earns 1 with each new chunk, so that a pool that grows to its
    /// size packs on its way.
    Share(f64),
    /// Move only where there is no new memory. Needs the least host time and the most memory: only the capacity bounds
    /// the pool, not twice the memory in use.
    Never,
}

impl Default for Remapping {
    fn default() -> Self {
        Self::Share(0.125)
    }
}

impl Remapping {
    /// Returns whether the numbers are in range.
    #[doc(hidden)]
    pub fn is_valid(self) -> bool {
        match self {
            Self::Share(share) => share > 0.0 && share <= 1.0,
            Self::Always | Self::Never => true,
        }
    }
}

/// The cost of a move. On an H200, amid other work, mapping a chunk takes 36 us and unmapping it 30 us.
const MOVE: Duration = Duration::from_micros(64);

/// The number of moves that can be saved up, and that a pool begins with.
const BURST: u32 = 256;

/// The number of moves that are earned with a new chunk.
const WITH_NEW: u32 = 1;

/// The smallest credit that is added at once. Rounding it to nanoseconds is nearly exact.
const LEAST: Duration = Duration::from_nanos(100);

/// The budget of moves: a token bucket into which a share of the time flows.
#[derive(Debug)]
pub struct Budget {
    remapping: Remapping,
    /// Time that may go into moves.
    credit: Duration,
    /// When the credit was last updated.
    at: Duration,
}

impl Budget {
    /// Creates a full budget.
    pub fn new(remapping: Remapping) -> Self {
        Self {
            remapping,
            credit: MOVE * BURST,
            at: Duration::ZERO,
        }
    }

    /// Returns the growth that a request may plan with now.
    pub fn growth(&mut self, now: Duration) -> Growth {
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

    /// Accounts for chunks that were moved and chunks that are new. Moves beyond the credit, made because there was no
    /// new memory, are not owed.
    pub fn note(&mut self, moved: u64, new: u64) {
        let times = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let spent = MOVE.saturating_mul(times(moved));
        let earned = MOVE.saturating_mul(WITH_NEW.saturating_mul(times(new)));
        self.add(earned);
        self.credit = self.credit.saturating_sub(spent);
    }

    fn accrue(&mut self, now: Duration, share: f64) {
        // With several callers, one may have read the clock before the last update.
        let elapsed = now.saturating_sub(self.at);
        let accrued = Duration::try_from_secs_f64(elapsed.as_secs_f64() * share);
        let accrued = accrued.unwrap_or(Duration::MAX);
        // Fractions of a nanosecond would be lost at each call. The time is left until enough has elapsed.
        if accrued >= LEAST {
            self.at = self.at.saturating_add(elapsed);
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
            growth => panic!("expected a share to give `Growth::Sparing`, got {growth:?}"),
        }
    }

    #[test]
    fn credit_accrues_with_a_share_of_the_time() {
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
    fn budget_begins_with_a_burst_and_saves_no_more() {
        let mut budget = an_eighth();
        assert_eq!(moves(&mut budget, us(0)), 256);
        assert_eq!(moves(&mut budget, Duration::from_secs(3600)), 256);
        budget.note(100, 0);
        assert_eq!(moves(&mut budget, Duration::from_secs(3600)), 156);
        assert_eq!(moves(&mut budget, Duration::MAX), 256);
    }

    #[test]
    fn moves_beyond_the_credit_are_not_owed() {
        let mut budget = an_eighth();
        budget.note(u64::MAX, 0);
        assert_eq!(moves(&mut budget, us(0)), 0);
        assert_eq!(moves(&mut budget, us(512)), 1);
    }

    #[test]
    fn new_chunks_earn_moves() {
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
    fn clock_that_stands_still_or_goes_back_earns_nothing() {
        let mut budget = an_eighth();
        budget.growth(us(10_000));
        budget.note(256, 0);
        assert_eq!(moves(&mut budget, us(10_000)), 0);
        assert_eq!(moves(&mut budget, us(5_000)), 0);
        assert_eq!(moves(&mut budget, us(10_512)), 1, "and takes nothing away");
    }

    #[test]
    fn small_share_accrues_however_often_it_is_polled() {
        // One move of 64 us accrues in 640 ms, or in 6.4 ms, up to rounding.
        let (share, looks) = if cfg!(miri) {
            (0.01, 1_650)
        } else {
            (0.0001, 165_000)
        };
        let mut budget = Budget::new(Remapping::Share(share));
        budget.note(256, 0);
        let moves: Vec<_> = (1..looks as u64)
            .map(|look| moves(&mut budget, us(4 * look)))
            .collect();
        let first = moves.iter().position(|moves| *moves == 1);
        assert!(first.is_some_and(|first| (looks / 33 * 31..looks).contains(&first)));
    }

    #[test]
    fn other_policies_keep_no_account() {
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
    fn share_is_between_zero_and_one() {
        for share in [1e-9, 0.5, 1.0] {
            assert!(Remapping::Share(share).is_valid(), "{share}");
        }
        for share in [0.0, -0.1, 1.001, f64::NAN, f64::INFINITY] {
            assert!(!Remapping::Share(share).is_valid(), "{share}");
        }
    }
}
