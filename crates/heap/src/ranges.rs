//! Sets of address ranges.

use std::collections::BTreeMap;

/// Addresses, as ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds the addresses from `start` up to `end`. Takes time proportional to the logarithm of the number of ranges, and
    /// to the number of those that it joins.
    pub fn insert(&mut self, mut start: u64, mut end: u64) {
        while let Some((&from, &to)) = self
            .0
            .range(..=end)
            .next_back()
            .filter(|(_, to)| **to >= start)
        {
            (start, end) = (start.min(from), end.max(to));
            self.0.remove(&from);
        }
        if start < end {
            self.0.insert(start, end);
        }
    }

    /// Adds all addresses of another set.
    pub fn insert_all(&mut self, other: &Self) {
        other
            .0
            .iter()
            .for_each(|(start, end)| self.insert(*start, *end));
    }

    /// Returns the parts of a range that are not in the set, lowest first.
    pub fn gaps(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let below = self.0.range(..=start).next_back().map(|(_, to)| *to);
        let first = below.map_or(start, |to| to.max(start)).min(end);
        let within = self.0.range(first..end).map(|(from, to)| (*from, *to));
        let mut at = first;
        within.chain([(end, end)]).filter_map(move |(from, to)| {
            let gap = (at, from);
            at = at.max(to);
            (gap.0 < gap.1).then_some(gap)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A set of addresses below 64, as bits.
    fn bits(ranges: impl IntoIterator<Item = (u64, u64)>) -> u64 {
        let all = ranges.into_iter().flat_map(|(start, end)| start..end);
        all.fold(0, |bits, at| bits | 1 << at)
    }

    #[test]
    fn ranges_are_a_set_of_addresses() {
        let random = fastrand::Rng::with_seed(1);
        let mut random = random;
        for _ in 0..2000 {
            let (mut ranges, mut expected) = (Ranges::default(), 0);
            for _ in 0..random.usize(..12) {
                let start = random.u64(..60);
                let end = start + random.u64(..=4);
                if random.bool() {
                    ranges.insert(start, end);
                } else {
                    let mut other = Ranges::default();
                    other.insert(start, end);
                    ranges.insert_all(&other);
                }
                expected |= bits([(start, end)]);
                let all: Vec<_> = ranges.0.iter().map(|(start, end)| (*start, *end)).collect();
                assert_eq!(bits(all.iter().copied()), expected);
                assert!(all.windows(2).all(|pair| pair[0].1 < pair[1].0), "{all:?}");
                let from = random.u64(..60);
                let to = from + random.u64(..=4);
                let gaps: Vec<_> = ranges.gaps(from, to).collect();
                assert_eq!(
                    bits(gaps),
                    bits([(from, to)]) & !expected,
                    "{all:?} {from} {to}"
                );
            }
        }
    }
}
