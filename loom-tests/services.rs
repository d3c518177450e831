//! Draining, admission, stalled requests, priorities, and reservations.

use super::*;
use loom::future::block_on;
use loom::thread;
use std::future::poll_fn;
use std::sync::Mutex;
use weirpool::{AllocError, AllocateOwned, Overtaking, Tag};

/// A free finds the gate open, or notifies the queue. The drain learns of the last block.
#[test]
fn drain_against_a_free() {
    model("drain against a free", || {
        let (_, pool, [(_, a)]) = start();
        let block = pool.try_allocate(&a, 4096).unwrap();
        let freeing = thread::spawn(move || drop(block));
        block_on(pool.drain()).unwrap();
        freeing.join().unwrap();
        // The gate is open again, so the lane keeps the freed block.
        drop(pool.try_allocate(&a, 4096).unwrap());
        let again = pool.try_allocate(&a, 4096).unwrap();
        assert_eq!(again.source(), weirpool::Source::Lane);
        drop(again);
        pool.inspect().check_conserved().unwrap();
    });
}

/// One drain is awaited while another is dropped. The gate is right for each.
#[test]
fn two_drains_against_a_free() {
    model("two drains against a free", || {
        let (_, pool, [(_, a)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let mut dropped = pool.drain();
        assert!(Pin::new(&mut dropped).poll_once().is_pending());
        let other = thread::spawn(move || {
            drop(dropped);
            drop(block);
        });
        block_on(pool.drain()).unwrap();
        other.join().unwrap();
        pool.inspect().check_conserved().unwrap();
    });
}

/// Awaits a request, and frees memory once the request has stalled.
fn relieved(mut request: AllocateOwned, held: &Mutex<Option<Block>>) -> Result<Block, AllocError> {
    block_on(poll_fn(|context| {
        loop {
            if let Poll::Ready(answer) = Pin::new(&mut request).poll(context) {
                return Poll::Ready(answer);
            }
            if Pin::new(&mut request).poll_stalled(context).is_pending() {
                return Poll::Pending;
            }
            let freed = held.lock().unwrap().take();
            drop(freed);
        }
    }))
}

/// A request becomes the head while another thread cancels the head. It is told that it stalls.
#[test]
fn stall_against_a_cancelled_head() {
    model("stall against a cancelled head", || {
        let device = device();
        let pool = builder(&device).build().unwrap();
        let [(_, a), (_, b)] = streams(&device, &pool);
        let held = pool.try_allocate(&a, 2 * MIB).unwrap();
        let held = Mutex::new(Some(held));
        let mut head = pool.allocate(&a, 2 * MIB);
        assert!(poll(&mut head).is_pending());
        let second = {
            let pool = pool.clone();
            thread::spawn(move || drop(relieved(pool.allocate_owned(&b, 2 * MIB), &held).unwrap()))
        };
        drop(head);
        second.join().unwrap();
        assert_eq!(pool.inspect().statistics().waits.waiting, 0);
        pool.inspect().check_conserved().unwrap();
    });
}

/// A request becomes the first at the limit of its tag while another thread cancels the first.
#[test]
fn stall_against_a_cancelled_request_at_the_limit() {
    model("stall against a cancelled request at the limit", || {
        let device = device();
        let pool = builder(&device).build().unwrap();
        let (_, a) = stream(&device, &pool);
        let tag = Tag::new("loom: a stalled tenant");
        pool.tag(tag).set_limit(Some(MIB));
        let held = pool.allocate(&a, MIB).tag(tag).try_now().unwrap();
        let held = Mutex::new(Some(held));
        let mut first = pool.allocate(&a, MIB).tag(tag);
        assert!(poll(&mut first).is_pending());
        let second = {
            let (pool, a) = (pool.clone(), a.clone());
            thread::spawn(move || {
                drop(relieved(pool.allocate_owned(&a, MIB).tag(tag), &held).unwrap())
            })
        };
        drop(first);
        second.join().unwrap();
        assert_eq!(pool.inspect().statistics().waits.waiting, 0);
        pool.inspect().check_conserved().unwrap();
    });
}

/// A request that comes before another leaves. The stall of the other one was not told while it was not the head.
#[test]
fn stall_against_a_request_that_overtakes() {
    model("stall against a request that overtakes", || {
        let device = device();
        let pool = builder(&device).build().unwrap();
        let [(_, a), (_, b)] = streams(&device, &pool);
        let held = pool.try_allocate(&a, 2 * MIB).unwrap();
        let held = Mutex::new(Some(held));
        let mut other = pool.allocate_owned(&b, 2 * MIB);
        let context = &mut Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut other).poll_stalled(context).is_pending());
        assert!(Pin::new(&mut other).poll(context).is_pending());
        let other = thread::spawn(move || drop(relieved(other, &held).unwrap()));
        let mut urgent = pool.allocate(&a, 2 * MIB).priority(1);
        let polled = poll(&mut urgent);
        drop((polled, urgent));
        other.join().unwrap();
        assert_eq!(pool.inspect().statistics().waits.waiting, 0);
        pool.inspect().check_conserved().unwrap();
    });
}

/// Memory comes back, or the pool is closed, while a request looks whether it stalls.
#[test]
fn stall_against_a_free_and_a_close() {
    model("stall against a free and a close", || {
        let device = device();
        let pool = builder(&device).build().unwrap();
        let (_, a) = stream(&device, &pool);
        let held = pool.try_allocate(&a, 2 * MIB).unwrap();
        let ending = {
            let pool = pool.clone();
            thread::spawn(move || {
                drop(held);
                pool.close();
            })
        };
        match relieved(pool.allocate_owned(&a, 2 * MIB), &Mutex::new(None)) {
            Ok(block) => drop(block),
            Err(error) => assert_eq!(error, AllocError::Closed),
        }
        ending.join().unwrap();
        assert_eq!(pool.inspect().statistics().waits.waiting, 0);
        pool.inspect().check_conserved().unwrap();
    });
}

/// Two requests join a queue that is limited to one. Never do both wait, and never are both refused.
#[test]
fn two_joiners_against_the_queue_limit() {
    model("two joiners against the queue limit", || {
        let device = device();
        let pool = builder(&device).queue_limit(1).build().unwrap();
        let [(_, a), (_, b)] = streams(&device, &pool);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let other = {
            let pool = pool.clone();
            thread::spawn(move || block_on(pool.allocate(&b, MIB)))
        };
        let mut mine = pool.allocate(&a, MIB);
        let polled = poll(&mut mine);
        if polled.is_pending() {
            assert_eq!(
                pool.inspect().statistics().waits.waiting,
                1,
                "the other is not admitted as well"
            );
        }
        drop(block);
        let mine = match polled {
            Poll::Pending => block_on(mine),
            Poll::Ready(got) => got,
        };
        let answers = [mine, other.join().unwrap()];
        let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
        let refused: Vec<_> = refused.collect();
        assert!(refused.len() <= 1, "neither was admitted: {refused:?}");
        for error in refused {
            assert!(matches!(error, AllocError::QueueFull(full) if full.waiting == 1));
        }
        drop(answers);
        pool.inspect().check_conserved().unwrap();
    });
}

/// A request with priority arrives together with the memory. One of the two requests gets it, and then the other.
#[test]
fn priority_against_a_grant() {
    model("priority against a grant", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        let mut plain = pool.allocate(&a, 2 * MIB);
        assert!(poll(&mut plain).is_pending());
        let urgent = {
            let pool = pool.clone();
            thread::spawn(move || drop(block_on(pool.allocate(&b, 2 * MIB).priority(1)).unwrap()))
        };
        drop(block);
        drop(block_on(plain).unwrap());
        urgent.join().unwrap();
        pool.inspect().check_conserved().unwrap();
    });
}

/// Two small requests try to overtake the head at once, and one may.
#[test]
fn two_overtakers_against_the_bound() {
    model("two overtakers against the bound", || {
        let device = device();
        let bound = Overtaking {
            times: 1,
            bytes: MIB,
        };
        let pool = builder(&device)
            .tuning(|tuning| tuning.overtaking = bound)
            .build()
            .unwrap();
        let [(_, a), (_, b)] = streams(&device, &pool);
        let held = pool.try_allocate(&a, MIB).unwrap();
        let mut head = pool.allocate(&a, 2 * MIB);
        assert!(poll(&mut head).is_pending());
        let passed = |polled: &Poll<_>| u32::from(polled.is_ready());
        let other = {
            let pool = pool.clone();
            thread::spawn(move || {
                let mut small = pool.allocate(&b, MIB / 2);
                let polled = poll(&mut small);
                passed(&polled)
            })
        };
        let mut small = pool.allocate(&a, MIB / 2);
        let mine = poll(&mut small);
        let passed = passed(&mine) + other.join().unwrap();
        assert!(passed <= 1, "the head was passed twice");
        drop((mine, small, held));
        drop(block_on(head).unwrap());
        pool.inspect().check_conserved().unwrap();
    });
}

/// A block of a reservation is freed while the reservation ends. No memory of either is lost.
#[test]
fn end_of_a_reservation_against_a_free() {
    model("end of a reservation against a free", || {
        let (_, pool, [(_, a)]) = start();
        let reservation = block_on(pool.reserve(2 * MIB)).unwrap();
        let block = reservation.allocate(&a, MIB).unwrap();
        let freeing = thread::spawn(move || drop(block));
        drop(reservation);
        drop(block_on(pool.allocate(&a, 2 * MIB)).unwrap());
        freeing.join().unwrap();
        pool.inspect().check_conserved().unwrap();
    });
}

/// A task draws from a reservation that ends meanwhile. It gets memory from the reservation or from the pool.
#[test]
fn end_of_a_reservation_against_a_draw() {
    model("end of a reservation against a draw", || {
        let (_, pool, [(_, a)]) = start();
        let reservation = block_on(pool.reserve(2 * MIB)).unwrap();
        let drawing = {
            let (pool, a) = (pool.clone(), a.clone());
            let draw = async move { drop(pool.allocate(&a, 2 * MIB).await.unwrap()) };
            let scope = reservation.scope(draw);
            thread::spawn(move || block_on(scope))
        };
        drop(reservation);
        drawing.join().unwrap();
        drop(pool.try_allocate(&a, 2 * MIB).unwrap());
        pool.inspect().check_conserved().unwrap();
    });
}
