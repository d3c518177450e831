//! What a caller asks for, and for whom.

use crate::driver::{Part, Parts};
use crate::heap::{Placement, Request};
use crate::lane::Lane;
use crate::measure::Tag;
use crate::trace::Asked;

/// One block, or several from one place in the queue.
#[derive(Clone, Debug)]
pub(crate) enum Wants {
    /// One, as the demand says.
    Block,
    /// All of these, or none. The demand is for all of them together.
    Parts(Parts),
}

impl Wants {
    /// The pieces of memory, each of which must be contiguous.
    pub(super) fn pieces<'a>(&'a self, demand: &'a Demand) -> impl Iterator<Item = Request> + 'a {
        let (one, several) = match self {
            Self::Block => (Some(demand.request), None),
            Self::Parts(parts) => (None, Some(parts.all.iter().map(|part| part.request))),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// Whether the memory may lie at any address.
    pub(super) fn is_anywhere(&self) -> bool {
        match self {
            Self::Block => true,
            Self::Parts(parts) => parts.placement == Placement::Anywhere,
        }
    }
}

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// As the heap is asked: rounded.
    pub(crate) request: Request,
    /// Bytes of it that were not asked for.
    pub(crate) rounding: u32,
    /// To whose account it goes, if anybody's.
    pub(crate) tag: Option<Tag>,
}

impl Demand {
    /// For one of several blocks.
    pub(crate) fn of_part(part: Part, tag: Option<Tag>) -> Self {
        Self {
            request: part.request,
            rounding: part.rounding,
            tag,
        }
    }

    /// For so many bytes at a multiple of the step, of which `surplus` were not asked for.
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

    /// As the only part.
    pub(crate) fn as_part(&self) -> Part {
        Part {
            request: self.request,
            rounding: self.rounding,
        }
    }

    /// The bytes that were asked for.
    pub(crate) fn requested(&self) -> u64 {
        self.request.bytes - u64::from(self.rounding)
    }

    /// What was not asked for of so many bytes that were granted.
    #[inline]
    pub(crate) fn rounding_of(&self, granted: u64) -> u32 {
        // A lane's block may be larger; and where nothing is pooled it is steps of the device.
        (granted - self.request.bytes) as u32 + self.rounding
    }

    /// The same as it is told of.
    #[inline]
    pub(crate) fn asked(&self, lane: &Lane) -> Asked {
        Asked {
            stream: lane.id,
            bytes: self.request.bytes,
            tag: self.tag,
        }
    }
}
