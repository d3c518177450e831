//! The longest that a request may wait for memory, given the requests ahead of it.
//!
//! Requests take all their memory at once, first come, first served. Let `C` be the memory that they share, in steps of
//! `h`, and consider a request `i` from its arrival `t` until its grant. In all that time the queue's head, which is
//! `i` or a request ahead of it, did not fit. Let `b` be the largest request that was head meanwhile. Since all sizes
//! are multiples of `h`, the requests ahead of `i` held at least `C - b + h` at every moment. No other request held
//! memory, because none behind `i` was granted before it. A request ahead of `i` held its bytes at most from `t` until
//! it returned them, so
//!
//! ```text
//!              sum over j ahead of i of  bytes(j) * (returned(j) - max(granted(j), t))
//!     wait <= -------------------------------------------------------------------------
//!                                       C - b + h
//! ```
//!
//! The bound is the byte-seconds of the queue ahead, divided by the memory. All of its terms are measured, so it does
//! not depend on how fast the device is, or how long requests hold their memory. It holds if no memory is idle while a
//! request waits for it, and if no request overtakes another. The bound tolerates memory that is on its way from one
//! request to the next. That takes as long as the host takes to run a task.

use std::time::Duration;

/// The memory that requests share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    pub(crate) bytes: u64,
    /// A divisor of all sizes.
    pub(crate) step: u64,
}

/// The times of a request: arrival, grant and return of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stay {
    pub(crate) bytes: u64,
    pub(crate) came: Duration,
    /// The time of the grant. Equal to `came` if the request did not have to wait.
    pub(crate) granted: Duration,
    pub(crate) returned: Duration,
}

impl Stay {
    pub(crate) fn wait(&self) -> Duration {
        self.granted - self.came
    }

    fn has_waited(&self) -> bool {
        self.granted > self.came
    }
}

/// A wait and its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    pub(crate) wait: Duration,
    pub(crate) bound: Duration,
}

impl Checked {
    pub(crate) fn holds(&self) -> bool {
        self.wait <= self.bound
    }

    fn share(&self) -> f64 {
        self.wait.as_secs_f64() / self.bound.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// The result of checking all waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The number of waits that exceed their bound.
    pub(crate) broken: usize,
    pub(crate) longest: Option<Checked>,
    /// The wait that is nearest to its bound.
    pub(crate) tightest: Option<Checked>,
}

impl Verdict {
    pub(crate) fn is_good(&self) -> bool {
        self.broken == 0
    }
}

/// Checks all stays, which must be in the order of arrival.
pub(crate) fn check(stays: &[Stay], shared: Shared) -> Verdict {
    let waits = (0..stays.len()).filter(|index| stays[*index].has_waited());
    let checked: Vec<_> = waits
        .map(|index| Checked {
            wait: stays[index].wait(),
            bound: bound(stays, index, shared),
        })
        .collect();
    let by_share = |one: &Checked, other: &Checked| one.share().total_cmp(&other.share());
    Verdict {
        broken: checked.iter().filter(|wait| !wait.holds()).count(),
        longest: checked.iter().copied().max_by_key(|wait| wait.wait),
        tightest: checked.iter().copied().max_by(by_share),
    }
}

/// Returns the longest time that a request may wait.
fn bound(stays: &[Stay], index: usize, shared: Shared) -> Duration {
    let came = stays[index].came;
    let ahead = &stays[..index];
    let held: f64 = ahead
        .iter()
        .map(|stay| {
            let from = stay.granted.max(came);
            stay.bytes as f64 * stay.returned.saturating_sub(from).as_secs_f64()
        })
        .sum();
    let heads = ahead.iter().filter(|stay| stay.granted > came);
    let largest = heads.map(|stay| stay.bytes).max().unwrap_or(0);
    let largest = largest.max(stays[index].bytes);
    let always_held = (shared.bytes + shared.step).saturating_sub(largest);
    Duration::try_from_secs_f64(held / always_held as f64).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    fn stay(bytes: u64, came: u64, granted: u64, returned: u64) -> Stay {
        Stay {
            bytes,
            came: ms(came),
            granted: ms(granted),
            returned: ms(returned),
        }
    }

    fn shared(bytes: u64) -> Shared {
        Shared { bytes, step: 1 }
    }

    #[test]
    fn bound_for_one_place_is_the_time_of_the_queue_ahead() {
        let stays = [stay(1, 0, 0, 10), stay(1, 2, 10, 30), stay(1, 4, 30, 35)];
        let bounds = [0, 1, 2].map(|index| bound(&stays, index, shared(1)));
        assert_eq!(bounds, [ms(0), ms(8), ms(26)]);
        let verdict = check(&stays, shared(1));
        assert!(verdict.is_good(), "{verdict:?}");
        let longest = Checked {
            wait: ms(26),
            bound: ms(26),
        };
        assert_eq!(verdict.longest, Some(longest));
    }

    #[test]
    fn bound_for_several_places_is_the_shared_time_of_the_queue_ahead() {
        // Two requests fit at a time; the third waits for the first to end.
        let stays = [stay(1, 0, 0, 10), stay(1, 0, 0, 20), stay(1, 0, 10, 15)];
        assert_eq!(bound(&stays, 2, shared(2)), ms(15));
        assert!(check(&stays, shared(2)).is_good());
    }

    #[test]
    fn bound_allows_memory_left_idle_by_a_large_head() {
        // The first request holds 3 of 4; the large one waits for all of it, and the small one waits behind it.
        let stays = [stay(3, 0, 0, 12), stay(4, 1, 12, 20), stay(1, 2, 20, 21)];
        assert_eq!(bound(&stays, 1, shared(4)), ms(33));
        assert_eq!(bound(&stays, 2, shared(4)), ms(30 + 32));
        assert!(check(&stays, shared(4)).is_good());
    }

    #[test]
    fn idle_memory_breaks_the_bound() {
        // The memory was returned at 10, but granted only at 13.
        let stays = [stay(1, 0, 0, 10), stay(1, 2, 13, 30)];
        let verdict = check(&stays, shared(1));
        assert_eq!(verdict.broken, 1);
        let tightest = Checked {
            wait: ms(11),
            bound: ms(8),
        };
        assert_eq!(verdict.tightest, Some(tightest));
        assert!(!verdict.is_good());
    }

    #[test]
    fn overtaking_breaks_the_bound() {
        let stays = [stay(1, 0, 0, 10), stay(1, 2, 20, 30), stay(1, 3, 10, 20)];
        assert_eq!(check(&stays, shared(1)).broken, 1);
    }

    #[test]
    fn request_without_a_wait_is_not_checked() {
        let stays = [stay(1, 0, 0, 10), stay(1, 50, 50, 60)];
        let verdict = check(&stays, shared(1));
        assert_eq!(verdict, Verdict::default());
    }
}
