//! The model that is served: what its requests need of memory, step by step.
//!
//! A request runs its steps one after the other. All share the weights; each step has an activation of its own, freed
//! when the step is submitted; and the cache of results so far grows by a page every so many steps, until the request
//! ends. Sizes are whole handles of the pool's.

use std::ops::RangeInclusive;

/// The pool's own step of memory.
pub(crate) const CHUNK: u64 = 16 << 20;

/// Taken once, for all requests.
pub(crate) const WEIGHTS: u64 = 512 << 20;

/// Taken for each step.
pub(crate) const ACTIVATION: u64 = 64 << 20;

/// By how much a cache grows.
pub(crate) const PAGE: u64 = 32 << 20;

/// After so many steps a page is full.
const STEPS_OF_A_PAGE: usize = 8;

/// How many steps a request has, at least and at most.
pub(crate) const STEPS: RangeInclusive<usize> = 8..=24;

/// Returns whether the step, counted from zero, begins a page of the cache.
pub(crate) fn begins_page(step: usize) -> bool {
    step.is_multiple_of(STEPS_OF_A_PAGE)
}

/// All blocks that a request of so many steps has at the same time, at its end.
pub(crate) fn blocks(steps: usize) -> impl Iterator<Item = u64> {
    let pages = steps.div_ceil(STEPS_OF_A_PAGE);
    std::iter::once(ACTIVATION).chain(std::iter::repeat_n(PAGE, pages))
}

/// Returns its largest size, in bytes.
pub(crate) fn peak(steps: usize) -> u64 {
    blocks(steps).sum()
}

/// Returns the largest size of any request.
pub(crate) fn largest() -> u64 {
    peak(*STEPS.end())
}

/// Returns the largest size of an average request, in whole handles.
pub(crate) fn average() -> u64 {
    let lengths = STEPS.count() as u64;
    let all: u64 = STEPS.map(peak).sum();
    (all / lengths).next_multiple_of(CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_grows_page_by_page() {
        let begun: Vec<_> = (0..24).filter(|step| begins_page(*step)).collect();
        assert_eq!(begun, [0, 8, 16]);
        for steps in STEPS {
            let begun = (0..steps).filter(|step| begins_page(*step)).count();
            assert_eq!(blocks(steps).count(), 1 + begun, "{steps}");
        }
    }

    #[test]
    fn the_peak_is_at_the_end() {
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
