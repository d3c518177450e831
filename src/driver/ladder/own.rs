//! Source 1: what the stream itself freed.

use super::{Allocation, Source};
use crate::lane::CachedBlock;

impl Allocation {
    #[inline(always)]
    pub(crate) fn of_lane(cached: CachedBlock) -> Self {
        Self {
            id: cached.id,
            address: cached.address,
            bytes: cached.bytes,
            after: cached.ticket,
            source: Source::Lane,
        }
    }
}
