//! Reservations: how memory is reserved, counted, split and released.

use super::*;

/// The request waits in the queue like any other, for memory that is complete on every stream.
#[test]
fn reservation_waits_for_complete_memory() {
    let (device, pool, [(work, a)]) = set_up_with(small);
    let block = pool.try_allocate(&a, 32 * MIB).unwrap();
    use_block(&work, &block, us(100));
    let (mut reserving, woken, waker) = not_ready_counted(pool.reserve(16 * MIB));
    let behind = not_ready(pool.allocate(&a, MIB));
    drop(block);
    assert!(
        poll_with(&mut reserving, &waker).is_pending(),
        "the work runs"
    );
    let before = woken.get();
    device.advance(us(100));
    assert!(woken.get() > before);
    let _reservation = now(&mut reserving).expect("it is complete");
    drop(now(behind).unwrap());
    assert_eq!(pool.inspect().statistics().waits.served, 2);
}

/// Dropped at any stage, the future has taken nothing.
#[test]
fn dropped_future_leaves_nothing_reserved() {
    let device = manual();
    let [tag] = ["reservations: dropped"].map(Tag::new);
    let pool = builder(&device, 32 * MIB).made();
    pool.tag(tag).set_limit(Some(16 * MIB));
    let (_, stream) = stream(&device, &pool);
    for stage in 0..4 {
        let mut block = Some(pool.try_allocate(&stream, 32 * MIB).unwrap());
        let mut reserving = pool.reserve(8 * MIB).tag(tag);
        if stage > 0 {
            assert!(poll(&mut reserving).is_pending());
        }
        if stage > 1 {
            block = None;
        }
        let mut behind = (stage == 3).then(|| pool.allocate(&stream, 512));
        if let Some(behind) = &mut behind {
            // Serves the queue, and so grants memory to a request that is dropped.
            let _ = poll(behind);
        }
        drop(reserving);
        drop((block, behind));
        assert_eq!(pool.tag(tag).statistics().used.current, 0);
        pool.inspect().check_conserved().unwrap();
    }
    // This also holds for its own memory once the pool is closed.
    let reservation = pool.reserve(MIB).try_now().unwrap();
    pool.close();
    assert_eq!(
        reservation.allocate(&stream, 512).unwrap_err(),
        AllocError::Closed
    );
}

/// A reservation is charged to its tag as a whole, until the memory is released: by the handle, or by the last block
/// that outlives it.
#[test]
fn reservation_is_charged_to_its_tag() {
    let device = manual();
    let tag = Tag::new("reservations: counts");
    let pool = builder(&device, 32 * MIB).made();
    pool.tag(tag).set_limit(Some(8 * MIB));
    let (_, stream) = stream(&device, &pool);
    let of_tag = || pool.tag(tag).statistics().used.current;
    let mut reservation = pool.reserve(6 * MIB).tag(tag).try_now().unwrap();
    let refused = pool.reserve(3 * MIB).tag(tag).try_now().unwrap_err();
    assert_matches!(refused, AllocError::LimitReached { .. });
    let block = reservation.allocate(&stream, 2 * MIB).unwrap();
    assert_eq!(block.tag(), Some(tag));
    assert_eq!(of_tag(), 6 * MIB);
    drop(reservation.allocate(&stream, 4 * MIB).unwrap());
    assert_eq!(of_tag(), 6 * MIB);
    now(Box::pin(reservation.grow(2 * MIB))).unwrap();
    assert_eq!((of_tag(), reservation.size()), (8 * MIB, 8 * MIB));
    let part = reservation.split(MIB).unwrap();
    drop(part);
    assert_eq!(of_tag(), 7 * MIB);
    drop(reservation);
    assert_eq!(of_tag(), 2 * MIB);
    drop(block);
    assert_eq!(of_tag(), 0);
}

/// A reservation for a tag counts as an allocation of the tag, and ends as one.
#[test]
fn tag_counts_its_reservations() {
    let (_, pool, [(_, stream)]) = set_up_with(small);
    let tag = Tag::new("counts its reservations");
    let mut reservation = pool.reserve(4 * MIB).tag(tag).try_now().unwrap();
    let figures = pool.tag(tag).statistics();
    assert_eq!((figures.allocations, figures.frees), (1, 0));
    let part = reservation.split(MIB).unwrap();
    let block = reservation.allocate(&stream, MIB).unwrap();
    drop(reservation);
    drop((block, part));
    let figures = pool.tag(tag).statistics();
    assert_eq!(figures.used.current, 0);
    assert_eq!(figures.used.high, 4 * MIB, "as long as it was set aside");
    assert_eq!(figures.allocations, figures.frees);
}

/// The two parts are independent.
#[test]
fn reservation_can_be_split() {
    let (_, pool, [(_, stream)]) = set_up_with(small);
    let mut whole = pool.reserve(8 * MIB).try_now().unwrap();
    let held = whole.allocate(&stream, 2 * MIB).unwrap();
    let error = whole.split(7 * MIB).unwrap_err();
    assert_matches!(error, AllocError::NotReserved { left, .. } if *left == 6 * MIB);
    let part = whole.split(6 * MIB).unwrap();
    assert_eq!((whole.left(), part.left()), (0, 6 * MIB));
    drop(held);
    assert_eq!((whole.left(), part.left()), (2 * MIB, 6 * MIB));
    let _other = part.allocate(&stream, 6 * MIB).unwrap();
}

/// Blocks that outlive their reservation are available to all once they are freed.
#[test]
fn blocks_outlive_their_reservation() {
    let (device, pool, [(work, stream)]) = set_up_with(small);
    let reservation = pool.reserve(16 * MIB).try_now().unwrap();
    let block = reservation.allocate(&stream, 4 * MIB).unwrap();
    use_block(&work, &block, us(50));
    drop(reservation);
    assert_eq!(used(&pool), 4 * MIB);
    drop(pool.try_allocate(&stream, 28 * MIB).unwrap());
    drop(block);
    device.advance(us(50));
    drop(pool.try_allocate(&stream, 32 * MIB).unwrap());
}

/// An unpooled pool cannot keep memory for a reservation. Several blocks can still be allocated together.
#[test]
fn unpooled_pool_refuses_reservations() {
    let (_, pool, [(_, stream)]) =
        set_up_with(|device| Pool::builder(device.clone()).upstream(Upstream::Unpooled));
    let refused = pool.reserve(MIB).try_now().unwrap_err();
    assert_eq!(refused, AllocError::NotReservable);
    let blocks = pool.allocate_many(&stream, [MIB, MIB]).try_now().unwrap();
    assert_eq!(blocks.len(), 2);
}

/// The statistics, the snapshot and the lookup by address show the reservation.
#[test]
fn reservation_is_listed_in_statistics_snapshots_and_lookups() {
    let (_, pool, [(_, stream)]) = set_up_with(small);
    let reservation = pool.reserve(8 * MIB).try_now().unwrap();
    let block = reservation.allocate(&stream, 2 * MIB).unwrap();
    let snapshot = pool.inspect().snapshot();
    assert_eq!(snapshot.bytes_in(BlockState::Reserved), 6 * MIB);
    assert_eq!(snapshot.bytes_in(BlockState::Used), 2 * MIB);
    assert_eq!(pool.inspect().statistics().live_blocks, 1);
    assert_eq!(pool.inspect().statistics().used.current, 8 * MIB);
    drop(block);
    let found = pool.inspect().snapshot().bytes_in(BlockState::Reserved);
    assert_eq!(found, 8 * MIB);
    assert_eq!(pool.trim_to(0).unwrap().released, 0, "it is not free");
}

/// A reservation within another one grows, by memory of the pool. At its end all of that is the outer one's, and then the
/// pool's.
#[test]
fn nested_reservation_that_grew_ends_in_the_outer_one() {
    for device in devices() {
        let tag = Tag::new("reservations: nested");
        let pool = small(&device);
        let outer = pool.reserve(8 * MIB).tag(tag).try_now().unwrap();
        let pool = &pool;
        let reserve = |bytes| async move { pool.reserve(bytes).tag(tag).await };
        let middle = now(Box::pin(outer.scope(reserve(4 * MIB)))).unwrap();
        let mut inner = now(Box::pin(middle.scope(reserve(2 * MIB)))).unwrap();
        now(inner.grow(2 * MIB)).unwrap();
        let sizes = || (outer.size(), outer.left(), middle.size(), middle.left());
        assert_eq!(sizes(), (10 * MIB, 4 * MIB, 6 * MIB, 2 * MIB));
        drop(inner);
        assert_eq!(sizes(), (10 * MIB, 4 * MIB, 6 * MIB, 6 * MIB));
        drop(middle);
        assert_eq!((outer.size(), outer.left()), (10 * MIB, 10 * MIB));
        drop(outer);
        assert_eq!(pool.tag(tag).statistics().used.current, 0);
        pool.inspect().check_conserved().unwrap();
    }
}
