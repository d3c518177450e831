//! What can be said of a wait: the same for one block, for several, and for a reservation.

/// The methods by which a request says on what terms it waits.
macro_rules! terms {
    () => {
        /// Counts it for a tag, within the tag's limit: as [`Allocate::tag`](crate::Allocate::tag).
        pub fn tag(mut self, tag: Tag) -> Self {
            self.tag = Some(tag);
            self
        }

        /// Waits no longer than this: as [`Allocate::timeout`](crate::Allocate::timeout).
        pub fn timeout(mut self, timeout: Duration) -> Self {
            self.terms.timeout = Some(timeout);
            self
        }

        /// Waits no longer than this, and is due then: as
        /// [`Allocate::deadline`](crate::Allocate::deadline).
        pub fn deadline(mut self, within: Duration) -> Self {
            self.terms.deadline = Some(within);
            self
        }

        /// Is due so many steps earlier: as [`Allocate::priority`](crate::Allocate::priority).
        pub fn priority(mut self, steps: i32) -> Self {
            self.terms.priority = steps;
            self
        }
    };
}

pub(crate) use terms;
