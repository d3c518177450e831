//! A device, a pool and regions, and what tests ask of them.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use weirpool::device::Device;
use weirpool::device::sim::SimDevice;
use weirpool::{Block, Pool, Stream};
use weirpool_tiers::{Keep, Region, Regions};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn start(capacity: u64) -> (SimDevice, Pool, Stream) {
    let device = SimDevice::builder()
        .memory(capacity)
        .host_memory(1 << 30)
        .build();
    let pool = Pool::builder(device.clone())
        .capacity(capacity)
        .build()
        .unwrap();
    let stream = pool.create_stream().unwrap();
    (device, pool, stream)
}

pub(crate) fn region(pool: &Pool, name: &str, keep: Keep) -> Region {
    pool.region(name)
        .keep(keep)
        .chunk_bytes(2 * MIB)
        .build()
        .unwrap()
}

/// Waits for what happens in the background.
pub(crate) fn settle(device: &SimDevice, is_settled: impl Fn() -> bool) {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(5) {
        if is_settled() {
            return;
        }
        if device.is_time_virtual() {
            device.advance_to_next();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("not settled");
}

/// Polls once, with a waker that does nothing.
pub(crate) fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

pub(crate) fn write(device: &SimDevice, block: &mut Block, stream: &Stream, value: u8) {
    let bytes = vec![value; block.size() as usize];
    let upload = block.upload(stream, 0, &bytes).unwrap();
    device.block_on(upload).unwrap();
}

pub(crate) fn assert_is(device: &SimDevice, block: &Block, stream: &Stream, value: u8) {
    let download = block.download(stream, 0..block.size()).unwrap();
    let bytes = device.block_on(download).unwrap();
    assert!(bytes.iter().all(|byte| *byte == value), "not {value}");
}

pub(crate) async fn pause(device: &SimDevice, pause: Duration) {
    let until = device.now() + pause;
    let mut alarm = None;
    std::future::poll_fn(|context| {
        if let Some(alarm) = alarm.take() {
            device.cancel_alarm(alarm);
        }
        if device.now() >= until {
            return Poll::Ready(());
        }
        alarm = Some(device.set_alarm(until, context.waker()));
        Poll::Pending
    })
    .await;
}
