//! Captures of a stream that other threads use.

use super::*;
use loom::thread;
use weirpool::device::sim::Call;
use weirpool::testing::give_threads_caches;

const SMALL: u64 = 4096;

fn plain_pool(device: &SimDevice) -> Pool {
    Pool::builder(device.clone())
        .capacity(4 * MIB)
        .chunk_bytes(2 * MIB)
        .tuning(|tuning| tuning.lane_bytes = 4 * SMALL)
        .build()
        .unwrap()
}

/// A block is freed on the stream while its capture begins. The capture does not get the block, and the block is free
/// after the capture.
fn free_against_a_capture(name: &str, begin: fn(&Stream)) {
    model(name, move || {
        let device = device();
        let pool = plain_pool(&device);
        let (work, a) = stream(&device, &pool);
        begin(&a);
        let block = pool.try_allocate(&a, SMALL).unwrap();
        let address = block.address();
        // Until then the memory is the stream's alone.
        run(&work, 10);
        let freeing = thread::spawn(move || drop(block));
        let capture = pool.capture(&a).unwrap();
        let captured = pool.try_allocate(&a, SMALL).unwrap();
        assert_ne!(captured.address(), address, "the stream's work still runs");
        drop(captured);
        freeing.join().unwrap();
        drop(capture.end().unwrap());
        device.advance(Duration::from_micros(10));
        pool.maintain().reap().unwrap();
        pool.inspect().check_conserved().unwrap();
    });
}

#[test]
fn free_against_the_beginning_of_a_capture() {
    free_against_a_capture("free against the beginning of a capture", |_| ());
}

/// The shard has an entry for the block, so that its lock is all that the free takes.
#[test]
fn further_free_to_a_shard_against_the_beginning_of_a_capture() {
    let name = "further free to a shard against the beginning of a capture";
    model(name, || {
        let device = unwatched();
        let pool = plain_pool(&device);
        let (work, a) = stream(&device, &pool);
        give_threads_caches(&a);
        let take = || pool.try_allocate(&a, SMALL).unwrap();
        drop(take());
        let block = take();
        let address = block.address();
        run(&work, 10);
        let capturing = {
            let (pool, a) = (pool.clone(), a.clone());
            thread::spawn(move || {
                let capture = pool.capture(&a).unwrap();
                let captured = pool.try_allocate(&a, SMALL).unwrap();
                assert_ne!(captured.address(), address, "the stream's work still runs");
                drop(captured);
                drop(capture.end().unwrap());
            })
        };
        drop(block);
        capturing.join().unwrap();
        device.advance(Duration::from_micros(10));
        pool.maintain().reap().unwrap();
        pool.inspect().check_conserved().unwrap();
    });
}

#[test]
fn free_to_a_shard_against_the_beginning_of_a_capture() {
    let name = "free to a shard against the beginning of a capture";
    free_against_a_capture(name, give_threads_caches);
}

/// Another thread seals the stream while its capture begins. No event is recorded while the stream is captured.
#[test]
fn record_against_the_beginning_of_a_capture() {
    model("record against the beginning of a capture", || {
        let device = device();
        let pool = plain_pool(&device);
        let (_work, a) = stream(&device, &pool);
        let sealing = {
            let a = a.clone();
            thread::spawn(move || drop(a.event()))
        };
        let capture = pool.capture(&a).unwrap();
        let before = device.counters().calls(Call::Record);
        drop(pool.try_allocate(&a, SMALL).unwrap());
        let records = device.counters().calls(Call::Record) - before;
        assert_eq!(records, 0, "an event is recorded in a capture");
        drop(capture);
        sealing.join().unwrap();
        device.advance(Duration::from_micros(1));
        pool.maintain().reap().unwrap();
        pool.inspect().check_conserved().unwrap();
    });
}

/// A graph is dropped on another thread while its memory serves a further capture.
#[test]
fn drop_of_a_graph_against_a_capture_with_its_memory() {
    model("drop of a graph against a capture with its memory", || {
        let device = device();
        let pool = plain_pool(&device);
        let (_work, a) = stream(&device, &pool);
        let memory = pool.graph_memory();
        let capture = memory.capture(&a).unwrap();
        let block = pool.try_allocate(&a, SMALL).unwrap();
        let graph = capture.end().unwrap();
        let dropping = thread::spawn(move || drop((graph, block)));
        let capture = memory.capture(&a).unwrap();
        drop(memory);
        drop(pool.try_allocate(&a, SMALL).unwrap());
        drop(capture.end().unwrap());
        dropping.join().unwrap();
        device.advance(Duration::from_micros(1));
        pool.maintain().reap().unwrap();
        pool.inspect().check_conserved().unwrap();
    });
}
