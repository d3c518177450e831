//! How fast a stream gets on: when what is given to it is expected to be through.
//!
//! The stream is followed as a queue with one server. Each point is expected a step after the one before, or after
//! what the stream was made to wait for. What a step takes lies between two bounds: a point that was seen complete took
//! so long at most, and one that was asked after in vain longer than that. A step that is expected within both stays:
//! who asks late learns nothing of it.

use std::time::Duration;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// From one point to the next; zero while none was seen complete.
    step: Duration,
    /// When all that the stream was given is expected to be through.
    tail: Duration,
    /// When the last of what the stream was made to wait for is expected.
    held_until: Duration,
    /// When a point was seen complete last.
    seen_at: Duration,
    /// When the first point on its way was asked after in vain last.
    asked_at: Duration,
}

/// Points that were seen complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passed {
    /// Before this the stream did not begin with the first of them.
    pub(super) begun_at: Duration,
    pub(super) count: u32,
    /// When the last was expected.
    pub(super) expected_at: Duration,
    /// The next one is not complete yet.
    pub(super) is_next_open: bool,
}

impl Pace {
    /// Before when the stream does not begin with a point that is sealed now, and when it is expected to be through.
    pub(super) fn expect(&mut self, now: Duration) -> (Duration, Duration) {
        self.tail = self.tail.max(now) + self.step;
        (self.held_until.max(now), self.tail)
    }

    /// A point may be passed so much sooner than it is expected. Who asks so early finds out.
    pub(super) fn margin(&self) -> Duration {
        self.step / 4
    }

    pub(super) fn delay(&mut self, until: Duration) {
        self.tail = self.tail.max(until);
        self.held_until = self.held_until.max(until);
    }

    /// The first point on its way is not complete.
    pub(super) fn note_vain(&mut self, now: Duration) {
        self.asked_at = now;
    }

    pub(super) fn note(&mut self, passed: Passed, now: Duration) {
        let begun_at = passed.begun_at.max(self.seen_at);
        let (busy, count) = (now.saturating_sub(begun_at), passed.count.max(1));
        let most = busy / count;
        let in_vain = self.asked_at.saturating_sub(begun_at) / count;
        let least = if passed.is_next_open {
            in_vain.max(busy / (count + 1))
        } else {
            in_vain
        };
        self.step = if self.step.is_zero() {
            most
        } else {
            let nearest = self.step.min(most).max(least);
            self.step - self.step / 4 + nearest / 4
        };
        self.seen_at = now;
        // What it was wrong by, all after it is wrong by.
        self.tail = (self.tail + now).saturating_sub(passed.expected_at);
    }
}

