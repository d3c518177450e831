//! What becomes of a call of the program.

use super::counts::Passed;
use super::driver::Status;

/// The answer to a call of the program.
pub(super) enum Answer<T> {
    Served(T),
    Failed(Status),
    /// The driver answers.
    Passed(Passed),
}

impl<T> Answer<T> {
    /// Returns the answer for what `make` makes of a served value.
    pub(super) fn map<U>(self, make: impl FnOnce(T) -> U) -> Answer<U> {
        match self {
            Self::Served(value) => Answer::Served(make(value)),
            Self::Failed(status) => Answer::Failed(status),
            Self::Passed(reason) => Answer::Passed(reason),
        }
    }

    /// Returns the answer that `call` gives for a served value.
    pub(super) fn and_then<U>(self, call: impl FnOnce(T) -> Answer<U>) -> Answer<U> {
        match self {
            Self::Served(value) => call(value),
            Self::Failed(status) => Answer::Failed(status),
            Self::Passed(reason) => Answer::Passed(reason),
        }
    }
}
