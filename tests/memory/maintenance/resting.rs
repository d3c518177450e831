//! An idle pool comes to rest: its maintenance sets no alarm that changes nothing.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

/// More steps of the device than the maintenance of one freed block takes.
const MANY: usize = 100;

/// Lets the device take steps until nothing is left to do. Returns whether it came to rest.
fn comes_to_rest(device: &SimDevice) -> bool {
    (0..MANY).any(|_| !device.advance_to_next())
}

#[test]
fn idle_pool_releases_its_memory_and_rests_whatever_it_may_reuse() {
    for device in devices() {
        for (opportunistic, lane_bytes) in [(true, 8 * MIB), (false, 8 * MIB), (false, 0)] {
            let reuse = Reuse {
                opportunistic,
                ..Reuse::ALL
            };
            let pool = builder(&device, 8 * MIB)
                .tuning(|tuning| tuning.reuse = reuse)
                .release_threshold(ReleaseThreshold::Bytes(0))
                .tuning(|tuning| tuning.lane_bytes = lane_bytes)
                .made();
            let (work, stream) = stream(&device, &pool);
            use_and_free(&pool, (&work, &stream), 4096, us(50_000));
            assert!(comes_to_rest(&device), "{reuse:?}, {lane_bytes}");
            assert_eq!(reserved(&pool), 0, "{reuse:?}, {lane_bytes}");
        }
    }
}

/// Maintenance runs on a thread of its own where memory calls block: an idle pool starts none.
#[test]
fn idle_pool_sets_no_alarm_while_its_stream_is_at_work() {
    let device = manual_builder()
        .memory(1 << 30)
        .blocking_memory_calls(true)
        .build();
    let pool = builder(&device, 8 * MIB)
        .release_threshold(ReleaseThreshold::Bytes(0))
        .made();
    let (work, stream) = stream(&device, &pool);
    use_and_free(&pool, (&work, &stream), 4096, us(100 * INTERVAL));
    let alarms = || device.counters().alarms;
    let_pass(&device, 10);
    let before = alarms();
    let_pass(&device, 80);
    assert_eq!(alarms(), before, "80 intervals in which nothing can change");
}

/// A stream is held by a host task that is never polled.
fn waits_for_ever(threshold: ReleaseThreshold, heuristic: Option<CoalesceHeuristic>) {
    let device = SimDevice::builder().memory(1 << 30).build();
    let mut builder = builder(&device, 8 * MIB).release_threshold(threshold);
    if let Some(heuristic) = heuristic {
        builder = builder.tuning(|tuning| tuning.coalesce = Some(heuristic));
    }
    let pool = builder.made();
    let (work, stream) = stream(&device, &pool);
    let block = pool.try_allocate(&stream, 4096).unwrap();
    let never_polled = stream.spawn(async {}).unwrap();
    use_block(&work, &block, us(10));
    drop(block);
    let event = stream.event().unwrap();
    let _ = device.block_on(async { event.await });
    drop(never_polled);
}

#[test]
fn device_on_which_no_task_can_proceed_says_so_beside_maintenance_that_is_due() {
    let heuristic = CoalesceHeuristic::percent_releasable(50);
    for (threshold, heuristic) in [
        (ReleaseThreshold::Keep, None),
        (ReleaseThreshold::Bytes(0), None),
        (ReleaseThreshold::Bytes(0), Some(heuristic.clone())),
    ] {
        let (answer, answered) = mpsc::channel();
        std::thread::spawn(move || {
            let stuck = AssertUnwindSafe(|| waits_for_ever(threshold, heuristic));
            let outcome = catch_unwind(stuck);
            let _ = answer.send(outcome.is_err());
        });
        let has_reported = answered.recv_timeout(Duration::from_secs(60));
        assert_eq!(has_reported, Ok(true), "{threshold:?}");
    }
}

#[test]
fn maintenance_that_was_put_off_for_a_waiting_request_is_done_once_it_is_gone() {
    for device in devices() {
        let pool = builder(&device, 16 * MIB)
            .release_threshold(ReleaseThreshold::Bytes(0))
            .tuning(|tuning| tuning.lane_bytes = 0)
            .made();
        let (_work, stream) = stream(&device, &pool);
        let held = pool.try_allocate(&stream, 8 * MIB).unwrap();
        let freed = pool.try_allocate(&stream, 4 * MIB).unwrap();
        let waiting = not_ready(pool.allocate(&stream, 16 * MIB));
        drop(freed);
        assert!(comes_to_rest(&device), "while the request waits");
        drop(waiting);
        assert!(comes_to_rest(&device), "after the request");
        assert_eq!(reserved(&pool), 8 * MIB);
        drop(held);
        assert!(comes_to_rest(&device), "at the end");
        assert_eq!(reserved(&pool), 0);
    }
}
