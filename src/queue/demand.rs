//! A request's demand: size, alignment and account.

use crate::engine::Part;
use crate::heap::Request;
use crate::measure::Tag;

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// The rounded size and the alignment, as the heap takes them.
    pub(crate) request: Request,
    /// The part of the bytes that was added by rounding.
    pub(crate) rounding: u32,
    /// The account that is charged, if any.
    pub(crate) tag: Option<Tag>,
    /// It grows memory that is held, or is made in the scope of a reservation: it is granted although the pool
    /// [stops admitting](crate::Pool::stop_admitting) others.
    pub(crate) is_of_holder: bool,
}

impl Demand {
    /// Makes the demand for one of several blocks.
    pub(crate) fn of_part(part: Part, tag: Option<Tag>) -> Self {
        Self {
            request: part.request,
            rounding: part.rounding,
            tag,
            is_of_holder: false,
        }
    }

    /// Makes the demand for `bytes` bytes at a multiple of `step`, `surplus` of them added by rounding.
    pub(crate) fn in_steps(bytes: u64, step: u64, surplus: u64, tag: Option<Tag>) -> Self {
        Self {
            request: Request {
                bytes,
                alignment: step,
            },
            rounding: u32::try_from(surplus).unwrap_or(u32::MAX),
            tag,
            is_of_holder: false,
        }
    }

    /// Returns the demand as the only part of a request.
    pub(crate) fn as_part(&self) -> Part {
        Part {
            request: self.request,
            rounding: self.rounding,
        }
    }

    /// Returns the bytes before rounding.
    pub(crate) fn requested(&self) -> u64 {
        self.request.bytes - u64::from(self.rounding)
    }

    /// Returns how many of the granted bytes were not requested.
    #[inline]
    pub(crate) fn rounding_of(&self, granted: u64) -> u32 {
        // A lane's block may be larger. Where nothing is pooled, the size is in steps of the device.
        (granted - self.request.bytes) as u32 + self.rounding
    }
}
