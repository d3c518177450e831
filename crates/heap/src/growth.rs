//! How much a pool may hold from the device, and how much it takes at a time.

use super::chunk::Units;
use super::totals::Totals;
use crate::units::debug_in_units;

/// How much a pool takes from the device when it grows. It never exceeds its capacity.
///
/// Where memory is plain, only a segment that is wholly free can be released. So a large step is not one segment: see
/// [`Factor`](Self::Factor).
///
/// ```
/// use weirpool::{GrowBy, Pool, device::sim::SimDevice};
///
/// let device = SimDevice::new();
/// let pool = Pool::builder(device.clone())
///     .tuning(|tuning| (tuning.initial_size, tuning.growth) = (256 << 20, GrowBy::AtLeast(64 << 20)))
///     .build()?;
/// let stream = pool.register(&device.create_stream())?;
/// let first = pool.try_allocate(&stream, 256 << 20)?;
/// let second = pool.try_allocate(&stream, 1 << 20)?;
/// assert_eq!(pool.inspect().statistics().reserved.current, 320 << 20);
/// # drop((first, second));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum GrowBy {
    /// Takes what the request needs, in whole chunks. This is the default: growing costs tens of microseconds, and the
    /// rest of the device's memory stays available to others.
    #[default]
    Chunks,
    /// Takes at least this many bytes at a time: Umpire's minimal size of a next allocation. Where memory is plain,
    /// they are one segment.
    AtLeast(u64),
    /// Grows to at least this many times what the pool holds; the factor is larger than 1. The number of growths is
    /// then proportional to the logarithm of the pool's size. Where memory is plain, the request gets a segment of its
    /// own, and the memory taken ahead comes in up to eight further segments.
    Factor(f64),
}

debug_in_units!(enum GrowBy { Chunks, AtLeast(inner as bytes), Factor(inner) });

impl GrowBy {
    /// Returns why the value is invalid for a pool of this capacity; `None` if it is valid.
    #[doc(hidden)]
    pub fn fault(self, capacity: u64) -> Option<&'static str> {
        match self {
            Self::AtLeast(0) => Some("the step is 0 bytes; choose a larger one"),
            Self::AtLeast(bytes) if bytes > capacity => {
                Some("the step exceeds the capacity; lower it, or raise the capacity")
            }
            Self::Factor(factor) if !(factor.is_finite() && factor > 1.0) => {
                Some("the factor is not a number larger than 1; choose a larger one")
            }
            Self::Chunks | Self::AtLeast(_) | Self::Factor(_) => None,
        }
    }

    /// Returns how many bytes to take, where a request needs `needed` and `reserved` are held already.
    fn step(self, reserved: u64, needed: u64) -> u64 {
        let wanted = match self {
            Self::Chunks => 0,
            Self::AtLeast(bytes) => bytes,
            // The cast saturates, and the capacity bounds the result.
            Self::Factor(factor) => (reserved as f64 * (factor - 1.0)) as u64,
        };
        wanted.max(needed)
    }
}

/// Where memory is plain, the memory taken ahead comes in up to this many segments: a block that lives long keeps no
/// more than one of them from being released.
const MOST_SEGMENTS: u64 = 8;

/// How many times the most that was in use a pool may hold, so that fewer chunks are moved.
const MOST_TIMES: u64 = 2;

/// The limits on memory held from the device.
#[derive(Clone, Debug)]
pub(super) struct Capacity {
    bytes: u64,
    /// The part of it that may be held now; `u64::MAX` where no broker leases it.
    lease: u64,
    growth: GrowBy,
    /// The bytes held when the capacity or the lease was last set: they may exceed both until they are released.
    held_at_resize: u64,
    /// The most that was in use when chunks were moved or could have been. Users reset the high-water marks, but not
    /// this.
    most_in_use: u64,
}

impl Capacity {
    pub(super) fn new(bytes: u64, growth: GrowBy) -> Self {
        Self {
            bytes,
            lease: u64::MAX,
            growth,
            held_at_resize: 0,
            most_in_use: 0,
        }
    }

    pub(super) fn resize(&mut self, bytes: u64, totals: &Totals) {
        self.bytes = bytes;
        self.held_at_resize = totals.held();
    }

    /// Sets the part of the capacity that may be held. Memory held above it stays until it is released.
    pub(super) fn set_lease(&mut self, bytes: u64, totals: &Totals) {
        self.lease = bytes;
        self.held_at_resize = totals.held();
    }

    /// Returns the part of the capacity that may be held now.
    pub(super) fn lease(&self) -> u64 {
        self.bytes.min(self.lease)
    }

    /// Returns the capacity as if all of it could be held.
    pub(super) fn without_lease(&self) -> Self {
        Self {
            lease: u64::MAX,
            ..self.clone()
        }
    }

    /// Returns whether the held bytes are within the leased capacity, or no more than when it was last set.
    pub(super) fn allows(&self, totals: &Totals) -> bool {
        totals.held() <= self.lease().max(self.held_at_resize)
    }

    /// Returns how many bytes may still be taken from the device.
    pub(super) fn left(&self, totals: &Totals) -> u64 {
        self.lease().saturating_sub(totals.held())
    }

    /// Returns how many bytes may be taken once this many are released.
    pub(super) fn left_after(&self, totals: &Totals, released: u64) -> u64 {
        self.lease().saturating_sub(totals.held() - released)
    }

    /// Returns how many new bytes the pool may take for a request in place of bytes that could be moved.
    pub(super) fn to_spare(&self, totals: &Totals, request: u64) -> u64 {
        let most = self.most_in_use.max(totals.in_use.current + request);
        most.saturating_mul(MOST_TIMES)
            .saturating_sub(totals.held())
    }

    /// Notes that a request of this size is served where chunks could have been moved.
    pub(super) fn record_use(&mut self, totals: &Totals, request: u64) {
        self.most_in_use = self.most_in_use.max(totals.in_use.current + request);
    }

    /// Returns the size of the segment of plain memory to take for a request; `None` if the capacity does not hold it.
    pub(super) fn segment_for(&self, units: &Units, totals: &Totals, request: u64) -> Option<u64> {
        let (left, granularity) = (self.left(totals), units.granularity);
        let needed = request.checked_next_multiple_of(granularity)?;
        let step = match self.growth {
            GrowBy::AtLeast(bytes) => bytes.max(units.chunk_bytes),
            GrowBy::Chunks | GrowBy::Factor(_) => units.chunk_bytes,
        };
        let mut bytes = needed;
        if step > needed {
            bytes = needed.max(step.min(left) / granularity * granularity);
        }
        (bytes <= left).then_some(bytes)
    }

    /// Returns how many more bytes to take ahead, after a request was served by taking `grown` bytes.
    pub(super) fn ahead(&self, totals: &Totals, grown: u64) -> u64 {
        let before = totals.reserved.current.saturating_sub(grown);
        self.growth.step(before, grown) - grown
    }

    /// Returns how many of the bytes taken ahead to take at once, after a request was served by taking `grown` bytes.
    pub(super) fn part_of(ahead: u64, grown: u64, units: &Units) -> u64 {
        if units.virtual_memory {
            return ahead;
        }
        let part = ahead
            .div_ceil(MOST_SEGMENTS)
            .max(grown)
            .max(units.chunk_bytes);
        part.next_multiple_of(units.granularity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::Level;

    const UNITS: Units = Units {
        chunk_bytes: 100,
        granularity: 10,
        virtual_memory: false,
    };

    fn holding(reserved: u64, planned: u64, in_use: u64) -> Totals {
        let level = |current| Level {
            current,
            high: current,
        };
        Totals {
            reserved: level(reserved),
            planned,
            in_use: level(in_use),
            ..Totals::default()
        }
    }

    #[test]
    fn step_is_the_need_or_more() {
        assert_eq!(GrowBy::Chunks.step(100, 7), 7);
        assert_eq!(GrowBy::AtLeast(50).step(100, 7), 50);
        assert_eq!(GrowBy::AtLeast(50).step(100, 70), 70);
        assert_eq!(GrowBy::Factor(1.5).step(100, 7), 50);
        assert_eq!(GrowBy::Factor(1.5).step(0, 7), 7);
    }

    #[test]
    fn invalid_step_is_found() {
        for growth in [
            GrowBy::AtLeast(0),
            GrowBy::AtLeast(101),
            GrowBy::Factor(1.0),
            GrowBy::Factor(f64::NAN),
            GrowBy::Factor(f64::INFINITY),
        ] {
            assert!(growth.fault(100).is_some(), "{growth:?}");
        }
        for growth in [GrowBy::Chunks, GrowBy::AtLeast(100), GrowBy::Factor(1.01)] {
            assert!(growth.fault(100).is_none(), "{growth:?}");
        }
    }

    #[test]
    fn capacity_counts_held_and_planned_memory() {
        let mut capacity = Capacity::new(1000, GrowBy::Chunks);
        let totals = holding(600, 300, 0);
        assert_eq!(capacity.left(&totals), 100);
        assert_eq!(capacity.left_after(&totals, 200), 300);
        assert!(capacity.allows(&totals) && !capacity.allows(&holding(600, 401, 0)));
        capacity.resize(500, &totals);
        assert_eq!(capacity.left(&totals), 0);
        assert!(capacity.allows(&totals), "it was held before");
        assert!(!capacity.allows(&holding(601, 300, 0)));
    }

    #[test]
    fn memory_to_spare_is_twice_the_most_in_use() {
        let mut capacity = Capacity::new(1000, GrowBy::Chunks);
        assert_eq!(capacity.to_spare(&holding(100, 20, 50), 30), 40);
        capacity.record_use(&holding(100, 0, 100), 20);
        assert_eq!(capacity.to_spare(&holding(100, 20, 50), 30), 120);
        assert_eq!(capacity.to_spare(&holding(300, 0, 50), 30), 0);
    }

    #[test]
    fn segment_is_the_request_or_a_step_within_the_capacity() {
        let bytes = |growth, reserved, request| {
            let capacity = Capacity::new(1000, growth);
            capacity.segment_for(&UNITS, &holding(reserved, 0, 0), request)
        };
        assert_eq!(bytes(GrowBy::Chunks, 0, 7), Some(100));
        assert_eq!(bytes(GrowBy::Chunks, 0, 123), Some(130));
        assert_eq!(bytes(GrowBy::Chunks, 955, 7), Some(40), "all that is left");
        assert_eq!(bytes(GrowBy::Chunks, 955, 41), None);
        assert_eq!(bytes(GrowBy::Chunks, 0, u64::MAX), None);
        assert_eq!(bytes(GrowBy::AtLeast(300), 0, 7), Some(300));
        assert_eq!(bytes(GrowBy::AtLeast(300), 900, 7), Some(100));
        assert_eq!(bytes(GrowBy::AtLeast(30), 0, 7), Some(100));
        assert_eq!(
            bytes(GrowBy::Factor(2.0), 500, 7),
            Some(100),
            "the rest comes apart"
        );
    }

    #[test]
    fn memory_taken_ahead_comes_in_few_segments() {
        let capacity = Capacity::new(1 << 20, GrowBy::Factor(2.0));
        assert_eq!(capacity.ahead(&holding(5000, 0, 0), 100), 4800);
        assert_eq!(Capacity::part_of(4800, 100, &UNITS), 600);
        assert_eq!(Capacity::part_of(4801, 100, &UNITS), 610);
        assert_eq!(
            Capacity::part_of(4800, 2000, &UNITS),
            2000,
            "it holds one more request"
        );
        assert_eq!(Capacity::part_of(80, 10, &UNITS), 100);
        let whole = Units {
            virtual_memory: true,
            ..UNITS
        };
        assert_eq!(Capacity::part_of(4800, 100, &whole), 4800);
        let exact = Capacity::new(1 << 20, GrowBy::Chunks);
        assert_eq!(exact.ahead(&holding(5000, 0, 0), 100), 0);
    }
}
