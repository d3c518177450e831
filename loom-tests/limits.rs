//! Limits of tags: who is let in, and who is not.

use super::*;
use loom::future::block_on;
use loom::thread;
use weirpool::{AllocError, Tag};

fn limited(device: &SimDevice, tag: Tag) -> Pool {
    let pool = pool(device);
    pool.tag(tag).set_limit(Some(MIB));
    pool
}

fn used(pool: &Pool, tag: Tag) -> u64 {
    pool.tag(tag).statistics().used.current
}

/// The last bytes of a tag are freed while a request of it finds them taken: it is let in.
#[test]
fn a_free_against_a_request_over_the_limit() {
    let tag = Tag::new("loom: let in");
    model("a free against a request over the limit", move || {
        let device = device();
        let pool = limited(&device, tag);
        let (_, a) = stream(&device, &pool);
        let block = pool.allocate(&a, MIB).tag(tag).try_now().unwrap();
        let freeing = thread::spawn(move || drop(block));
        drop(block_on(pool.allocate(&a, MIB).tag(tag)).unwrap());
        freeing.join().unwrap();
        assert_eq!(used(&pool, tag), 0);
        pool.check_conserved().unwrap();
    });
}

/// rmm#869: two requests that together are over the limit; never both have memory.
#[test]
fn two_requests_against_the_limit() {
    let tag = Tag::new("loom: together");
    model("two requests against the limit", move || {
        let device = device();
        let pool = limited(&device, tag);
        let (_, a) = stream(&device, &pool);
        let (_, b) = stream(&device, &pool);
        let other = {
            let pool = pool.clone();
            thread::spawn(move || pool.allocate(&b, MIB).tag(tag).try_now())
        };
        let one = pool.allocate(&a, MIB).tag(tag).try_now();
        let other = other.join().unwrap();
        let refused = [&one, &other]
            .into_iter()
            .filter_map(|got| got.as_ref().err());
        let refused: Vec<_> = refused.collect();
        assert!(refused.len() == 1, "one of them is within the limit");
        assert!(matches!(refused[0], AllocError::LimitReached { .. }));
        drop((one, other));
        assert_eq!(used(&pool, tag), 0);
    });
}

/// The first one at the quota queue gives up while the tag frees: the second is let in.
#[test]
fn giving_up_at_the_door_against_a_free() {
    let tag = Tag::new("loom: gives up");
    model("giving up at the door against a free", move || {
        let device = device();
        let pool = limited(&device, tag);
        let (_, a) = stream(&device, &pool);
        let block = pool.allocate(&a, MIB).tag(tag).try_now().unwrap();
        let mut first = pool.allocate(&a, MIB).tag(tag);
        assert!(poll(&mut first).is_pending());
        let mut second = pool.allocate(&a, MIB).tag(tag);
        assert!(poll(&mut second).is_pending());
        let freeing = thread::spawn(move || drop(block));
        drop(first);
        drop(block_on(second).unwrap());
        freeing.join().unwrap();
        assert_eq!(used(&pool, tag), 0);
        pool.check_conserved().unwrap();
    });
}

/// The limit is raised while a request finds it too low: it is let in.
#[test]
fn a_higher_limit_against_a_request() {
    let tag = Tag::new("loom: raised");
    model("a higher limit against a request", move || {
        let device = device();
        let pool = limited(&device, tag);
        let (_, a) = stream(&device, &pool);
        let block = pool.allocate(&a, MIB).tag(tag).try_now().unwrap();
        let raising = {
            let pool = pool.clone();
            thread::spawn(move || pool.tag(tag).set_limit(Some(2 * MIB)))
        };
        drop(block_on(pool.allocate(&a, MIB).tag(tag)).unwrap());
        raising.join().unwrap();
        drop(block);
        assert_eq!(used(&pool, tag), 0);
    });
}

/// The pool is closed while a request finds its limit reached: it fails, and does not sleep for ever.
#[test]
fn close_against_a_request_over_the_limit() {
    let tag = Tag::new("loom: closed");
    model("close against a request over the limit", move || {
        let device = device();
        let pool = limited(&device, tag);
        let (_, a) = stream(&device, &pool);
        let block = pool.allocate(&a, MIB).tag(tag).try_now().unwrap();
        let closing = {
            let pool = pool.clone();
            thread::spawn(move || pool.close())
        };
        let error = block_on(pool.allocate(&a, MIB).tag(tag)).unwrap_err();
        assert_eq!(error, AllocError::Closed);
        closing.join().unwrap();
        drop(block);
    });
}

/// A reservation ends while more is asked of it than it has: its tag has nothing in the end.
#[test]
fn the_end_of_a_reservation_against_a_draw_that_fails() {
    let tag = Tag::new("loom: reserved");
    model("the end of a reservation against a draw", move || {
        let device = device();
        let pool = pool(&device);
        let (_, a) = stream(&device, &pool);
        let reservation = pool.reserve(MIB).tag(tag).try_now().unwrap();
        let drawing = reservation.scope({
            let pool = pool.clone();
            async move { drop(pool.try_allocate(&a, 2 * MIB)) }
        });
        let drawing = thread::spawn(move || block_on(drawing));
        drop(reservation);
        drawing.join().unwrap();
        assert_eq!(used(&pool, tag), 0);
        pool.check_conserved().unwrap();
    });
}
