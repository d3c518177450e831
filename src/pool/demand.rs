//! A request at the quota queue: checked, and rounded to the pool's step.

use super::Pool;
use super::grant::round_up;
use crate::error::AllocError;
use crate::heap::Request;
use crate::measure::Tag;
use crate::queue::{Demand, Registration};
use crate::sync::plain;

impl Pool {
    /// Checks a request at the quota queue, and rounds it to the pool's step.
    #[inline]
    pub(super) fn demand(
        &self,
        registration: &Registration,
        bytes: u64,
        alignment: u64,
        tag: Option<Tag>,
    ) -> Result<Demand, AllocError> {
        self.expect_of(registration)?;
        self.demand_of(bytes, alignment, tag)
    }

    #[inline]
    pub(super) fn expect_of(&self, registration: &Registration) -> Result<(), AllocError> {
        if !plain::Arc::ptr_eq(&registration.presence, &self.presence) {
            return Err(AllocError::ForeignStream);
        }
        if let Some(observers) = registration.observers.as_deref() {
            observers.call_out();
        }
        Ok(())
    }

    #[inline]
    pub(super) fn demand_of(
        &self,
        bytes: u64,
        alignment: u64,
        tag: Option<Tag>,
    ) -> Result<Demand, AllocError> {
        let driver = &self.presence.service.driver;
        let capacity = driver.capacity();
        if bytes > capacity {
            return Err(AllocError::TooLarge {
                requested: bytes,
                capacity,
            });
        }
        let largest = driver.capabilities.granularity;
        if !alignment.is_power_of_two() || alignment > largest {
            return Err(AllocError::InvalidAlignment { alignment, largest });
        }
        let step = driver.settings.alignment;
        let request = Request {
            bytes: round_up(bytes, step),
            alignment: alignment.max(step),
        };
        debug_assert!(step <= u64::from(u32::MAX), "a step of gigabytes");
        Ok(Demand {
            // Less than a step, or a whole one for a request of nothing.
            rounding: (request.bytes - bytes) as u32,
            request,
            tag,
        })
    }
}
