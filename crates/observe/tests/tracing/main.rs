//! The events and spans that subscribers of the `tracing` crate get.

#[path = "../../../../tests/common/mod.rs"]
mod common;

use crate::common::*;
use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber, subscriber};
use weirpool::device::DeviceErrorKind::OutOfMemory;
use weirpool::device::sim::{Call, Checker, SimDevice};
use weirpool::*;
use weirpool_compat::Attribute;
use weirpool_observe::Record as _;
use weirpool_observe::tracing::Tracing;

/// Records a line for each event, and for each span at its beginning and its end.
#[derive(Clone, Default)]
struct Listener {
    heard: Arc<Mutex<Vec<String>>>,
    spans: Arc<Mutex<BTreeMap<u64, String>>>,
    next: Arc<AtomicU64>,
}

#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.0.insert_str(0, &format!("{value:?}")),
            name => write!(self.0, " {name}={value:?}").unwrap(),
        }
    }
}

impl Listener {
    fn hear(&self, line: String) {
        self.heard.lock().unwrap().push(line);
    }

    /// Takes the lines since the last call. Returns those with this beginning.
    fn take(&self, beginning: &str) -> Vec<String> {
        let heard = std::mem::take(&mut *self.heard.lock().unwrap());
        let lines = heard.into_iter();
        lines.filter(|line| line.starts_with(beginning)).collect()
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "weirpool"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let mut line = Line::default();
        attributes.record(&mut line);
        let metadata = attributes.metadata();
        let line = format!("{} {}{}", metadata.level(), metadata.name(), line.0);
        self.spans.lock().unwrap().insert(id, line.clone());
        self.hear(format!("{line} begins"));
        Id::from_u64(id)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        let mut line = Line::default();
        values.record(&mut line);
        let mut spans = self.spans.lock().unwrap();
        spans.get_mut(&id.into_u64()).unwrap().push_str(&line.0);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.hear(format!("{} {}", event.metadata().level(), line.0));
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn try_close(&self, id: Id) -> bool {
        let line = self.spans.lock().unwrap().remove(&id.into_u64());
        self.hear(format!("{} ends", line.unwrap()));
        true
    }
}

/// Runs with a separate listener.
fn listening(test: impl FnOnce(&Listener)) {
    let listener = Listener::default();
    subscriber::with_default(listener.clone(), || test(&listener));
}

fn site(device: &SimDevice, capacity: u64) -> (Pool, Stream) {
    let builder = builder(device, capacity).observer(Tracing::new());
    let pool = builder.build().unwrap();
    let (_, stream) = stream(device, &pool);
    (pool, stream)
}

#[test]
fn grants_and_frees_are_reported_with_their_source() {
    listening(|listener| {
        let device = manual();
        let (pool, stream) = site(&device, 8 * MIB);
        assert_eq!(
            listener.take("DEBUG stream"),
            ["DEBUG stream registered stream=S1"]
        );
        let tag = Tag::new("traced");
        let first = pool.allocate(&stream, 1000).tag(tag).try_now().unwrap();
        let address = first.address().to_bits();
        drop(first);
        drop(pool.try_allocate(&stream, 1024).unwrap());
        let at = "stream=S1 bytes=1024";
        assert_eq!(
            listener.take("TRACE"),
            [
                format!("TRACE granted {at} source=Grown address={address} tag=\"traced\""),
                format!("TRACE freed {at} address={address}"),
                format!("TRACE granted {at} source=Lane address={address}"),
                format!("TRACE freed {at} address={address}"),
            ]
        );
    });
}

#[test]
fn submitted_work_and_abandoned_tasks_are_reported() {
    listening(|listener| {
        let device = manual();
        let (_pool, stream) = site(&device, 8 * MIB);
        drop(stream.run(|| ()).unwrap());
        drop(stream.task("fetch").spawn(async {}).unwrap());
        assert_eq!(
            listener.take("TRACE submitted"),
            [
                "TRACE submitted stream=S1",
                "TRACE submitted stream=S1 task=\"fetch\""
            ]
        );
        drop(stream.task("store").spawn(async {}).unwrap());
        assert_eq!(
            listener.take("WARN"),
            ["WARN host task abandoned stream=S1 task=\"store\""]
        );
    });
}

/// A block may be larger than its request. Granted and freed bytes add up to zero nevertheless.
#[test]
fn grant_and_free_report_equal_sizes() {
    for checker in [Checker::Panic, Checker::Off] {
        listening(|listener| {
            let device = SimDevice::builder().checker(checker).build();
            let (pool, stream) = site(&device, 8 * MIB);
            drop(pool.try_allocate(&stream, 72 << 10).unwrap());
            listener.take("TRACE");
            drop(pool.try_allocate(&stream, 64 << 10).unwrap());
            let told = listener.take("TRACE");
            let with_bytes = |line: &&String| line.contains("bytes=73728");
            assert_eq!(told.iter().filter(with_bytes).count(), 2, "{told:?}");
        });
    }
}

#[test]
fn wait_is_a_span_with_its_outcome() {
    listening(|listener| {
        let device = manual();
        let (pool, stream) = site(&device, 8 * MIB);
        let full = pool.try_allocate(&stream, 8 * MIB).unwrap();
        let tag = Tag::new("traced wait");
        let mut served = pool.allocate(&stream, 8 * MIB).tag(tag);
        let mut given_up = pool.allocate(&stream, 512);
        listener.take("");
        assert!(poll(&mut served).is_pending() && poll(&mut given_up).is_pending());
        let waiting = "DEBUG waiting stream=S1 bytes=";
        assert_eq!(
            listener.take("DEBUG waiting"),
            [
                format!("{waiting}8388608 tag=\"traced wait\" begins"),
                format!("{waiting}512 begins")
            ]
        );
        device.advance(us(30));
        drop((given_up, full));
        drop(now(served).unwrap());
        assert_eq!(
            listener.take("DEBUG wait"),
            [
                "DEBUG waited outcome=\"cancelled\" waited_ns=30000".to_owned(),
                format!("{waiting}512 outcome=\"cancelled\" ends"),
                "DEBUG waited outcome=\"served\" waited_ns=30000".to_owned(),
                format!("{waiting}8388608 tag=\"traced wait\" outcome=\"served\" ends"),
            ]
        );
    });
}

#[test]
fn growth_remapping_and_trimming_are_reported() {
    listening(|listener| {
        let device = manual();
        let (pool, stream) = site(&device, 16 * MIB);
        let blocks = [(); 4].map(|()| pool.try_allocate(&stream, 4 * MIB).unwrap());
        let grown = "DEBUG grown bytes=4194304 chunks=2";
        assert_eq!(listener.take("DEBUG grown"), [grown; 4]);
        let [a, b, c, d] = blocks;
        drop((a, c));
        now(stream.synchronize()).unwrap();
        let block = pool.try_allocate(&stream, 8 * MIB).unwrap();
        let told = listener.take("DEBUG");
        // Two runs of chunks.
        assert_eq!(told, ["DEBUG remapped bytes=4194304 chunks=2"; 2]);
        drop((b, block, d));
        now(stream.synchronize()).unwrap();
        let _ = pool.trim_to(0).unwrap();
        let trimmed = [12582912, 4194304].map(|bytes| format!("DEBUG trimmed bytes={bytes}"));
        assert_eq!(listener.take("DEBUG"), trimmed);
    });
}

#[test]
fn soft_cap_is_reported_once_when_it_is_exceeded() {
    listening(|listener| {
        let device = manual();
        let (pool, stream) = site(&device, 64 * MIB);
        Attribute::ReservedMemHigh.set(&pool, 16 * MIB).unwrap();
        let within = pool.try_allocate(&stream, 16 * MIB).unwrap();
        assert_eq!(listener.take("WARN"), [""; 0]);
        let beyond = [(); 2].map(|()| pool.try_allocate(&stream, 8 * MIB).unwrap());
        let line = format!(
            "WARN soft cap exceeded reserved={} soft_cap={}",
            24 * MIB,
            16 * MIB
        );
        assert_eq!(listener.take("WARN"), std::slice::from_ref(&line));
        drop(beyond);
        now(stream.synchronize()).unwrap(); // gives back the memory above the cap
        assert_eq!(pool.inspect().statistics().reserved.current, 16 * MIB);
        let _again = pool.try_allocate(&stream, 8 * MIB).unwrap();
        assert_eq!(listener.take("WARN"), [line]);
        drop(within);
    });
}

#[test]
fn reaps_and_device_waits_are_reported() {
    listening(|listener| {
        let device = manual();
        let (pool, first) = site(&device, 8 * MIB);
        let (_, second) = stream(&device, &pool);
        drop(pool.try_allocate(&first, 8 * MIB).unwrap());
        device.advance(us(1));
        listener.take("");
        assert!(pool.maintain().reap().unwrap());
        assert_eq!(listener.take(""), ["TRACE reaped streams=1"]);
        let work = device.stream(first.raw());
        let block = pool.try_allocate(&first, 8 * MIB).unwrap();
        use_block(&work.unwrap(), &block, us(50));
        drop(block);
        listener.take("");
        drop(pool.try_allocate(&second, 8 * MIB).unwrap());
        let waits = listener.take("DEBUG");
        assert_eq!(waits, ["DEBUG device wait stream=S2 donor=S1"]);
    });
}

#[test]
fn exhaustion_is_reported_with_every_figure() {
    listening(|listener| {
        let device = manual();
        let (pool, stream) = site(&device, 8 * MIB);
        let held = pool.try_allocate(&stream, 6 * MIB).unwrap();
        listener.take("");
        assert!(pool.try_allocate(&stream, 4 * MIB).is_err());
        let figures = "requested=4194304 free=0 largest_free=0 pending=0 used=6291456 \
                       reserved=6291456 capacity=8388608 waiting";
        assert_eq!(
            listener.take("INFO"),
            [format!("INFO exhausted {figures}=0 fragmentation=0.0")]
        );
        let mut late = not_ready(pool.allocate(&stream, 4 * MIB).timeout(us(5)));
        device.advance(us(5));
        assert!(poll(&mut late).is_ready());
        assert_eq!(
            listener.take("INFO"),
            [format!("INFO exhausted {figures}=1 fragmentation=0.0")]
        );
        pool.close();
        pool.close();
        assert_eq!(listener.take("INFO"), ["INFO closed"]);
        drop(held);
    });
}

/// A deadlock is reported once, with the holders of the memory.
#[test]
fn deadlock_is_reported_once_with_its_holders() {
    listening(|listener| {
        let device = manual();
        let tag = Tag::new("tracing: holder");
        let pool = builder(&device, 8 * MIB)
            .history(16)
            .observer(Tracing::new())
            .build()
            .unwrap();
        let (_, stream) = stream(&device, &pool);
        let held = pool.allocate(&stream, 6 * MIB).tag(tag).try_now().unwrap();
        let mut waiting = pool.allocate(&stream, 4 * MIB);
        for _ in 0..3 {
            assert!(poll(&mut waiting).is_pending());
            device.advance(us(20_000));
        }
        let told = listener.take("WARN deadlocked");
        let [line] = told.as_slice() else {
            panic!("{told:?}");
        };
        for holder in [
            "tracing: holder: 6.0 MiB",
            "crates/observe/tests/tracing/main.rs:",
        ] {
            assert!(line.contains(holder), "{line}");
        }
        assert!(line.contains("requested=4194304"), "{line}");
        drop(held);
        drop(now(waiting).unwrap());
    });
}

/// A deadlock at a tag's limit names the holders of that tag's memory, and no others.
#[test]
fn deadlock_at_a_limit_is_reported_with_the_holders_of_its_tag() {
    listening(|listener| {
        let device = manual();
        let [tag, other] = ["tracing: limited", "tracing: beside"].map(Tag::new);
        let pool = builder(&device, 16 * MIB)
            .fail_deadlocks_after(us(1000))
            .observer(Tracing::new())
            .build()
            .unwrap();
        pool.tag(tag).set_limit(Some(4 * MIB));
        let (_, stream) = stream(&device, &pool);
        let take = |tag, bytes| pool.allocate(&stream, bytes).tag(tag).try_now().unwrap();
        let _held = [take(tag, 3 * MIB), take(other, 2 * MIB)];
        let mut waiting = pool.allocate(&stream, 2 * MIB).tag(tag);
        while poll(&mut waiting).is_pending() {
            device.advance(us(1000));
        }
        let told = listener.take("WARN deadlocked at limit");
        let [line] = told.as_slice() else {
            panic!("{told:?}");
        };
        assert!(line.contains("tracing: limited: 3.0 MiB"), "{line}");
        assert!(!line.contains("tracing: beside"), "{line}");
    });
}

#[test]
fn device_errors_are_reported_and_a_broken_device_once() {
    listening(|listener| {
        let device = manual();
        let (pool, stream) = site(&device, 8 * MIB);
        device.faults().fail_next(Call::Create, OutOfMemory);
        assert!(pool.try_allocate(&stream, MIB).is_err());
        let told = listener.take("WARN");
        assert!(
            told.len() == 1 && told[0].contains("OutOfMemory"),
            "{told:?}"
        );
        device.faults().break_device("pulled out");
        for _ in 0..3 {
            assert!(stream.event().is_err());
        }
        let told = listener.take("ERROR device broken");
        assert_eq!(told.len(), 1, "{told:?}");
    });
}

#[test]
fn blocks_that_outlive_close_are_reported_once() {
    listening(|listener| {
        let device = manual();
        let (pool, stream) = site(&device, 8 * MIB);
        drop(pool.try_allocate(&stream, MIB).unwrap());
        let block = pool.try_allocate(&stream, 4096).unwrap();
        listener.take("");
        for _ in 0..2 {
            pool.close();
        }
        let told = listener.take("WARN");
        let begins = "WARN leaked blocks=1 bytes=4096 reservations=0 forgotten=false";
        assert!(told.len() == 1 && told[0].starts_with(begins), "{told:?}");
        drop((block, stream, pool));
        assert_eq!(listener.take("WARN").len(), 0, "it was freed");
        // A pool without live blocks reports nothing.
        let (pool, _) = site(&device, 8 * MIB);
        pool.close();
        assert_eq!(listener.take("WARN").len(), 0);
    });
}

/// A forgotten future leaks the memory that it was granted, and does not keep the pool alive.
#[test]
fn grant_of_a_forgotten_future_is_reported_when_the_pool_ends() {
    listening(|listener| {
        let device = manual();
        let (pool, stream) = site(&device, 8 * MIB);
        let full = pool.try_allocate(&stream, 8 * MIB).unwrap();
        let mut waiting = Box::new(pool.allocate(&stream, MIB));
        let mut next = Box::new(pool.allocate(&stream, MIB));
        assert!(poll(&mut waiting).is_pending() && poll(&mut next).is_pending());
        drop(full);
        // The next one serves the queue, and is granted after the first.
        drop(now(&mut *next).unwrap());
        std::mem::forget(waiting);
        drop(next);
        listener.take("");
        drop((stream, pool));
        let told = listener.take("WARN");
        let lost = "WARN leaked blocks=1 bytes=1048576 reservations=0 forgotten=true";
        assert!(told.len() == 1 && told[0].starts_with(lost), "{told:?}");
    });
}

/// A subscriber is called while no lock is held, so it may call the pool.
#[test]
fn subscriber_may_call_the_pool() {
    #[derive(Clone)]
    struct Caller(Pool, Stream);

    impl Subscriber for Caller {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "weirpool" && *metadata.level() < Level::TRACE
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            self.0.inspect().statistics();
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            self.0.inspect().check().unwrap();
            self.1.statistics();
            self.0.maintain().reap().unwrap();
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    let device = manual();
    let (pool, stream) = site(&device, 8 * MIB);
    subscriber::with_default(Caller(pool.clone(), stream.clone()), || {
        let full = pool.try_allocate(&stream, 8 * MIB).unwrap();
        assert!(pool.try_allocate(&stream, MIB).is_err());
        let waiting = not_ready(pool.allocate(&stream, MIB));
        drop(full);
        drop(now(waiting).unwrap());
        now(stream.synchronize()).unwrap();
        let _ = pool.trim_to(0).unwrap();
        drop(pool.register(&device.create_stream()).unwrap());
    });
    pool.inspect().check_conserved().unwrap();
}
