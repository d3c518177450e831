//! Knots at the limits of tags: what is one, what is none, and what becomes of it. In virtual time.

mod common;

use common::*;
use std::task::Poll;
use std::time::Duration;
use weirpool::device::sim::SimDevice;
use weirpool::testing::Invariants;
use weirpool::*;

const MS: Duration = us(1000);

/// The limit of the tenant; the pool has much more.
const LIMIT: u64 = 8 * MIB;

const GRACE: Duration = us(10_000);

fn base(device: &SimDevice, tag: Tag) -> PoolBuilder {
    builder(device, 64 * MIB)
        .lane_bytes(0)
        .deadlock_grace(GRACE)
        .tag_limit(tag, LIMIT)
}

/// A pool that fails deadlocks as soon as it sees them.
fn strict(device: &SimDevice, tag: Tag) -> Pool {
    let pool = base(device, tag).fail_deadlocks_after(GRACE);
    pool.build().unwrap()
}

fn used(pool: &Pool, tag: Tag) -> u64 {
    pool.statistics_of_tag(tag).used.current
}

fn is_deadlocked<T>(polled: Poll<Result<T, AllocError>>) -> bool {
    matches!(
        polled,
        Poll::Ready(Err(AllocError::DeadlockedAtLimit { .. }))
    )
}

/// Two who hold half of the limit each and wait for the other's: the first fails after the pool's time, frees, and
/// the other goes on. Nobody polls but when woken, and nobody else feels any of it.
#[test]
fn two_who_wait_for_each_other_at_the_limit() {
    let device = manual();
    let tag = Tag::new("tenant knots: two");
    let pool = base(&device, tag)
        .fail_deadlocks_after(MS * 50)
        .build()
        .unwrap();
    let (_, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let (work, other) = stream(&device, &pool);
    let hold = |stream| pool.allocate(stream, LIMIT / 2).tag(tag);
    let [one, two] = [&a, &b].map(|stream| hold(stream).try_now().unwrap());
    let (woken, waker) = Count::new();
    let (mut first, mut second) = (hold(&a), hold(&b));
    assert!(poll_with(&mut first, &waker).is_pending());
    assert!(poll_with(&mut second, &waker).is_pending());
    for _ in 0..5 {
        // Another tenant is at work all the time.
        let block = pool.try_allocate(&other, 16 * MIB).unwrap();
        use_block(&work, &block, MS * 100);
        drop(block);
        let before = woken.get();
        device.advance(MS * 10);
        if woken.get() > before {
            assert!(poll_with(&mut second, &waker).is_pending());
        }
    }
    let Poll::Ready(Err(error)) = poll_with(&mut first, &waker) else {
        panic!("nothing of the tag moves");
    };
    let expected = AllocError::DeadlockedAtLimit {
        tag,
        requested: LIMIT / 2,
        used: LIMIT,
        limit: LIMIT,
    };
    assert_eq!(error, expected);
    assert!(error.to_string().contains("tenant knots: two"), "{error}");
    assert!(poll_with(&mut second, &waker).is_pending());
    let waits = pool.statistics_of_tag(tag).waits;
    assert_eq!(
        (waits.deadlocked, waits.unserved(), waits.waiting),
        (1, 1, 1)
    );
    drop(one);
    drop(now(second).expect("there is room"));
    drop(two);
    assert_eq!(used(&pool, tag), 0);
    device.advance(MS * 1000);
    pool.check_conserved().unwrap();
}

/// Without a time after which it fails a deadlock lasts, and is none any more as soon as anybody frees.
#[test]
fn a_deadlock_lasts_until_somebody_frees() {
    let device = manual();
    let tag = Tag::new("tenant knots: lasts");
    let pool = base(&device, tag).build().unwrap();
    let (_, stream) = stream(&device, &pool);
    let held = pool.allocate(&stream, LIMIT).tag(tag).try_now().unwrap();
    let mut waiting = pool.allocate(&stream, MIB).tag(tag);
    for _ in 0..10 {
        assert!(poll(&mut waiting).is_pending());
        device.advance(GRACE * 10);
    }
    drop(held);
    drop(now(waiting).unwrap());
    assert_eq!(used(&pool, tag), 0);
}

/// A holder that asks for a little, while the first at the quota queue asks for much, is let in once nothing moves: within
/// the limit, and no sooner.
#[test]
fn who_asks_for_a_little_is_let_in() {
    let device = manual();
    let tag = Tag::new("tenant knots: little");
    let pool = strict(&device, tag);
    let (_, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let allocate = |stream, bytes| pool.allocate(stream, bytes).tag(tag);
    let held = allocate(&a, 5 * MIB).try_now().unwrap();
    let (woken, waker) = Count::new();
    let mut much = allocate(&b, 6 * MIB);
    let mut over = allocate(&a, 4 * MIB);
    let mut little = allocate(&a, 2 * MIB);
    for waiting in [&mut much, &mut over, &mut little] {
        assert!(poll_with(waiting, &waker).is_pending());
    }
    device.advance(GRACE - us(1));
    assert!(poll_with(&mut little, &waker).is_pending());
    let before = woken.get();
    device.advance(us(1));
    assert!(
        woken.get() > before,
        "it is looked for without anybody's doing"
    );
    assert!(poll_with(&mut much, &waker).is_pending());
    let Poll::Ready(Ok(block)) = poll_with(&mut little, &waker) else {
        panic!("the limit allows it");
    };
    assert!(poll_with(&mut over, &waker).is_pending());
    assert_eq!(used(&pool, tag), 7 * MIB);
    drop((block, held));
    drop(now(much).unwrap());
    drop(now(over).unwrap());
    assert_eq!(used(&pool, tag), 0);
}

/// One that holds on a stream for which nobody waits is at work, however long that takes, on the host or wherever.
#[test]
fn who_holds_on_a_stream_that_nobody_waits_for_is_at_work() {
    let device = manual();
    let tag = Tag::new("tenant knots: elsewhere");
    let pool = strict(&device, tag);
    let (_, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let allocate = |stream, bytes| pool.allocate(stream, bytes).tag(tag);
    let [at_work, idle] = [&a, &b].map(|stream| allocate(stream, LIMIT / 2).try_now().unwrap());
    let mut waiting = allocate(&b, LIMIT / 2);
    for _ in 0..20 {
        assert!(poll(&mut waiting).is_pending());
        device.advance(GRACE * 10);
    }
    // What is left of it when that one is gone is a deadlock: of who waits for itself.
    drop(at_work);
    drop(now(waiting).unwrap());
    let mut itself = allocate(&b, LIMIT);
    assert!(poll(&mut itself).is_pending());
    device.advance(GRACE);
    assert!(is_deadlocked(poll(&mut itself)));
    drop(idle);
}

/// One that keeps its stream busy is at work, though others wait for the same stream: with one long kernel, or with
/// many.
#[test]
fn who_keeps_its_stream_busy_is_at_work() {
    let device = manual();
    let tag = Tag::new("tenant knots: busy");
    let pool = strict(&device, tag);
    let (work, stream) = stream(&device, &pool);
    let held = pool.allocate(&stream, LIMIT).tag(tag).try_now().unwrap();
    use_block(&work, &held, MS * 100);
    let mut waiting = pool.allocate(&stream, MIB).tag(tag);
    for _ in 0..99 {
        assert!(poll(&mut waiting).is_pending());
        device.advance(MS);
    }
    for _ in 0..100 {
        use_block(&work, &held, MS * 7);
        assert!(poll(&mut waiting).is_pending());
        device.advance(MS * 6);
    }
    // Its work is over. From then on it is taken for one that waits.
    let (woken, waker) = Count::new();
    assert!(poll_with(&mut waiting, &waker).is_pending());
    device.advance(MS * 101);
    assert!(woken.get() > 0, "the stream is watched");
    assert!(
        poll_with(&mut waiting, &waker).is_pending(),
        "it has the grace to free"
    );
    device.advance(GRACE);
    assert!(is_deadlocked(poll(&mut waiting)));
    drop(held);
}

/// Who was granted something after the others came to wait is not one of them.
#[test]
fn who_was_let_in_since_is_at_work() {
    let device = manual();
    let tag = Tag::new("tenant knots: let in");
    let pool = strict(&device, tag);
    let (_, stream) = stream(&device, &pool);
    let allocate = || pool.allocate(&stream, LIMIT).tag(tag);
    let held = allocate().try_now().unwrap();
    let (mut first, mut second) = (allocate(), allocate());
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    drop(held);
    let at_work = now(first).unwrap();
    for _ in 0..20 {
        assert!(poll(&mut second).is_pending());
        device.advance(GRACE * 10);
    }
    // That one comes to wait itself, while it holds all there is.
    let mut third = allocate();
    assert!(poll(&mut third).is_pending());
    device.advance(GRACE);
    assert!(is_deadlocked(poll(&mut second)));
    drop(at_work);
    drop(now(third).unwrap());
}

/// As long as blocks of the tag come and go there is no deadlock; and what a free leaves behind, which lets nobody in, is
/// seen.
#[test]
fn a_free_that_lets_nobody_in_is_looked_at() {
    let device = manual();
    let tag = Tag::new("tenant knots: leaves");
    let pool = strict(&device, tag);
    let (_, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let allocate = |stream, bytes| pool.allocate(stream, bytes).tag(tag);
    let held = allocate(&a, 4 * MIB).try_now().unwrap();
    let mut small: Vec<_> = (0..4)
        .map(|_| allocate(&b, MIB).try_now().unwrap())
        .collect();
    let (woken, waker) = Count::new();
    let mut waiting = allocate(&a, LIMIT);
    assert!(poll_with(&mut waiting, &waker).is_pending());
    while small.pop().is_some() {
        device.advance(GRACE * 3);
        assert!(poll_with(&mut waiting, &waker).is_pending());
    }
    assert!(woken.get() > 0, "it looks after each of them");
    device.advance(GRACE);
    assert!(is_deadlocked(poll(&mut waiting)));
    drop(held);
}

/// One of two who wait for each other gives up, and is at work again: when it frees, the other is looked at.
#[test]
fn who_gives_up_is_at_work_again() {
    let device = manual();
    let tag = Tag::new("tenant knots: gives up");
    let pool = strict(&device, tag);
    let (_, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let allocate = |stream, bytes| pool.allocate(stream, bytes).tag(tag);
    let [one, other] = [&a, &b].map(|stream| allocate(stream, LIMIT / 2).try_now().unwrap());
    let (woken, waker) = Count::new();
    let mut waiting = allocate(&a, LIMIT);
    let mut gives_up = allocate(&b, LIMIT);
    assert!(poll_with(&mut waiting, &waker).is_pending());
    assert!(poll(&mut gives_up).is_pending());
    drop(gives_up);
    device.advance(GRACE * 5);
    assert!(poll_with(&mut waiting, &waker).is_pending());
    let before = woken.get();
    drop(other);
    assert!(woken.get() > before);
    assert!(poll_with(&mut waiting, &waker).is_pending());
    device.advance(GRACE);
    assert!(is_deadlocked(poll(&mut waiting)));
    drop(one);
}

/// While a request of the tag waits in the queue that is what is to be watched: the quota queue is no deadlock of its own.
#[test]
fn while_the_tag_waits_in_the_queue_its_door_is_none() {
    let device = manual();
    let tag = Tag::new("tenant knots: queue");
    let pool = builder(&device, 8 * MIB)
        .tag_limit(tag, 4 * MIB)
        .deadlock_grace(GRACE)
        .fail_deadlocks_after(GRACE)
        .build()
        .unwrap();
    let (_, stream) = stream(&device, &pool);
    let allocate = |bytes| pool.allocate(&stream, bytes).tag(tag);
    let held = allocate(MIB).try_now().unwrap();
    let _others = pool.try_allocate(&stream, 7 * MIB).unwrap();
    let mut queued = allocate(3 * MIB);
    assert!(poll(&mut queued).is_pending());
    let mut at_the_door = allocate(MIB);
    assert!(poll(&mut at_the_door).is_pending());
    device.advance(GRACE);
    assert!(poll(&mut at_the_door).is_pending());
    let failed = poll(&mut queued);
    assert!(matches!(
        failed,
        Poll::Ready(Err(AllocError::Deadlocked(_)))
    ));
    drop(held);
    drop(now(at_the_door).unwrap());
}

/// Reservations of one tag that wait to grow: a deadlock, of those that were not drawn from and of those that were, on
/// the streams that drew. One that is drawn from meanwhile is at work.
#[test]
fn reservations_wait_for_each_other_too() {
    let device = manual();
    let tag = Tag::new("tenant knots: reservations");
    let pool = strict(&device, tag);
    let (_, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let reserve = || pool.reserve(LIMIT / 2).tag(tag);
    let [mut one, other] = [(); 2].map(|()| reserve().try_now().unwrap());
    let mut growing = Box::pin(one.grow(MIB));
    for _ in 0..5 {
        assert!(poll(&mut growing).is_pending());
        device.advance(GRACE - MS);
        // For a stream for which nobody waits: it is at work.
        drop(other.allocate(&b, MIB).unwrap());
    }
    device.advance(GRACE * 5);
    assert!(poll(&mut growing).is_pending());
    // It comes to wait itself, on its stream.
    let mut more = pool.allocate(&b, MIB).tag(tag);
    assert!(poll(&mut more).is_pending());
    device.advance(GRACE);
    assert!(is_deadlocked(poll(&mut growing)));
    drop(growing);
    // What was drawn lives on, and counts where it was drawn.
    let drawn = one.allocate(&a, MIB).unwrap();
    drop(one);
    drop(now(more).expect("there are 3 MiB"));
    let mut rest = pool.allocate(&b, LIMIT).tag(tag);
    assert!(poll(&mut rest).is_pending());
    device.advance(GRACE * 5);
    assert!(
        poll(&mut rest).is_pending(),
        "nobody waits for the stream that drew"
    );
    drop((drawn, other));
    drop(now(rest).unwrap());
    assert_eq!(used(&pool, tag), 0);
    pool.check_conserved().unwrap();
}

/// Blocks that wait to grow hold what they are: they wait for each other too; and one that has grown is at work.
#[test]
fn blocks_wait_to_grow_for_each_other_too() {
    let device = manual();
    let tag = Tag::new("tenant knots: grow");
    let pool = strict(&device, tag);
    let (_, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let cache = |stream| {
        let allocate = pool.allocate(stream, 2 * MIB).tag(tag).room(16 * MIB);
        allocate.try_now().unwrap()
    };
    let (mut one, mut other) = (cache(&a), cache(&b));
    let mut much = Box::pin(one.grow(6 * MIB));
    assert!(poll(&mut much).is_pending());
    let mut as_much = Box::pin(other.grow(6 * MIB));
    assert!(poll(&mut as_much).is_pending());
    device.advance(GRACE);
    assert!(is_deadlocked(poll(&mut much)));
    assert!(poll(&mut as_much).is_pending());
    drop(much);
    drop(one);
    now(as_much).expect("there is room");
    assert_eq!(used(&pool, tag), LIMIT);
    drop(other);
    pool.check_conserved().unwrap();
}

/// A deadlock is seen though the first at the quota queue is never polled again.
#[test]
fn a_forgotten_future_hides_no_deadlock() {
    let device = manual();
    let tag = Tag::new("tenant knots: forgotten");
    let pool = strict(&device, tag);
    let (_, stream) = stream(&device, &pool);
    let allocate = || pool.allocate(&stream, LIMIT).tag(tag);
    let held = allocate().try_now().unwrap();
    let mut first = allocate();
    assert!(poll(&mut first).is_pending());
    std::mem::forget(first);
    let (woken, waker) = Count::new();
    let mut second = allocate();
    assert!(poll_with(&mut second, &waker).is_pending());
    device.advance(GRACE);
    assert!(woken.get() > 0);
    // It fails the one that nobody polls, and comes next.
    assert!(poll_with(&mut second, &waker).is_pending());
    let before = woken.get();
    device.advance(GRACE);
    assert!(woken.get() > before);
    assert!(is_deadlocked(poll(&mut second)));
    drop(held);
}

/// Very many at the quota queue of a tag that moves all the time: a few of them are woken to look, and not all.
#[test]
fn looking_wakes_a_few() {
    const CROWD: usize = 1000;
    let device = manual();
    let tag = Tag::new("tenant knots: crowd");
    let pool = base(&device, tag).build().unwrap();
    let (_, a) = stream(&device, &pool);
    let (_, b) = stream(&device, &pool);
    let _held = pool.allocate(&a, LIMIT / 2).tag(tag).try_now().unwrap();
    let moving = || pool.allocate(&b, LIMIT / 4).tag(tag);
    let mut moved: Vec<_> = (0..2).map(|_| moving().try_now().unwrap()).collect();
    let mut crowd: Vec<_> = (0..CROWD)
        .map(|_| (Count::new(), pool.allocate(&a, LIMIT).tag(tag)))
        .collect();
    for ((_, waker), waiting) in &mut crowd {
        assert!(poll_with(waiting, waker).is_pending());
    }
    moved.clear();
    for _ in 0..20 {
        device.advance(GRACE);
        for ((woken, waker), waiting) in &mut crowd {
            if woken.get() > 0 {
                assert!(poll_with(waiting, waker).is_pending());
            }
        }
    }
    let woken = crowd.iter().filter(|((woken, _), _)| woken.get() > 0);
    let woken = woken.count();
    assert!((1..=4).contains(&woken), "{woken} were woken");
}
