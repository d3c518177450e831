//! The simulated device through its public face.

use futures::task::LocalSpawnExt;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;
use weirpool::device::sim::{Backing, Call, Clock, Operation, SimDevice, SimStream};
use weirpool::device::{Device, DeviceErrorKind, DeviceStream, MemoryKind, RawEvent};

const MIB: u64 = 1 << 20;
const GRANULE: u64 = 2 * MIB;

fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

fn operation(count: u64) -> Operation {
    Operation::new(micros(count))
}

fn manual() -> SimDevice {
    SimDevice::builder().clock(Clock::Manual).build()
}

fn recorded(sim: &SimDevice, stream: &SimStream) -> RawEvent {
    let event = sim.create_event().unwrap();
    sim.record(event, stream.raw()).unwrap();
    event
}

/// Operations that write their name into a common list as they complete.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<String>>>);

impl Journal {
    fn entry(&self, name: &str, operation: Operation) -> Operation {
        let (journal, name) = (self.clone(), name.to_owned());
        operation.run(move |_| journal.0.lock().unwrap().push(name))
    }

    fn text(&self) -> String {
        self.0.lock().unwrap().join(" ")
    }
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Count {
    fn waker() -> (Arc<Self>, Waker) {
        let count = Arc::<Self>::default();
        (count.clone(), Waker::from(count))
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Completes when the event does.
fn completion(sim: &SimDevice, event: RawEvent) -> impl Future<Output = ()> + use<> {
    let sim = sim.clone();
    let mut watch = None;
    poll_fn(move |context| {
        if let Some(old) = watch.take() {
            sim.unwatch(old);
        }
        watch = Some(sim.watch(event, context.waker()));
        match sim.query(event).unwrap() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
}

mod order {
    use super::*;

    #[test]
    fn a_stream_runs_in_order_and_streams_run_side_by_side() {
        let (sim, journal) = (manual(), Journal::default());
        let (a, b) = (sim.create_stream(), sim.create_stream());
        a.submit(journal.entry("a1", operation(10)));
        a.submit(journal.entry("a2", operation(1)));
        b.submit(journal.entry("b1", operation(5)));
        assert_eq!((a.backlog(), a.completed()), (2, 0));
        sim.advance(micros(10));
        assert_eq!(journal.text(), "b1 a1");
        assert_eq!((a.backlog(), a.completed()), (1, 1));
        sim.advance(micros(1));
        assert_eq!(journal.text(), "b1 a1 a2");
        assert_eq!(sim.counters().operations, 3);
    }

    #[test]
    fn nothing_takes_no_time_on_an_idle_stream() {
        let sim = manual();
        let stream = sim.create_stream();
        stream.submit(operation(0));
        assert!(sim.query(recorded(&sim, &stream)).unwrap());
        assert_eq!(stream.backlog(), 0);
    }

    #[test]
    fn a_wait_orders_streams_and_counts_as_stall() {
        let (sim, journal) = (manual(), Journal::default());
        let (a, b) = (sim.create_stream(), sim.create_stream());
        a.submit(journal.entry("a", operation(100)));
        b.submit(journal.entry("b1", operation(30)));
        sim.wait(b.raw(), recorded(&sim, &a)).unwrap();
        b.submit(journal.entry("b2", operation(10)));
        sim.advance_to_end();
        assert_eq!(journal.text(), "b1 a b2");
        assert_eq!(sim.now(), micros(110));
        assert_eq!(sim.counters().stall, micros(70));
        assert_eq!(sim.counters().device_waits, 1);
    }

    #[test]
    fn a_stall_moves_what_stands_behind_earlier_work() {
        let sim = manual();
        let (a, b) = (sim.create_stream(), sim.create_stream());
        a.submit(operation(100));
        sim.wait(b.raw(), recorded(&sim, &a)).unwrap();
        b.submit(operation(10).behind(micros(40)));
        b.submit(operation(10).behind(micros(70)));
        let end = recorded(&sim, &b);
        // 60 later than it would have been, so the next begins at 70 + 60.
        sim.advance(micros(139));
        assert!(!sim.query(end).unwrap());
        sim.advance(micros(1));
        assert!(sim.query(end).unwrap());
        assert_eq!(sim.counters().stall, micros(60));
    }

    #[test]
    fn a_wait_that_was_over_anyway_is_no_stall() {
        let sim = manual();
        let (a, b) = (sim.create_stream(), sim.create_stream());
        a.submit(operation(10));
        b.submit(operation(20));
        sim.wait(b.raw(), recorded(&sim, &a)).unwrap();
        b.submit(operation(5));
        sim.advance_to_end();
        assert_eq!(sim.counters().stall, Duration::ZERO);
        assert_eq!(sim.now(), micros(25));
    }

    #[test]
    fn places_are_bounded_and_their_lack_is_no_stall() {
        let sim = SimDevice::builder()
            .clock(Clock::Manual)
            .concurrent_operations(2)
            .build();
        let streams: Vec<_> = (0..5).map(|_| sim.create_stream()).collect();
        for stream in &streams {
            stream.submit(operation(10));
        }
        sim.advance(micros(10));
        assert_eq!(sim.counters().operations, 2);
        sim.advance_to_end();
        assert_eq!(sim.now(), micros(30));
        assert_eq!(sim.counters().stall, Duration::ZERO);
    }

    fn order_of(seed: u64) -> String {
        let sim = SimDevice::builder()
            .clock(Clock::Manual)
            .concurrent_operations(1)
            .seed(seed)
            .build();
        let journal = Journal::default();
        let gate = sim.flag();
        let streams: Vec<_> = (0..8).map(|_| sim.create_stream()).collect();
        for (index, stream) in streams.iter().enumerate() {
            stream.wait_until(&gate, 1);
            stream.submit(journal.entry(&index.to_string(), operation(1)));
        }
        gate.set(1);
        sim.advance_to_end();
        journal.text()
    }

    #[test]
    fn a_seed_picks_among_equals_reproducibly() {
        assert_eq!(order_of(7), order_of(7));
        let orders: std::collections::HashSet<_> = (0..8).map(order_of).collect();
        assert!(orders.len() > 1, "every seed gives {orders:?}");
    }

    #[test]
    fn work_of_a_destroyed_stream_runs_to_its_end() {
        let (sim, journal) = (manual(), Journal::default());
        let stream = sim.create_stream();
        let raw = stream.raw();
        stream.submit(journal.entry("last", operation(10)));
        let event = recorded(&sim, &stream);
        drop(stream);
        assert!(sim.stream(raw).is_none());
        assert_eq!(
            sim.record(event, raw).unwrap_err().kind(),
            DeviceErrorKind::InvalidArgument
        );
        assert!(!sim.query(event).unwrap());
        sim.advance_to_end();
        assert!(sim.query(event).unwrap());
        assert_eq!(journal.text(), "last");
        // Drained, its name is handed out again, as drivers do; old records stay complete.
        let next = sim.create_stream();
        assert_eq!(next.raw(), raw);
        next.submit(operation(10));
        assert!(sim.query(event).unwrap());
    }

    #[test]
    fn a_stream_made_through_the_contract_takes_work() {
        let sim = manual();
        let device: Arc<dyn Device> = sim.clone().into();
        let raw = device.create_stream().unwrap();
        let stream = sim.stream(raw).unwrap();
        stream.submit(operation(5));
        assert_eq!(stream.backlog(), 1);
        device.destroy_stream(raw).unwrap();
        sim.advance_to_end();
        // The handle keeps the name from being recycled.
        assert_ne!(device.create_stream().unwrap(), raw);
        drop(stream);
        assert_eq!(device.create_stream().unwrap(), raw);
    }

    #[test]
    #[should_panic(expected = "a stream that was destroyed")]
    fn a_destroyed_stream_takes_no_work() {
        let sim = manual();
        let stream = sim.create_stream();
        sim.destroy_stream(stream.raw()).unwrap();
        stream.submit(operation(1));
    }
}

mod flags {
    use super::*;

    #[test]
    fn streams_shake_hands_on_a_value() {
        let (sim, journal) = (manual(), Journal::default());
        let (a, b) = (sim.create_stream(), sim.create_stream());
        let flag = sim.flag();
        b.wait_until(&flag, 2);
        b.submit(journal.entry("b", operation(1)));
        a.submit(journal.entry("a1", operation(10)));
        a.signal(&flag, 1);
        a.submit(journal.entry("a2", operation(10)));
        a.signal(&flag, 2);
        sim.advance(micros(20));
        assert_eq!(flag.value(), 2);
        sim.advance_to_end();
        assert_eq!(journal.text(), "a1 a2 b");
        assert_eq!(sim.counters().stall, micros(20));
    }

    #[test]
    fn the_host_can_set_a_value() {
        let sim = manual();
        let (stream, flag) = (sim.create_stream(), sim.flag());
        stream.wait_until(&flag, 3);
        assert!(!sim.advance_to_next());
        flag.set(2);
        assert_eq!(stream.backlog(), 1);
        flag.set(5);
        assert_eq!(stream.backlog(), 0);
    }

    #[test]
    #[should_panic(expected = "another device's")]
    fn a_foreign_flag_is_refused() {
        manual().create_stream().signal(&manual().flag(), 1);
    }
}

mod events {
    use super::*;

    #[test]
    fn an_event_never_recorded_is_complete_and_no_wait() {
        let sim = manual();
        let (stream, event) = (sim.create_stream(), sim.create_event().unwrap());
        assert!(sim.query(event).unwrap());
        sim.wait(stream.raw(), event).unwrap();
        assert_eq!(stream.backlog(), 0);
    }

    #[test]
    fn a_wait_keeps_the_record_it_was_submitted_for() {
        let sim = manual();
        let (a, b) = (sim.create_stream(), sim.create_stream());
        a.submit(operation(10));
        let event = recorded(&sim, &a);
        sim.wait(b.raw(), event).unwrap();
        a.submit(operation(90));
        sim.record(event, a.raw()).unwrap();
        let passed = recorded(&sim, &b);
        sim.advance(micros(10));
        assert!(sim.query(passed).unwrap());
        assert!(!sim.query(event).unwrap());
        sim.advance(micros(90));
        assert!(sim.query(event).unwrap());
    }

    #[test]
    fn a_destroyed_event_still_holds_who_waits() {
        let sim = manual();
        let (a, b) = (sim.create_stream(), sim.create_stream());
        a.submit(operation(10));
        let event = recorded(&sim, &a);
        sim.wait(b.raw(), event).unwrap();
        sim.destroy_event(event).unwrap();
        assert_eq!(sim.create_event().unwrap(), event, "names are reused");
        assert_eq!(b.backlog(), 1);
        sim.advance_to_end();
        assert_eq!(b.backlog(), 0);
    }

    #[test]
    fn a_watch_fires_once_for_the_record_of_its_time() {
        let sim = manual();
        let stream = sim.create_stream();
        stream.submit(operation(10));
        let event = recorded(&sim, &stream);
        let (first, waker) = Count::waker();
        sim.watch(event, &waker);
        stream.submit(operation(10));
        sim.record(event, stream.raw()).unwrap();
        let (second, waker) = Count::waker();
        sim.watch(event, &waker);
        sim.advance(micros(10));
        assert_eq!((first.get(), second.get()), (1, 0));
        sim.advance(micros(10));
        assert_eq!((first.get(), second.get()), (1, 1));
        sim.watch(event, &waker);
        assert_eq!(second.get(), 2, "complete: at once");
        assert_eq!(sim.counters().watches, 3);
    }

    #[test]
    fn a_watch_taken_back_is_silent() {
        let sim = manual();
        let stream = sim.create_stream();
        stream.submit(operation(10));
        let event = recorded(&sim, &stream);
        let (count, waker) = Count::waker();
        let watch = sim.watch(event, &waker);
        sim.unwatch(watch);
        sim.unwatch(watch);
        sim.advance_to_end();
        assert_eq!(count.get(), 0);
        assert_eq!(Arc::strong_count(&count), 2, "the waker was let go");
    }

    #[test]
    fn events_and_streams_of_another_device_are_unknown() {
        let (sim, other) = (manual(), manual());
        let (stream, event) = (sim.create_stream(), other.create_event().unwrap());
        let error = sim.record(event, stream.raw()).unwrap_err();
        assert_eq!(error.kind(), DeviceErrorKind::InvalidArgument);
        assert_eq!(error.call(), "record");
        assert!(sim.query(event).is_err());
    }
}

mod clock {
    use super::*;

    #[test]
    fn alarms_ring_in_order_and_can_be_cancelled() {
        let sim = manual();
        let (count, waker) = Count::waker();
        sim.set_alarm(micros(10), &waker);
        let cancelled = sim.set_alarm(micros(20), &waker);
        sim.set_alarm(micros(30), &waker);
        sim.cancel_alarm(cancelled);
        assert!(sim.advance_to_next());
        assert_eq!((sim.now(), count.get()), (micros(10), 1));
        assert!(sim.advance_to_next());
        assert_eq!((sim.now(), count.get()), (micros(30), 2));
        assert!(!sim.advance_to_next());
        sim.set_alarm(micros(5), &waker);
        assert_eq!(count.get(), 3, "past: at once");
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
                    device.sleep(micros(delay)).await;
                    seen.lock().unwrap().push(delay);
                };
                tasks.push(spawner.spawn_local_with_handle(task).unwrap());
            }
            for task in tasks {
                task.await;
            }
        });
        assert_eq!(*order.lock().unwrap(), [10, 20, 30]);
        assert_eq!(sim.now(), micros(30));
    }

    #[test]
    fn a_dropped_sleep_takes_its_alarm_back() {
        let sim = SimDevice::new();
        sim.block_on(async {
            let mut nap = Box::pin(sim.sleep(micros(100)));
            let polled = poll_fn(|context| Poll::Ready(nap.as_mut().poll(context))).await;
            assert!(polled.is_pending());
            drop(nap);
            sim.sleep(micros(5)).await;
        });
        assert!(!sim.advance_to_next());
        assert_eq!(sim.now(), micros(5));
    }

    #[test]
    fn block_on_awaits_device_work() {
        let sim = SimDevice::new();
        let stream = sim.create_stream();
        stream.submit(operation(250));
        let event = recorded(&sim, &stream);
        sim.block_on(completion(&sim, event));
        assert_eq!(sim.now(), micros(250));
    }

    #[test]
    #[should_panic(expected = "waits until flag 0 is at least 1; it is 0")]
    fn block_on_names_the_knot() {
        let sim = SimDevice::new();
        let (stream, flag) = (sim.create_stream(), sim.flag());
        stream.wait_until(&flag, 1);
        let event = recorded(&sim, &stream);
        sim.block_on(completion(&sim, event));
    }

    #[test]
    fn another_thread_can_untie_what_block_on_waits_for() {
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
        sim.block_on(sim.sleep(micros(1)));
    }

    #[test]
    fn a_task_can_move_a_manual_clock() {
        let sim = manual();
        sim.block_on(async {
            let nap = sim.sleep(micros(3));
            sim.advance(micros(3));
            nap.await;
        });
    }

    #[test]
    fn what_never_ends_is_never_due() {
        let sim = manual();
        sim.create_stream().submit(Operation::new(Duration::MAX));
        assert!(!sim.advance_to_next());
    }

    #[tokio::test]
    async fn under_tokio_time_moves_by_itself() {
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
    async fn who_watches_after_block_on_is_served_too() {
        let sim = SimDevice::new();
        let stream = sim.create_stream();
        stream.submit(operation(10));
        let event = recorded(&sim, &stream);
        let (count, waker) = Count::waker();
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
        sim.sleep(micros(500)).await;
        assert!(sim.now() >= before + micros(500));
        assert_eq!(sim.counters().operations, 1);
    }

    #[test]
    fn real_time_serves_block_on() {
        let sim = SimDevice::builder().clock(Clock::Wall).build();
        sim.block_on(sim.sleep(micros(200)));
        assert!(sim.now() >= micros(200));
    }

    #[test]
    #[should_panic(expected = "wall clock")]
    fn nobody_moves_real_time() {
        let sim = SimDevice::builder().clock(Clock::Wall).build();
        sim.advance(micros(1));
    }
}

mod memory {
    use super::*;

    fn kind<T: std::fmt::Debug>(
        result: Result<T, weirpool::device::DeviceError>,
    ) -> DeviceErrorKind {
        result.unwrap_err().kind()
    }

    #[test]
    fn bytes_travel_with_their_handle() {
        let sim = manual();
        let range = sim.reserve(4 * GRANULE).unwrap();
        let handle = sim.create(GRANULE).unwrap();
        sim.map(range, handle, GRANULE).unwrap();
        sim.write(range + 100, b"weir").unwrap();
        sim.unmap(range, GRANULE).unwrap();
        sim.map(range + GRANULE, handle, GRANULE).unwrap();
        let mut seen = [0; 4];
        sim.read(range + GRANULE + 100, &mut seen).unwrap();
        assert_eq!(&seen, b"weir");
        assert!(sim.is_mapped(range + GRANULE, GRANULE));
        assert!(!sim.is_mapped(range, GRANULE + 1));
    }

    #[test]
    fn accesses_cross_handles() {
        let sim = manual();
        let range = sim.reserve(2 * GRANULE).unwrap();
        for at in [range, range + GRANULE] {
            sim.map(at, sim.create(GRANULE).unwrap(), GRANULE).unwrap();
        }
        let stream = sim.create_stream();
        let edge = range + GRANULE - 2;
        stream.submit(operation(1).run(move |memory| {
            memory.write(edge, &[1, 2, 3, 4]);
            memory.copy(edge, range, 4);
            memory.fill(edge + 3, 1, 9);
        }));
        sim.advance_to_end();
        let mut seen = [0; 4];
        sim.read(edge, &mut seen).unwrap();
        assert_eq!(seen, [1, 2, 3, 9]);
        sim.read(range, &mut seen).unwrap();
        assert_eq!(seen, [1, 2, 3, 4]);
    }

    #[test]
    fn every_argument_is_checked() {
        use DeviceErrorKind::{InvalidArgument, OutOfMemory};
        let sim = SimDevice::builder().memory(4 * GRANULE).build();
        assert_eq!(kind(sim.reserve(0)), InvalidArgument);
        assert_eq!(kind(sim.reserve(GRANULE + 1)), InvalidArgument);
        assert_eq!(kind(sim.reserve(1 << 60)), OutOfMemory);
        assert_eq!(kind(sim.create(5 * GRANULE)), OutOfMemory);
        let range = sim.reserve(2 * GRANULE).unwrap();
        let one = sim.create(GRANULE).unwrap();
        let two = sim.create(2 * GRANULE).unwrap();
        assert_eq!(kind(sim.map(range + 1, one, GRANULE)), InvalidArgument);
        assert_eq!(kind(sim.map(range, one, 2 * GRANULE)), InvalidArgument);
        assert_eq!(
            kind(sim.map(range + GRANULE, two, 2 * GRANULE)),
            InvalidArgument
        );
        assert_eq!(
            kind(sim.map(range - GRANULE, one, GRANULE)),
            InvalidArgument
        );
        sim.map(range, one, GRANULE).unwrap();
        assert_eq!(
            kind(sim.map(range + GRANULE, one, GRANULE)),
            InvalidArgument
        );
        assert_eq!(kind(sim.map(range, two, 2 * GRANULE)), InvalidArgument);
        assert_eq!(kind(sim.destroy(one)), InvalidArgument);
        assert_eq!(kind(sim.unreserve(range, 2 * GRANULE)), InvalidArgument);
        assert_eq!(kind(sim.unmap(range, 2 * GRANULE)), InvalidArgument);
        assert_eq!(kind(sim.unmap(range + GRANULE, GRANULE)), InvalidArgument);
        sim.unmap(range, GRANULE).unwrap();
        assert_eq!(kind(sim.unreserve(range, GRANULE)), InvalidArgument);
        sim.unreserve(range, 2 * GRANULE).unwrap();
        sim.destroy(one).unwrap();
        assert_eq!(kind(sim.destroy(one)), InvalidArgument);
        sim.destroy(two).unwrap();
        let counters = sim.counters();
        assert_eq!(counters.physical_in_use, 0);
        assert_eq!(counters.physical_peak, 3 * GRANULE);
        assert_eq!(counters.calls(Call::Map), 7);
    }

    #[test]
    fn plain_memory_needs_no_address_space() {
        let sim = SimDevice::builder()
            .memory(4 * GRANULE)
            .virtual_memory(false)
            .build();
        assert_eq!(kind(sim.reserve(GRANULE)), DeviceErrorKind::Unsupported);
        let odd = sim.allocate(MemoryKind::Device, MIB + 1).unwrap();
        let even = sim.allocate(MemoryKind::Device, 2 * GRANULE).unwrap();
        assert_eq!((odd % GRANULE, even % GRANULE), (0, 0));
        assert_eq!(
            kind(sim.allocate(MemoryKind::Device, 2 * GRANULE)),
            DeviceErrorKind::OutOfMemory
        );
        assert_eq!(
            kind(sim.free(MemoryKind::Device, even, GRANULE)),
            DeviceErrorKind::InvalidArgument
        );
        sim.fill(even, 2 * GRANULE, 7).unwrap();
        sim.free(MemoryKind::Device, odd, MIB + 1).unwrap();
        sim.free(MemoryKind::Device, even, 2 * GRANULE).unwrap();
        assert_eq!(
            sim.memory_info(MemoryKind::Device).unwrap().free,
            4 * GRANULE
        );
        assert!(!sim.is_mapped(even, 1));
    }

    #[test]
    fn devices_have_addresses_of_their_own_that_are_not_reused_soon() {
        let (sim, other) = (manual(), manual());
        let mine = sim.reserve(GRANULE).unwrap();
        assert_ne!(mine, other.reserve(GRANULE).unwrap());
        sim.unreserve(mine, GRANULE).unwrap();
        assert_ne!(mine, sim.reserve(GRANULE).unwrap());
    }

    #[test]
    fn addresses_alone_cost_no_bytes() {
        let sim = SimDevice::builder()
            .memory(1 << 40)
            .backing(Backing::AddressesOnly)
            .build();
        let address = sim.allocate(MemoryKind::Device, 1 << 39).unwrap();
        sim.fill(address, 1 << 39, 1).unwrap();
        let mut seen = [9];
        sim.read(address, &mut seen).unwrap();
        assert_eq!(seen, [0]);
        assert!(sim.read(address - 1, &mut seen).is_err());
    }

    #[test]
    fn costs_are_the_tables() {
        let sim = manual();
        let handle = sim.create(GRANULE).unwrap();
        sim.destroy(handle).unwrap();
        let counters = sim.counters();
        assert_eq!(counters.device_time, Duration::from_nanos(8_244 + 8_525));
        assert_eq!(counters.memory_time, counters.device_time);
        assert_eq!(counters.device_calls, 2);
        assert_eq!(sim.now(), Duration::ZERO);
    }
}

mod faults {
    use super::*;

    #[test]
    fn an_illegal_address_breaks_the_device() {
        let sim = manual();
        let stream = sim.create_stream();
        stream.submit(operation(1).run(|memory| memory.write(42, &[1])));
        let event = recorded(&sim, &stream);
        let (count, waker) = Count::waker();
        sim.watch(event, &waker);
        sim.advance_to_end();
        assert_eq!(count.get(), 1, "a watcher learns of the failure");
        let error = sim.query(event).unwrap_err();
        assert!(error.is_sticky());
        assert!(error.reason().contains("0x2a"), "{error}");
        assert!(sim.create(GRANULE).unwrap_err().is_sticky());
        stream.submit(operation(1));
        assert_eq!(stream.backlog(), 0);
    }

    #[test]
    fn a_device_breaks_under_work() {
        let sim = manual();
        let (a, b) = (sim.create_stream(), sim.create_stream());
        a.submit(operation(10));
        sim.wait(b.raw(), recorded(&sim, &a)).unwrap();
        b.submit(operation(10).run(|_| panic!("never runs")));
        sim.break_device("gone");
        sim.break_device("later");
        assert_eq!(
            sim.memory_info(MemoryKind::Device).unwrap_err().reason(),
            "gone"
        );
        sim.advance_to_end();
        assert_eq!(sim.counters().operations, 0);
    }

    #[test]
    fn a_call_fails_when_asked_to() {
        let sim = manual();
        sim.fail_next(Call::Create, DeviceErrorKind::OutOfMemory);
        assert_eq!(
            sim.create(GRANULE).unwrap_err().kind(),
            DeviceErrorKind::OutOfMemory
        );
        sim.create(GRANULE).unwrap();
        sim.fail_next(Call::Record, DeviceErrorKind::Sticky);
        let (stream, event) = (sim.create_stream(), sim.create_event().unwrap());
        assert!(sim.record(event, stream.raw()).unwrap_err().is_sticky());
        assert!(sim.query(event).unwrap_err().is_sticky());
    }

    #[test]
    #[should_panic(expected = "wrong bytes")]
    fn a_bodys_panic_reaches_who_moves_time() {
        let sim = manual();
        let stream = sim.create_stream();
        stream.submit(operation(1).run(|_| panic!("wrong bytes")));
        sim.advance_to_end();
    }

    #[test]
    #[should_panic(expected = "must not move the device's time")]
    fn a_body_cannot_move_time() {
        let sim = manual();
        let inside = sim.clone();
        let body = operation(1).run(move |_| inside.advance(micros(1)));
        sim.create_stream().submit(body);
        sim.advance_to_end();
    }

    #[test]
    fn what_a_body_owns_may_call_the_device_when_dropped() {
        let sim = manual();
        let (stream, owned) = (sim.create_stream(), sim.create_stream());
        stream.submit(operation(1).run(move |_| drop(owned)));
        sim.advance_to_end();
        assert_eq!(sim.counters().calls(Call::DestroyStream), 1);
    }

    #[test]
    fn waits_can_be_unsupported() {
        let sim = SimDevice::builder().device_side_waits(false).build();
        let stream = sim.create_stream();
        let error = sim.wait(stream.raw(), recorded(&sim, &stream)).unwrap_err();
        assert_eq!(error.kind(), DeviceErrorKind::Unsupported);
        assert!(!sim.capabilities().device_side_waits);
    }
}
