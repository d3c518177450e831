//! A request's demand: size, alignment and account.

use crate::engine::{Allocations, Engine, Mode, Part, Parts, Refusal, charging};
use crate::heap::{Placement, Request};
use crate::lane::Lane;
use crate::measure::Tag;
use crate::sync::Arc;

/// What is granted: one block, several together, or a charge.
#[derive(Clone, Debug)]
pub(crate) enum Wants {
    /// One block, described by the demand.
    Block,
    /// All of these, or none. The demand is their sum.
    Parts(Parts),
    /// The demand's bytes of the capacity, for memory of others.
    Charge,
}

impl Wants {
    /// Returns the pieces of memory, each of which must be contiguous.
    pub(super) fn pieces<'a>(&'a self, demand: &'a Demand) -> impl Iterator<Item = Request> + 'a {
        let (one, several) = match self {
            Self::Block => (Some(demand.request), None),
            Self::Parts(parts) => (None, Some(parts.all.iter().map(|part| part.request))),
            Self::Charge => (None, None),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// Returns whether the pieces may lie at any address, so that a search for them is in vain where one for smaller pieces
    /// was.
    pub(super) fn is_anywhere(&self) -> bool {
        match self {
            Self::Block => true,
            Self::Parts(parts) => parts.placement == Placement::Anywhere,
            Self::Charge => false,
        }
    }

    /// Searches memory, or charges the capacity: a charge has no allocations.
    ///
    /// # Errors
    /// Returns an error if there is not enough for all of it now.
    pub(super) fn search(
        &self,
        engine: &Engine,
        lane: &Arc<Lane>,
        request: Request,
        mode: Mode<'_>,
    ) -> Result<Allocations, Refusal> {
        Ok(match self {
            Self::Block => std::iter::once(engine.search(lane, request, mode)?).collect(),
            Self::Parts(parts) => engine.search_all(lane, parts, mode)?,
            Self::Charge => {
                charging::charge(engine, request.bytes, mode)?;
                Allocations::new()
            }
        })
    }
}

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// The rounded size and the alignment, as the heap takes them.
    pub(crate) request: Request,
    /// The part of the bytes that was added by rounding.
    pub(crate) rounding: u32,
    /// The account that is charged, if any.
    pub(crate) tag: Option<Tag>,
}

impl Demand {
    /// Makes the demand for one of several blocks.
    pub(crate) fn of_part(part: Part, tag: Option<Tag>) -> Self {
        Self {
            request: part.request,
            rounding: part.rounding,
            tag,
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
