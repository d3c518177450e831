//! Draws from a reservation against whatever gives it memory back: a draw is refused only for want of memory.

use super::external::external;
use super::*;
use loom::thread;
use weirpool::{AllocError, Reservation, WaitLimit};

/// Streams are made to wait for each other.
fn waiting_pool(device: &SimDevice, capacity: u64) -> Pool {
    Pool::builder(device.clone())
        .capacity(capacity)
        .chunk_bytes(2 * MIB)
        .lane_bytes(4096)
        .wait_limit(WaitLimit::Unlimited)
        .build()
        .unwrap()
}

/// All of a reservation, which somebody else frees meanwhile. If it is not there, that is what the error says.
fn draw_all(reservation: &Reservation, stream: &Stream) {
    match reservation.allocate(stream, 2 * MIB) {
        Ok(block) => drop(block),
        Err(AllocError::NotReserved { left, .. }) => assert!(left < 2 * MIB, "{left} are left"),
        Err(error) => panic!("{error}"),
    }
}

/// A block of a reservation is freed while another is allocated of it.
#[test]
fn a_draw_against_a_free() {
    model("a draw against a free", || {
        let device = device();
        let pool = waiting_pool(&device, 2 * MIB);
        let (work, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
        let reservation = pool.reserve(2 * MIB).try_now().unwrap();
        let block = reservation.allocate(&a, 2 * MIB).unwrap();
        run(&work, 10);
        let freeing = thread::spawn(move || drop(block));
        draw_all(&reservation, &b);
        freeing.join().unwrap();
        drop(reservation.allocate(&b, 2 * MIB).unwrap());
        drop(reservation);
        device.advance(Duration::from_micros(20));
        pool.check_conserved().unwrap();
    });
}

/// The same on a stream of somebody else's, on which nobody but who frees may record an event.
#[test]
fn a_draw_against_a_free_on_an_external_stream() {
    model("a draw against a free on an external stream", || {
        let device = device();
        let pool = waiting_pool(&device, 2 * MIB);
        let (work, a) = external(&device, &pool);
        let (_, b) = stream(&device, &pool);
        let reservation = pool.reserve(2 * MIB).try_now().unwrap();
        let block = reservation.allocate(&a, 2 * MIB).unwrap();
        run(&work, 10);
        let freeing = thread::spawn(move || drop(block));
        draw_all(&reservation, &b);
        freeing.join().unwrap();
        drop(reservation.allocate(&b, 2 * MIB).unwrap());
        drop(reservation);
        device.advance(Duration::from_micros(20));
        pool.check_conserved().unwrap();
    });
}

/// What is left is exchanged for one piece, of which a part comes back; that part is drawn meanwhile.
#[test]
fn a_draw_against_an_exchange() {
    model("a draw against an exchange", || {
        let device = device();
        let pool = waiting_pool(&device, 6 * MIB);
        let (_, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
        let reservation = pool.reserve(6 * MIB).try_now().unwrap();
        let [first, middle, last] = [(); 3].map(|()| reservation.allocate(&a, 2 * MIB).unwrap());
        drop((first, last));
        assert_eq!(reservation.left(), 4 * MIB);
        let reservation = Arc::new(reservation);
        let exchanging = {
            let reservation = reservation.clone();
            // Whole handles, unless the other came first.
            thread::spawn(move || reservation.allocate(&a, 7 * MIB / 2).ok())
        };
        let part = reservation.allocate(&b, MIB / 2);
        let whole = exchanging.join().unwrap();
        assert!(part.is_ok(), "{part:?} beside {whole:?}");
        drop((part, whole, middle, reservation));
        pool.check_conserved().unwrap();
    });
}

/// The stream goes that freed what is drawn, once its work is over, while somebody asks how far it is. What was wrong
/// once took three preemptions to be seen.
#[test]
fn a_draw_against_the_end_of_a_stream() {
    model("a draw against the end of a stream", || {
        let device = device();
        let pool = waiting_pool(&device, 2 * MIB);
        let (work, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
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
                pool.reap().unwrap();
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
        pool.check_conserved().unwrap();
    });
}

/// A block of a reservation is freed while the reservation ends, and somebody waits for all of it: who of the two
/// makes it anybody's says so.
#[test]
fn a_free_to_a_reservation_against_its_end() {
    model("a free to a reservation against its end", || {
        let device = device();
        let pool = waiting_pool(&device, 2 * MIB);
        let (_, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
        let reservation = pool.reserve(2 * MIB).try_now().unwrap();
        let block = reservation.allocate(&a, 2 * MIB).unwrap();
        let mut reclaimer = pool.reclaimer();
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
        pool.check_conserved().unwrap();
    });
}
