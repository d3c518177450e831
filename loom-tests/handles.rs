//! A stream's last handle, and the counts that freed blocks leave with the stream: nothing of it is left in the end.

use super::*;
use loom::thread;
use std::any::Any;
use weirpool::device::{DeviceId, DeviceStream, RawStream};

const SMALL: u64 = 4096;

/// A stream of which can be seen whether the pool has let it go.
struct Watched(SimStream, Arc<()>);

impl DeviceStream for Watched {
    fn device_id(&self) -> DeviceId {
        self.0.device_id()
    }

    fn raw(&self) -> RawStream {
        self.0.raw()
    }

    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::new((self.0.keep_alive(), self.1.clone()))
    }
}

/// A pool and a stream, with a block of it that is used and one that was freed.
struct World {
    pool: Pool,
    stream: Stream,
    block: Block,
    alive: std::sync::Weak<()>,
}

impl World {
    fn new() -> Self {
        let device = unwatched();
        let pool = pool_keeping(&device, 2 * SMALL);
        let watched = Watched(device.create_stream(), Arc::new(()));
        let stream = pool.register(&watched).unwrap();
        let take = || pool.try_allocate(&stream, SMALL).unwrap();
        // The first of a size have no place in the lane yet, and leave nothing.
        drop((take(), take()));
        let (block, freed) = (take(), take());
        drop(freed);
        Self {
            pool,
            stream,
            block,
            alive: Arc::downgrade(&watched.1),
        }
    }
}

fn assert_gone(pool: &Pool, alive: &std::sync::Weak<()>) {
    pool.harvest().unwrap();
    assert!(alive.upgrade().is_none(), "the stream is kept");
    pool.check_conserved().unwrap();
}

/// A block is freed while the last handle goes: its count is let go with what was left, or is its own to drop.
#[test]
fn the_last_handle_against_a_free() {
    model("the last handle against a free", || {
        let World {
            pool,
            stream,
            block,
            alive,
        } = World::new();
        let freeing = thread::spawn(move || drop(block));
        drop(stream);
        freeing.join().unwrap();
        assert_gone(&pool, &alive);
    });
}

/// The same while one more is granted, with the count that was left or with one of its own, and freed after the handle
/// is gone.
#[test]
fn a_grant_against_a_free_and_the_last_handle() {
    model("a grant against a free and the last handle", || {
        let World {
            pool,
            stream,
            block,
            alive,
        } = World::new();
        let freeing = thread::spawn(move || drop(block));
        let granted = pool.try_allocate(&stream, SMALL).unwrap();
        drop(stream);
        drop(granted);
        freeing.join().unwrap();
        assert_gone(&pool, &alive);
    });
}

/// Two handles go at once, each after a free.
#[test]
fn two_last_handles_with_a_free_each() {
    model("two last handles with a free each", || {
        let World {
            pool,
            stream,
            block,
            alive,
        } = World::new();
        let other = stream.clone();
        let leaving = thread::spawn(move || drop((block, other)));
        drop(stream);
        leaving.join().unwrap();
        assert_gone(&pool, &alive);
    });
}

/// A handle is made from a block while the last other one goes: counts are left while it is there, and not after.
#[test]
fn a_handle_from_a_block_against_the_last_one() {
    model("a handle from a block against the last one", || {
        let World {
            pool,
            stream,
            block,
            alive,
        } = World::new();
        let again = thread::spawn(move || {
            let again = block.stream();
            drop(block);
            drop(again);
        });
        drop(stream);
        again.join().unwrap();
        assert_gone(&pool, &alive);
    });
}
