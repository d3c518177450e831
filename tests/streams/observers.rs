//! Observers: each fact is told once, on a thread that holds no lock, whatever the observer does.

use crate::common::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use weirpool::device::sim::SimDevice;
use weirpool::extend::{Event, Fact, Observer};
use weirpool::*;

type Act = Box<dyn Fn(&Event<'_>) + Send + Sync>;

/// Counts events, and then does what the test says.
struct Acting {
    events: AtomicU64,
    act: Act,
}

impl std::fmt::Debug for Acting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Acting")
    }
}

impl Acting {
    fn new(act: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            events: AtomicU64::new(0),
            act: Box::new(act),
        })
    }
}

impl Observer for Acting {
    fn event(&self, event: &Event<'_>) {
        self.events.fetch_add(1, Ordering::SeqCst);
        (self.act)(event);
    }
}

/// Does something of each kind.
fn live(device: &SimDevice, pool: &Pool) {
    let (work, first) = stream(device, pool);
    let (_, second) = stream(device, pool);
    let tag = Tag::new("observed");
    let full = pool.allocate(&first, 8 * MIB).tag(tag).try_now().unwrap();
    use_block(&work, &full, us(10));
    assert!(pool.try_allocate(&second, MIB).is_err());
    let waiting = not_ready(pool.allocate(&second, MIB));
    drop(full);
    device.advance(us(20));
    drop(now(waiting).unwrap().deallocate());
    drop(pool.reserve(MIB).try_now().unwrap());
    drop(first.task("named").run(|| ()).unwrap());
    let evictable = pool.try_allocate(&second, 4 * MIB).unwrap();
    drop(evictable.into_evictable());
    let _ = pool.trim_to(0).unwrap();
}

#[test]
fn each_fact_is_told_once_with_its_number() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let observer = Acting::new({
        let told = told.clone();
        move |event: &Event<'_>| {
            let fact = format!("{:?}", event.fact);
            let name = fact.split([' ', '(']).next().unwrap().to_owned();
            told.lock().unwrap().push((event.number, name));
        }
    });
    let device = manual();
    let pool = builder(&device, 8 * MIB)
        .observer(observer.clone())
        .build()
        .unwrap();
    live(&device, &pool);
    pool.close();
    assert_eq!(pool.inspect().observers().count(), 1);
    drop(pool);
    let told = told.lock().unwrap();
    let numbers = told.iter().map(|(number, _)| *number);
    assert!(numbers.eq(1..=told.len() as u64), "{told:?}");
    let count = |name: &str| told.iter().filter(|(_, told)| told == name).count();
    assert_eq!((count("Granted"), count("Freed")), (3, 3), "{told:?}");
    for once in [
        "Waiting",
        "Waited",
        "OutOfMemory",
        "Reserved",
        "Disbanded",
        "Submitted",
        "Closed",
    ] {
        assert_eq!(count(once), 1, "{once} in {told:?}");
    }
    assert!(
        count("Grown") > 0 && count("Released") > 0 && count("Reaped") > 0,
        "{told:?}"
    );
    assert_eq!(count("StreamRegistered"), 2);
}

#[test]
fn observer_that_panics_changes_nothing_for_the_pool_and_other_observers() {
    let broken = Acting::new(|_| panic!("an observer panics"));
    let sound = Acting::new(|_| ());
    let device = manual();
    let builder = builder(&device, 8 * MIB).observer(broken.clone());
    let pool = builder.observer(sound.clone()).build().unwrap();
    live(&device, &pool);
    pool.inspect().check_conserved().unwrap();
    let count = |observer: &Acting| observer.events.load(Ordering::SeqCst);
    assert!(count(&broken) > 10);
    assert_eq!(count(&broken), count(&sound));
}

#[test]
fn observer_may_call_the_pool() {
    let known = Arc::new(Mutex::new(None::<(WeakPool, Stream)>));
    let observer = Acting::new({
        let known = known.clone();
        move |event| {
            let Some((pool, stream)) = known.lock().unwrap().clone() else {
                return;
            };
            let Some(pool) = pool.upgrade() else {
                return;
            };
            assert!(
                event
                    .memory()
                    .is_none_or(|memory| memory.reserved <= 8 * MIB)
            );
            pool.inspect().check().unwrap();
            pool.inspect().snapshot();
            stream.statistics();
            // An observer is told of what it causes, so it must not do so each time.
            match event.fact {
                Fact::Waited { .. } => drop(pool.try_allocate(&stream, 512)),
                Fact::Grown { .. } => drop(pool.maintain().reap().unwrap()),
                _ => {}
            }
        }
    });
    let (device, pool, [(_, own)]) =
        set_up_with(|device| builder(device, 8 * MIB).observer(observer.clone()));
    *known.lock().unwrap() = Some((pool.downgrade(), own));
    live(&device, &pool);
    let _own = known.lock().unwrap().take();
}

/// On the user's thread, in a free, and on the thread of the pool's own that releases memory.
#[test]
fn observer_may_drop_the_last_handle_of_the_pool() {
    for dropped_at in [
        "Granted",
        "Freed",
        "Released",
        "Reaped",
        "StreamGone",
        "Closed",
        "Waited",
    ] {
        let held = Arc::new(Mutex::new(None::<Pool>));
        let observer = Acting::new({
            let held = held.clone();
            move |event| {
                if format!("{:?}", event.fact).starts_with(dropped_at) {
                    let last = held.lock().unwrap().take();
                    drop(last);
                }
            }
        });
        let device = manual();
        let pool = builder(&device, 8 * MIB)
            .observer(observer.clone())
            .build()
            .unwrap();
        *held.lock().unwrap() = Some(pool.clone());
        let living = pool.downgrade();
        live(&device, &pool);
        let (_, stream) = stream(&device, &pool);
        let block = pool.try_allocate(&stream, MIB).unwrap();
        if dropped_at == "Closed" {
            pool.close();
        }
        drop((pool, stream));
        let freeing = thread::spawn(move || drop(block));
        freeing.join().unwrap();
        drop(held.lock().unwrap().take());
        eventually(|| living.upgrade().is_none());
        let counted = observer.events.load(Ordering::SeqCst);
        assert!(counted > 0, "{dropped_at}");
        eventually(|| Arc::strong_count(&observer) == 1);
    }
}
