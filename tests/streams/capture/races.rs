//! Captures and other threads that use the same stream.

use super::*;
use crate::common::Made;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use weirpool::Unordered;
use weirpool::device::sim::{Checker, Clock};

const CAPTURES: usize = 300;

/// Other threads free blocks of the stream, seal it and record events while it is captured, again and again. No event
/// is recorded in a capture, no freed block is granted in it, and nothing is lost.
#[test]
fn frees_and_records_of_other_threads_stay_out_of_captures() {
    let device = SimDevice::builder()
        .clock(Clock::Virtual)
        .checker(Checker::Off)
        .build();
    for is_sharded in [false, true] {
        race_with(&device, is_sharded);
    }
}

fn race_with(device: &SimDevice, is_sharded: bool) {
    let builder = Pool::builder(device.clone()).capacity(256 * MIB);
    let pool = builder.chunk_bytes(2 * MIB).made();
    let work = device.create_stream();
    let stream = pool.register(&work).unwrap();
    if is_sharded {
        weirpool::testing::give_threads_caches(&stream);
    }
    let memory = pool.graph_memory();
    memory
        .give(pool.reserve(2 * MIB).try_now().unwrap())
        .unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // The threads end, even if this one panics.
        let _end = OnDrop(&is_over);
        for _ in 0..3 {
            scope.spawn(|| {
                let elsewhere = pool.create_stream().unwrap();
                while !is_over.load(Ordering::SeqCst) {
                    let blocks = [4096, 65536].map(|bytes| pool.try_allocate(&elsewhere, bytes));
                    for block in blocks.into_iter().flatten() {
                        // Freed in the order of the captured stream, too.
                        let _ = stream.record_use(Unordered::UntilFreed(&block));
                        drop(block);
                    }
                    let _ = stream.seal();
                    let _ = stream.event();
                }
            });
        }
        let mut captures = 0;
        while captures < CAPTURES {
            // Blocks that the others free in the order of the captured stream may be all of the memory.
            let ordinary: Vec<_> = (0..4).map(|_| pool.try_allocate(&stream, 4096)).collect();
            let Ok(first) = &ordinary[0] else {
                device.advance_to_end();
                continue;
            };
            let used = first.address();
            let capture = memory.capture(&stream).unwrap();
            drop(ordinary);
            let block = pool.try_allocate(&stream, 4096).unwrap();
            assert_ne!(block.address(), used);
            drop(block);
            let graph = capture.end();
            drop(graph.expect("a capture that no call from outside invalidated"));
            captures += 1;
        }
    });
    device.advance_to_end();
    pool.inspect().check().unwrap();
}

struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
