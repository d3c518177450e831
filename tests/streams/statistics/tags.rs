//! Statistics by tag.

use super::*;

#[test]
fn tag_counts_its_allocations() {
    let (_device, pool, stream) = site();
    let [decode, prefill] = ["tag test: decode", "tag test: prefill"].map(Tag::new);
    let take = |tag, bytes| pool.allocate(&stream, bytes).tag(tag).try_now().unwrap();
    assert_eq!(pool.tag(decode).statistics().allocations, 0);
    let blocks = [1000, 5000].map(|bytes| take(decode, bytes));
    drop(take(decode, 8 * MIB));
    let other = take(prefill, 512);
    let untagged = pool.try_allocate(&stream, MIB).unwrap();
    assert_eq!((blocks[0].tag(), untagged.tag()), (Some(decode), None));

    let figures = pool.tag(decode).statistics();
    let level = |current, high| {
        let level = figures.used;
        assert_eq!((level.current, level.high), (current, high));
    };
    level(1024 + 5120, 1024 + 5120 + 8 * MIB);
    assert_eq!((figures.allocations, figures.frees), (3, 1));
    assert_eq!(pool.tag(prefill).statistics().used.current, 512);
    let tags: Vec<_> = pool
        .inspect()
        .statistics_by_tag()
        .iter()
        .map(|of| of.tag)
        .collect();
    assert!(tags.len() == 2 && tags.contains(&decode) && tags.contains(&prefill));

    drop(other);
    std::thread::spawn(move || drop(blocks)).join().unwrap();
    pool.inspect().reset_high_water_marks();
    let figures = pool.tag(decode).statistics();
    assert_eq!((figures.used.current, figures.used.high), (0, 0));
    assert_eq!((figures.allocations, figures.frees), (3, 3));
}

/// An awaited deallocation, one in the order of further streams, and a refused one.
#[test]
fn every_kind_of_free_uncharges_the_tag() {
    let (device, pool, stream) = site();
    let (_, further) = crate::common::stream(&device, &pool);
    let foreign = {
        let other = crate::common::pool(&device, 8 * MIB);
        crate::common::stream(&device, &other).1
    };
    let tag = Tag::new("tag test: ways");
    let take = || pool.allocate(&stream, MIB).tag(tag).try_now().unwrap();
    let used = || pool.tag(tag).statistics().used.current / MIB;
    let awaited = take().deallocate();
    assert_eq!(used(), 0, "used until the free, not until it is complete");
    drop(awaited);
    drop(take().deallocate_on(&further).unwrap());
    assert_eq!(used(), 0);
    let refused = take().deallocate_on(&foreign).unwrap_err();
    assert_eq!(used(), 1);
    drop(refused);
    let shared = take();
    further.record_use(Unordered::UntilFreed(&shared)).unwrap();
    drop(shared);
    assert_eq!(used(), 0);
    assert_eq!(pool.tag(tag).statistics().frees, 4);
    assert_eq!(stream.statistics().frees, 4);
    assert_eq!(further.statistics().frees, 0);
}

/// An untaken grant and a failed request are not charged.
#[test]
fn untaken_grant_is_not_charged() {
    let (_device, pool, stream) = site();
    let tag = Tag::new("tag test: untaken");
    let all = pool.try_allocate(&stream, 64 * MIB).unwrap();
    assert!(pool.allocate(&stream, MIB).tag(tag).try_now().is_err());
    let mut head = pool.allocate(&stream, 64 * MIB).tag(tag);
    let mut next = pool.allocate(&stream, MIB);
    assert!(poll(&mut head).is_pending() && poll(&mut next).is_pending());
    assert_eq!(pool.tag(tag).statistics().waits.waiting, 1);
    drop(all);
    assert!(poll(&mut next).is_pending(), "the head was served");
    drop(head);
    drop(now(next).unwrap());
    let figures = pool.tag(tag).statistics();
    assert_eq!((figures.used.high, figures.allocations), (0, 0));
    assert_eq!((figures.waits.waiting, figures.waits.served), (0, 1));
    let all = pool.inspect().statistics();
    assert_eq!((all.allocations, all.frees), (2, 2));
    assert_eq!(all.hits.total(), 2, "a grant that nobody took is none");
}

#[test]
fn waits_are_counted_for_pool_stream_and_tag() {
    let (device, pool, stream) = site();
    let (_, idle) = crate::common::stream(&device, &pool);
    let tag = Tag::new("tag test: waits");
    wait_for(&device, &pool, &stream, Some(tag), 40);
    wait_for(&device, &pool, &stream, None, 70);
    let full = pool.try_allocate(&stream, 64 * MIB).unwrap();
    let given_up = not_ready(pool.allocate(&stream, MIB).tag(tag));
    drop((given_up, full));

    let of_tag = pool.tag(tag).statistics().waits;
    assert_eq!((of_tag.served, of_tag.cancelled), (1, 1));
    let times = of_tag.times;
    assert_eq!((times.longest(), times.total()), (us(40), us(40)));
    let of_pool = pool.inspect().statistics().waits;
    assert_eq!(stream.statistics().waits, of_pool);
    assert_eq!((of_pool.served, of_pool.times.longest()), (2, us(70)));
    assert_eq!(idle.statistics().waits, WaitStatistics::default());
}

#[test]
fn tags_are_counted_by_pool() {
    let (device, pool, stream) = site();
    let other = crate::common::pool(&device, 8 * MIB);
    let tag = Tag::new("tag test: pools");
    let _block = pool.allocate(&stream, MIB).tag(tag).try_now().unwrap();
    assert_eq!(other.tag(tag).statistics().used.current, 0);
    assert!(other.inspect().statistics_by_tag().is_empty());
}
