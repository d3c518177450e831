//! The shares of tags in the queue limit of the pool, and the requests that are displaced when a tag is below its share.
//!
//! The limit is divided by weight among the tags that have requests in the fair queue, and the newcomer's tag. A tag
//! without a weight has the weight 1, and so have all requests without a tag together. A share is at least one request.
//!
//! A tag may wait for more than its share while there is room. Once the queue is full, a newcomer whose tag is within
//! its share, the newcomer included, displaces the last request of the tag that is furthest above its share: the one with
//! the most waiting over its weight. By the limit that is reached, *the most* counts requests or bytes. So
//! - while any tag is above its share, no request of a tag within its share is refused;
//! - a displaced request's tag is still at its share, so that two tags do not displace each other's requests by turns.
//!
//! The only request of a tag is displaced in one case, since it may be for more bytes than the share of its tag: by the
//! first request of another tag that is within its share of the bytes. Without this, a tag whose every request is as
//! large as the limit would keep all others out.

use crate::amount::{Amount, LimitKind, Sizes};
use crate::fair_queue::SortKey;
use crate::{QueueLimit, Tag};
use std::collections::BTreeMap;

/// A tag, or all requests without one.
pub(crate) type Party = Option<Tag>;

#[derive(Debug)]
struct WaitingShare<T> {
    weight: u32,
    amount: Amount,
    sizes: Sizes,
    /// Each with its bytes.
    waiters: BTreeMap<SortKey, (u64, T)>,
}

/// A request that asks whether it may join.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applicant {
    pub(crate) party: Party,
    /// The weight of the party.
    pub(crate) weight: u32,
    pub(crate) bytes: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Shares<T> {
    /// Those that have requests waiting.
    parties: BTreeMap<Party, WaitingShare<T>>,
    /// The sum of their weights.
    weights: u64,
    total: Amount,
}

impl<T> Shares<T> {
    pub(crate) fn new() -> Self {
        Self {
            parties: BTreeMap::new(),
            weights: 0,
            total: Amount::default(),
        }
    }

    /// Returns the requests that wait.
    pub(crate) fn total(&self) -> Amount {
        self.total
    }

    /// Returns the requests of a party that wait.
    pub(crate) fn of(&self, party: Party) -> Amount {
        let waiting = self.parties.get(&party);
        waiting.map(|waiting| waiting.amount).unwrap_or_default()
    }

    pub(crate) fn join(&mut self, candidate: Applicant, key: SortKey, waiter: T) {
        let Applicant {
            party,
            weight,
            bytes,
        } = candidate;
        self.total.add(bytes);
        let weights = &mut self.weights;
        let waiting = self.parties.entry(party).or_insert_with(|| {
            *weights += u64::from(weight);
            WaitingShare {
                weight,
                amount: Amount::default(),
                sizes: Sizes::default(),
                waiters: BTreeMap::new(),
            }
        });
        waiting.amount.add(bytes);
        waiting.sizes.add(bytes);
        waiting.waiters.insert(key, (bytes, waiter));
    }

    pub(crate) fn leave(&mut self, party: Party, key: SortKey) -> Option<T> {
        let waiting = self.parties.get_mut(&party)?;
        let (bytes, waiter) = waiting.waiters.remove(&key)?;
        waiting.amount.subtract(bytes);
        waiting.sizes.remove(bytes);
        self.total.subtract(bytes);
        if waiting.waiters.is_empty() {
            self.weights -= u64::from(waiting.weight);
            self.parties.remove(&party);
        }
        Some(waiter)
    }

    /// Notes a party's new weight.
    pub(crate) fn set_weight(&mut self, party: Party, weight: u32) {
        if let Some(waiting) = self.parties.get_mut(&party) {
            self.weights += u64::from(weight);
            self.weights -= u64::from(std::mem::replace(&mut waiting.weight, weight));
        }
    }

    /// Returns the requests of a party for more than that many bytes. Takes constant time if there are none.
    pub(crate) fn larger_than(&self, party: Party, bytes: u64) -> impl Iterator<Item = &T> {
        let waiting = self.parties.get(&party);
        let waiting = waiting.filter(|waiting| waiting.sizes.largest() > bytes);
        let waiters = waiting.into_iter().flat_map(|it| it.waiters.values());
        waiters.filter_map(move |(of, waiter)| (*of > bytes).then_some(waiter))
    }

    /// Returns the requests that a candidate displaces: none if there is room for it. Returns `None` if it may not join.
    /// Takes constant time where it is not within its tag's share, and else looks at each tag that waits.
    pub(crate) fn displaced_by(&self, candidate: Applicant, limit: QueueLimit) -> Option<Vec<&T>> {
        let mut displaced = Vec::new();
        if !self.total.is_full(limit, candidate.bytes) {
            return Some(displaced);
        }
        let fits_alone = !Amount::default().is_full(limit, candidate.bytes);
        if !fits_alone {
            return None;
        }
        // More may wait than the limit allows now, since it was lowered, or requests came from quota queues. Those stay:
        // the candidate takes the place of as much as it brings.
        let bound = QueueLimit {
            requests: limit.requests.max(self.total.requests),
            bytes: limit.bytes.max(self.total.bytes),
        };
        let own = self.parties.get(&candidate.party);
        let shares = Division {
            limit,
            weights: match own {
                Some(_) => self.weights,
                None => self.weights + u64::from(candidate.weight),
            },
        };
        let weight = own.map_or(candidate.weight, |own| own.weight);
        let mut with = self.of(candidate.party);
        let is_first = with.requests == 0;
        with.add(candidate.bytes);
        let mut left = self.total;
        let mut taken = BTreeMap::<Party, Chosen>::new();
        while left.is_full(bound, candidate.bytes) {
            let kind = match left.requests >= bound.requests {
                true => LimitKind::Requests,
                false => LimitKind::Bytes,
            };
            let is_within = !shares.is_above(with, weight, kind);
            if !is_first && !is_within {
                return None;
            }
            let takes_single = is_first && is_within && kind == LimitKind::Bytes;
            let mut furthest = None::<(u128, u32, Party)>;
            for (party, waiting) in &self.parties {
                #[cfg(debug_assertions)]
                crate::visits::count();
                let amount = match taken.get(party) {
                    Some(taken) => taken.left,
                    None => waiting.amount,
                };
                let least = if takes_single { 1 } else { 2 };
                if *party == candidate.party
                    || amount.requests < least
                    || !shares.is_above(amount, waiting.weight, kind)
                {
                    continue;
                }
                let (amount, weight) = (amount.of(kind), waiting.weight);
                let is_further = |(other, of, _): (u128, u32, Party)| {
                    amount * u128::from(of.max(1)) > other * u128::from(weight.max(1))
                };
                if furthest.is_none_or(is_further) {
                    furthest = Some((amount, weight, *party));
                }
            }
            let (_, _, party) = furthest?;
            let waiting = &self.parties[&party];
            let taken = taken.entry(party).or_insert(Chosen {
                left: waiting.amount,
                last: None,
            });
            let mut rest = match taken.last {
                Some(key) => waiting.waiters.range(..key),
                None => waiting.waiters.range(..),
            };
            let (key, (bytes, waiter)) = rest.next_back()?;
            taken.last = Some(*key);
            taken.left.subtract(*bytes);
            left.subtract(*bytes);
            displaced.push(waiter);
        }
        Some(displaced)
    }
}

/// The requests of a party that are left while some are chosen.
#[derive(Debug)]
struct Chosen {
    left: Amount,
    /// The last request that was chosen.
    last: Option<SortKey>,
}

/// The limit, and the sum of the weights by which it is divided.
#[derive(Clone, Copy, Debug)]
struct Division {
    limit: QueueLimit,
    weights: u64,
}

impl Division {
    /// Returns whether that many requests of a party are above its share, which is at least one request.
    fn is_above(self, amount: Amount, weight: u32, kind: LimitKind) -> bool {
        let limit = Amount {
            requests: self.limit.requests,
            bytes: self.limit.bytes,
        };
        let is_one = kind == LimitKind::Requests && amount.requests <= 1;
        let share = limit.of(kind) * u128::from(weight.max(1));
        !is_one && amount.of(kind) * u128::from(self.weights.max(1)) > share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(position: u64) -> SortKey {
        SortKey { due: 0, position }
    }

    /// A request of the list over which the rules are written out.
    #[derive(Clone, Debug)]
    struct Listed {
        party: Party,
        key: SortKey,
        bytes: u64,
    }

    fn parties() -> [Party; 5] {
        let tag = |name| Some(Tag::new(name));
        [
            None,
            tag("shares: 1"),
            tag("shares: 2"),
            tag("shares: 3"),
            tag("shares: 4"),
        ]
    }

    fn amount_of(list: &[Listed], party: Party) -> Amount {
        let mut amount = Amount::default();
        let own = list.iter().filter(|listed| listed.party == party);
        own.for_each(|listed| amount.add(listed.bytes));
        amount
    }

    fn total_of(list: &[Listed]) -> Amount {
        let mut amount = Amount::default();
        list.iter().for_each(|listed| amount.add(listed.bytes));
        amount
    }

    /// Returns the share of a party as an exact fraction: the parts, and what they are divided by.
    fn share(
        list: &[Listed],
        candidate: Applicant,
        weight: impl Fn(Party) -> u32,
        party: Party,
    ) -> (u128, u128) {
        let waits = |party: &&Party| {
            **party == candidate.party || list.iter().any(|listed| listed.party == **party)
        };
        let all = parties();
        let weights = all.iter().filter(waits).map(|it| weight(*it));
        (u128::from(weight(party)), weights.map(u128::from).sum())
    }

    #[test]
    fn tag_below_its_share_is_never_refused_while_another_is_above() {
        for seed in 0..if cfg!(miri) { 3 } else { 4000 } {
            let mut random = fastrand::Rng::with_seed(seed);
            let all = parties();
            let few = random.usize(1..=all.len());
            let mut weights = [(); 5].map(|()| match random.bool() {
                true => random.u32(1..5),
                false => random.u32(1..2000),
            });
            let limit = match random.u8(..3) {
                0 => QueueLimit::requests(random.usize(..12)),
                1 => QueueLimit::bytes(random.u64(..40)),
                _ => QueueLimit {
                    requests: random.usize(..12),
                    bytes: random.u64(..40),
                },
            };
            let mut shares = Shares::new();
            let mut list = Vec::<Listed>::new();
            for position in 0..60 {
                if random.u8(..8) == 0 {
                    let at = random.usize(..5);
                    weights[at] = random.u32(1..9);
                    shares.set_weight(all[at], weights[at]);
                }
                let of = weights;
                let weight = move |party| of[all.iter().position(|it| *it == party).unwrap()];
                if random.u8(..4) == 0 && !list.is_empty() {
                    // A request is served, or gives up.
                    let Listed { party, key, .. } = list.swap_remove(random.usize(..list.len()));
                    assert_eq!(shares.leave(party, key), Some(key));
                    continue;
                }
                // One of them floods the queue.
                let party = all[[0, random.usize(..few)][random.usize(..2)]];
                let most = [4, 30][random.usize(..2)];
                let candidate = Applicant {
                    party,
                    weight: weight(party),
                    bytes: random.u64(1..most),
                };
                let key = SortKey {
                    due: random.i128(..9),
                    position,
                };
                let displaced = shares.displaced_by(candidate, limit);
                let displaced = displaced.map(|all| all.into_iter().copied().collect::<Vec<_>>());
                let is_full = total_of(&list).is_full(limit, candidate.bytes);
                if !is_full {
                    assert_eq!(displaced.as_deref(), Some(&[][..]), "seed {seed}");
                }
                check(&list, candidate, limit, &weight, displaced.as_deref());
                if let Some(displaced) = displaced {
                    for key in displaced {
                        let at = list.iter().position(|listed| listed.key == key).unwrap();
                        let Listed { party, .. } = list.remove(at);
                        assert_eq!(shares.leave(party, key), Some(key));
                    }
                    shares.join(candidate, key, key);
                    list.push(Listed {
                        party,
                        key,
                        bytes: candidate.bytes,
                    });
                }
                assert_eq!(shares.total(), total_of(&list));
                let total = total_of(&list);
                assert!(total.requests <= limit.requests && total.bytes <= limit.bytes);
                for party in all {
                    assert_eq!(shares.of(party), amount_of(&list, party));
                    let above = random.u64(..30);
                    let larger = list
                        .iter()
                        .filter(|it| it.party == party && it.bytes > above);
                    assert_eq!(shares.larger_than(party, above).count(), larger.count());
                }
            }
        }
    }

    /// Checks an answer against the words of the module.
    fn check(
        list: &[Listed],
        candidate: Applicant,
        limit: QueueLimit,
        weight: &impl Fn(Party) -> u32,
        displaced: Option<&[SortKey]>,
    ) {
        let above = |list: &[Listed], party, kind| {
            let (part, of) = share(list, candidate, weight, party);
            let amount = amount_of(list, party);
            match kind {
                LimitKind::Requests => {
                    let most = limit.requests as u128 * part;
                    amount.requests > 1 && amount.requests as u128 * of > most
                }
                LimitKind::Bytes => u128::from(amount.bytes) * of > u128::from(limit.bytes) * part,
            }
        };
        let mut with = list.to_vec();
        with.push(Listed {
            party: candidate.party,
            key: key(u64::MAX),
            bytes: candidate.bytes,
        });
        let own = amount_of(list, candidate.party);
        let is_within = |kind| own.requests == 0 || !above(&with, candidate.party, kind);
        let Some(displaced) = displaced else {
            let of_requests = list.len() >= limit.requests;
            let total = total_of(list);
            let of_bytes = total.bytes + candidate.bytes > limit.bytes;
            assert!(of_requests || of_bytes, "there is room");
            // The newcomer is not within its share, or the excess of the tags above theirs is not enough.
            let is_due = (!of_requests || is_within(LimitKind::Requests))
                && (!of_bytes || is_within(LimitKind::Bytes));
            if is_due && !of_bytes {
                let others = parties().into_iter().filter(|it| *it != candidate.party);
                let mut above = others.filter(|party| above(list, *party, LimitKind::Requests));
                assert_eq!(above.next(), None);
            }
            if is_due && of_bytes && !of_requests && candidate.bytes <= limit.bytes {
                // All that may be displaced is not enough.
                let mut most = 0;
                for party in parties() {
                    if party == candidate.party || !above(list, party, LimitKind::Bytes) {
                        continue;
                    }
                    let mut of_party: Vec<_> = list.iter().filter(|it| it.party == party).collect();
                    of_party.sort_by_key(|listed| std::cmp::Reverse(listed.key));
                    let mut rest = list.to_vec();
                    for listed in of_party {
                        let left = amount_of(&rest, party);
                        if left.requests < 2
                            || !above_of(&rest, list, candidate, limit, weight, party)
                        {
                            break;
                        }
                        most += listed.bytes;
                        rest.retain(|other| other.key != listed.key);
                    }
                }
                assert!(total.bytes - most + candidate.bytes > limit.bytes);
            }
            return;
        };
        // Each displaced request was the last of a tag that was above its share.
        let mut rest = list.to_vec();
        for key in displaced {
            let listed = rest
                .iter()
                .find(|listed| listed.key == *key)
                .unwrap()
                .clone();
            assert_ne!(listed.party, candidate.party);
            let of_party = rest.iter().filter(|other| other.party == listed.party);
            assert_eq!(of_party.map(|other| other.key).max(), Some(*key));
            let kind = match rest.len() >= limit.requests {
                true => LimitKind::Requests,
                false => LimitKind::Bytes,
            };
            assert!(is_within(kind));
            match kind {
                LimitKind::Requests => assert!(amount_of(&rest, listed.party).requests > 1),
                LimitKind::Bytes => assert!(above_of(
                    &rest,
                    list,
                    candidate,
                    limit,
                    weight,
                    listed.party
                )),
            }
            rest.retain(|other| other.key != *key);
        }
    }

    /// Returns whether a party is above its share of the bytes, which stays that of the list from which requests are taken.
    fn above_of(
        rest: &[Listed],
        list: &[Listed],
        candidate: Applicant,
        limit: QueueLimit,
        weight: &impl Fn(Party) -> u32,
        party: Party,
    ) -> bool {
        let (part, of) = share(list, candidate, weight, party);
        u128::from(amount_of(rest, party).bytes) * of > u128::from(limit.bytes) * part
    }

    #[test]
    fn flood_loses_places_to_a_heavy_tag_and_keeps_one_request() {
        let [_, flood, heavy, ..] = parties();
        let limit = QueueLimit::requests(32);
        let mut shares = Shares::new();
        let candidate = |party, weight| Applicant {
            party,
            weight,
            bytes: 1,
        };
        for position in 0..32 {
            shares.join(candidate(flood, 1), key(position), position);
        }
        let refused = shares.displaced_by(candidate(flood, 1), limit);
        assert_eq!(refused, None);
        for position in 32..63 {
            let displaced = shares.displaced_by(candidate(heavy, 1000), limit);
            let [last] = displaced.unwrap()[..] else {
                panic!("one for one")
            };
            assert_eq!(*last, 63 - position, "the last of the flood");
            let last = *last;
            shares.leave(flood, key(last));
            shares.join(candidate(heavy, 1000), key(position), position);
        }
        assert_eq!(shares.of(flood).requests, 1);
        assert_eq!(shares.displaced_by(candidate(heavy, 1000), limit), None);
        assert_eq!(shares.displaced_by(candidate(flood, 1), limit), None);
    }

    #[test]
    fn requests_as_large_as_the_limit_do_not_keep_others_out() {
        let [_, large, small, ..] = parties();
        let limit = QueueLimit::bytes(100);
        let mut shares = Shares::new();
        let candidate = |party, bytes| Applicant {
            party,
            weight: 1,
            bytes,
        };
        shares.join(candidate(large, 100), key(0), 0);
        assert_eq!(
            shares.displaced_by(candidate(small, 30), limit),
            Some(vec![&0])
        );
        assert_eq!(shares.displaced_by(candidate(small, 60), limit), None);
        shares.leave(large, key(0));
        shares.join(candidate(small, 30), key(1), 1);
        assert_eq!(shares.displaced_by(candidate(large, 100), limit), None);
    }
}
