//! The size and alignment of a block, and how sizes are rounded to the pool's step.

use super::plain_case::round_up;
use crate::engine::Engine;
use crate::error::AllocError;
use crate::heap;
use crate::measure::{Tag, debug_in_units};
use crate::queue::Demand;

/// The size and the alignment of a block to allocate, in bytes.
///
/// ```
/// use weirpool::Layout;
///
/// assert_eq!(Layout::from(4096), Layout::new(4096).alignment(1));
/// assert_eq!(Layout::from(std::alloc::Layout::new::<[u64; 8]>()), Layout::new(64).alignment(8));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Layout {
    /// The size.
    pub bytes: u64,
    /// A power of two, up to the device's step. Every block is aligned to 512 bytes anyway.
    pub alignment: u64,
}

debug_in_units!(struct Layout { bytes as bytes, alignment as bytes });

impl Layout {
    /// Describes a block of `bytes` bytes without an alignment of its own.
    pub const fn new(bytes: u64) -> Self {
        Self {
            bytes,
            alignment: 1,
        }
    }

    /// Aligns the block to `alignment` bytes.
    pub const fn alignment(self, alignment: u64) -> Self {
        Self { alignment, ..self }
    }

    /// # Errors
    /// Returns an error if the alignment is not a power of two, or exceeds the device's step.
    #[inline]
    pub(super) fn expect_valid_alignment(self, engine: &Engine) -> Result<(), AllocError> {
        let (alignment, largest) = (self.alignment, engine.shared.capabilities.granularity);
        if !alignment.is_power_of_two() || alignment > largest {
            return Err(AllocError::InvalidAlignment { alignment, largest });
        }
        Ok(())
    }

    /// Checks the layout against the pool's limits, and rounds it to the pool's step.
    #[inline]
    pub(crate) fn demand(self, engine: &Engine, tag: Option<Tag>) -> Result<Demand, AllocError> {
        let Self { bytes, alignment } = self;
        expect_capacity_for(bytes, engine)?;
        self.expect_valid_alignment(engine)?;
        let step = engine.shared.settings.alignment;
        let request = heap::Request {
            bytes: round_up(bytes, step),
            alignment: alignment.max(step),
        };
        debug_assert!(step <= u64::from(u32::MAX), "a step of gigabytes");
        Ok(Demand {
            // Less than a step, or a whole one for a request of zero bytes.
            rounding: (request.bytes - bytes) as u32,
            request,
            tag,
            is_of_holder: false,
        })
    }
}

impl From<u64> for Layout {
    fn from(bytes: u64) -> Self {
        Self::new(bytes)
    }
}

impl From<std::alloc::Layout> for Layout {
    fn from(layout: std::alloc::Layout) -> Self {
        Self::new(layout.size() as u64).alignment(layout.align() as u64)
    }
}

/// # Errors
/// Returns an error if the pool's capacity is less than `requested` bytes.
#[inline]
pub(super) fn expect_capacity_for(requested: u64, engine: &Engine) -> Result<(), AllocError> {
    let capacity = engine.store.capacity();
    if requested > capacity {
        return Err(AllocError::TooLarge {
            requested,
            capacity,
        });
    }
    Ok(())
}
