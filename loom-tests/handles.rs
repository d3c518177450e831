//! A stream's last handle, and the references that freed blocks leave with the stream: none is left in the end.

use super::*;
use loom::thread;
use std::any::Any;
use std::sync::Weak;

const SMALL: u64 = 4096;

/// Observes a stream's owner, which is gone once the pool has dropped it.
type Alive = Weak<dyn Any + Send + Sync>;

/// Models a pool and a stream with one used block and one freed block. The pool keeps nothing of the stream after
/// `play`.
fn model_of_an_end(name: &'static str, play: fn(&Pool, Stream, Block)) {
    model_of_an_end_with(false, name, play);
}

fn model_of_an_end_with(is_sharded: bool, name: &'static str, play: fn(&Pool, Stream, Block)) {
    model(name, move || {
        let (pool, stream, alive) = pool_and_stream(is_sharded);
        let take = || pool.try_allocate(&stream, SMALL).unwrap();
        // The first blocks of a size leave no reference: the cache has no entries for them yet.
        drop((take(), take()));
        let (block, freed) = (take(), take());
        drop(freed);
        play(&pool, stream, block);
        pool.maintain().reap().unwrap();
        assert!(alive.upgrade().is_none(), "the stream is kept");
        pool.inspect().check_conserved().unwrap();
    });
}

fn pool_and_stream(is_sharded: bool) -> (Pool, Stream, Alive) {
    let device = unwatched();
    // A shard keeps a quarter of it.
    let bytes = if is_sharded { 8 * SMALL } else { 2 * SMALL };
    let pool = builder(&device).tuning(|tuning| tuning.lane_bytes = bytes);
    let pool = pool.build().unwrap();
    let work = device.create_stream();
    let stream = pool.register(&work).unwrap();
    if is_sharded {
        weirpool::testing::give_threads_caches(&stream);
    }
    (pool, stream, std::sync::Arc::downgrade(&work.keep_alive()))
}

/// A block is freed while the last handle is dropped: its reference is dropped with the cache's, or by the block
/// itself.
#[test]
fn the_last_handle_against_a_free() {
    model_of_an_end("the last handle against a free", |_, stream, block| {
        let freeing = thread::spawn(move || drop(block));
        drop(stream);
        freeing.join().unwrap();
    });
}

/// A block is freed while another is granted, with the reference that was left or a new one, and freed after the
/// handle.
#[test]
fn a_grant_against_a_free_and_the_last_handle() {
    model_of_an_end(
        "a grant against a free and the last handle",
        |pool, stream, block| {
            let freeing = thread::spawn(move || drop(block));
            let granted = pool.try_allocate(&stream, SMALL).unwrap();
            drop(stream);
            drop(granted);
            freeing.join().unwrap();
        },
    );
}

/// A block is freed to a shard, whose references are closed with those of the stream. This thread frees, since its shard
/// has an entry for the block.
#[test]
fn the_last_handle_against_a_free_to_a_shard() {
    let name = "the last handle against a free to a shard";
    model_of_an_end_with(true, name, |_, stream, block| {
        let leaving = thread::spawn(move || drop(stream));
        drop(block);
        leaving.join().unwrap();
    });
}

/// The grant is from the stream's own cache or from the heap: the shard of that thread has no block.
#[test]
fn a_grant_and_the_last_handle_against_a_free_to_a_shard() {
    let name = "a grant and the last handle against a free to a shard";
    model_of_an_end_with(true, name, |pool, stream, block| {
        let pool = pool.clone();
        let leaving = thread::spawn(move || {
            let granted = pool.try_allocate(&stream, SMALL).unwrap();
            drop(stream);
            drop(granted);
        });
        drop(block);
        leaving.join().unwrap();
    });
}

/// Two handles are dropped at once, one of them after a free.
#[test]
fn two_last_handles_and_a_free() {
    model_of_an_end("two last handles and a free", |_, stream, block| {
        let other = stream.clone();
        let leaving = thread::spawn(move || drop((block, other)));
        drop(stream);
        leaving.join().unwrap();
    });
}

/// A block makes a handle while the last other handle is dropped: references are left while it exists, and not after.
#[test]
fn a_handle_from_a_block_against_the_last_one() {
    model_of_an_end(
        "a handle from a block against the last one",
        |_, stream, block| {
            let again = thread::spawn(move || {
                let again = block.stream();
                drop(block);
                drop(again);
            });
            drop(stream);
            again.join().unwrap();
        },
    );
}
