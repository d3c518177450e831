//! Accounts: the bytes that each tenant holds of one pool.
//!
//! The account is the only record of the bytes of a tag. A tagged request *charges* its bytes before memory is searched
//! for. An attempt that finds nothing uncharges them, and so does the free of granted memory. Each is one atomic
//! operation on a cache line that only allocations and frees of the same tag write. A charge compares with the limit
//! and adds in one step: if it compared first and added afterwards, two requests could pass together (rmm#869).
//! Untagged requests touch none of this.
//!
//! A request that the limit does not allow is *throttled*: it waits in the tag's quota queue. A bit of the same word
//! says that a request is throttled, so that no free overlooks it and no newcomer of the same tag passes it.

use super::Waits;
use crossbeam_utils::CachePadded;
use std::fmt;
use weirpool_heap::Level;
use weirpool_queue::Tag;
use weirpool_sync::{Count, Ordering, SharedNumber, SharedState, plain::OnceLock};

/// Set while a request of this tag is throttled.
const THROTTLED: u64 = 1 << 63;

/// Bits of [`Account::relief`]: memory is evicted now, and the result is looked at once more.
const RELIEVING: u8 = 1;
const AGAIN: u8 = 2;

/// The limit does not allow the charge, or other requests of the same tag come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitReached;

/// The bytes that one tag holds: the only record of them.
#[derive(Debug)]
pub struct Account {
    /// Bytes of live blocks, and of requests that entered the fair queue; and the bit [`THROTTLED`].
    charged: SharedNumber,
    /// Bytes of requests that entered the fair queue and are not granted yet.
    promised: Count,
    /// The most that may be charged.
    limit: SharedNumber,
    high: Count,
    allocations: Count,
    frees: Count,
    /// How often bytes were uncharged, or a throttled request failed, while a request was throttled.
    releases: Count,
    /// Whether memory of the tag is being evicted for its throttled requests.
    relief: SharedState,
    /// How its requests waited.
    pub waits: Waits,
}

impl Account {
    fn new() -> Self {
        Self {
            charged: SharedNumber::new(0),
            promised: Count::default(),
            limit: SharedNumber::new(u64::MAX),
            high: Count::default(),
            allocations: Count::default(),
            frees: Count::default(),
            releases: Count::default(),
            relief: SharedState::new(0),
            waits: Waits::default(),
        }
    }

    /// Charges bytes for a request, if the limit allows it and no request of this tag is throttled.
    ///
    /// # Errors
    /// Returns [`LimitReached`] otherwise.
    #[inline]
    pub fn charge(&self, bytes: u64) -> Result<(), LimitReached> {
        self.update(|charged| (charged & THROTTLED == 0).then(|| self.with(charged, bytes))?)
    }

    /// Charges bytes for a throttled request, if the limit allows it. Requests behind it do not matter.
    ///
    /// # Errors
    /// Returns [`LimitReached`] otherwise.
    pub fn charge_throttled(&self, bytes: u64) -> Result<(), LimitReached> {
        self.update(|charged| self.with(charged, bytes))
    }

    /// Charges bytes as [`charge`](Self::charge) does. If it cannot, notes that a request is throttled from now on.
    ///
    /// # Errors
    /// Returns [`LimitReached`] if the request is throttled.
    pub fn charge_or_throttle(&self, bytes: u64) -> Result<(), LimitReached> {
        let mut is_throttled = false;
        self.update(|charged| {
            let with = (charged & THROTTLED == 0).then(|| self.with(charged, bytes));
            is_throttled = with.flatten().is_none();
            with.flatten().or(Some(charged | THROTTLED))
        })?;
        if is_throttled {
            Err(LimitReached)
        } else {
            Ok(())
        }
    }

    /// Notes that no request of this tag is throttled anymore.
    pub fn end_throttling(&self) {
        let is_throttled = |charged: u64| charged & THROTTLED != 0;
        let _ = self.update(|charged| is_throttled(charged).then_some(charged & !THROTTLED));
    }

    /// Returns whether a request of this tag is throttled.
    pub fn is_throttling(&self) -> bool {
        self.charged.load(Ordering::Acquire) & THROTTLED != 0
    }

    /// Calls `relieve`, which evicts memory of the tag for its throttled requests. If it runs already, in another thread
    /// or because it freed a block itself, it is called again there: no depth of recursion, and no memory evicted twice
    /// for one request.
    pub fn relieve(&self, relieve: impl Fn()) {
        let order = Ordering::AcqRel;
        if self.relief.fetch_or(RELIEVING | AGAIN, order) & RELIEVING != 0 {
            return;
        }
        let end = EndOnPanic(&self.relief);
        loop {
            self.relief.store(RELIEVING, Ordering::Release);
            relieve();
            let ended = self
                .relief
                .compare_exchange(RELIEVING, 0, order, Ordering::Acquire);
            if ended.is_ok() {
                // Another thread may run by now.
                return std::mem::forget(end);
            }
        }
    }

    fn with(&self, charged: u64, bytes: u64) -> Option<u64> {
        let with = (charged & !THROTTLED).checked_add(bytes)?;
        let limit = self.limit.load(Ordering::Relaxed).min(THROTTLED - 1);
        (with <= limit).then_some(with | charged & THROTTLED)
    }

    fn update(&self, next: impl FnMut(u64) -> Option<u64>) -> Result<(), LimitReached> {
        let updated = self.charged.fetch_update(Ordering::AcqRel, next);
        updated.map(drop).map_err(|_| LimitReached)
    }

    /// Charges the bytes by which a block exceeds its request, whatever the limit: they are granted already.
    pub fn charge_more(&self, bytes: u64) {
        self.charged.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Uncharges bytes. Returns whether a request is throttled, which the limit may now allow.
    #[inline]
    pub fn uncharge(&self, bytes: u64) -> bool {
        let before = self
            .charged
            .fetch_add(bytes.wrapping_neg(), Ordering::AcqRel);
        debug_assert!(
            before & !THROTTLED >= bytes,
            "a tag frees what it was granted"
        );
        let is_throttled = before & THROTTLED != 0;
        if is_throttled {
            self.releases.add(1);
        }
        is_throttled
    }

    /// Notes that a throttled request fails: its task may free memory that it holds.
    pub fn count_failed(&self) {
        self.releases.add(1);
    }

    /// Returns a number that changes when bytes are uncharged while a request is throttled, and when one fails.
    pub fn releases(&self) -> u64 {
        self.releases.get()
    }

    /// Notes that a request whose bytes are charged waits in the fair queue.
    pub fn promise(&self, bytes: u64) {
        self.promised.add(bytes);
    }

    /// Notes that such a request left the fair queue, whatever the outcome.
    pub fn end_promise(&self, bytes: u64) {
        self.promised.subtract(bytes);
    }

    /// Counts a block or a reservation that was granted, with its bytes charged.
    pub fn count_granted(&self) {
        self.allocations.add(1);
        self.count_growth();
    }

    /// Notes that a block or a reservation grew, with its bytes charged.
    pub fn count_growth(&self) {
        self.high.raise(self.used_now());
    }

    /// Counts a block or a reservation that was freed.
    pub fn count_freed(&self) {
        self.frees.add(1);
    }

    fn used_now(&self) -> u64 {
        self.charged().saturating_sub(self.promised.get())
    }

    /// Returns the bytes of live blocks.
    pub fn used(&self) -> Level {
        let current = self.used_now();
        Level {
            current,
            high: self.high.get().max(current),
        }
    }

    /// Returns the bytes of live blocks, and of requests that entered the fair queue.
    pub fn charged(&self) -> u64 {
        self.charged.load(Ordering::Relaxed) & !THROTTLED
    }

    /// Returns the limit, if there is one.
    pub fn limit(&self) -> Option<u64> {
        let limit = self.limit.load(Ordering::Relaxed);
        (limit != u64::MAX).then_some(limit)
    }

    /// Sets the limit. The caller then admits throttled requests that the new limit allows.
    pub fn set_limit(&self, limit: Option<u64>) {
        let limit = limit.unwrap_or(u64::MAX);
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Returns how many blocks and reservations were granted.
    pub fn allocations(&self) -> u64 {
        self.allocations.get()
    }

    /// Returns how many of them were freed.
    pub fn frees(&self) -> u64 {
        self.frees.get()
    }

    fn reset_high(&self) {
        self.high.set(self.used_now());
    }
}

struct EndOnPanic<'a>(&'a SharedState);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// The first bucket has slots for this many tags. Each further bucket has twice as many as the one before.
const FIRST_BUCKET: usize = 16;

/// Enough buckets for all tags that can exist.
const BUCKETS: usize = 29;

type AccountSlot = OnceLock<Box<CachePadded<Account>>>;

/// The accounts of a pool, by the number of their tag. An account never moves and is never removed, so a lookup needs
/// no lock and no reference count.
pub struct Accounts {
    buckets: [OnceLock<Box<[AccountSlot]>>; BUCKETS],
}

impl Default for Accounts {
    fn default() -> Self {
        Self {
            buckets: [const { OnceLock::new() }; BUCKETS],
        }
    }
}

impl Accounts {
    /// Returns the account of a tag, and opens it at the tag's first use.
    #[inline]
    pub fn of(&self, tag: Tag) -> &Account {
        let (bucket, at) = slot_of(tag);
        let slots = self.buckets[bucket].get_or_init(|| empty_bucket(bucket));
        slots[at].get_or_init(|| Box::new(CachePadded::new(Account::new())))
    }

    /// Returns the account of a tag, if this pool has seen it.
    pub fn get(&self, tag: Tag) -> Option<&Account> {
        let (bucket, at) = slot_of(tag);
        Some(self.buckets[bucket].get()?[at].get()?)
    }

    /// Returns all accounts that were opened.
    pub fn iter(&self) -> impl Iterator<Item = (Tag, &Account)> {
        let slots = self.buckets.iter().enumerate().flat_map(|(bucket, slots)| {
            let slots = slots.get().map_or(&[][..], |slots| &slots[..]);
            slots.iter().zip(first_index_of(bucket)..)
        });
        slots.filter_map(|(slot, index)| {
            let account: &Account = slot.get()?;
            Some((Tag::numbered(index), account))
        })
    }

    /// Sets the high-water marks to the present figures.
    pub fn reset_highs(&self) {
        self.iter().for_each(|(_, account)| account.reset_high());
    }
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

fn empty_bucket(bucket: usize) -> Box<[AccountSlot]> {
    let slots = FIRST_BUCKET << bucket;
    std::iter::repeat_with(OnceLock::new).take(slots).collect()
}

fn first_index_of(bucket: usize) -> usize {
    (FIRST_BUCKET << bucket) - FIRST_BUCKET
}

/// Returns the bucket of a tag, and its slot there.
fn slot_of(tag: Tag) -> (usize, usize) {
    let from_first = tag.index() + FIRST_BUCKET;
    let bucket = (from_first.ilog2() - FIRST_BUCKET.ilog2()) as usize;
    (bucket, from_first - (FIRST_BUCKET << bucket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tag_has_its_own_slot() {
        let mut expected = (0, 0);
        for index in 0..5000 {
            let slot = slot_of(Tag::numbered(index));
            assert_eq!(slot, expected);
            expected.1 += 1;
            if expected.1 == FIRST_BUCKET << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        let last = Tag::numbered(u32::MAX as usize - 1);
        assert!(slot_of(last).0 < BUCKETS);
    }

    #[cfg(not(weirpool_loom))]
    fn grant(account: &Account, bytes: u64) {
        account.charge(bytes).unwrap();
        account.count_granted();
    }

    #[cfg(not(weirpool_loom))]
    #[test]
    fn nothing_is_charged_over_the_limit() {
        let account = Account::new();
        account.set_limit(Some(1024));
        assert_eq!(account.charge(1025), Err(LimitReached));
        grant(&account, 1024);
        assert_eq!(account.charge_or_throttle(512), Err(LimitReached));
        assert_eq!(account.charged(), 1024);
        assert!(account.uncharge(512), "a request is throttled");
        assert_eq!(account.charge(512), Err(LimitReached), "it comes first");
        assert_eq!(account.charge_throttled(512), Ok(()));
        account.promise(512);
        account.end_throttling();
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
        let accounts = Accounts::default();
        let [few, many] = [3, 300].map(Tag::numbered);
        assert!(accounts.get(few).is_none());
        grant(accounts.of(many), 512);
        grant(accounts.of(few), 1024);
        grant(accounts.of(few), 512);
        assert!(!accounts.of(few).uncharge(1024));
        accounts.of(few).count_freed();
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
