//! What each tenant has of one pool.
//!
//! An account is the one place where the bytes of a tag are known, on cache lines of its own. A tagged
//! request *claims* its bytes before memory is looked for, and what gets nothing disclaims them; so does the
//! free of what was granted. That is one compare-and-swap each, on a line that only allocations and frees
//! of the same tag write: it compares with the limit and adds in one step (to read first and add after
//! would let two pass together: rmm#869). What has no tag touches none of this.
//!
//! A request that may claim nothing is *held* at the quota queue, by whoever keeps the queue. That somebody is held
//! stands in the same word as what is claimed, so that whoever disclaims cannot overlook it, and a newcomer
//! of the same tag does not pass.

use super::holdings::Holdings;
use super::tag::Tag;
use super::{ByStream, Level, Streams, Waits};
use crate::fault::injected;
use crate::id::StreamId;
use crate::sync::{Count, Ordering, SharedNumber, plain::OnceLock};
use crossbeam_utils::CachePadded;
use std::fmt;
use std::num::NonZeroU32;

/// Somebody of this tag is held at the quota queue.
const HELD: u64 = 1 << 63;

/// More was claimed than the limit allows, or others of the same tag come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitReached;

/// What one tag has; see the [module](self).
#[derive(Debug)]
pub(crate) struct Account {
    /// Bytes of live blocks, and of requests that were let in; with [`HELD`].
    charged: SharedNumber,
    /// Those of requests that wait in the queue.
    promised: Count,
    /// What may be claimed at most.
    limit: SharedNumber,
    /// Zero where it has none.
    weight: Count,
    high: Count,
    holdings: Holdings,
    pub(crate) waits: Waits,
}

impl Account {
    fn new() -> Self {
        Self {
            charged: SharedNumber::new(0),
            promised: Count::default(),
            limit: SharedNumber::new(u64::MAX),
            weight: Count::default(),
            high: Count::default(),
            holdings: Holdings::default(),
            waits: Waits::default(),
        }
    }

    /// Claims bytes for a request, if the limit allows it and nobody of this tag is held.
    ///
    /// # Errors
    /// When that is not so.
    #[inline]
    pub(crate) fn charge(&self, bytes: u64) -> Result<(), LimitReached> {
        if injected("limit-read-then-added") {
            let charged = self.charged.load(Ordering::Acquire);
            self.with(charged, bytes).ok_or(LimitReached)?;
            self.claim_more(bytes);
            return Ok(());
        }
        self.update(|charged| (charged & HELD == 0).then(|| self.with(charged, bytes))?)
    }

    /// The same for one who is held: who comes after it does not matter.
    ///
    /// # Errors
    /// When the limit does not allow it.
    pub(crate) fn charge_throttled(&self, bytes: u64) -> Result<(), LimitReached> {
        self.update(|charged| self.with(charged, bytes))
    }

    /// The same, and if the limit does not allow it, notes that somebody is held from now on.
    ///
    /// # Errors
    /// When the limit does not allow it.
    pub(crate) fn charge_or_throttle(&self, bytes: u64) -> Result<(), LimitReached> {
        let mut is_held = false;
        self.update(|charged| {
            let with = (charged & HELD == 0).then(|| self.with(charged, bytes));
            is_held = with.flatten().is_none();
            with.flatten().or(Some(charged | HELD))
        })?;
        if is_held { Err(LimitReached) } else { Ok(()) }
    }

    /// Nobody of this tag is held any more.
    pub(crate) fn end_holding(&self) {
        let _ = self.update(|charged| Some(charged & !HELD));
    }

    fn with(&self, charged: u64, bytes: u64) -> Option<u64> {
        let with = (charged & !HELD).checked_add(bytes)?;
        let limit = self.limit.load(Ordering::Relaxed).min(HELD - 1);
        (with <= limit).then_some(with | charged & HELD)
    }

    fn update(&self, next: impl FnMut(u64) -> Option<u64>) -> Result<(), LimitReached> {
        let updated = self.charged.fetch_update(Ordering::AcqRel, next);
        updated.map(drop).map_err(|_| LimitReached)
    }

    /// Bytes that a block has over what was asked for it: they are there already.
    pub(crate) fn claim_more(&self, bytes: u64) {
        self.charged.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes are not claimed any more. Says whether somebody is held who may now be let in.
    #[inline]
    pub(crate) fn uncharge(&self, bytes: u64) -> bool {
        let before = self
            .charged
            .fetch_add(bytes.wrapping_neg(), Ordering::AcqRel);
        debug_assert!(before & !HELD >= bytes, "a tag frees what it was granted");
        before & HELD != 0 && !injected("held-and-overlooked")
    }

    /// A request that claimed bytes waits in the queue.
    pub(crate) fn promise(&self, bytes: u64) {
        self.promised.add(bytes);
    }

    /// It does not any more, whatever the outcome.
    pub(crate) fn end_promise(&self, bytes: u64) {
        self.promised.subtract(bytes);
    }

    /// A block was granted for a stream, or a reservation for none, for which its bytes were claimed.
    pub(crate) fn note_granted(&self, stream: StreamId) {
        self.high.raise(self.used_now());
        self.holdings.note_granted(stream);
    }

    /// What was granted for a stream, or for none, has become more, for which its bytes were claimed.
    pub(crate) fn note_more(&self, stream: StreamId) {
        self.high.raise(self.used_now());
        self.holdings.note_more(stream);
    }

    /// It was freed.
    pub(crate) fn note_freed(&self, stream: StreamId) {
        self.holdings.note_freed(stream);
    }

    /// A block was drawn from a reservation for a stream.
    pub(crate) fn note_drawn(&self, stream: StreamId) {
        self.holdings.note_drawn(stream);
    }

    /// It is the reservation's again.
    pub(crate) fn note_returned(&self) {
        self.holdings.note_returned();
    }

    /// A reservation is taken to be of another stream than before, if it was and will be.
    pub(crate) fn move_reserved(&self, from: Option<StreamId>, to: Option<StreamId>) {
        self.holdings.move_reserved(from, to);
    }

    /// On which streams anything is held.
    pub(crate) fn held_on(&self) -> Streams {
        self.holdings.streams()
    }

    /// How often anything was granted for a stream, or drawn.
    pub(crate) fn begun_on(&self, stream: StreamId) -> u64 {
        self.holdings.begun_on(stream)
    }

    /// On which streams nothing was granted since it was so often.
    pub(crate) fn unchanged_since(&self, begun: &ByStream) -> Streams {
        self.holdings.unchanged_since(begun)
    }

    /// A number that changes with whatever is granted and freed.
    pub(crate) fn moves(&self) -> u64 {
        self.holdings.moves()
    }

    /// Whether somebody of this tag is held at the quota queue.
    pub(crate) fn is_holding(&self) -> bool {
        self.charged.load(Ordering::Relaxed) & HELD != 0
    }

    /// Whether a request that claimed bytes waits in the queue.
    pub(crate) fn has_promised(&self) -> bool {
        self.promised.get() != 0
    }

    fn used_now(&self) -> u64 {
        let charged = self.charged.load(Ordering::Relaxed) & !HELD;
        charged.saturating_sub(self.promised.get())
    }

    pub(crate) fn used(&self) -> Level {
        let current = self.used_now();
        Level {
            current,
            high: self.high.get().max(current),
        }
    }

    /// Bytes of live blocks, and of requests that were let in.
    pub(crate) fn charged(&self) -> u64 {
        self.charged.load(Ordering::Relaxed) & !HELD
    }

    pub(crate) fn limit(&self) -> Option<u64> {
        let limit = self.limit.load(Ordering::Relaxed);
        (limit != u64::MAX).then_some(limit)
    }

    /// Whoever keeps the held ones lets them in after it.
    pub(crate) fn set_limit(&self, limit: Option<u64>) {
        let limit = limit.unwrap_or(u64::MAX);
        self.limit.store(limit, Ordering::Relaxed);
    }

    pub(crate) fn weight(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.weight.get() as u32)
    }

    pub(crate) fn set_weight(&self, weight: u32) {
        self.weight.set(weight.into());
    }

    pub(crate) fn allocations(&self) -> u64 {
        self.holdings.allocations()
    }

    pub(crate) fn frees(&self) -> u64 {
        self.holdings.frees()
    }

    fn reset_high(&self) {
        self.high.set(self.used_now());
    }
}

/// The first large-block cache is for so many tags; each further one for twice as many as the one before.
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

/// The large-block cache of a tag, and its place there.
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
    const STREAM: StreamId = StreamId(1);

    #[cfg(not(weirpool_loom))]
    fn grant(account: &Account, bytes: u64) {
        account.charge(bytes).unwrap();
        account.note_granted(STREAM);
    }

    #[cfg(not(weirpool_loom))]
    #[test]
    fn nothing_is_claimed_over_the_limit() {
        let account = Account::new();
        account.set_limit(Some(1024));
        assert_eq!(account.charge(1025), Err(LimitReached));
        grant(&account, 1024);
        assert_eq!(account.charge_or_throttle(512), Err(LimitReached));
        assert_eq!(account.charged(), 1024);
        assert!(account.uncharge(512), "somebody is held");
        assert_eq!(account.charge(512), Err(LimitReached), "and comes first");
        assert_eq!(account.charge_throttled(512), Ok(()));
        account.promise(512);
        account.end_holding();
        let used = account.used();
        assert_eq!((used.current, used.high), (512, 1024));
        account.end_promise(512);
        assert_eq!(account.used().current, 1024);
        account.set_limit(None);
        assert_eq!(account.charge(1 << 40), Ok(()));
        assert_eq!(account.charge(u64::MAX), Err(LimitReached));
    }

    #[cfg(not(weirpool_loom))]
    #[test]
    fn accounts_are_opened_by_use() {
        let accounts = Accounts::new();
        let [few, many] = [3, 300].map(Tag::numbered);
        assert!(accounts.get(few).is_none());
        grant(accounts.of(many), 512);
        grant(accounts.of(few), 1024);
        grant(accounts.of(few), 512);
        assert!(!accounts.of(few).uncharge(1024));
        accounts.of(few).note_freed(STREAM);
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
