//! The search policy: which allocation source is tried next.
//!
//! [`GROW_FIRST`] and [`WAIT_FIRST`] are the one place that shows the order of all sources. A search walks down the
//! rows of its table. A row may *prepare* something, which makes more memory reachable, and then *tries* sources. A
//! row whose preparation is not allowed, or brought nothing, is skipped. The first source that has memory ends the
//! search.
//!
//! This module decides, and does nothing else: it knows neither devices, locks nor time. The engine's search executes
//! each [`Action`] and reports what it found.
//!
//! Two sources come before both tables, because most requests get their memory there: the stream's own cache, which is
//! the hot path, and reachable memory that fits well. A block that is much too large is left for the tables.

use super::Order;

/// Makes more memory reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepare {
    /// Takes large blocks back from the caches of all streams, and seals them.
    FlushLarge,
    /// Asks the streams whose pending blocks fit exactly, the one that is expected first.
    PollLikely,
    /// Asks every stream how far it has come.
    Poll,
    /// Takes back what caches hold, except for large blocks freed just now; seals it and asks every stream.
    FlushAged,
    /// Takes back everything that caches hold; seals it and asks every stream.
    FlushAll,
    /// Asks every stream for its newest event, in case an older one is seen late.
    PollLate,
    /// Releases free segments: plain memory cannot be remapped, so a segment of the wrong size is in the way.
    Trim,
    /// Makes other pools of the device release free memory. Comes again while it brings something and the device still
    /// refuses.
    Spill,
    /// Asks the device once more, where it has enough memory and refused for no visible reason.
    AskAgain,
    /// Asks the broker for a larger lease, where the lease and not the capacity is in the way. A queued request does
    /// not wait for the answer: the grant is published.
    Borrow,
    /// Takes memory back that its users can do without, the least recently used first. Where it brings something, the
    /// search goes on with `Trim`, and it comes again.
    Evict,
}

/// Takes memory from a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Try {
    /// Reachable memory: free, freed by this stream, or ordered before it.
    Take,
    /// Pending memory of exactly the size, behind a wait on the device that delays the stream briefly.
    WaitForExact,
    /// Joined, remapped or new memory.
    Grow,
    /// Pending memory behind a wait on the device, within the pool's wait limit.
    Wait,
    /// Pending memory behind a wait on the device of any length.
    WaitAnyTime,
}

/// The next action of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make more memory reachable.
    Prepare(Prepare),
    /// Take memory.
    Try(Try),
    /// No source has memory.
    GiveUp,
}

/// A preparation, and the sources that are tried if it brought something; or sources alone.
#[derive(Clone, Copy)]
struct Row(Option<Prepare>, &'static [Try]);

use Prepare::{
    AskAgain, Borrow, Evict, FlushAged, FlushAll, FlushLarge, Poll, PollLate, PollLikely, Spill,
    Trim,
};
use Try::{Grow, Take, Wait, WaitAnyTime, WaitForExact};

/// The rows of [`Order::GrowFirst`]: new memory before a wait.
const GROW_FIRST: &[Row] = &[
    Row(None, &[WaitForExact]),
    Row(Some(FlushLarge), &[WaitForExact]),
    Row(Some(PollLikely), &[Take]),
    Row(Some(Poll), &[Take]),
    Row(Some(FlushAged), &[Take]),
    Row(None, &[Grow]),
    Row(Some(Borrow), &[Grow]),
    Row(Some(FlushAll), &[Take, Grow]),
    Row(None, &[Wait]),
    Row(Some(PollLate), &[Take, Grow, Wait]),
    Row(Some(Trim), &[Grow]),
    Row(Some(Spill), &[Grow]),
    Row(Some(AskAgain), &[Grow]),
    Row(Some(Evict), &[Take, Grow, Wait]),
    Row(None, &[WaitAnyTime]),
];

/// The rows of [`Order::WaitFirst`]: a wait before new memory.
const WAIT_FIRST: &[Row] = &[
    Row(Some(Poll), &[Take]),
    Row(None, &[Wait]),
    Row(Some(FlushAll), &[Take, Wait]),
    Row(None, &[Grow]),
    Row(Some(Borrow), &[Grow]),
    Row(Some(Trim), &[Grow]),
    Row(Some(Spill), &[Grow]),
    Row(Some(AskAgain), &[Grow]),
    Row(Some(Evict), &[Take, Grow, Wait]),
    Row(None, &[WaitAnyTime]),
];

fn row_of(prepare: Prepare, rows: &[Row]) -> usize {
    let row = rows.iter().position(|row| row.0 == Some(prepare));
    row.unwrap_or(rows.len())
}

/// What one search is allowed to do.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The order of growing and waiting.
    pub order: Order,
    /// Streams may be asked how far they have come.
    pub may_poll: bool,
    /// The stream can be made to wait on the device.
    pub may_wait: bool,
    /// Memory calls may be made here.
    pub may_call: bool,
    /// A broker leases the capacity.
    pub is_leased: bool,
    /// Memory can be mapped elsewhere.
    pub can_remap: bool,
    /// A block of exactly the size is as good as any other.
    pub takes_exact: bool,
    /// The caller wants an answer now: it accepts a wait on the device of any length.
    pub is_immediate: bool,
    /// The request waits in the queue.
    pub is_queued: bool,
}

/// What a search has found out so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// A block fits, and was left because it is much too large.
    pub is_loose_fit: bool,
    /// New memory for the request is within the capacity.
    pub could_be_new: bool,
    /// New and free memory together are enough for the request.
    pub is_enough: bool,
    /// The device refused memory when it was last asked.
    pub is_refused: bool,
}

/// How far down its table a search is.
#[derive(Clone, Debug)]
pub struct Sequence {
    rules: Rules,
    /// The facts so far.
    pub facts: Facts,
    row: usize,
    /// What comes next in the row: its preparation is 0, and its first source 1.
    next: usize,
    /// The row has no preparation, or it brought something.
    has_news: bool,
}

impl Sequence {
    /// Begins with the first source.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            facts: Facts::default(),
            row: 0,
            next: 0,
            has_news: false,
        }
    }

    /// Returns the next action. The one before found no memory.
    pub fn next_action(&mut self) -> Action {
        let rows = match self.rules.order {
            Order::GrowFirst => GROW_FIRST,
            Order::WaitFirst => WAIT_FIRST,
        };
        while let Some(&Row(prepare, sources)) = rows.get(self.row) {
            let next = self.next;
            self.next += 1;
            if next == 0 {
                self.has_news = prepare.is_none();
                if let Some(prepare) = prepare.filter(|prepare| self.prepares(*prepare)) {
                    return Action::Prepare(prepare);
                }
            } else if let Some(source) = sources.get(next - 1).filter(|_| self.has_news) {
                if self.tries(*source) {
                    return Action::Try(*source);
                }
            } else {
                self.next = 0;
                self.row = match prepare.filter(|_| self.has_news) {
                    Some(Spill) => self.row,
                    // Evicted memory may be in segments of the wrong size, or be enough only with memory of other pools.
                    Some(Evict) => row_of(Trim, rows),
                    _ => self.row + 1,
                };
            }
        }
        Action::GiveUp
    }

    /// Returns whether streams may be asked how far they have come.
    pub fn may_poll(&self) -> bool {
        self.rules.may_poll
    }

    /// Notes that the preparation brought something.
    pub fn mark_news(&mut self) {
        self.has_news = true;
    }

    fn prepares(&self, prepare: Prepare) -> bool {
        let rules = &self.rules;
        match prepare {
            Poll | PollLate => rules.may_poll,
            PollLikely => self.exact() == Exact::Polled,
            FlushLarge => self.exact() == Exact::Awaited,
            FlushAged | FlushAll | Evict => true,
            Trim => rules.may_call && !rules.can_remap,
            Spill => rules.may_call && self.facts.is_refused,
            AskAgain => rules.may_call && self.facts.is_refused && rules.is_queued,
            Borrow => rules.is_leased && (rules.is_queued || rules.is_immediate),
        }
    }

    fn tries(&self, source: Try) -> bool {
        match source {
            Take | Grow => true,
            WaitForExact => self.exact() == Exact::Awaited,
            Wait => self.rules.may_wait,
            WaitAnyTime => self.rules.may_wait && self.rules.is_immediate,
        }
    }

    /// Returns what to do about pending memory of exactly the size. A query takes longer than to record an event or to
    /// submit a wait, and most streams that are asked while kernels are short are not done.
    fn exact(&self) -> Exact {
        let Self { rules, facts, .. } = self;
        let is_short = !facts.is_enough && !facts.is_loose_fit;
        match () {
            () if !rules.takes_exact || !rules.may_poll => Exact::Ignored,
            () if is_short && rules.may_wait => Exact::Awaited,
            () if facts.could_be_new => Exact::Polled,
            // Everything that is complete may be joined: that is worth more than a few queries.
            () => Exact::Ignored,
        }
    }
}

/// What happens to pending memory of exactly the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exact {
    Ignored,
    /// Its streams alone are asked first.
    Polled,
    /// No more memory is available: the stream waits for the block on the device, unasked.
    Awaited,
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        order: Order::GrowFirst,
        may_poll: true,
        may_wait: true,
        may_call: true,
        is_leased: false,
        can_remap: true,
        takes_exact: true,
        is_immediate: false,
        is_queued: false,
    };

    const PLENTY: Facts = Facts {
        is_loose_fit: false,
        could_be_new: true,
        is_enough: true,
        is_refused: false,
    };

    /// Returns the actions of a search in which no source has memory, and these preparations bring something, each as
    /// often as it is named.
    fn actions(rules: Rules, facts: Facts, news: &[Prepare]) -> String {
        let mut state = Sequence::new(rules);
        state.facts = facts;
        let mut news = news.to_vec();
        let mut words = Vec::new();
        loop {
            let action = state.next_action();
            match action {
                Action::GiveUp => return words.join(" "),
                Action::Prepare(prepare) => {
                    let at = news.iter().position(|named| *named == prepare);
                    words.push(format!(
                        "{prepare:?}{}",
                        if at.is_some() { ":" } else { "," }
                    ));
                    if let Some(at) = at {
                        news.swap_remove(at);
                        state.mark_news();
                    }
                }
                Action::Try(source) => words.push(format!("{source:?},")),
            }
        }
    }

    #[test]
    fn eviction_goes_on_while_it_brings_something() {
        for order in [Order::GrowFirst, Order::WaitFirst] {
            let all = actions(Rules { order, ..RULES }, PLENTY, &[Evict, Evict]);
            let tail = " Evict: Take, Grow, Wait, Evict: Take, Grow, Wait, Evict,";
            assert!(all.ends_with(tail), "{all}");
            assert_eq!(all.matches("Evict").count(), 3, "{all}");
        }
    }

    #[test]
    fn evicted_memory_is_joined_with_memory_of_other_pools() {
        let facts = Facts {
            is_refused: true,
            ..PLENTY
        };
        let plain = Rules {
            can_remap: false,
            ..RULES
        };
        for (rules, tail) in [
            (RULES, "Spill, Evict: Take, Grow, Wait, Spill, Evict,"),
            (plain, "Spill, Evict: Take, Grow, Wait, Trim, Spill, Evict,"),
        ] {
            let all = actions(rules, facts, &[Evict]);
            assert!(all.ends_with(tail), "{all}");
        }
    }

    const FLUSHES: [Prepare; 2] = [FlushAged, FlushAll];

    #[test]
    fn grow_first_takes_new_memory_before_it_waits() {
        let expected =
            "PollLikely, Poll, FlushAged: Take, Grow, FlushAll: Take, Grow, Wait, PollLate, Evict,";
        assert_eq!(actions(RULES, PLENTY, &FLUSHES), expected);
    }

    #[test]
    fn broker_is_asked_where_a_request_waits_or_its_caller_does() {
        let leased = Rules {
            is_leased: true,
            ..RULES
        };
        assert!(!actions(leased, PLENTY, &[]).contains("Borrow"));
        for (is_queued, is_immediate) in [(true, false), (false, true)] {
            for order in [Order::GrowFirst, Order::WaitFirst] {
                let rules = Rules {
                    order,
                    is_queued,
                    is_immediate,
                    ..leased
                };
                assert!(actions(rules, PLENTY, &[Borrow]).contains("Grow, Borrow: Grow,"));
            }
        }
    }

    #[test]
    fn wait_first_waits_before_it_takes_new_memory() {
        let order = Order::WaitFirst;
        let expected = "Poll, Wait, FlushAll: Take, Wait, Grow, Evict,";
        assert_eq!(
            actions(Rules { order, ..RULES }, PLENTY, &FLUSHES),
            expected
        );
    }

    #[test]
    fn preparation_without_news_skips_its_row() {
        let expected = "PollLikely, Poll, FlushAged, Grow, FlushAll, Wait, PollLate, Evict,";
        assert_eq!(actions(RULES, PLENTY, &[]), expected);
        let expected = "PollLikely: Take, Poll: Take, FlushAged, Grow, FlushAll, Wait, \
                        PollLate: Take, Grow, Wait, Evict,";
        let news = [PollLikely, Poll, PollLate];
        assert_eq!(actions(RULES, PLENTY, &news), expected);
    }

    #[test]
    fn exact_block_is_awaited_unasked_where_no_memory_is_left() {
        let expected = "WaitForExact, FlushLarge: WaitForExact, Poll, FlushAged, Grow, FlushAll, Wait, \
                        PollLate, Evict,";
        let none_left = Facts::default();
        assert_eq!(actions(RULES, none_left, &[FlushLarge]), expected);
        let cannot_wait = Rules {
            may_wait: false,
            ..RULES
        };
        let expected = "Poll, FlushAged, Grow, FlushAll, PollLate, Evict,";
        assert_eq!(actions(cannot_wait, none_left, &[]), expected);
    }

    #[test]
    fn loose_fit_is_not_waited_for() {
        let facts = Facts {
            is_loose_fit: true,
            ..Facts::default()
        };
        let expected = "Poll, FlushAged, Grow, FlushAll, Wait, PollLate, Evict,";
        assert_eq!(actions(RULES, facts, &[]), expected);
    }

    #[test]
    fn streams_are_not_asked_where_the_policy_forbids_it() {
        let rules = Rules {
            may_poll: false,
            ..RULES
        };
        let expected = "FlushAged: Take, Grow, FlushAll: Take, Grow, Wait, Evict,";
        assert_eq!(actions(rules, PLENTY, &FLUSHES), expected);
    }

    #[test]
    fn refusal_of_the_device_makes_other_pools_spill() {
        let facts = Facts {
            is_refused: true,
            ..PLENTY
        };
        let tail = |rules, news: &[Prepare]| {
            let all = actions(rules, facts, news);
            all.split_once("Wait, ").expect("waits").1.to_owned()
        };
        assert_eq!(
            tail(RULES, &[Spill]),
            "PollLate, Spill: Grow, Spill, Evict,"
        );
        let queued = Rules {
            is_queued: true,
            ..RULES
        };
        assert_eq!(
            tail(queued, &[AskAgain]),
            "PollLate, Spill, AskAgain: Grow, Evict,"
        );
        let plain = Rules {
            can_remap: false,
            ..RULES
        };
        assert_eq!(
            tail(plain, &[Trim, Spill]),
            "PollLate, Trim: Grow, Spill: Grow, Spill, Evict,"
        );
        let inside_a_poll = Rules {
            may_call: false,
            ..queued
        };
        assert_eq!(tail(inside_a_poll, &[]), "PollLate, Evict,");
    }

    #[test]
    fn immediate_search_ends_with_a_wait_of_any_length() {
        for order in [Order::GrowFirst, Order::WaitFirst] {
            let rules = Rules {
                order,
                is_immediate: true,
                ..RULES
            };
            assert!(actions(rules, PLENTY, &[]).ends_with(" Evict, WaitAnyTime,"));
            let may_wait = false;
            assert!(!actions(Rules { may_wait, ..rules }, PLENTY, &[]).contains("Wait"));
        }
    }
}
