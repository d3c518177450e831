//! What goes on by itself: maintenance that was put off, requests that were set aside, memory for graphs.

use crate::common::*;
use std::time::Duration;
use weirpool::device::sim::{Operation, SimDevice, SimStream};
use weirpool::*;

fn rests(device: &SimDevice) -> bool {
    (0..200).any(|_| !device.advance_to_next())
}

fn releasing(device: &SimDevice) -> TestPool {
    builder(device, 16 * MIB)
        .release_threshold(ReleaseThreshold::Bytes(0))
        .tuning(|tuning| tuning.lane_bytes = 0)
        .made()
}

/// A forgotten request is set aside; the maintenance that was put off for it is resumed.
#[test]
fn request_that_is_set_aside_resumes_the_maintenance() {
    for device in devices() {
        let pool = releasing(&device);
        let (_work, stream) = stream(&device, &pool);
        let held = pool.try_allocate(&stream, 8 * MIB).unwrap();
        let freed = pool.try_allocate(&stream, 4 * MIB).unwrap();
        std::mem::forget(not_ready(pool.allocate(&stream, 16 * MIB)));
        drop(freed);
        assert!(rests(&device));
        device.advance(Duration::from_secs(1));
        assert!(rests(&device));
        assert_eq!(
            reserved(&pool),
            8 * MIB,
            "set aside: {:?}",
            pool.inspect().waiting_requests(8)
        );
        drop(held);
        assert!(rests(&device));
        assert_eq!(reserved(&pool), 0);
    }
}

/// Memory that is freed on a captured stream is released once the capture has ended.
#[test]
fn memory_freed_during_a_capture_is_released_after_it() {
    for device in devices() {
        for waits in [false, true] {
            let pool = releasing(&device);
            let (_work, stream) = stream(&device, &pool);
            let block = pool.try_allocate(&stream, 4 * MIB).unwrap();
            let capture = pool.capture(&stream).unwrap();
            drop(block);
            if waits {
                device.advance(Duration::from_millis(50));
            }
            let graph = capture.end().unwrap();
            assert!(rests(&device));
            assert_eq!(reserved(&pool), 0, "{waits}");
            drop(graph);
        }
    }
}

fn busy(work: &SimStream, block: &Block, time: Duration) {
    use_block(work, block, time);
}

#[test]
fn pending_memory_above_the_threshold_is_released_on_every_path() {
    for device in devices() {
        // A stream that retires while its work runs.
        let pool = releasing(&device);
        {
            let (work, stream) = stream(&device, &pool);
            let block = pool.try_allocate(&stream, 4 * MIB).unwrap();
            busy(&work, &block, Duration::from_millis(70));
        }
        assert!(rests(&device));
        assert_eq!(reserved(&pool), 0, "retired");
        // Two streams, one after the other.
        let (work, one) = stream(&device, &pool);
        let (far, two) = stream(&device, &pool);
        let block = pool.try_allocate(&one, 4 * MIB).unwrap();
        two.record_use(Unordered::UntilFreed(&block)).unwrap();
        busy(&work, &block, Duration::from_millis(70));
        far.submit(Operation::new(Duration::from_millis(250)));
        drop(block);
        assert!(rests(&device));
        assert_eq!(reserved(&pool), 0, "two streams");
        // The threshold is set while memory is pending, and a request comes and leaves.
        let pool = tuned(&device, 16 * MIB, |tuning| tuning.lane_bytes = 0);
        let (work, one) = stream(&device, &pool);
        let block = pool.try_allocate(&one, 8 * MIB).unwrap();
        let held = pool.try_allocate(&one, 2 * MIB).unwrap();
        busy(&work, &block, Duration::from_millis(70));
        drop(block);
        device.advance(Duration::from_millis(30));
        pool.maintain()
            .set_release_threshold(ReleaseThreshold::Bytes(0))
            .unwrap();
        device.advance(Duration::from_millis(5));
        let waiting = not_ready(pool.allocate(&one, 16 * MIB));
        device.advance(Duration::from_millis(20));
        drop(waiting);
        assert!(rests(&device));
        assert_eq!(reserved(&pool), 2 * MIB, "threshold");
        drop(held);
        // Resized to less while memory is pending.
        let pool = tuned(&device, 16 * MIB, |tuning| tuning.lane_bytes = 0);
        let (work, one) = stream(&device, &pool);
        let block = pool.try_allocate(&one, 8 * MIB).unwrap();
        busy(&work, &block, Duration::from_millis(70));
        drop(block);
        let _ = pool.resize(4 * MIB).unwrap();
        assert!(rests(&device));
        assert!(reserved(&pool) <= 4 * MIB, "resized: {}", reserved(&pool));
    }
}

/// A stream that may be destroyed: only its users' calls record events.
#[test]
fn memory_of_an_external_stream_is_released() {
    for device in devices() {
        let pool = releasing(&device);
        let work = device.create_stream();
        let one = pool.register(&External::of(&work)).unwrap();
        let block = pool.try_allocate(&one, 4 * MIB).unwrap();
        busy(&work, &block, Duration::from_millis(70));
        drop(block);
        assert!(rests(&device));
        assert_eq!(reserved(&pool), 0);
    }
}

/// Memory for graphs that work outside of them uses still, reused in a capture, whose launch is on another stream.
#[test]
fn graph_memory_used_outside_is_reused_in_order() {
    for device in devices() {
        for within in [false, true] {
            let pool = builder(&device, 16 * MIB).made();
            let (work, one) = stream(&device, &pool);
            let (_, two) = stream(&device, &pool);
            let memory = pool.graph_memory();
            let block = memory.allocate(&one, 2 * MIB).unwrap();
            busy(&work, &block, Duration::from_millis(70));
            let mut block = Some(block);
            if !within {
                drop(block.take());
            }
            let capture = memory.capture(&one).unwrap();
            drop(block);
            let inner = pool.try_allocate(&one, 2 * MIB).unwrap();
            busy(&work, &inner, Duration::from_millis(1));
            drop(inner);
            let graph = capture.end().unwrap();
            graph.launch(&two).unwrap();
            device.advance_to_end();
            let found = device.take_violations();
            assert!(found.is_empty(), "{within}: {found:?}");
            drop(graph);
        }
    }
}

/// The head is set aside, and then ends in every way.
#[test]
fn head_that_is_set_aside_ends_in_every_way() {
    const SECOND: Duration = Duration::from_secs(1);
    for device in devices() {
        for way in 0..8 {
            let pool = host_waits_only(&device, 16 * MIB);
            let (work, one) = stream(&device, &pool);
            let tag = Tag::new("zz: aside");
            let held = pool.try_allocate(&one, 8 * MIB).unwrap();
            let freed = pool.try_allocate(&one, 4 * MIB).unwrap();
            let (woken, waker) = Count::new();
            let mut aside = pool.allocate(&one, 16 * MIB).tag(tag);
            if way == 5 {
                aside = aside.timeout(3 * SECOND);
            }
            assert!(poll_with(&mut aside, &waker).is_pending());
            let mut next = pool.allocate(&one, 8 * MIB);
            let (_, waker_of_next) = Count::new();
            assert!(poll_with(&mut next, &waker_of_next).is_pending());
            use_block(&work, &freed, us(10));
            drop(freed);
            // In steps: an alarm that is set in a step counts from its end.
            (0..100).for_each(|_| device.advance(SECOND / 100));
            assert!(woken.get() > 0);
            let block = match poll(&mut next) {
                std::task::Poll::Ready(block) => block.unwrap(),
                _ => panic!(
                    "{way}: {:#?} {:#?}",
                    pool.inspect().waiting_requests(8),
                    pool.inspect().statistics()
                ),
            };
            assert_eq!(pool.inspect().statistics().waits.waiting, 1);
            // The gate is open.
            drop(block);
            device.advance_to_end();
            drop(pool.try_allocate(&one, 8 * MIB).unwrap());
            device.advance_to_end();
            match way {
                0 => drop(aside),
                1 => {
                    pool.close();
                    assert_matches!(now(aside), Err(AllocError::Closed));
                }
                2 => {
                    pool.tag(tag).set_limit(Some(MIB));
                    assert_matches!(now(aside), Err(AllocError::OverLimit { .. }));
                }
                3 => {
                    let _ = pool.resize(12 * MIB).unwrap();
                    assert_matches!(now(aside), Err(AllocError::TooLarge { .. }));
                }
                4 => {
                    // It is back at its turn, and served once there is room.
                    assert!(poll_with(&mut aside, &waker).is_pending());
                    assert!(pool.try_allocate(&one, MIB).is_err(), "the gate is closed");
                    woken.take();
                    drop(held);
                    device.advance_to_end();
                    assert!(woken.get() > 0);
                    drop(now(aside).unwrap());
                }
                5 => {
                    device.advance(3 * SECOND);
                    assert_matches!(now(aside), Err(AllocError::TimedOut { .. }));
                }
                6 => {
                    // Memory comes while it is aside; polled later, it takes it.
                    drop(held);
                    device.advance_to_end();
                    drop(now(aside).unwrap());
                }
                _ => {
                    std::mem::forget(aside);
                }
            }
            device.advance_to_end();
            let left = usize::from(way == 7);
            assert_eq!(pool.inspect().statistics().waits.waiting, left, "{way}");
            let used = pool.tag(tag).statistics().used.current;
            assert_eq!(used, 0, "{way}");
            if way != 1 && way != 3 {
                pool.inspect().check().unwrap();
            }
        }
    }
}
