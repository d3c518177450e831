//! Terms of waiting, which run from one moment, however many requests are made on them.

use std::time::Duration;
use weirpool::Terms;

/// Sets the terms of a type that has them.
macro_rules! takes_terms {
    ($type:ty) => {
        impl $type {
            /// Sets all terms of the wait.
            pub fn terms(mut self, terms: Terms) -> Self {
                self.terms = terms;
                self
            }

            /// Sets the longest wait, for all that it waits for together.
            pub fn timeout(mut self, timeout: Duration) -> Self {
                self.terms.timeout = Some(timeout);
                self
            }

            /// Sets the longest wait, at the end of which the request is due.
            pub fn deadline(mut self, deadline: Duration) -> Self {
                self.terms.deadline = Some(deadline);
                self
            }

            /// Sets the number of priority steps by which the request is due earlier.
            pub fn priority(mut self, priority: i32) -> Self {
                self.terms.priority = priority;
                self
            }
        }
    };
}
pub(crate) use takes_terms;

/// Returns when the time is over that the terms allow, on the device's clock.
pub(crate) fn end_of(terms: Terms, now: Duration) -> Option<Duration> {
    let longest = [terms.timeout, terms.deadline].into_iter().flatten().min();
    longest.map(|longest| now.saturating_add(longest))
}

/// Returns the terms for the rest of the wait.
pub(crate) fn rest_of(terms: Terms, waited: Duration) -> Terms {
    let left = |longest: Option<Duration>| Some(longest?.saturating_sub(waited));
    Terms {
        timeout: left(terms.timeout),
        deadline: left(terms.deadline),
        ..terms
    }
}
