//! Figures, while the counted memory changes hands.

use super::*;
use loom::thread;
use weirpool::Tag;

/// A block is allocated by one thread and freed by another, each of which counts in a shard of its own, while a third
/// reads the figures: never more frees than allocations, and never a sum that is off.
#[test]
fn statistics_are_consistent_while_a_block_changes_threads() {
    model(
        "statistics are consistent while a block changes threads",
        || {
            let device = device();
            let pool = Pool::builder(device.clone())
                .capacity(2 * MIB)
                .chunk_bytes(2 * MIB)
                .build()
                .unwrap();
            let (_, stream) = stream(&device, &pool);
            weirpool::testing::give_threads_caches(&stream);
            // Cached by this thread's shard: it is allocated again without the heap's lock.
            drop(pool.try_allocate(&stream, 4096).unwrap());
            let handed_on = loom::sync::Arc::new(loom::sync::Mutex::new(None));
            // There are two shards: this thread and the second one share one, the first one has the other.
            let freeing = {
                let handed_on = handed_on.clone();
                thread::spawn(move || drop(handed_on.lock().unwrap().take()))
            };
            let allocating = {
                let (pool, handed_on) = (pool.clone(), handed_on.clone());
                thread::spawn(move || {
                    let block = pool.try_allocate(&stream, 4096).unwrap();
                    *handed_on.lock().unwrap() = Some(block);
                })
            };
            let figures = pool.inspect().statistics();
            assert!(figures.frees <= figures.allocations, "{figures}");
            assert_eq!(figures.live_blocks, figures.allocations - figures.frees);
            let sum =
                figures.free + figures.used.current + figures.pending.current + figures.moving;
            assert_eq!(sum, figures.reserved.current, "{figures}");
            allocating.join().unwrap();
            freeing.join().unwrap();
            drop(handed_on.lock().unwrap().take());
            let figures = pool.inspect().statistics();
            assert_eq!((figures.allocations, figures.frees), (2, 2));
            pool.inspect().check_conserved().unwrap();
        },
    );
}

/// A stream goes while a scope begins: its counts move to those of gone streams, and are seen in one of the two.
#[test]
fn a_scope_against_a_stream_that_goes() {
    model("a scope against a stream that goes", || {
        let (_, pool, [(_, a), (_, b)]) = start();
        drop(pool.try_allocate(&a, 4096).unwrap());
        let going = {
            let pool = pool.clone();
            thread::spawn(move || {
                drop(a);
                pool.maintain().reap().unwrap();
            })
        };
        // Boxed: a model has a small stack.
        let scope = Box::new(pool.inspect().statistics_scope());
        drop(pool.try_allocate(&b, 4096).unwrap());
        let during = Box::new(scope.read());
        assert_eq!((during.allocations, during.frees), (1, 1));
        drop(during);
        going.join().unwrap();
        let after = Box::new(scope.end());
        assert_eq!((after.allocations, after.frees), (1, 1));
        assert_eq!((after.allocated, after.retained()), (4096, 0));
        assert!(after.used.high >= 4096);
        drop(after);
        let all = Box::new(pool.inspect().statistics());
        assert_eq!((all.allocations, all.frees, all.live_blocks), (2, 2, 0));
        pool.inspect().check_conserved().unwrap();
    });
}

/// A tagged request is given up while its grant comes: the account is charged and credited for the memory that was
/// taken, and for nothing else.
#[test]
fn a_tags_account_against_a_cancel() {
    model("a tags account against a cancel", || {
        let device = device();
        let pool = pool(&device);
        let tag = Tag::new("modelled");
        let [(_, a), (_, b)] = streams(&device, &pool);
        let block = pool.allocate(&a, 2 * MIB).tag(tag).try_now().unwrap();
        let waiting = {
            let pool = pool.clone();
            thread::spawn(move || {
                let mut waiting = pool.allocate(&b, 2 * MIB).tag(tag);
                match poll(&mut waiting) {
                    Poll::Ready(taken) => u64::from(taken.is_ok()),
                    Poll::Pending => 0,
                }
            })
        };
        drop(block);
        let taken = waiting.join().unwrap();
        let figures = pool.tag(tag).statistics();
        assert_eq!(figures.used.current, 0);
        assert_eq!((figures.allocations, figures.frees), (1 + taken, 1 + taken));
        assert_eq!(figures.waits.waiting, 0);
        pool.inspect().check_conserved().unwrap();
    });
}
