//! Waiting on executors of any kind.

use super::*;
use futures::task::LocalSpawnExt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use weirpool::device::DeviceAddress;
use weirpool::device::sim::Clock;
use weirpool_observe::Record as _;

/// Without a runtime and a reclaimer, the waiting requests serve the queue on any executor.
#[test]
fn requests_serve_the_queue_on_any_executor() {
    let device = SimDevice::builder()
        .memory(1 << 30)
        .clock(Clock::Virtual)
        .build();
    let pool = builder(&device, 8 * MIB).made();
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
    pool.inspect().check_conserved().unwrap();
}

/// Runs on the virtual clock have the same times for the same seed.
#[test]
fn run_is_the_same_for_the_same_seed() {
    let run_once = || {
        let device = SimDevice::builder().memory(1 << 30).seed(7).build();
        let pool = builder(&device, 8 * MIB).made();
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

    /// The runtime of the reclaimer is shut down: a request on another executor serves the queue.
    #[test]
    fn runtime_that_is_shut_down_is_replaced() {
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

    /// Timeouts of the runtime's own timer cancel requests without a leak.
    #[tokio::test]
    async fn timeout_of_a_runtime_cancels_a_request() {
        let device = manual();
        let (pool, _, a, block) = full(&device);
        let waited = tokio::time::timeout(us(5_000), pool.allocate(&a, MIB)).await;
        assert!(waited.is_err());
        drop(block);
        assert!(pool.try_allocate(&a, 8 * MIB).is_ok());
    }
}

/// Counts the polls of a future.
struct Polls<F>(Pin<Box<F>>, Arc<AtomicUsize>);

impl<F: Future> Future for Polls<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.as_mut().poll(context)
    }
}

/// Returns how often `count` tasks poll that each reserve an eighth of the pool and hold it for 10 ms.
fn polls_of(count: usize) -> usize {
    let device = SimDevice::new();
    let pool = builder(&device, 64 * MIB).made();
    let polls = Arc::new(AtomicUsize::new(0));
    device.run(|spawner| {
        let tasks: Vec<_> = (0..count)
            .map(|_| {
                let (device, pool, polls) = (device.clone(), pool.clone(), polls.clone());
                let task = async move {
                    let reserve = async { pool.reserve(8 * MIB).await };
                    let reservation = Polls(Box::pin(reserve), polls).await.unwrap();
                    device.sleep(us(10_000)).await;
                    drop(reservation);
                };
                spawner.spawn_local_with_handle(task).unwrap()
            })
            .collect();
        futures::future::join_all(tasks)
    });
    assert_eq!(device.now(), us(10_000) * count.div_ceil(8) as u32);
    polls.load(Ordering::SeqCst)
}

#[test]
fn waiting_tasks_of_the_devices_executor_are_polled_a_bounded_number_of_times() {
    let [few, many] = [50, 400].map(|count| polls_of(count) as f64 / count as f64);
    assert!(few <= 3.0 && many <= 3.0, "{few} and {many} polls a task");
}

#[test]
fn stuck_executor_names_waiters_and_holders() {
    for keeps_history in [false, true] {
        let device = SimDevice::new();
        let pool = builder(&device, 8 * MIB).name(format!("stuck {keeps_history}"));
        let pool = pool.history(if keeps_history { 10 } else { 0 }).made();
        let [chat, batch] = ["executors: chat", "executors: batch"].map(Tag::new);
        let stream = pool
            .register(&device.create_stream_named("decode"))
            .unwrap();
        let (held, holder) = (pool.allocate(&stream, 6 * MIB).tag(batch), line!());
        let held = held.try_now().unwrap();
        let (request, waiter) = (pool.allocate(&stream, 4 * MIB).tag(chat), line!());
        let reserve = pool.reserve(5 * MIB);
        let both = std::panic::AssertUnwindSafe(|| {
            device.block_on(async { futures::future::join(request, reserve).await })
        });
        let panic = std::panic::catch_unwind(both).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        let pool_line = text
            .lines()
            .find(|line| line.trim_start().starts_with("pool"))
            .unwrap();
        for part in [
            format!("pool \"stuck {keeps_history}\": 2 requests waiting"),
            format!(
                "4.0 MiB for tag executors: chat on decode ({})",
                stream.id()
            ),
            format!("at {}:{waiter}:", file!()),
            "5.0 MiB to reserve".to_owned(),
            "executors: batch: 6.0 MiB".to_owned(),
        ] {
            assert!(pool_line.contains(&part), "{part} in {text}");
        }
        // The history knows the location, or else the checker.
        let location = format!("{}:{holder}:", file!());
        assert!(text.contains(&location), "{text}");
        assert_eq!(pool_line.contains(&location), keeps_history, "{text}");
        drop(held);
    }
}

/// Many requests were polled once, and are on no executor any more.
#[test]
fn request_is_served_past_many_that_are_not_polled() {
    let device = SimDevice::new();
    let (pool, work, a, block) = full(&device);
    let (_, b) = stream(&device, &pool);
    let mut others: Vec<_> = (0..7).map(|_| pool.allocate(&a, MIB)).collect();
    assert!(others.iter_mut().all(|other| poll(other).is_pending()));
    use_block(&work, &block, us(100));
    let last = device.block_on(async {
        let last = not_ready(pool.allocate(&b, MIB));
        drop(block);
        last.await
    });
    drop(last.unwrap());
    assert_eq!(device.now(), us(100));
    assert!(others.iter_mut().all(|other| poll(other).is_ready()));
}

#[cfg(feature = "tokio")]
mod on_tokios_clock {
    use super::*;
    use tokio::time::{self, Instant};

    fn device(is_virtual: bool) -> SimDevice {
        SimDevice::builder()
            .memory(1 << 30)
            .clock(Clock::Tokio)
            .virtual_memory(is_virtual)
            .build()
    }

    /// The paused clock of the runtime that the device was built in stands still once that has ended.
    #[test]
    fn device_goes_on_in_real_time_once_its_runtime_has_ended() {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().start_paused(true).build().unwrap()
        };
        for (is_virtual, is_used_before) in [(true, false), (true, true), (false, false)] {
            let first = runtime();
            let (device, pool) = first.block_on(async {
                let device = device(is_virtual);
                let pool = pool(&device, 8 * MIB);
                if is_used_before {
                    device.sleep(us(1_000)).await;
                }
                (device, pool)
            });
            let (_, a) = stream(&device, &pool);
            let _held = pool.try_allocate(&a, 8 * MIB).unwrap();
            let before = device.now();
            drop(first);
            let waiting = pool.allocate(&a, MIB).timeout(us(5_000));
            let refused = runtime().block_on(waiting).unwrap_err();
            assert_matches!(refused, AllocError::TimedOut { .. });
            assert!(device.now() >= before + us(5_000));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn timeouts_of_tokio_and_of_the_pool_fire_at_the_same_device_time() {
        for is_virtual in [true, false] {
            let device = device(is_virtual);
            let (pool, _, a, held) = full(&device);
            let began = Instant::now();
            let refused = time::timeout(us(1_000_000), pool.allocate(&a, MIB)).await;
            assert!(refused.is_err());
            assert_eq!(device.now(), us(1_000_000));
            let refused = pool
                .allocate(&a, MIB)
                .timeout(us(2_000_000))
                .await
                .unwrap_err();
            assert_matches!(refused, AllocError::TimedOut { waited, .. } if *waited == us(2_000_000));
            let found = (device.now(), began.elapsed());
            assert_eq!(found, (us(3_000_000), us(3_000_000)));
            drop(held);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn advancing_tokios_clock_drives_the_device() {
        let device = device(true);
        let (pool, work, a, held) = full(&device);
        use_block(&work, &held, us(10_000));
        let waiting = tokio::spawn({
            let (pool, stream) = (
                pool.clone(),
                pool.register(&device.create_stream()).unwrap(),
            );
            async move { pool.allocate(&stream, MIB).await }
        });
        drop(held);
        for _ in 0..9 {
            time::advance(us(1_000)).await;
        }
        assert!(!waiting.is_finished());
        assert_eq!(device.now(), us(9_000));
        time::advance(us(1_000)).await;
        let block = waiting.await.unwrap().unwrap();
        assert_eq!(device.now(), us(10_000));
        assert!(a.synchronize().await.is_ok());
        drop(block);
        device.sleep(us(500_000)).await;
        assert_eq!(device.now(), us(510_000));
        device.assert_ordered();
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_of_a_paused_runtime_share_a_pool_without_real_time() {
        let (device, real) = (device(true), std::time::Instant::now());
        let pool = builder(&device, 8 * MIB).made();
        let tasks = (0..20).map(|_| {
            let (work, stream) = stream(&device, &pool);
            let pool = pool.clone();
            tokio::spawn(async move {
                let block = pool.allocate(&stream, 8 * MIB).await.unwrap();
                use_block(&work, &block, us(60_000_000));
                block.deallocate().await.unwrap();
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        assert!(device.now() >= us(20 * 60_000_000), "{:?}", device.now());
        assert!(real.elapsed() < device.now(), "twenty minutes pass at once");
        pool.inspect().check_conserved().unwrap();
    }

    /// The device is called on a thread that knows no runtime.
    #[tokio::test(start_paused = true)]
    async fn time_is_the_runtimes_on_every_thread() {
        let device = device(true);
        time::advance(us(5_000)).await;
        let elsewhere = device.clone();
        let told = std::thread::spawn(move || elsewhere.now()).join().unwrap();
        assert_eq!(told, us(5_000));
    }

    #[test]
    #[should_panic(expected = "build the device inside one")]
    fn device_on_tokios_clock_is_built_inside_a_runtime() {
        device(true);
    }
}
