//! A tag's bytes, charged for a request that is under way.

use super::{Demand, Service};
use crate::measure::{LimitReached, Tag};

/// See the [module](self). Dropped, the bytes are uncharged. *Kept*, they belong to the grant or to the queue position:
/// whatever ends that uncharges them.
#[derive(Debug)]
#[must_use = "the bytes are uncharged when this is dropped"]
pub(crate) struct TagCharge<'a> {
    service: &'a Service,
    tag: Tag,
    bytes: u64,
}

impl<'a> TagCharge<'a> {
    /// Charges the bytes of a demand.
    ///
    /// # Errors
    /// Returns an error if the tag's limit does not allow it now, or other requests of that tag come first.
    #[inline]
    pub(super) fn of(
        service: &'a Service,
        demand: &Demand,
        tag: Tag,
    ) -> Result<Self, LimitReached> {
        let bytes = demand.request.bytes;
        service.queue.accounts.of(tag).charge(bytes)?;
        Ok(Self {
            service,
            tag,
            bytes,
        })
    }

    /// Leaves the bytes charged.
    #[inline]
    pub(super) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for TagCharge<'_> {
    fn drop(&mut self) {
        self.service.uncharge(self.tag, self.bytes);
    }
}
