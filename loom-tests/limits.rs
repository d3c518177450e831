//! Limits of tags: which requests are admitted.

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

/// The last bytes of a tag are freed while a request of the tag finds its limit reached. The request is granted.
#[test]
fn free_against_a_request_over_the_limit() {
    let tag = Tag::new("loom: granted");
    model("free against a request over the limit", move || {
        let device = device();
        let pool = limited(&device, tag);
        let (_, a) = stream(&device, &pool);
        let block = pool.allocate(&a, MIB).tag(tag).try_now().unwrap();
        let freeing = thread::spawn(move || drop(block));
        drop(block_on(pool.allocate(&a, MIB).tag(tag)).unwrap());
        freeing.join().unwrap();
        assert_eq!(used(&pool, tag), 0);
        pool.inspect().check_conserved().unwrap();
    });
}

/// The last bytes of a tag are freed into the stream's cache at once while a request of the tag finds its limit reached. The
/// request is granted.
#[test]
fn free_into_the_cache_against_a_request_over_the_limit() {
    const BYTES: u64 = 4096;
    let tag = Tag::new("loom: cached");
    model(
        "free into the cache against a request over the limit",
        move || {
            let device = unwatched();
            let pool = limited(&device, tag);
            pool.tag(tag).set_limit(Some(BYTES));
            let (_, a) = stream(&device, &pool);
            let allocate = || pool.allocate(&a, BYTES).tag(tag);
            // Afterwards there is room in the cache.
            drop(allocate().try_now().unwrap());
            let block = allocate().try_now().unwrap();
            let freeing = thread::spawn(move || drop(block));
            drop(block_on(allocate()).unwrap());
            freeing.join().unwrap();
            assert_eq!(used(&pool, tag), 0);
            pool.inspect().check_conserved().unwrap();
        },
    );
}

/// Two requests that together exceed the limit never both get memory (rmm#869).
#[test]
fn two_requests_against_the_limit() {
    let tag = Tag::new("loom: together");
    model("two requests against the limit", move || {
        let device = device();
        let pool = limited(&device, tag);
        let [(_, a), (_, b)] = streams(&device, &pool);
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

/// The last request of a tag is displaced by another tag's while memory is freed that it may be granted. It is granted or
/// fails, and the others are granted.
#[test]
fn displaced_request_against_a_grant() {
    let [flooding, other] = ["loom: flooding", "loom: other"].map(Tag::new);
    model("displaced request against a grant", move || {
        let device = device();
        let pool = builder(&device).queue_limit(2).build().unwrap();
        let (_, a) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let wait = || {
            let mut request = pool.allocate_owned(&a, MIB).tag(flooding);
            assert!(poll(&mut request).is_pending());
            request
        };
        let (first, last) = (wait(), wait());
        let serving = thread::spawn(move || {
            drop(block);
            drop(block_on(first).unwrap());
        });
        drop(block_on(pool.allocate(&a, MIB).tag(other)).unwrap());
        let last = block_on(last);
        assert!(
            matches!(&last, Ok(_) | Err(AllocError::QueueFull(_))),
            "{last:?}"
        );
        drop(last);
        serving.join().unwrap();
        assert_eq!(used(&pool, flooding), 0);
        pool.inspect().check_conserved().unwrap();
    });
}

/// The first throttled request is dropped while the tag frees. The second one is granted.
#[test]
fn cancelled_throttled_request_against_a_free() {
    let tag = Tag::new("loom: gives up");
    model("cancelled throttled request against a free", move || {
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
        pool.inspect().check_conserved().unwrap();
    });
}

/// Memory is freed while the only request that waits for memory gives up. A throttled request that is let in afterwards
/// is woken.
#[test]
fn change_against_the_end_of_the_queue() {
    let tag = Tag::new("loom: let in later");
    model("change against the end of the queue", move || {
        let device = device();
        let pool = limited(&device, tag);
        let (_, a) = stream(&device, &pool);
        let other = pool.try_allocate(&a, MIB).unwrap();
        let block = pool.allocate(&a, MIB).tag(tag).try_now().unwrap();
        let (woken, waker) = Count::new();
        let mut throttled = pool.allocate(&a, MIB).tag(tag);
        assert!(poll_with(&mut throttled, &waker).is_pending());
        let mut queued = pool.allocate(&a, MIB);
        assert!(poll(&mut queued).is_pending());
        let freeing = thread::spawn(move || drop(other));
        drop(queued);
        freeing.join().unwrap();
        drop(block);
        assert!(woken.take() > 0);
        assert!(poll_with(&mut throttled, &waker).is_ready());
        drop(throttled);
        assert_eq!(used(&pool, tag), 0);
        pool.inspect().check_conserved().unwrap();
    });
}

/// One block of a tag is freed while another one becomes evictable. Only both together are enough for a throttled
/// request, which is woken.
#[test]
fn free_against_a_block_that_becomes_evictable() {
    let tag = Tag::new("loom: evicted");
    model("free against a block that becomes evictable", move || {
        let device = device();
        let pool = limited(&device, tag);
        let (_, a) = stream(&device, &pool);
        let allocate = |bytes| pool.allocate(&a, bytes).tag(tag);
        let [freed, evicted] = [(); 2].map(|()| allocate(MIB / 2).try_now().unwrap());
        let (woken, waker) = Count::new();
        let mut throttled = allocate(MIB);
        assert!(poll_with(&mut throttled, &waker).is_pending());
        let freeing = thread::spawn(move || drop(freed));
        let evictable = evicted.into_evictable();
        freeing.join().unwrap();
        assert!(woken.take() > 0);
        assert!(!evictable.is_present());
        assert!(poll_with(&mut throttled, &waker).is_ready());
        drop(throttled);
        assert_eq!(used(&pool, tag), 0);
        pool.inspect().check_conserved().unwrap();
    });
}

/// The limit is raised while a request finds it too low. The request is granted.
#[test]
fn raised_limit_against_a_request() {
    let tag = Tag::new("loom: raised");
    model("raised limit against a request", move || {
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

/// The limit is lowered below a request's size while memory is freed for it. It is granted or fails, and is counted once,
/// as that.
#[test]
fn lowered_limit_against_a_grant() {
    let tag = Tag::new("loom: lowered");
    model("lowered limit against a grant", move || {
        let device = device();
        let pool = limited(&device, tag);
        let (_, a) = stream(&device, &pool);
        let [freed, held] = [(); 2].map(|()| pool.try_allocate(&a, MIB).unwrap());
        let mut request = pool.allocate(&a, MIB).tag(tag);
        assert!(poll(&mut request).is_pending());
        let serving = {
            let pool = pool.clone();
            thread::spawn(move || {
                drop(freed);
                // Serves the request.
                let _ = pool.resize(2 * MIB).unwrap();
            })
        };
        pool.tag(tag).set_limit(Some(MIB / 2));
        let is_served = match block_on(request) {
            Ok(_) => 1,
            Err(error) => {
                assert!(matches!(error, AllocError::OverLimit { .. }));
                0
            }
        };
        serving.join().unwrap();
        let waits = Box::new(pool.inspect().statistics().waits);
        let counts = (waits.waiting, waits.served, waits.failed, waits.cancelled);
        assert_eq!(counts, (0, is_served, 1 - is_served, 0));
        drop(held);
        assert_eq!(used(&pool, tag), 0);
        pool.inspect().check_conserved().unwrap();
    });
}

/// The pool is closed while a request finds its limit reached. The request fails rather than sleeps for ever.
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

/// A reservation ends while a draw exceeds it. In the end its tag holds nothing.
#[test]
fn end_of_a_reservation_against_a_failing_draw() {
    let tag = Tag::new("loom: reserved");
    model("end of a reservation against a failing draw", move || {
        let (_, pool, [(_, a)]) = start();
        let reservation = pool.reserve(MIB).tag(tag).try_now().unwrap();
        let drawing = reservation.scope({
            let pool = pool.clone();
            async move { drop(pool.try_allocate(&a, 2 * MIB)) }
        });
        let drawing = thread::spawn(move || block_on(drawing));
        drop(reservation);
        drawing.join().unwrap();
        assert_eq!(used(&pool, tag), 0);
        pool.inspect().check_conserved().unwrap();
    });
}
