//! The hot path's promise, held by counting: one lock a call, the lane's, and nothing shared written.

use super::Pool;
use crate::device::sim::{Checker, Clock, SimDevice};
use crate::sync::{Arc, Guards, census};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const PAIRS: u64 = 10_000;

fn counted(pair: impl Fn(&Pool, &crate::Stream)) {
    let device = SimDevice::builder()
        .clock(Clock::Manual)
        .checker(Checker::Off)
        .build();
    let pool = Pool::builder(device.clone()).build().unwrap();
    let stream = pool.register(&device.create_stream()).unwrap();
    pair(&pool, &stream);
    let calls = device.counters().device_calls;
    let shared = Arc::strong_count(pool.service());
    drop(census());

    for _ in 0..PAIRS {
        pair(&pool, &stream);
    }

    let census = census();
    assert_eq!(census.locks, [(Guards::Lane, 2 * PAIRS)]);
    assert_eq!(census.shared_writes, 0);
    assert_eq!(device.counters().device_calls, calls);
    let block = pool.try_allocate(&stream, 4096).unwrap();
    assert_eq!(
        Arc::strong_count(pool.service()),
        shared,
        "a block counts its stream only"
    );
    drop(block);
}

#[test]
fn ten_thousand_hot_pairs_write_nothing_shared() {
    for bytes in [1, 4096, 2 << 20] {
        counted(|pool, stream| drop(pool.try_allocate(stream, bytes).unwrap()));
    }
}

#[test]
fn nor_do_awaited_ones() {
    counted(|pool, stream| {
        let mut context = Context::from_waker(Waker::noop());
        let allocated = pin!(pool.allocate(stream, 4096)).poll(&mut context);
        assert!(matches!(allocated, Poll::Ready(Ok(_))));
    });
}
