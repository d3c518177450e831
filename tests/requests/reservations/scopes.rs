//! Tasks whose allocations draw from a reservation.

use super::*;
use std::task::Poll;
use weirpool::device::DeviceErrorKind;
use weirpool::device::sim::{Call, Fault};

/// In its scope the pool's allocations draw from it: of that task, and of that pool.
#[test]
fn a_scope_draws_from_the_reservation() {
    let device = manual();
    let pool = small(&device);
    let elsewhere = small(&device);
    let (_, stream_here) = stream(&device, &pool);
    let (_, stream_there) = stream(&device, &elsewhere);
    let tag = Tag::new("reservations: scope");
    let reservation = pool.reserve(8 * MIB).try_now().unwrap();
    let inner = pool.reserve(2 * MIB).try_now().unwrap();
    let left = || (reservation.left(), inner.left());
    let blocks = now(Box::pin(reservation.scope(async {
        let awaited = pool.allocate(&stream_here, 4 * MIB).await.unwrap();
        let tried = pool.try_allocate(&stream_here, MIB).unwrap();
        assert_eq!(left(), (3 * MIB, 2 * MIB));
        let nested = inner.scope(async { pool.try_allocate(&stream_here, MIB).unwrap() });
        let nested = nested.await;
        assert_eq!(left(), (3 * MIB, MIB));
        let other_pool = elsewhere.try_allocate(&stream_there, MIB).unwrap();
        let other_tag = pool.allocate(&stream_here, MIB).tag(tag).try_now().unwrap();
        let too_large = pool.try_allocate(&stream_here, 4 * MIB).unwrap();
        assert_eq!(left(), (3 * MIB, MIB));
        (awaited, tried, nested, other_pool, other_tag, too_large)
    })));
    let outside = pool.try_allocate(&stream_here, MIB).unwrap();
    assert_eq!(left(), (3 * MIB, MIB));
    drop((blocks, outside));
    assert_eq!(left(), (8 * MIB, 2 * MIB));
}

#[test]
fn guards_of_scopes_are_dropped_in_any_order() {
    let (_, pool, [(_, stream)]) = set_up_with(small);
    let [outer, inner] = [4, 2].map(|mib| pool.reserve(mib * MIB).try_now().unwrap());
    let mut held = Vec::new();
    let mut left_after_one_more = || {
        held.push(pool.try_allocate(&stream, MIB).unwrap());
        (outer.left() / MIB, inner.left() / MIB)
    };
    let in_outer = outer.enter();
    assert_eq!(left_after_one_more(), (3, 2));
    let in_inner = inner.enter();
    let again = outer.enter();
    assert_eq!(left_after_one_more(), (2, 2));
    drop(in_outer);
    // The one that was entered last is the innermost, although it was entered before as well.
    assert_eq!(left_after_one_more(), (1, 2));
    drop(again);
    assert_eq!(left_after_one_more(), (1, 1));
    drop(in_inner);
    assert_eq!(left_after_one_more(), (1, 1));
}

/// A future in a scope may end with its thread, whatever of the thread is gone by then.
#[test]
fn a_scope_may_end_with_its_thread() {
    type Held = std::pin::Pin<Box<dyn std::future::Future<Output = ()>>>;
    thread_local! {
        static HELD: std::cell::RefCell<Option<Held>> = const { std::cell::RefCell::new(None) };
    }
    let device = manual();
    let pool = small(&device);
    let reservation = pool.reserve(4 * MIB).try_now().unwrap();
    let scope = |pool: Pool, device: SimDevice| {
        let (_, stream) = stream(&device, &pool);
        reservation.scope(async move {
            let _block = pool.allocate(&stream, MIB).await.unwrap();
            std::future::pending::<()>().await;
        })
    };
    let scoped = scope(pool.clone(), device.clone());
    let ended = std::thread::spawn(move || {
        // Before the thread is in a scope: the thread-local that was made first is dropped last.
        HELD.set(None);
        let mut scoped: Held = Box::pin(scoped);
        assert!(poll(&mut scoped).is_pending());
        HELD.set(Some(scoped));
    });
    ended.join().unwrap();
    assert_eq!(reservation.left(), 4 * MIB, "its block was freed");
}

/// On virtual and on plain memory.
fn pools() -> [(SimDevice, TestPool); 2] {
    [true, false].map(|is_virtual| {
        let device = manual_builder().virtual_memory(is_virtual).build();
        let pool = small(&device);
        (device, pool)
    })
}

#[test]
fn nested_reservation_draws_from_the_outer_one_and_returns_to_it() {
    let tag = Tag::new("reservations: nested");
    for (device, pool) in pools() {
        let (work, stream) = stream(&device, &pool);
        let outer = now(pool.reserve(8 * MIB).tag(tag)).unwrap();
        let used = || pool.inspect().statistics().used.current;
        let held = || pool.tag(tag).statistics().used.current;
        now(Box::pin(outer.scope(async {
            // A handler that reserves again and again, without knowing of the outer reservation.
            for round in 0..20 {
                let nested = pool.reserve(5 * MIB).await.unwrap();
                assert_eq!((nested.size(), outer.left()), (5 * MIB, 3 * MIB), "{round}");
                assert_eq!((outer.size(), used(), held()), (8 * MIB, 8 * MIB, 8 * MIB));
                let block = nested.allocate(&stream, 2 * MIB).unwrap();
                use_block(&work, &block, us(10));
                let innermost = nested.scope(async { pool.reserve(MIB).await.unwrap() });
                let innermost = innermost.await;
                assert_eq!((nested.left(), innermost.left()), (2 * MIB, MIB));
                drop(nested);
                assert_eq!(outer.left(), 5 * MIB, "what is in use returns later");
                drop(block);
                assert_eq!(outer.left(), 7 * MIB);
                drop(innermost);
                assert_eq!((outer.left(), used()), (8 * MIB, 8 * MIB));
            }
            assert_eq!(pool.inspect().statistics().reservations, 1);
            // A request that exceeds the outer reservation draws nothing from it.
            let too_large = pool.reserve(8 * MIB + 1).try_now();
            assert_eq!(outer.left(), 8 * MIB);
            drop(too_large);
        })));
        drop(outer);
        assert_eq!((used(), held()), (0, 0));
        pool.inspect().check_conserved().unwrap();
        device.assert_ordered();
    }
}

#[test]
fn nested_reservation_outlives_the_outer_one() {
    let tag = Tag::new("reservations: outlives");
    for (device, pool) in pools() {
        let (_, stream) = stream(&device, &pool);
        let outer = now(pool.reserve(8 * MIB).tag(tag)).unwrap();
        let nested = now(Box::pin(outer.scope(async { pool.reserve(4 * MIB).await })));
        let nested = nested.unwrap();
        let block = nested.allocate(&stream, MIB).unwrap();
        drop(outer);
        let held = || pool.tag(tag).statistics().used.current;
        assert_eq!((held(), nested.left()), (4 * MIB, 3 * MIB));
        drop(nested);
        assert_eq!((held(), figures(&pool).used.current), (MIB, MIB));
        drop(block);
        assert_eq!((held(), pool.inspect().statistics().used.current), (0, 0));
        assert_eq!(pool.inspect().statistics().reservations, 0);
    }
}

/// The reservation between them has ended, with all that it had, while one in it grew again.
#[test]
fn memory_of_a_nested_reservation_returns_to_the_nearest_one_that_has_a_place() {
    let pool = small(&manual());
    let nested = |outer: &Reservation| now(Box::pin(outer.scope(pool.reserve(4 * MIB)))).unwrap();
    let outer = pool.reserve(4 * MIB).try_now().unwrap();
    let middle = nested(&outer);
    let mut inner = nested(&middle);
    drop((inner.split(4 * MIB).unwrap(), middle));
    now(inner.grow(2 * MIB)).unwrap();
    drop(inner);
    assert_eq!((outer.size(), outer.left()), (6 * MIB, 6 * MIB));
    drop(outer);
    assert_eq!(figures(&pool).used.current, 0);
}

#[test]
fn waiting_nested_reservation_takes_what_returns_to_the_outer_one() {
    for (device, pool) in pools() {
        let (_, stream) = stream(&device, &pool);
        let outer = now(pool.reserve(8 * MIB)).unwrap();
        let held = outer.allocate(&stream, 6 * MIB).unwrap();
        let _rest = now(pool.reserve(pool.capacity() - 8 * MIB)).unwrap();
        let mut waiting = Box::pin(outer.scope(async { pool.reserve(4 * MIB).await }));
        let (count, waker) = Count::new();
        assert!(poll_with(&mut waiting, &waker).is_pending());
        drop(held);
        assert!(count.get() > 0);
        let nested = now(waiting).unwrap();
        assert_eq!((nested.size(), outer.left()), (4 * MIB, 4 * MIB));
        assert_eq!(pool.inspect().statistics().waits.waiting, 0);
    }
}

/// A reservation has enough bytes in pieces for a request that waits for the limit of its tag. It is woken by memory of
/// another stream that the pieces can be exchanged for, also if the first events cannot be recorded.
#[test]
fn throttled_request_hears_of_memory_to_exchange() {
    for failing in [0, 20] {
        for device in devices() {
            let tag = Tag::new("reservations: throttled in a scope");
            let pool = tuned(&device, 16 * MIB, |tuning| {
                tuning.lane_bytes = 0;
                tuning.reuse = only_host_waits();
            });
            pool.tag(tag).set_limit(Some(8 * MIB));
            let [(_, stream), (work, further)] = streams(&device, &pool);
            let reservation = pool.reserve(8 * MIB).tag(tag).try_now().unwrap();
            let drawn = [(); 8].map(|()| reservation.allocate(&stream, MIB).unwrap());
            let other = pool.try_allocate(&further, 8 * MIB).unwrap();
            let mut drawn = drawn.map(Some);
            drawn.iter_mut().step_by(2).for_each(|block| *block = None);
            let request = async { pool.allocate(&stream, 4 * MIB).tag(tag).await };
            let mut tasks = [Woken::new(reservation.scope(request))];
            run(&work, us(100));
            for nth in 1..=failing {
                device.faults().script(
                    Call::Record,
                    nth,
                    Fault::Fails(DeviceErrorKind::Unsupported),
                );
            }
            drop(other);
            for _ in 0..=failing {
                settle(&mut tasks);
                device.advance(us(100));
                settle(&mut tasks);
                device.advance(if failing > 0 { us(50_000) } else { us(100) });
            }
            settle(&mut tasks);
            assert!(!tasks[0].is_waiting(), "{failing} records fail");
        }
    }
}

/// The device refuses the memory that the pieces of a reservation would be exchanged for. The request waits, and does not
/// wake itself.
#[test]
fn refused_exchange_does_not_wake_its_request_without_end() {
    for is_virtual in [true, false] {
        let device = sized(20 * MIB, is_virtual);
        let pools = [(); 2].map(|()| tuned(&device, 16 * MIB, |tuning| tuning.lane_bytes = 0));
        let streams = pools.each_ref().map(|pool| stream(&device, pool).1);
        let reservation = pools[0].reserve(8 * MIB).try_now().unwrap();
        let drawn = [(); 8].map(|()| reservation.allocate(&streams[0], MIB).unwrap());
        let mut drawn = drawn.map(Some);
        drawn.iter_mut().step_by(2).for_each(|block| *block = None);
        let taken = pools[1].try_allocate(&streams[1], 10 * MIB).unwrap();
        let request = async { pools[0].allocate(&streams[0], 4 * MIB).await };
        let mut tasks = [Woken::new(reservation.scope(request))];
        settle(&mut tasks);
        assert!(tasks[0].is_waiting());
        drop(taken);
        pass(&device, 10, us(20_000), &mut tasks);
        assert!(!tasks[0].is_waiting(), "virtual: {is_virtual}");
    }
}

/// In its scope, a reservation's own evictable memory is evicted for a request that it would serve: at once, for a request
/// that waits, and for one that is throttled. No other memory is.
#[test]
fn evictable_memory_of_a_reservation_serves_its_scope() {
    let tag = Tag::new("reservations: evictable in a scope");
    for is_throttled in [false, true] {
        let (_, pool, [(_, stream)]) = set_up_with(small);
        let reserve = |bytes| match is_throttled {
            true => pool.reserve(bytes).tag(tag).try_now().unwrap(),
            false => pool.reserve(bytes).try_now().unwrap(),
        };
        let (reservation, other) = (reserve(8 * MIB), reserve(8 * MIB));
        let allocate = |bytes| match is_throttled {
            true => pool.allocate(&stream, bytes).tag(tag),
            false => pool.allocate(&stream, bytes),
        };
        let elsewhere = other.allocate(&stream, 8 * MIB).unwrap().into_evictable();
        let pin = elsewhere.pin().unwrap();
        let _full = pool.try_allocate(&stream, 16 * MIB).unwrap();
        if is_throttled {
            pool.tag(tag).set_limit(Some(12 * MIB));
        }
        let evictable = |bytes| {
            reservation
                .allocate(&stream, bytes)
                .unwrap()
                .into_evictable()
        };

        // With the memory that is left; and a reservation of its own.
        let cached = evictable(4 * MIB);
        let block = now(Box::pin(
            reservation.scope(async { allocate(8 * MIB).try_now() }),
        ));
        drop(block.unwrap());
        assert!(!cached.is_present());
        let cached = evictable(4 * MIB);
        let nested = now(Box::pin(
            reservation.scope(async { pool.reserve(6 * MIB).await }),
        ));
        assert!(nested.is_ok() && !cached.is_present());
        drop(nested);

        // While the request waits, memory becomes evictable.
        let cached = evictable(4 * MIB);
        let pinned = cached.pin().unwrap();
        let (mut waiting, woken, waker) = not_ready_counted(Box::pin(
            reservation.scope(async { allocate(8 * MIB).await }),
        ));
        let before = woken.get();
        drop(pinned);
        assert!(woken.get() > before, "it is told");
        let served = poll_with(&mut waiting, &waker);
        assert_matches!(served, Poll::Ready(Ok(_)));
        assert!(!cached.is_present());
        drop((served, waiting));

        // Too little even so: nothing is evicted.
        let cached = evictable(4 * MIB);
        let held = reservation.allocate(&stream, 2 * MIB).unwrap();
        let refused = now(Box::pin(
            reservation.scope(async { allocate(8 * MIB).try_now() }),
        ));
        assert!(refused.is_err() && cached.is_present());
        drop((held, cached, pin, elsewhere, reservation, other, _full));
    }
}

/// A request that waited, and was served by its reservation in the end, counts as served. What it took is charged already: its
/// tag gets back what the request was charged.
#[test]
fn request_served_late_by_its_reservation_counts_as_served() {
    for is_nested in [false, true] {
        let (device, pool, [(_, stream)]) = set_up_with(small);
        let tag = Tag::new("reservations: served late");
        let used = || pool.tag(tag).statistics().used.current;
        let reservation = pool.reserve(8 * MIB).tag(tag).try_now().unwrap();
        let held = reservation.allocate(&stream, 8 * MIB).unwrap();
        let full = pool.try_allocate(&stream, 24 * MIB).unwrap();
        let waiting = not_ready(Box::pin(reservation.scope(async {
            match is_nested {
                true => drop(pool.reserve(8 * MIB).tag(tag).await.unwrap()),
                false => drop(pool.allocate(&stream, 8 * MIB).tag(tag).await.unwrap()),
            }
        })));
        device.advance(us(100));
        drop(held);
        now(waiting);
        assert_eq!(used(), 8 * MIB, "nested: {is_nested}");
        let waits = pool.inspect().statistics().waits;
        assert_eq!((waits.served, waits.unserved(), waits.waiting), (1, 0, 0));
        assert_eq!(waits.times.longest(), us(100));
        drop((reservation, full));
        assert_eq!(used(), 0);
    }
}

/// The request behind one that takes memory of a reservation, and leaves the queue, is served.
#[test]
fn request_behind_one_that_draws_is_served() {
    let (_, pool, [(_, stream)]) = set_up_with(small);
    let reservation = pool.reserve(8 * MIB).try_now().unwrap();
    let held = reservation.allocate(&stream, 8 * MIB).unwrap();
    let _full = pool.try_allocate(&stream, 22 * MIB).unwrap();
    let drawing = async { pool.allocate(&stream, 8 * MIB).await };
    let drawing = not_ready(Box::pin(reservation.scope(drawing)));
    let mut behind = Woken::new(pool.allocate_owned(&stream, 2 * MIB));
    behind.poll();
    assert!(behind.is_waiting());
    drop(held);
    let _drawn = now(drawing).unwrap();
    assert!(behind.is_woken());
    behind.poll();
    assert!(matches!(behind.output, Some(Ok(_))));
}

/// A request that fails as it draws from its reservation was not served, and its tag gets its bytes back.
#[test]
fn request_that_fails_to_draw_counts_as_failed() {
    let (device, pool, [(_, stream), (work, other)]) = set_up_with(small);
    let tag = Tag::new("reservations: fails to draw");
    let reservation = pool.reserve(8 * MIB).tag(tag).try_now().unwrap();
    let held = reservation.allocate(&other, 8 * MIB).unwrap();
    let _full = pool.try_allocate(&stream, 24 * MIB).unwrap();
    let waiting = not_ready(Box::pin(reservation.scope(async {
        let request = pool.allocate(&stream, 8 * MIB).tag(tag);
        request.await.map(drop)
    })));
    run(&work, us(100));
    device
        .faults()
        .script(Call::Wait, 1, Fault::Fails(DeviceErrorKind::Sticky));
    drop(held);
    assert_matches!(now(waiting), Err(AllocError::Device(_)));
    let waits = pool.inspect().statistics().waits;
    assert_eq!((waits.served, waits.unserved(), waits.waiting), (0, 1, 0));
    drop(reservation);
    assert_eq!(pool.tag(tag).statistics().used.current, 0);
}

/// A request in a scope that is polled late, after its timeout or a deadlock, is served if its reservation has memory for it.
#[test]
fn request_polled_late_is_served_by_its_reservation() {
    for fails_deadlocks in [false, true] {
        let device = manual();
        let builder = builder(&device, 16 * MIB);
        let pool = match fails_deadlocks {
            true => builder.fail_deadlocks_after(us(100)).made(),
            false => builder.made(),
        };
        let (_, stream) = stream(&device, &pool);
        let reservation = pool.reserve(8 * MIB).try_now().unwrap();
        let _full = pool.try_allocate(&stream, 8 * MIB).unwrap();
        let held = reservation.allocate(&stream, 8 * MIB).unwrap();
        let mut waiting = Woken::new(reservation.scope(async {
            let request = pool.allocate(&stream, 4 * MIB);
            match fails_deadlocks {
                true => request.await,
                false => request.timeout(us(100)).await,
            }
        }));
        drop(held);
        assert!(waiting.is_woken());
        for _ in 0..20 {
            device.advance(us(1000));
        }
        waiting.poll();
        assert_matches!(waiting.output, Some(Ok(_)));
        let waits = pool.inspect().statistics().waits;
        assert_eq!((waits.served, waits.unserved(), waits.waiting), (1, 0, 0));
    }
}

/// Memory that came back during a capture of the request's stream serves it when the capture ends.
#[test]
fn request_in_a_scope_is_told_of_the_end_of_a_capture() {
    let tag = Tag::new("reservations: capture");
    for (is_behind, is_throttled) in [(false, false), (true, false), (false, true)] {
        let (_, pool, [(_, captured), (_, other)]) =
            set_up_with(|device| builder(device, 16 * MIB));
        if is_throttled {
            pool.tag(tag).set_limit(Some(8 * MIB));
        }
        let reserve = pool.reserve(8 * MIB);
        let reservation = match is_throttled {
            true => reserve.tag(tag).try_now().unwrap(),
            false => reserve.try_now().unwrap(),
        };
        let _full = pool.try_allocate(&other, 8 * MIB).unwrap();
        let held = reservation.allocate(&other, 8 * MIB).unwrap();
        let _ahead = is_behind.then(|| Woken::new(pool.allocate_owned(&other, 8 * MIB)));
        let mut waiting = Woken::new(reservation.scope(async {
            let request = pool.allocate(&captured, 4 * MIB);
            match is_throttled {
                true => request.tag(tag).await,
                false => request.await,
            }
        }));
        let capture = pool.capture(&captured).unwrap();
        drop(held);
        waiting.poll_if_woken();
        assert!(
            waiting.is_waiting(),
            "the reservation is not drawn from in a capture"
        );
        drop(capture);
        while waiting.poll_if_woken() {}
        assert!(!waiting.is_waiting());
    }
}
