//! A tag's bytes, claimed for a request that is under way.

use super::{Demand, Service};
use crate::error::AllocError;
use crate::measure::{LimitReached, Tag};

/// See the [module](self). Dropped, the bytes are disclaimed; *kept*, they go with the grant, or with the
/// place in the queue, and whoever ends that disclaims them.
#[derive(Debug)]
#[must_use = "what is claimed is disclaimed when this is dropped"]
pub(crate) struct Charge<'a> {
    service: &'a Service,
    tag: Tag,
    bytes: u64,
}

impl<'a> Charge<'a> {
    /// Claims what is asked for.
    ///
    /// # Errors
    /// When the tag's limit does not allow it now, or others of that tag come first.
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

    /// What was claimed, if anything was, goes with a grant or a place.
    #[inline]
    pub(super) fn keep(charge: Option<Self>) {
        std::mem::forget(charge);
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.service.uncharge(self.tag, self.bytes);
    }
}

impl Service {
    /// Bytes of a tag are not claimed any more: who is held for them is let in.
    pub(crate) fn uncharge(&self, tag: Tag, bytes: u64) {
        if self.queue.accounts.of(tag).uncharge(bytes) {
            drop(self.queue.admit(tag, &self.driver.gate));
        }
    }

    /// Why a demand can never be met, if so.
    pub(super) fn refusal_of(&self, demand: &Demand) -> Option<AllocError> {
        let requested = demand.request.bytes;
        let capacity = self.driver.capacity();
        let too_large = || {
            (requested > capacity).then_some(AllocError::TooLarge {
                requested,
                capacity,
            })
        };
        let over_limit = || {
            let tag = demand.tag?;
            let limit = self.queue.accounts.of(tag).limit()?;
            (requested > limit).then_some(AllocError::OverLimit {
                tag,
                requested,
                limit,
            })
        };
        self.refusal().or_else(too_large).or_else(over_limit)
    }

    /// What is said to who does not wait until its tag may have more.
    pub(crate) fn limit_reached(&self, tag: Tag, requested: u64) -> AllocError {
        let account = self.queue.accounts.of(tag);
        AllocError::LimitReached {
            tag,
            requested,
            used: account.charged(),
            limit: account.limit().unwrap_or(u64::MAX),
        }
    }
}
