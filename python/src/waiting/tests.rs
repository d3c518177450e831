//! Waits on the simulated device.

use super::*;
use std::sync::mpsc::channel;
use std::time::Instant;
use weirpool::device::sim::{Clock, SimDevice};

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(10);

fn pool() -> Pool {
    let device = SimDevice::builder().clock(Clock::Wall).build();
    Pool::builder(device).capacity(64 * MIB).build().unwrap()
}

fn terms(bytes: u64) -> Terms {
    Terms {
        sizes: vec![bytes],
        ..Terms::default()
    }
}

/// Waits until a condition holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn wait_is_granted_once_memory_is_free() {
    let pool = pool();
    let all = terms(64 * MIB).try_now(&pool).unwrap();
    let (sender, receiver) = channel();
    let tell = move |_: &Arc<Wait<_>>| sender.send(()).unwrap();
    let wait = Wait::begin(terms(MIB).reserved(pool.clone()), tell).unwrap();
    assert!(!wait.wait(Duration::from_millis(20)) && wait.take().is_none());
    drop(all);
    receiver.recv_timeout(LONG).unwrap();
    let held = wait.take().unwrap().unwrap();
    assert_eq!(held.size(), MIB);
    assert!(wait.take().is_none());
}

#[test]
fn cancelled_wait_leaves_the_queue_and_its_memory_with_the_pool() {
    let pool = pool();
    for is_granted in [false, true] {
        let all = (!is_granted).then(|| terms(64 * MIB).try_now(&pool).unwrap());
        let wait = Wait::begin(terms(MIB).reserved(pool.clone()), |_| ()).unwrap();
        assert_eq!(
            wait.wait(LONG.min(Duration::from_millis(if is_granted { 9000 } else { 20 }))),
            is_granted
        );
        wait.cancel();
        assert!(wait.take().is_none() && pool.inspect().waiting_requests(9).is_empty());
        drop(all);
        until("all memory is free", || {
            pool.inspect().statistics().used.current == 0
        });
    }
}

#[test]
fn refusal_is_the_outcome() {
    let pool = pool();
    let _all = terms(64 * MIB).try_now(&pool).unwrap();
    let timeout = Some(Duration::from_millis(10));
    let late = Terms {
        timeout,
        ..terms(MIB)
    };
    for (terms, is_late) in [(late, true), (terms(65 * MIB), false)] {
        let wait = Wait::begin(terms.reserved(pool.clone()), |_| ()).unwrap();
        assert!(wait.wait(LONG));
        let Some(Err(error)) = wait.take() else {
            panic!("there is no memory");
        };
        assert_eq!(matches!(error, AllocError::TimedOut { .. }), is_late);
    }
}

#[test]
fn requests_wait_in_the_order_in_which_they_were_made() {
    let pool = pool();
    for round in 0..20 {
        let all = terms(64 * MIB).try_now(&pool).unwrap();
        let sizes: Vec<_> = (1..=30).map(|bytes| bytes * MIB).collect();
        let waits: Vec<_> = sizes
            .iter()
            .map(|bytes| Wait::begin(terms(*bytes).reserved(pool.clone()), |_| ()).unwrap())
            .collect();
        let queued = pool.inspect().waiting_requests(99);
        let queued: Vec<_> = queued.iter().map(|request| request.requested).collect();
        assert_eq!(queued, sizes, "round {round}");
        waits.iter().for_each(|wait| wait.cancel());
        drop(all);
    }
}
