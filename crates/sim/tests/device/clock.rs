//! The clock: moved by hand, by itself, or real.

use super::*;
use futures::task::LocalSpawnExt;
use std::time::Duration;
use weirpool_sim::Clock;

#[test]
fn alarms_are_called_in_order_and_can_be_cancelled() {
    let sim = manual();
    let (count, waker) = Count::new();
    sim.set_alarm(us(10), &waker);
    let cancelled = sim.set_alarm(us(20), &waker);
    sim.set_alarm(us(30), &waker);
    sim.cancel_alarm(cancelled);
    assert!(sim.advance_to_next());
    assert_eq!((sim.now(), count.get()), (us(10), 1));
    assert!(sim.advance_to_next());
    assert_eq!((sim.now(), count.get()), (us(30), 2));
    assert!(!sim.advance_to_next());
    sim.set_alarm(us(5), &waker);
    assert_eq!(count.get(), 3, "past: at once");
}

#[test]
fn panicking_waker_does_not_silence_the_next() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics");
        }
    }
    let sim = manual();
    let (count, waker) = Count::new();
    sim.set_alarm(us(10), &std::task::Waker::from(Arc::new(Panics)));
    sim.set_alarm(us(10), &waker);
    sim.advance(us(10));
    assert_eq!(count.get(), 1);
}

#[test]
fn tasks_sleep_by_the_devices_clock() {
    let sim = SimDevice::new();
    let order = Arc::new(Mutex::new(Vec::new()));
    let device = sim.clone();
    let seen = order.clone();
    sim.run(|spawner| async move {
        let mut tasks = Vec::new();
        for delay in [30, 10, 20] {
            let (device, seen) = (device.clone(), seen.clone());
            let task = async move {
                device.sleep(us(delay)).await;
                seen.lock().unwrap().push(delay);
            };
            tasks.push(spawner.spawn_local_with_handle(task).unwrap());
        }
        for task in tasks {
            task.await;
        }
    });
    assert_eq!(*order.lock().unwrap(), [10, 20, 30]);
    assert_eq!(sim.now(), us(30));
}

#[test]
fn dropped_sleep_cancels_its_alarm() {
    let sim = SimDevice::new();
    sim.block_on(async {
        let mut nap = Box::pin(sim.sleep(us(100)));
        let polled = poll_fn(|context| Poll::Ready(nap.as_mut().poll(context))).await;
        assert!(polled.is_pending());
        drop(nap);
        sim.sleep(us(5)).await;
    });
    assert!(!sim.advance_to_next());
    assert_eq!(sim.now(), us(5));
}

#[test]
fn block_on_awaits_device_work() {
    let sim = SimDevice::new();
    let stream = sim.create_stream();
    stream.submit(operation(250));
    let event = recorded(&sim, &stream);
    sim.block_on(completion(&sim, event));
    assert_eq!(sim.now(), us(250));
}

#[test]
#[should_panic(expected = "waits until flag 0 is at least 1; it is 0")]
fn block_on_names_the_deadlock() {
    let sim = SimDevice::new();
    let (stream, flag) = (sim.create_stream(), sim.flag());
    stream.wait_until(&flag, 1);
    let event = recorded(&sim, &stream);
    sim.block_on(completion(&sim, event));
}

#[test]
fn another_thread_can_resolve_a_wait_of_block_on() {
    let sim = SimDevice::new();
    let (stream, flag) = (sim.create_stream(), sim.flag());
    stream.wait_until(&flag, 1);
    let event = recorded(&sim, &stream);
    std::thread::scope(|scope| {
        scope.spawn(|| flag.set(1));
        sim.block_on(completion(&sim, event));
    });
}

#[test]
#[should_panic(expected = "1 alarm(s)")]
fn block_on_leaves_a_manual_clock_alone() {
    let sim = manual();
    sim.block_on(sim.sleep(us(1)));
}

#[test]
fn task_can_move_a_manual_clock() {
    let sim = manual();
    sim.block_on(async {
        let nap = sim.sleep(us(3));
        sim.advance(us(3));
        nap.await;
    });
}

#[test]
fn endless_work_is_never_due() {
    let sim = manual();
    sim.create_stream().submit(Operation::new(Duration::MAX));
    assert!(!sim.advance_to_next());
}

#[tokio::test]
async fn time_moves_by_itself_under_tokio() {
    let sim = SimDevice::new();
    let stream = sim.create_stream();
    for _ in 0..20 {
        stream.submit(Operation::new(Duration::from_secs(3600)));
        let event = recorded(&sim, &stream);
        completion(&sim, event).await;
    }
    sim.sleep(Duration::from_secs(3600)).await;
    assert_eq!(sim.now(), Duration::from_secs(21 * 3600));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tokio_tasks_share_a_device() {
    let sim = SimDevice::new();
    let tasks = (0..8u64).map(|index| {
        let sim = sim.clone();
        tokio::spawn(async move {
            let stream = sim.create_stream();
            for step in 0..10 {
                stream.submit(operation(index + step));
                completion(&sim, recorded(&sim, &stream)).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(sim.counters().operations, 80);
}

#[tokio::test]
async fn watch_that_outlives_block_on_is_called() {
    let sim = SimDevice::new();
    let stream = sim.create_stream();
    stream.submit(operation(10));
    let event = recorded(&sim, &stream);
    let (count, waker) = Count::new();
    let inside = sim.clone();
    tokio::task::spawn_blocking(move || {
        inside.block_on(async { inside.watch(event, &waker) });
    })
    .await
    .unwrap();
    while count.get() == 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn real_time_serves_watches_and_sleeps() {
    let sim = SimDevice::builder().clock(Clock::Wall).build();
    let stream = sim.create_stream();
    stream.submit(operation(500));
    completion(&sim, recorded(&sim, &stream)).await;
    let before = sim.now();
    sim.sleep(us(500)).await;
    assert!(sim.now() >= before + us(500));
    assert_eq!(sim.counters().operations, 1);
}

#[test]
fn real_time_serves_block_on() {
    let sim = SimDevice::builder().clock(Clock::Wall).build();
    sim.block_on(sim.sleep(us(200)));
    assert!(sim.now() >= us(200));
}

#[test]
#[should_panic(expected = "wall clock")]
fn real_time_cannot_be_moved() {
    let sim = SimDevice::builder().clock(Clock::Wall).build();
    sim.advance(us(1));
}
