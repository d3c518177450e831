//! What an asker may have: of whom, and behind what.

use super::{Clock, Fence, Fences, Forecast, Placement};
use crate::id::{StreamId, Ticket};

/// Who asks: which fences do not keep a block from it.
pub(crate) struct View<'a> {
    pub(crate) stream: StreamId,
    /// What the stream comes after, as far as the policy lets it count.
    pub(crate) after: &'a Clock,
    /// Which further fences the stream may be made to wait for on the device, and when they are expected to be
    /// complete.
    pub(crate) waits: Option<&'a dyn Fn(Fence) -> Option<Forecast>>,
    /// Where it is to lie.
    pub(crate) placement: Placement,
}

impl View<'_> {
    /// Whether a block with these fences may be had by this asker; and when the last of those that it would have to
    /// wait for is expected.
    pub(super) fn forecast(&self, fences: &Fences) -> Option<Forecast> {
        // The most frequent case, and the only one that a search without waits goes on with.
        if fences.single().is_some_and(|fence| self.is_ordered(fence)) {
            return Some(Forecast::default());
        }
        let mut to_wait_for = fences.iter().filter(|fence| !self.is_ordered(*fence));
        to_wait_for.try_fold(Forecast::default(), |last, fence| {
            Some(last.and(self.waits?(fence)?))
        })
    }

    /// Whether the asker comes after the fence already.
    pub(crate) fn is_ordered(&self, fence: Fence) -> bool {
        fence.stream == self.stream || self.after.covers(fence)
    }

    /// Whether nothing that waits for another stream can be had.
    pub(super) fn has_only_its_own(&self) -> bool {
        self.waits.is_none() && self.after.is_empty()
    }

    pub(super) fn considers(&self, donor: StreamId) -> bool {
        donor == self.stream || self.waits.is_some() || self.after.of(donor) != Ticket::ZERO
    }
}
