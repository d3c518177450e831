//! A block now: the plain case at once, and any other the long way.

use super::{Pool, drawing, exhausted};
use crate::block::Block;
use crate::driver::{Allocation, Effort};
use crate::error::AllocError;
use crate::lane::{Miss, StreamCache};
use crate::measure::Tag;
use crate::queue::{Caller, Demand, Denial, Registration, take_own, try_now};
use crate::sync::{Arc, plain};
use std::panic::Location;

/// What is asked for, before anything of it is checked.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) registration: &'a Arc<Registration>,
    pub(super) bytes: u64,
    pub(super) alignment: u64,
    pub(super) tag: Option<Tag>,
    pub(super) location: &'static Location<'static>,
}

/// To a multiple of the step, and one at least. The step is a power of two, and the capacity a multiple of it: for
/// what is not above that, this does not go over.
#[inline(always)]
pub(super) fn round_up(bytes: u64, step: u64) -> u64 {
    (bytes.max(1) + (step - 1)) & !(step - 1)
}

impl Pool {
    #[inline(always)]
    pub(super) fn grant_now(&self, call: Call<'_>) -> Result<Block, AllocError> {
        match self.grant_at_once(call) {
            Ok(block) => Ok(block),
            Err(miss) => {
                let Call {
                    registration,
                    bytes,
                    alignment,
                    tag,
                    location,
                } = call;
                self.grant_slowly(registration, bytes, alignment, tag, location, miss)
            }
        }
    }

    /// The plain case: a block that the stream's lane has, of nobody's account, while nobody looks on and no
    /// reservation's scope is entered.
    ///
    /// # Errors
    /// When it is not the plain case. Nothing was checked, then.
    #[inline(always)]
    pub(super) fn grant_at_once(&self, call: Call<'_>) -> Result<Block, Miss> {
        let Call {
            registration,
            bytes,
            alignment,
            ..
        } = call;
        let driver = &registration.service.driver;
        let step = driver.settings.alignment;
        let is_plain = plain::Arc::ptr_eq(&registration.presence, &self.presence)
            && registration.observers.is_none()
            && call.tag.is_none()
            && bytes <= driver.capacity()
            && alignment.is_power_of_two()
            && alignment <= step
            && !drawing::is_any();
        if !is_plain {
            return Err(Miss::NotSearched);
        }
        let rounded = round_up(bytes, step);
        let surplus = (rounded - bytes) as u32;
        let (cached, registration) = StreamCache::take_at_once(registration, rounded, surplus)?;
        let allocation = Allocation::of_lane(cached);
        // It may be a little larger than that.
        let rounding = (allocation.bytes - bytes) as u32;
        Ok(Block::at_once(registration, allocation, rounding))
    }

    /// With the parts of the call, which stay in registers so.
    #[cold]
    #[inline(never)]
    fn grant_slowly(
        &self,
        registration: &Arc<Registration>,
        bytes: u64,
        alignment: u64,
        tag: Option<Tag>,
        location: &'static Location<'static>,
        miss: Miss,
    ) -> Result<Block, AllocError> {
        let demand = self.demand(registration, bytes, alignment, tag)?;
        if let Some(drawn) = self.draw(registration, &demand, location) {
            return drawn;
        }
        let allocation = match take_own(registration, &demand, miss) {
            Some(allocation) => allocation,
            None => self.climb_now(registration, demand)?,
        };
        let waited = false;
        let caller = Caller { location, waited };
        Block::new(registration, allocation, &demand, caller)
    }

    fn climb_now(
        &self,
        registration: &Arc<Registration>,
        demand: Demand,
    ) -> Result<Allocation, AllocError> {
        match try_now((&**registration).into(), &demand, Effort::Immediate) {
            Ok(allocation) => Ok(allocation),
            Err(Denial::Failed(error)) => Err(error),
            Err(Denial::Short(..)) => Err(exhausted(registration, &demand)),
            Err(Denial::OverLimit(tag)) => {
                Err(self.service().limit_reached(tag, demand.request.bytes))
            }
        }
    }
}
