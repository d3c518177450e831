//! Draws from a reservation against events that return memory to it: a draw fails only if memory is missing.

use super::external::external;
use super::*;
use loom::thread;
use weirpool::{AllocError, Reservation, Source, WhenShort};

/// Creates a pool that makes streams wait for each other on the device.
fn waiting_pool(device: &SimDevice, capacity: u64) -> Pool {
    Pool::builder(device.clone())
        .capacity(capacity)
        .chunk_bytes(2 * MIB)
        .tuning(|tuning| {
            tuning.lane_bytes = 4096;
            tuning.when_short = WhenShort::GrowThenWait;
        })
        .build()
        .unwrap()
}

/// Draws all of a reservation, while another thread frees it. If the draw fails, the error says what is missing.
fn draw_all(reservation: &Reservation, stream: &Stream) {
    match reservation.allocate(stream, 2 * MIB) {
        Ok(block) => drop(block),
        Err(AllocError::NotReserved { left, .. }) => assert!(left < 2 * MIB, "{left} are left"),
        Err(error) => panic!("{error}"),
    }
}

/// Draws all of a reservation for `b`, while another thread frees it on `a`, whose work runs.
fn draw_while_freed(device: &SimDevice, pool: &Pool, (work, a): (&SimStream, &Stream), b: &Stream) {
    let reservation = pool.reserve(2 * MIB).try_now().unwrap();
    let block = reservation.allocate(a, 2 * MIB).unwrap();
    run(work, 10);
    let freeing = thread::spawn(move || drop(block));
    draw_all(&reservation, b);
    freeing.join().unwrap();
    drop(reservation.allocate(b, 2 * MIB).unwrap());
    drop(reservation);
    device.advance(Duration::from_micros(20));
    pool.inspect().check_conserved().unwrap();
}

/// A block of a reservation is freed while another is drawn.
#[test]
fn draw_against_a_free() {
    model("draw against a free", || {
        let device = device();
        let pool = waiting_pool(&device, 2 * MIB);
        let [(work, a), (_, b)] = streams(&device, &pool);
        draw_while_freed(&device, &pool, (&work, &a), &b);
    });
}

/// A reservation of which one stream holds a block of 4 KiB, which the reservation keeps once it is freed: it is not the
/// first.
fn with_block_to_keep(pool: &Pool, a: &Stream) -> (Reservation, Block) {
    let reservation = pool.reserve(2 * MIB).try_now().unwrap();
    drop(reservation.allocate(a, 4096).unwrap());
    let block = reservation.allocate(a, 4096).unwrap();
    (reservation, block)
}

/// A reservation keeps a freed block, while another stream draws all of its memory, and then the figures are read.
#[test]
fn kept_block_against_a_draw_and_figures() {
    model("kept block against a draw and figures", || {
        // With the checker, observers are told of each free, and nothing is kept.
        let device = unwatched();
        let pool = waiting_pool(&device, 2 * MIB);
        let [(work, a), (_, b)] = streams(&device, &pool);
        let (reservation, block) = with_block_to_keep(&pool, &a);
        run(&work, 10);
        let freeing = thread::spawn(move || drop(block));
        draw_all(&reservation, &b);
        let figures = pool.inspect().statistics();
        let counted = figures.used.current + figures.pending.current + figures.free;
        assert_eq!(counted, figures.reserved.current);
        freeing.join().unwrap();
        assert_eq!(pool.inspect().statistics().set_aside, 2 * MIB);
        drop(reservation.allocate(&a, 4096).unwrap());
        drop(reservation.allocate(&b, 2 * MIB).unwrap());
        drop(reservation);
        device.advance(Duration::from_micros(20));
        pool.inspect().check_conserved().unwrap();
    });
}

/// A reservation keeps a freed block, or ends before it does: in either case the pool gets the memory, and a request that
/// waits for all of it is served.
#[test]
fn kept_block_against_the_end_of_its_reservation() {
    model("kept block against the end of its reservation", || {
        // With the checker, observers are told of each free, and nothing is kept.
        let device = unwatched();
        let pool = waiting_pool(&device, 2 * MIB);
        let [(_, a), (_, b)] = streams(&device, &pool);
        let (reservation, block) = with_block_to_keep(&pool, &a);
        let freeing = thread::spawn(move || drop(block));
        drop(reservation);
        freeing.join().unwrap();
        drop(pool.try_allocate(&b, 2 * MIB).unwrap());
        pool.inspect().check_conserved().unwrap();
    });
}

/// Everything but a stream's own next draw finds the memory that a reservation keeps.
#[test]
fn kept_memory_is_found_by_every_other_look() {
    model("kept memory is found by every other look", || {
        let device = unwatched();
        let pool = waiting_pool(&device, 4 * MIB);
        let [(work, a), (_, b)] = streams(&device, &pool);
        let (mut reservation, block) = with_block_to_keep(&pool, &a);
        let address = block.address();
        drop(block);
        let again = |reservation: &Reservation| drop(reservation.allocate(&a, 4096).unwrap());
        let kept = reservation.allocate(&a, 4096).unwrap();
        assert_eq!((kept.address(), kept.source()), (address, Source::Lane));
        drop(kept);
        assert_eq!(reservation.left(), 2 * MIB);
        again(&reservation);
        again(&reservation);
        assert_eq!(pool.inspect().statistics().set_aside, 2 * MIB);
        again(&reservation);
        again(&reservation);
        let blocks = [(); 3].map(|()| reservation.allocate(&a, 4096).unwrap());
        run(&work, 10);
        drop(blocks);
        let before = device.now();
        let all = reservation.allocate(&b, 2 * MIB).unwrap();
        assert_eq!((all.source(), device.now()), (Source::DeviceWait, before));
        drop(all);
        again(&reservation);
        again(&reservation);
        let part = reservation.split(MIB).unwrap();
        assert_eq!((reservation.left(), part.left()), (MIB, MIB));
        again(&part);
        again(&part);
        again(&part);
        pool.inspect().check().unwrap();
        drop((part, reservation));
        device.advance(Duration::from_micros(20));
        drop(pool.try_allocate(&b, 4 * MIB).unwrap());
        pool.inspect().check_conserved().unwrap();
    });
}

/// A block on an external stream is freed while another is drawn. Only the freeing thread may record an event there.
#[test]
fn draw_against_a_free_on_an_external_stream() {
    model("draw against a free on an external stream", || {
        let device = device();
        let pool = waiting_pool(&device, 2 * MIB);
        let (work, a) = external(&device, &pool);
        let (_, b) = stream(&device, &pool);
        draw_while_freed(&device, &pool, (&work, &a), &b);
    });
}

/// The pieces of a reservation are exchanged for one block, and the rest of it returns. That rest is drawn meanwhile.
#[test]
fn draw_against_an_exchange() {
    model("draw against an exchange", || {
        let device = device();
        let pool = waiting_pool(&device, 6 * MIB);
        let [(_, a), (_, b)] = streams(&device, &pool);
        let reservation = pool.reserve(6 * MIB).try_now().unwrap();
        let [first, middle, last] = [(); 3].map(|()| reservation.allocate(&a, 2 * MIB).unwrap());
        drop((first, last));
        assert_eq!(reservation.left(), 4 * MIB);
        let reservation = Arc::new(reservation);
        let exchanging = {
            let reservation = reservation.clone();
            // Serves whole chunks, unless the other thread came first.
            thread::spawn(move || reservation.allocate(&a, 7 * MIB / 2).ok())
        };
        let part = reservation.allocate(&b, MIB / 2);
        let whole = exchanging.join().unwrap();
        assert!(part.is_ok(), "{part:?} beside {whole:?}");
        drop((part, whole, middle, reservation));
        pool.inspect().check_conserved().unwrap();
    });
}

/// The stream that freed the drawn memory is dropped once its work is complete, while another thread polls its events.
/// An earlier bug of this kind needed three preemptions.
#[test]
fn draw_against_the_end_of_a_stream() {
    model("draw against the end of a stream", || {
        let device = device();
        let pool = waiting_pool(&device, 2 * MIB);
        let [(work, a), (_, b)] = streams(&device, &pool);
        let reservation = pool.reserve(2 * MIB).try_now().unwrap();
        let block = reservation.allocate(&a, 2 * MIB).unwrap();
        run(&work, 10);
        drop(block);
        a.seal().unwrap();
        let asking = {
            let pool = pool.clone();
            let device = device.clone();
            thread::spawn(move || {
                device.advance(Duration::from_micros(20));
                pool.maintain().reap().unwrap();
            })
        };
        let drawing = {
            let pool = pool.clone();
            thread::spawn(move || {
                drop(reservation.allocate(&b, 2 * MIB).unwrap());
                drop((reservation, b, pool));
            })
        };
        drop(a);
        asking.join().unwrap();
        drawing.join().unwrap();
        pool.inspect().check_conserved().unwrap();
    });
}

/// A block of a reservation is freed while the reservation ends, and a request waits for all of it. Whichever of the
/// two makes the memory available wakes the waiter.
#[test]
fn free_to_a_reservation_against_its_end() {
    model("free to a reservation against its end", || {
        let device = device();
        let pool = waiting_pool(&device, 2 * MIB);
        let [(_, a), (_, b)] = streams(&device, &pool);
        let reservation = pool.reserve(2 * MIB).try_now().unwrap();
        let block = reservation.allocate(&a, 2 * MIB).unwrap();
        let mut reclaimer = pool.maintain().reclaimer();
        assert!(Pin::new(&mut reclaimer).poll_once().is_pending());
        let (woken, waker) = Count::new();
        let mut waiting = pool.allocate(&b, 2 * MIB);
        assert!(poll_with(&mut waiting, &waker).is_pending());
        let freeing = thread::spawn(move || drop(block));
        drop(reservation);
        freeing.join().unwrap();
        assert!(woken.take() > 0);
        assert!(Pin::new(&mut reclaimer).poll_once().is_pending());
        assert!(poll(&mut waiting).is_ready());
        drop(waiting);
        pool.inspect().check_conserved().unwrap();
    });
}

/// Memory of a reservation becomes evictable while the reservation ends: it serves any request then.
#[test]
fn evictable_block_against_the_end_of_its_reservation() {
    model("evictable block against the end of its reservation", || {
        let device = device();
        let pool = waiting_pool(&device, 2 * MIB);
        let [(_, a), (_, b)] = streams(&device, &pool);
        let reservation = pool.reserve(2 * MIB).try_now().unwrap();
        let block = reservation.allocate(&a, 2 * MIB).unwrap();
        let ending = thread::spawn(move || drop(reservation));
        let evictable = block.into_evictable();
        ending.join().unwrap();
        drop(pool.try_allocate(&b, 2 * MIB).unwrap());
        assert!(!evictable.is_present());
        pool.inspect().check_conserved().unwrap();
    });
}

/// A reservation and the one that it was taken from end at the same time. The memory of the inner one serves any request
/// then.
#[test]
fn ends_of_nested_reservations_with_an_evictable_block() {
    model(
        "ends of nested reservations with an evictable block",
        || {
            let device = device();
            let pool = waiting_pool(&device, 2 * MIB);
            let [(_, a), (_, b)] = streams(&device, &pool);
            let outer = pool.reserve(2 * MIB).try_now().unwrap();
            let nested = outer.scope(async { pool.reserve(2 * MIB).try_now() });
            let inner = loom::future::block_on(nested).unwrap();
            let evictable = inner.allocate(&a, 2 * MIB).unwrap().into_evictable();
            let ending = thread::spawn(move || drop(inner));
            drop(outer);
            ending.join().unwrap();
            drop(pool.try_allocate(&b, 2 * MIB).unwrap());
            assert!(!evictable.is_present());
            pool.inspect().check_conserved().unwrap();
        },
    );
}
