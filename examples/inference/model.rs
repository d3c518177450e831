//! The served model: the memory that its requests need, step by step.
//!
//! A request runs its steps one after the other. All requests share the weights. Each step has its own activation,
//! freed when the step is submitted. The cache of earlier results grows by a page every 8 steps, until the request
//! ends. All sizes are multiples of the pool's chunk size.

use std::ops::RangeInclusive;

/// The bytes of a chunk of the pool.
pub(crate) const CHUNK: u64 = 16 << 20;

/// The bytes of the weights, which all requests share.
pub(crate) const WEIGHTS: u64 = 512 << 20;

/// The bytes of a step's activation.
pub(crate) const ACTIVATION: u64 = 64 << 20;

/// The bytes of a page of a cache.
pub(crate) const PAGE: u64 = 32 << 20;

/// The number of steps that fill a page.
const STEPS_PER_PAGE: usize = 8;

/// The least and the most steps of a request.
pub(crate) const STEPS: RangeInclusive<usize> = 8..=24;

/// Returns whether the step, counted from zero, begins a page of the cache.
pub(crate) fn begins_page(step: usize) -> bool {
    step.is_multiple_of(STEPS_PER_PAGE)
}

/// Returns the blocks that a request of this many steps holds at its end.
pub(crate) fn blocks(steps: usize) -> impl Iterator<Item = u64> {
    let pages = steps.div_ceil(STEPS_PER_PAGE);
    std::iter::once(ACTIVATION).chain(std::iter::repeat_n(PAGE, pages))
}

/// Returns the peak memory of a request of this many steps, in bytes.
pub(crate) fn peak(steps: usize) -> u64 {
    blocks(steps).sum()
}

/// Returns the peak memory of the longest request.
pub(crate) fn largest() -> u64 {
    peak(*STEPS.end())
}

/// Returns the average peak memory of a request, rounded up to whole chunks.
pub(crate) fn average() -> u64 {
    let lengths = STEPS.count() as u64;
    let all: u64 = STEPS.map(peak).sum();
    (all / lengths).next_multiple_of(CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_grows_page_by_page() {
        let begun: Vec<_> = (0..24).filter(|step| begins_page(*step)).collect();
        assert_eq!(begun, [0, 8, 16]);
        for steps in STEPS {
            let begun = (0..steps).filter(|step| begins_page(*step)).count();
            assert_eq!(blocks(steps).count(), 1 + begun, "{steps}");
        }
    }

    #[test]
    fn peak_is_at_the_end() {
        let pages = [8, 9, 16, 17, 24].map(|steps| (peak(steps) - ACTIVATION) / PAGE);
        assert_eq!(pages, [1, 2, 2, 3, 3]);
        assert_eq!(largest(), peak(24));
    }

    #[test]
    fn two_average_requests_have_room_for_any() {
        assert!(largest() <= 2 * average());
        for bytes in [WEIGHTS, ACTIVATION, PAGE, average(), largest()] {
            assert_eq!(bytes % CHUNK, 0);
        }
    }
}
