//! Waiting on executors of any kind.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use weirpool::device::DeviceAddress;
use weirpool::device::sim::Clock;
use weirpool::testing::Invariants;

/// With no runtime and nobody driving, the waiters drive themselves: any executor will do.
#[test]
fn waiters_drive_themselves_on_any_executor() {
    let device = SimDevice::builder()
        .memory(1 << 30)
        .clock(Clock::Virtual)
        .build();
    let pool = builder(&device, 8 * MIB).build().unwrap();
    let served = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..16)
        .map(|n| {
            let (pool, served) = (pool.clone(), served.clone());
            let (work, stream) = stream(&device, &pool);
            std::thread::spawn(move || {
                let allocate = async {
                    for _ in 0..20 {
                        let block = pool.allocate(&stream, (n % 4 + 1) * 2 * MIB).await.unwrap();
                        use_block(&work, &block, us(50));
                        drop(block);
                        served.fetch_add(1, Ordering::SeqCst);
                    }
                };
                if n % 2 == 0 {
                    smol::block_on(allocate);
                } else {
                    futures::executor::block_on(allocate);
                }
            })
        })
        .collect();
    for task in tasks {
        task.join().unwrap();
    }
    assert_eq!(served.load(Ordering::SeqCst), 16 * 20);
    pool.check_conserved().unwrap();
}

/// A deterministic executor on the virtual clock: the same seed, the same times.
#[test]
fn the_same_seed_gives_the_same_run() {
    let run_once = || {
        let device = SimDevice::builder().memory(1 << 30).seed(7).build();
        let pool = builder(&device, 8 * MIB).build().unwrap();
        device.block_on(async {
            let tasks = (0..8u64).map(|n| {
                let (work, stream) = stream(&device, &pool);
                let (pool, device) = (pool.clone(), device.clone());
                async move {
                    let mut times = Vec::new();
                    for round in 0..10 {
                        let bytes = (n + round) % 8 * MIB + 1;
                        let block = pool.allocate(&stream, bytes).await.unwrap();
                        times.push((device.now_ns(), block.address()));
                        use_block(&work, &block, us(10 * (n + 1)));
                    }
                    times
                }
            });
            futures::future::join_all(tasks).await
        })
    };
    let [first, second] = [run_once(), run_once()].map(|runs| {
        let base = runs[0][0].1;
        let relative = |(time, address): (u64, DeviceAddress)| {
            (time, address.to_bits().wrapping_sub(base.to_bits()))
        };
        runs.into_iter()
            .map(|run| run.into_iter().map(relative).collect::<Vec<_>>())
            .collect::<Vec<_>>()
    });
    assert_eq!(first, second);
}

trait NowNs {
    fn now_ns(&self) -> u64;
}

impl NowNs for SimDevice {
    fn now_ns(&self) -> u64 {
        weirpool::device::Device::now(self).as_nanos() as u64
    }
}

#[cfg(feature = "tokio")]
mod on_tokio {
    use super::*;

    /// The runtime that drives is shut down: a waiter elsewhere takes over.
    #[test]
    fn a_runtime_that_is_shut_down_is_replaced() {
        let device = SimDevice::new();
        let (pool, work, _a, block) = full(&device);
        let (_, b) = stream(&device, &pool);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let mut waiting = pool.allocate(&b, MIB);
        runtime.block_on(async { assert!(poll(&mut waiting).is_pending()) });
        drop(runtime);
        use_block(&work, &block, us(100));
        drop(block);
        let granted = futures::executor::block_on(waiting).unwrap();
        assert_eq!(granted.requested(), MIB);
    }

    /// Timeouts through the runtime's own timer cancel cleanly.
    #[tokio::test]
    async fn a_runtimes_timeout_cancels_cleanly() {
        let device = manual();
        let (pool, _, a, block) = full(&device);
        let waited = tokio::time::timeout(us(5_000), pool.allocate(&a, MIB)).await;
        assert!(waited.is_err());
        drop(block);
        assert!(pool.try_allocate(&a, 8 * MIB).is_ok());
        pool.check_conserved().unwrap();
    }
}
