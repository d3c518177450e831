//! The functions as onnxruntime calls them, over the simulated device.
//!
//! | class of fault | test |
//! |---|---|
//! | memory is reused before the work of a session on it is complete | `freed_memory_is_reused_in_the_order_of_its_session`, `memory_for_any_stream_is_complete`, `free_of_memory_for_any_stream_follows_all_sessions` |
//! | a call waits for ever, does not wait, or keeps memory that it did not return | `allocation_waits_for_a_free`, `allocation_without_memory_fails_after_the_limit`, `work_that_takes_longer_than_the_limit_fails_the_call` |
//! | an address that is not allocated frees something | `address_that_is_not_allocated_is_reported` |
//! | a panic reaches C | `panic_is_reported_and_reaches_no_caller` |
//! | memory of a session that the pool does not know is used in no order | `unknown_stream_gets_no_memory` |
//! | an admitted run waits for memory | `run_draws_from_the_reservation_of_its_thread` |

use super::*;
use std::ptr::{dangling_mut, without_provenance_mut};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use weirpool::device::sim::{Clock, Operation, SimDevice, SimStream};
use weirpool::{Pool, WhenShort};

const MIB: usize = 1 << 20;
const SECOND: Duration = Duration::from_secs(1);

/// A pool of 8 MiB, two sessions' streams, and the failures.
struct Setting {
    device: SimDevice,
    pool: Pool,
    works: [SimStream; 2],
    callbacks: &'static Callbacks,
    failures: Arc<Mutex<Vec<String>>>,
}

/// In these tests an exception is a panic.
unsafe extern "C-unwind" fn thrown() -> ! {
    std::panic::resume_unwind(Box::new("bad_alloc"))
}

/// Calls a function as onnxruntime does, and returns 0 for an exception.
fn caught(call: impl FnOnce() -> *mut c_void) -> u64 {
    catch_unwind(AssertUnwindSafe(call)).map_or(0, |address| {
        assert!(!address.is_null(), "onnxruntime does not look at it");
        address.addr() as u64
    })
}

const RUNTIME: Runtime = Runtime {
    handle_of: itself,
    throw: thrown,
};

/// In these tests a stream of onnxruntime's is its handle.
unsafe extern "system" fn itself(stream: *mut sys::OrtSyncStream) -> *mut c_void {
    stream.cast()
}

impl Setting {
    fn new(wait: Duration) -> Self {
        Self::on_device(SimDevice::new(), wait)
    }

    fn on_device(device: SimDevice, wait: Duration) -> Self {
        // Memory is granted behind a wait on the device, while the work on it runs.
        let builder = Pool::builder(device.clone()).tuning(|tuning| {
            tuning.when_short = WhenShort::WaitFirst;
        });
        let pool = builder.capacity(8 * MIB as u64).build();
        let pool = pool.expect("a pool");
        let blocks = Blocks::new(&pool, wait).expect("a stream");
        let works = [device.create_stream(), device.create_stream()];
        for (n, work) in works.iter().enumerate() {
            blocks.add_stream(n + 1, work).expect("of the device");
            // As a second session on it does.
            blocks.add_stream(n + 1, work).expect("of the device");
        }
        let failures = Arc::new(Mutex::new(Vec::new()));
        let report = Box::new({
            let failures = failures.clone();
            move |failure: &Failure| failures.lock().unwrap().push(failure.to_string())
        });
        let callbacks = Callbacks::new(dangling_mut(), RUNTIME, blocks, report);
        Self {
            device,
            pool,
            works,
            callbacks: Box::leak(Box::new(callbacks)),
            failures,
        }
    }

    /// Allocates for the session of a number.
    fn on(&self, session: usize, bytes: usize) -> u64 {
        let this = self.callbacks.as_allocator();
        let stream = without_provenance_mut(session + 1);
        // SAFETY: as onnxruntime calls it.
        caught(|| unsafe { alloc_on_stream(this, bytes, stream) })
    }

    /// Allocates for no stream.
    fn for_any(&self, bytes: usize) -> u64 {
        let this = self.callbacks.as_allocator();
        // SAFETY: as above.
        caught(|| unsafe { alloc(this, bytes) })
    }

    fn free(&self, address: u64) {
        let this = self.callbacks.as_allocator();
        // SAFETY: as above.
        unsafe { free(this, without_provenance_mut(address as usize)) };
    }

    /// A second of a session's work that writes the memory.
    fn work(&self, session: usize, address: u64, bytes: usize) {
        let work = Operation::new(SECOND).writes(address, bytes as u64);
        self.works[session].submit(work);
    }

    fn failures(&self) -> Vec<String> {
        std::mem::take(&mut *self.failures.lock().unwrap())
    }

    fn live(&self) -> u64 {
        self.pool.inspect().statistics().live_blocks
    }

    /// Everything was freed, nothing failed, and no work met work that it was not ordered behind.
    fn end(&self) {
        self.device.advance_to_end();
        self.device.assert_ordered();
        assert_eq!(self.failures(), Vec::<String>::new());
        assert_eq!(self.live(), 0);
    }
}

#[test]
fn freed_memory_is_reused_in_the_order_of_its_session() {
    let setting = Setting::new(9 * SECOND);
    let first = setting.on(0, 8 * MIB);
    assert_eq!(first % 256, 0);
    setting.work(0, first, 8 * MIB);
    setting.free(first);
    let again = setting.on(0, 8 * MIB);
    assert_eq!(
        again, first,
        "reused at once, behind the session's own work"
    );
    assert_eq!(setting.device.now(), Duration::ZERO);
    setting.work(0, again, 8 * MIB);
    setting.free(again);
    let other = setting.on(1, 8 * MIB);
    setting.work(1, other, 8 * MIB);
    setting.free(other);
    setting.end();
}

#[test]
fn no_bytes_are_a_null_pointer() {
    let setting = Setting::new(SECOND);
    let this = setting.callbacks.as_allocator();
    let stream = without_provenance_mut(1);
    // SAFETY: as onnxruntime calls it.
    let all = unsafe {
        [
            alloc(this, 0),
            reserve(this, 0),
            alloc_on_stream(this, 0, stream),
        ]
    };
    assert_eq!(all, [null_mut(); 3]);
    setting.free(0);
    setting.end();
}

#[test]
fn table_allocates_at_multiples_of_256_bytes() {
    let setting = Setting::new(SECOND);
    let this = setting.callbacks.as_allocator();
    // SAFETY: it lives.
    let table = unsafe { &*this };
    assert!(table.version >= 23, "older ones have no `AllocOnStream`");
    // SAFETY: as onnxruntime calls it, and none of these unwinds.
    let all = unsafe {
        let alloc = |bytes| table.Alloc.unwrap()(this, bytes);
        let reserve = |bytes| table.Reserve.unwrap()(this, bytes);
        let on = |n, bytes| table.AllocOnStream.unwrap()(this, bytes, without_provenance_mut(n));
        [alloc(1), reserve(3), on(0, 300), on(1, 1), on(2, 300)]
    };
    for address in all.map(|address| address.addr()) {
        assert!(address > 0 && address % 256 == 0, "{address:#x}");
    }
    assert_eq!(setting.live(), 5);
    // SAFETY: as above.
    let info = unsafe {
        for address in all {
            table.Free.unwrap()(this, address);
        }
        table.Info.unwrap()(this)
    };
    assert_eq!(info, dangling_mut());
    setting.end();
}

#[test]
fn memory_for_any_stream_is_complete() {
    let setting = Setting::new(9 * SECOND);
    let first = setting.on(0, 8 * MIB);
    setting.work(0, first, 8 * MIB);
    setting.free(first);
    let weight = setting.for_any(8 * MIB);
    assert_eq!(weight, first);
    assert!(
        setting.device.now() >= SECOND,
        "the session's work is complete"
    );
    // The host's copy, in no order with the streams.
    setting.device.write(weight, &[7; 8]).expect("mapped");
    setting.free(weight);
    setting.end();
}

#[test]
fn free_of_memory_for_any_stream_follows_all_sessions() {
    let setting = Setting::new(9 * SECOND);
    for session in [0, 1] {
        let weight = setting.for_any(8 * MIB);
        for other in [0, 1] {
            let reads = Operation::new(SECOND).reads(weight, 8 * MIB as u64);
            setting.works[other].submit(reads);
        }
        setting.free(weight);
        let next = setting.on(session, 8 * MIB);
        assert_eq!(next, weight);
        setting.work(session, next, 8 * MIB);
        setting.free(next);
    }
    setting.end();
}

#[test]
fn allocation_waits_for_a_free() {
    let setting = Setting::new(60 * SECOND);
    for allocate in [Setting::on, |setting: &Setting, _, bytes| {
        setting.for_any(bytes)
    }] {
        let held = setting.on(0, 8 * MIB);
        let next = thread::scope(|scope| {
            let waiter = scope.spawn(|| allocate(&setting, 1, 4 * MIB));
            while setting.pool.inspect().statistics().waits.waiting == 0 {
                thread::yield_now();
            }
            setting.free(held);
            waiter.join().expect("no panic")
        });
        assert_ne!(next, 0);
        setting.free(next);
    }
    setting.end();
}

#[test]
fn allocation_without_memory_fails_after_the_limit() {
    let setting = Setting::new(SECOND);
    let held = setting.on(0, 5 * MIB);
    assert_eq!([setting.on(1, 4 * MIB), setting.for_any(4 * MIB)], [0, 0]);
    assert!(setting.device.now() >= 2 * SECOND, "each waited");
    let failures = setting.failures();
    assert_eq!(failures.len(), 2);
    assert!(
        failures.iter().all(|text| text.contains("gets no memory")),
        "{failures:?}"
    );
    setting.free(held);
    let whole = setting.on(1, 8 * MIB);
    assert_ne!(whole, 0);
    setting.free(whole);
    setting.end();
}

#[test]
fn work_that_takes_longer_than_the_limit_fails_the_call() {
    let limit = Duration::from_millis(50);
    let device = SimDevice::builder().clock(Clock::Wall).build();
    let setting = Setting::on_device(device, limit);
    let held = setting.on(0, 8 * MIB);
    setting.work(0, held, 8 * MIB);
    setting.free(held);
    let began = Instant::now();
    assert_eq!(setting.for_any(8 * MIB), 0);
    assert!((limit..SECOND).contains(&began.elapsed()));
    let failures = setting.failures();
    assert!(
        failures[0].contains("earlier work on 8388608 bytes was not complete"),
        "{failures:?}"
    );
    assert_eq!(setting.live(), 0);
}

#[test]
fn address_that_is_not_allocated_is_reported() {
    let setting = Setting::new(SECOND);
    let [kept, freed] = [setting.on(0, MIB), setting.on(0, MIB)];
    setting.free(freed);
    for (address, why) in [
        (freed, "was it freed already?"),
        (kept + 512, "it lies within"),
        (0xdead_0000, "was it allocated elsewhere?"),
    ] {
        setting.free(address);
        let failures = setting.failures();
        assert!(
            failures.len() == 1 && failures[0].contains(why),
            "{failures:?}"
        );
        assert_eq!(setting.live(), 1);
    }
    setting.free(kept);
    setting.end();
}

#[test]
fn unknown_stream_gets_no_memory() {
    let setting = Setting::new(SECOND);
    assert_eq!(setting.on(6, MIB), 0);
    let failures = setting.failures();
    assert!(failures[0].contains("stream 0x7"), "{failures:?}");
    setting.end();
}

#[test]
fn panic_is_reported_and_reaches_no_caller() {
    let setting = Setting::new(SECOND);
    let texts: [fn(); 3] = [
        || panic!("a text"),
        || panic!("a number: {}", 7),
        || std::panic::panic_any(7),
    ];
    for (panic, message) in texts.iter().zip(["a text", "a number: 7", "no message"]) {
        let address = setting.callbacks.address("Alloc", |_| {
            panic();
            Ok(Some(512))
        });
        assert_eq!(address, None);
        let failures = setting.failures();
        let expected = format!("a panic in `Alloc` of onnxruntime's allocator: {message}");
        assert_eq!(failures, [expected]);
    }

    // A report that panics itself.
    let blocks = Blocks::new(&setting.pool, SECOND).expect("a stream");
    let report = Box::new(|_: &Failure| panic!("in the report"));
    let callbacks = Callbacks::new(dangling_mut(), RUNTIME, blocks, report);
    let callbacks: &'static _ = Box::leak(Box::new(callbacks));
    let this = callbacks.as_allocator();
    // SAFETY: as onnxruntime calls it.
    unsafe { free(this, without_provenance_mut(512)) };
    setting.end();
}

#[test]
fn run_draws_from_the_reservation_of_its_thread() {
    let setting = Setting::new(SECOND);
    let reservation = setting.pool.reserve(6 * MIB as u64);
    let reservation = reservation.try_now().expect("enough");
    let others = setting.on(1, 2 * MIB);
    {
        let _entered = reservation.enter();
        let drawn = [setting.on(0, 4 * MIB), setting.for_any(2 * MIB)];
        assert!(!drawn.contains(&0));
        assert_eq!(reservation.left(), 0);
        drawn.into_iter().for_each(|address| setting.free(address));
        assert_eq!(reservation.left(), 6 * MIB as u64);
    }
    assert_eq!(
        setting.on(0, 4 * MIB),
        0,
        "what is set aside is no other run's"
    );
    assert_eq!(setting.failures().len(), 1);
    setting.free(others);
    drop(reservation);
    setting.end();
}
