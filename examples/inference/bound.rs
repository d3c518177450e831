//! How long a request may wait for memory at most, given who was ahead of it.
//!
//! Requests take all their memory at once, first come, first served. Let `C` be the memory that they share,
//! in steps of `h`, and look at a request `i` from its coming `t` until its grant. In all that time the
//! queue's head, which is `i` or somebody ahead of it, did not fit. With `b` the largest request that was
//! head meanwhile, and all sizes multiples of `h`, those ahead of `i` then had at least `C - b + h` at every
//! moment; nobody else had anything, since nobody came behind `i` and was granted before it. What they had
//! over that time is no more than what each had from `t` on until it gave its memory back, so
//!
//! ```text
//!              sum over j ahead of i of  bytes(j) * (returned(j) - max(granted(j), t))
//!     wait <= -------------------------------------------------------------------------
//!                                       C - b + h
//! ```
//!
//! It is the byte-seconds of the queue ahead, over the memory. All of it is measured: how fast the device is,
//! and how long others hold their memory, is no part of the claim. What is claimed is that memory does not
//! lie idle while somebody waits for it, and that nobody overtakes. The bound leaves room for one request's
//! memory on its way from one to the next; that way is the host's, and takes as long as a task takes to run.

use std::time::Duration;

/// The memory that requests share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    pub(crate) bytes: u64,
    /// All sizes are multiples of this.
    pub(crate) step: u64,
}

/// A request's time with its memory, and before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stay {
    pub(crate) bytes: u64,
    pub(crate) came: Duration,
    /// The same, if it did not have to wait.
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

/// A wait, and the most that it may be.
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

/// What came of all waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Waits that were longer than they may be.
    pub(crate) broken: usize,
    pub(crate) longest: Option<Checked>,
    /// The one that is nearest to its bound.
    pub(crate) tightest: Option<Checked>,
}

impl Verdict {
    pub(crate) fn is_good(&self) -> bool {
        self.broken == 0
    }
}

/// Checks all stays, which are in the order in which the requests came.
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

/// The longest that a request may wait.
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
    fn with_room_for_one_the_bound_is_what_those_ahead_need() {
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
    fn with_more_room_what_those_ahead_hold_is_shared_out() {
        // Two at a time; the third waits for the first to go.
        let stays = [stay(1, 0, 0, 10), stay(1, 0, 0, 20), stay(1, 0, 10, 15)];
        assert_eq!(bound(&stays, 2, shared(2)), ms(15));
        assert!(check(&stays, shared(2)).is_good());
    }

    #[test]
    fn a_large_head_may_leave_memory_idle() {
        // 3 of 4 are held; the large one waits for all of it, and the small one behind it.
        let stays = [stay(3, 0, 0, 12), stay(4, 1, 12, 20), stay(1, 2, 20, 21)];
        assert_eq!(bound(&stays, 1, shared(4)), ms(33));
        assert_eq!(bound(&stays, 2, shared(4)), ms(30 + 32));
        assert!(check(&stays, shared(4)).is_good());
    }

    #[test]
    fn memory_that_lies_idle_is_found() {
        // It was returned at 10, and granted at 13 only.
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
    fn what_an_overtaker_has_is_not_held_ahead() {
        let stays = [stay(1, 0, 0, 10), stay(1, 2, 20, 30), stay(1, 3, 10, 20)];
        assert_eq!(check(&stays, shared(1)).broken, 1);
    }

    #[test]
    fn who_does_not_wait_needs_no_bound() {
        let stays = [stay(1, 0, 0, 10), stay(1, 50, 50, 60)];
        let verdict = check(&stays, shared(1));
        assert_eq!(verdict, Verdict::default());
    }
}
