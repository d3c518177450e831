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

use crate::amount::{Amount, LimitKind};
use crate::fair_queue::SortKey;
use crate::{Entry, QueueLimit, Tag};
use std::collections::BTreeMap;

/// A tag, or all requests without one.
pub(crate) type Party = Option<Tag>;

#[derive(Debug)]
struct WaitingShare {
    weight: u32,
    amount: Amount,
    waiters: BTreeMap<SortKey, Entry>,
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
pub(crate) struct Shares {
    /// Those that have requests waiting.
    parties: BTreeMap<Party, WaitingShare>,
    /// The sum of their weights.
    weights: u64,
    total: Amount,
}

impl Shares {
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

    /// Adds a request of a party that has that weight.
    pub(crate) fn join(&mut self, entry: Entry, weight: u32) {
        self.total.add(entry.bytes);
        let weights = &mut self.weights;
        let waiting = self.parties.entry(entry.tag).or_insert_with(|| {
            *weights += u64::from(weight);
            WaitingShare {
                weight,
                amount: Amount::default(),
                waiters: BTreeMap::new(),
            }
        });
        waiting.amount.add(entry.bytes);
        waiting.waiters.insert(entry.sort_key, entry);
    }

    /// Removes a request that is here.
    pub(crate) fn leave(&mut self, entry: &Entry) {
        self.total.subtract(entry.bytes);
        let Some(waiting) = self.parties.get_mut(&entry.tag) else {
            return;
        };
        waiting.amount.subtract(entry.bytes);
        waiting.waiters.remove(&entry.sort_key);
        if waiting.waiters.is_empty() {
            self.weights -= u64::from(waiting.weight);
            self.parties.remove(&entry.tag);
        }
    }

    /// Notes a party's new weight.
    pub(crate) fn set_weight(&mut self, party: Party, weight: u32) {
        if let Some(waiting) = self.parties.get_mut(&party) {
            self.weights += u64::from(weight);
            self.weights -= u64::from(std::mem::replace(&mut waiting.weight, weight));
        }
    }

    /// Returns the requests that a candidate displaces: none if there is room for it. Returns `None` if it may not join.
    /// Takes constant time where it is not within its tag's share, and else looks at each tag that waits.
    pub(crate) fn displaced_by(
        &self,
        candidate: Applicant,
        limit: QueueLimit,
    ) -> Option<Vec<Entry>> {
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
            let (key, entry) = rest.next_back()?;
            taken.last = Some(*key);
            taken.left.subtract(entry.bytes);
            left.subtract(entry.bytes);
            displaced.push(*entry);
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
