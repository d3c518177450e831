//! What each tenant has of one pool.
//!
//! An account is the one place where the bytes of a tag are known, on a cache line of its own. A tagged
//! grant is *charged* to it, and the free of what was granted *credits* it: two additions each, to a line
//! that only allocations and frees of the same tag write. What has no tag touches none of this.
//!
//! A limit in bytes belongs where the charge is made. `charge` then compares before it adds, in one
//! compare-and-swap (to read first and add after would let two pass together: rmm#869), and is called
//! before the ladder is climbed instead of after: a request over its tag's limit joins the queue, a
//! request that gets nothing is credited again, and a credit rings the bell while a request of that tag
//! waits. Weights between tags order the queue, by `used` over weight. Quota that lanes lease in advance
//! is charged here in bulk.

use super::tag::Tag;
use super::{Level, Waits};
use crate::sync::{Count, Ordering, SharedNumber, plain::OnceLock};
use crossbeam_utils::CachePadded;
use std::fmt;

/// What one tag has; see the [module](self).
#[derive(Debug)]
pub(crate) struct Account {
    /// Bytes of live blocks.
    used: SharedNumber,
    high: Count,
    allocations: Count,
    frees: Count,
    pub(crate) waits: Waits,
}

impl Account {
    fn new() -> Self {
        Self {
            used: SharedNumber::new(0),
            high: Count::default(),
            allocations: Count::default(),
            frees: Count::default(),
            waits: Waits::default(),
        }
    }

    /// A block of so many bytes was granted.
    pub(crate) fn charge(&self, bytes: u64) {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.high.raise(used);
        self.allocations.add(1);
    }

    /// It was freed.
    pub(crate) fn credit(&self, bytes: u64) {
        let before = self.used.fetch_add(bytes.wrapping_neg(), Ordering::Relaxed);
        debug_assert!(before >= bytes, "a tag frees what it was granted");
        self.frees.add(1);
    }

    pub(crate) fn used(&self) -> Level {
        let current = self.used.load(Ordering::Relaxed);
        Level {
            current,
            high: self.high.get().max(current),
        }
    }

    pub(crate) fn allocations(&self) -> u64 {
        self.allocations.get()
    }

    pub(crate) fn frees(&self) -> u64 {
        self.frees.get()
    }

    fn reset_high(&self) {
        let used = self.used.load(Ordering::Relaxed);
        self.high.set(used);
    }
}

/// The first shelf is for so many tags; each further one for twice as many as the one before.
const FIRST_SHELF: usize = 16;

/// Shelves for as many tags as there can be.
const SHELVES: usize = 29;

type Place = OnceLock<Box<CachePadded<Account>>>;

/// The accounts of a pool, by the number of their tag. An account never moves and is never removed, so
/// that it is found with no lock and no count of owners.
pub(crate) struct Accounts {
    shelves: [OnceLock<Box<[Place]>>; SHELVES],
}

impl Accounts {
    pub(crate) fn new() -> Self {
        Self {
            shelves: [const { OnceLock::new() }; SHELVES],
        }
    }

    /// The account of a tag, opened if this is its first use.
    #[inline]
    pub(crate) fn of(&self, tag: Tag) -> &Account {
        let (shelf, at) = place_of(tag);
        let places = self.shelves[shelf].get_or_init(|| empty_shelf(shelf));
        places[at].get_or_init(|| Box::new(CachePadded::new(Account::new())))
    }

    /// The account of a tag that this pool has seen.
    pub(crate) fn get(&self, tag: Tag) -> Option<&Account> {
        let (shelf, at) = place_of(tag);
        Some(self.shelves[shelf].get()?[at].get()?)
    }

    /// All accounts that were opened.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Tag, &Account)> {
        let places = self.shelves.iter().enumerate().flat_map(|(shelf, places)| {
            let places = places.get().map_or(&[][..], |places| &places[..]);
            places.iter().zip(first_index_of(shelf)..)
        });
        places.filter_map(|(place, index)| {
            let account: &Account = place.get()?;
            Some((Tag::numbered(index), account))
        })
    }

    pub(crate) fn reset_highs(&self) {
        self.iter().for_each(|(_, account)| account.reset_high());
    }
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

fn empty_shelf(shelf: usize) -> Box<[Place]> {
    let places = FIRST_SHELF << shelf;
    std::iter::repeat_with(OnceLock::new).take(places).collect()
}

fn first_index_of(shelf: usize) -> usize {
    (FIRST_SHELF << shelf) - FIRST_SHELF
}

/// The shelf of a tag, and its place there.
fn place_of(tag: Tag) -> (usize, usize) {
    let from_first = tag.index() + FIRST_SHELF;
    let shelf = (from_first.ilog2() - FIRST_SHELF.ilog2()) as usize;
    (shelf, from_first - (FIRST_SHELF << shelf))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tag_has_a_place_of_its_own() {
        let mut expected = (0, 0);
        for index in 0..5000 {
            let place = place_of(Tag::numbered(index));
            assert_eq!(place, expected);
            expected.1 += 1;
            if expected.1 == FIRST_SHELF << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        let last = Tag::numbered(u32::MAX as usize - 1);
        assert!(place_of(last).0 < SHELVES);
    }

    #[cfg(not(weirpool_loom))]
    #[test]
    fn accounts_are_opened_by_use() {
        let accounts = Accounts::new();
        let [few, many] = [3, 300].map(Tag::numbered);
        assert!(accounts.get(few).is_none());
        accounts.of(many).charge(512);
        accounts.of(few).charge(1024);
        accounts.of(few).charge(512);
        accounts.of(few).credit(1024);
        let used: Vec<_> = accounts
            .iter()
            .map(|(tag, account)| (tag, account.used()))
            .collect();
        let level = |current, high| Level { current, high };
        assert_eq!(used, [(few, level(512, 1536)), (many, level(512, 512))]);
        accounts.reset_highs();
        assert_eq!(accounts.of(few).used(), level(512, 512));
        assert_eq!(
            (accounts.of(few).allocations(), accounts.of(few).frees()),
            (2, 1)
        );
    }
}
