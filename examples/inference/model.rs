//! The model that is served: what its requests need of memory, step by step.
//!
//! A request runs its steps one after the other. Each has an activation of its own, freed when the step is
//! submitted; all share the weights; and the cache grows: every so many steps a larger one is taken, the
//! old one copied into it and freed. Sizes are whole handles of the pool's.

/// The pool's own step of memory.
pub(crate) const HANDLE: u64 = 16 << 20;

/// Taken once, for all requests.
pub(crate) const WEIGHTS: u64 = 512 << 20;

/// Taken for each step.
pub(crate) const ACTIVATION: u64 = 64 << 20;

/// A cache for this many steps, and by how much it grows.
const CACHE: u64 = 16 << 20;

/// After so many steps the cache is full.
const STEPS_OF_A_CACHE: usize = 8;

/// How many steps a request has, at least and at most.
pub(crate) const STEPS: std::ops::RangeInclusive<usize> = 8..=24;

/// The cache that a step writes to, counted from zero.
pub(crate) fn cache_at(step: usize) -> u64 {
    CACHE * (step / STEPS_OF_A_CACHE + 1) as u64
}

/// Whether the step begins with a larger cache than the one before.
pub(crate) fn grows_at(step: usize) -> bool {
    step > 0 && cache_at(step) > cache_at(step - 1)
}

/// The most that a request of so many steps has at once: what it takes up front.
pub(crate) fn peak(steps: usize) -> u64 {
    let caches = |step| {
        let previous = if grows_at(step) {
            cache_at(step - 1)
        } else {
            0
        };
        cache_at(step) + previous
    };
    ACTIVATION + (0..steps).map(caches).max().unwrap_or(0)
}

/// The most that any request has.
pub(crate) fn largest() -> u64 {
    peak(*STEPS.end())
}

/// What an average request has at most, in whole handles.
pub(crate) fn average() -> u64 {
    let lengths = STEPS.count() as u64;
    let all: u64 = STEPS.map(peak).sum();
    (all / lengths).next_multiple_of(HANDLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_grows_when_it_is_full() {
        let grown: Vec<_> = (0..24).filter(|step| grows_at(*step)).collect();
        assert_eq!(grown, [8, 16]);
        assert_eq!(
            [0, 7, 8, 16].map(cache_at),
            [16, 16, 32, 48].map(|mib: u64| mib << 20)
        );
    }

    #[test]
    fn a_peak_has_the_old_cache_beside_the_new_one() {
        assert_eq!(peak(8), ACTIVATION + (16 << 20));
        assert_eq!(peak(9), ACTIVATION + (16 << 20) + (32 << 20));
        assert_eq!(peak(24), ACTIVATION + (32 << 20) + (48 << 20));
    }

    #[test]
    fn two_average_requests_have_room_for_any() {
        assert!(largest() <= 2 * average());
        for bytes in [WEIGHTS, ACTIVATION, average(), largest()] {
            assert_eq!(bytes % HANDLE, 0);
        }
    }
}
