//! Streams that the pool knows only by their raw handles, created and destroyed by calls of the driver; and the handles
//! that stand for CUDA's default streams.

use crate::bench::Bench;
use crate::common::MIB;
use crate::cuda::{Cuda, Mapped};
use crate::site::{ONLY_COMPLETE, Site, eventually};
use cudarc::driver::CudaStream;
use cudarc::driver::sys::{self, CUstream};
use futures::executor::block_on;
use std::thread;
use std::time::Duration;
use weirpool::device::DeviceErrorKind;
use weirpool::device::cuda::ExternalStream;
use weirpool::{AllocError, Source, StreamError};
use weirpool_compat::RawPool;

type Here = Cuda<Mapped>;

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
const LEGACY: CUstream = 1 as CUstream;
const PER_THREAD: CUstream = 2 as CUstream;

/// A stream with CUDA's default flags: it is ordered with the legacy default stream.
struct Blocking(CUstream);

impl Blocking {
    /// The context must be current.
    fn new() -> Self {
        let mut handle = std::ptr::null_mut();
        // SAFETY: `stream` is valid for the write.
        let made = unsafe { sys::cuStreamCreate(&mut handle, 0) };
        made.result().expect("a stream");
        Self(handle)
    }

    fn external(&self, site: &Site<Here>) -> ExternalStream {
        external(site, self.0)
    }

    fn synchronize(&self) {
        // SAFETY: the stream is not destroyed before this is dropped.
        let answer = unsafe { sys::cuStreamSynchronize(self.0) };
        answer.result().expect("a stream that works");
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        // SAFETY: the stream is not used any more.
        let answer = unsafe { sys::cuStreamDestroy_v2(self.0) };
        answer.result().expect("a stream that was alive");
    }
}

fn external(site: &Site<Here>, handle: CUstream) -> ExternalStream {
    // SAFETY: the tests keep the stream until their last call with it.
    unsafe { site.bench.device.external_stream(handle) }.expect("a stream of the driver's")
}

fn fill(handle: CUstream, address: u64, bytes: u64, value: u8) {
    // SAFETY: the memory is the caller's, and the stream lives.
    let answer = unsafe { sys::cuMemsetD8Async(address, value, bytes as usize, handle) };
    answer.result().expect("a fill");
}

fn copy(handle: CUstream, target: u64, source: u64, bytes: u64) {
    // SAFETY: as above.
    let answer = unsafe { sys::cuMemcpyDtoDAsync_v2(target, source, bytes as usize, handle) };
    answer.result().expect("a copy");
}

/// Makes later work of the stream come after the work submitted to the other one so far.
fn come_after(handle: CUstream, other: &CudaStream) {
    let event = other.record_event(None).expect("an event");
    // SAFETY: both streams live.
    let answer = unsafe { sys::cuStreamWaitEvent(handle, event.cu_event(), 0) };
    answer.result().expect("a wait");
}

fn bind(site: &Site<Here>) {
    site.bench.gpu.context().bind_to_thread().unwrap();
}

/// The owner destroys the stream while its work on a block, which is already freed, still runs. Other streams get the
/// memory after that work. The next stream may have the same handle, and is a different stream.
pub(crate) fn raw_stream_is_served_and_dropped() {
    let site = Site::<Here>::with(16 * MIB, |builder| {
        builder.tuning(|tuning| tuning.reuse = ONLY_COMPLETE)
    });
    bind(&site);
    let raw = RawPool::new(&site.pool);
    let [gatekeeper, heir] = site.workers();
    let seen = heir.take(8 * MIB);
    let mut last = None;
    for value in 1..=4 {
        let guest = Blocking::new();
        let stream = guest.external(&site);
        assert_eq!(
            stream,
            guest.external(&site),
            "the same stream, asked for again"
        );
        let id = raw.stream(&stream).unwrap().id();
        assert_ne!(last.replace(id), Some(id), "the handle is {:?}", guest.0);
        let address = raw.try_allocate(&stream, 8 * MIB).unwrap();
        fill(guest.0, address, 8 * MIB, value);
        let gate = site.bench.hold(&gatekeeper.work);
        come_after(guest.0, &gatekeeper.work);
        copy(guest.0, seen.address().to_bits(), address, 8 * MIB);
        raw.free(address, &stream).unwrap();
        drop(guest);
        heir.take_nothing(8 * MIB);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| raw.allocate(&heir.work, 8 * MIB, None));
            eventually(|| site.pool.inspect().statistics().waits.waiting == 1);
            gate.open();
            let address = waiting.join().unwrap().unwrap();
            bind(&site);
            site.bench.gpu.write_now(address, 8 * MIB, u32::MAX);
            raw.free(address, &heir.work).unwrap();
        });
        heir.settle();
        let bytes = site.bench.gpu.read_now(seen.address(), seen.size());
        assert!(
            bytes.iter().all(|byte| *byte == value),
            "overwritten too early"
        );
    }
    drop(seen);
    assert_eq!(raw.given_out(), 0);
    site.assert_conserved();
}

/// Both of its handles name one stream, which allocates, frees, and waits for memory. No wait is ever inserted into it:
/// a blocking stream, which comes after all work of the legacy default stream, continues.
pub(crate) fn legacy_default_stream_waits_on_the_host() {
    let site = Site::<Here>::new(18 * MIB);
    bind(&site);
    let raw = RawPool::new(&site.pool);
    let [null, legacy] = [std::ptr::null_mut(), LEGACY].map(|handle| external(&site, handle));
    assert_eq!(null, legacy);
    let stream = raw.stream(&null).unwrap();
    assert_eq!(raw.stream(&legacy).unwrap().id(), stream.id());
    let (other, blocking) = (site.worker(), Blocking::new());
    let place = other.take(2 * MIB);

    let address = raw.try_allocate(&null, 8 * MIB).unwrap();
    fill(LEGACY, address, 8 * MIB, 1);
    raw.free(address, &legacy).unwrap();
    let again = site.pool.try_allocate(&stream, 8 * MIB).unwrap();
    assert_eq!(again.address(), address.into());
    drop(again);
    block_on(stream.synchronize()).unwrap();

    let theirs = other.take(16 * MIB);
    let gate = other.use_until_opened(&theirs, 2);
    drop(theirs);
    assert!(
        raw.try_allocate(&null, 8 * MIB).is_err(),
        "behind a wait only"
    );
    let late = raw.allocate(&null, 8 * MIB, Duration::from_millis(1));
    assert!(matches!(late, Err(AllocError::TimedOut { .. })), "{late:?}");
    let address = thread::scope(|scope| {
        let waiting = scope.spawn(|| raw.allocate(&legacy, 8 * MIB, None));
        eventually(|| site.pool.inspect().statistics().waits.waiting == 1);
        // Only an event is recorded in it.
        let event = stream.event().unwrap();
        fill(blocking.0, place.address().to_bits(), place.size(), 3);
        blocking.synchronize();
        assert!(event.is_complete().unwrap());
        gate.open();
        waiting.join().unwrap().unwrap()
    });
    assert_eq!(site.pool.inspect().statistics().device_waits, 0);

    // Other streams come after it, by a wait of their own.
    fill(LEGACY, address, 8 * MIB, 4);
    let gate = site.bench.hold(&site.bench.gpu.context().default_stream());
    copy(LEGACY, place.address().to_bits(), address, place.size());
    raw.free(address, &null).unwrap();
    let heir = other.take_from(Source::DeviceWait, 16 * MIB);
    other.use_up(&heir, 5);
    site.bench.let_run();
    gate.open();
    other.settle();
    let bytes = site.bench.gpu.read_now(place.address(), place.size());
    assert!(bytes.iter().all(|byte| *byte == 4), "overwritten too early");
    drop((heir, place));
    site.assert_sound();
}

/// A stream that is never destroyed is treated like one that the pool keeps: it is one stream under its name, and
/// another stream comes after its work by a wait on the device.
pub(crate) fn permanent_stream_is_treated_like_a_kept_one() {
    let site = Site::<Here>::new(18 * MIB);
    bind(&site);
    let raw = RawPool::new(&site.pool);
    let guest = Blocking::new();
    let handle = guest.0;
    std::mem::forget(guest);
    // SAFETY: nothing destroys it.
    let stream = unsafe { site.bench.device.permanent_stream(handle) }.unwrap();
    assert_eq!(stream.properties().external_id, None);
    let id = raw.stream(&stream).unwrap().id();
    let (gatekeeper, heir) = (site.worker(), site.worker());
    let seen = gatekeeper.take(2 * MIB);

    let address = raw.try_allocate(&stream, 16 * MIB).unwrap();
    fill(handle, address, 16 * MIB, 3);
    let gate = site.bench.hold(&gatekeeper.work);
    come_after(handle, &gatekeeper.work);
    copy(handle, seen.address().to_bits(), address, 2 * MIB);
    raw.free(address, &stream).unwrap();
    let inherited = heir.take_from(Source::DeviceWait, 16 * MIB);
    heir.use_up(&inherited, 5);
    site.bench.let_run();
    gate.open();
    heir.settle();
    let bytes = site.bench.gpu.read_now(seen.address(), seen.size());
    assert!(bytes.iter().all(|byte| *byte == 3), "overwritten too early");
    assert_eq!(raw.stream(&stream).unwrap().id(), id);
    drop((inherited, seen));
    site.assert_sound();
}

/// One handle stands for a different stream on each thread.
pub(crate) fn per_thread_default_stream_is_refused_by_its_handle() {
    let site = Site::<Here>::new(8 * MIB);
    // SAFETY: the handle is refused, whichever stream it stands for.
    let external = unsafe { site.bench.device.external_stream(PER_THREAD) };
    // SAFETY: as above.
    let permanent = unsafe { site.bench.device.permanent_stream(PER_THREAD) };
    for (answer, call) in [
        (external, "external_stream"),
        (permanent, "permanent_stream"),
    ] {
        let refused = answer.unwrap_err();
        assert_eq!(refused.kind(), DeviceErrorKind::Unsupported);
        assert_eq!(refused.call(), call);
        for words in ["per-thread default stream", "a stream that it made"] {
            assert!(refused.reason().contains(words), "{refused}");
        }
    }
    site.assert_conserved();
}

/// A stream belongs to the context in which it was created, whichever device adopts it.
pub(crate) fn stream_of_another_context_is_refused() {
    let site = Site::<Here>::new(8 * MIB);
    let elsewhere = site.bench.another();
    let work = elsewhere.stream();
    let stream = external(&site, work.cu_stream());
    let refused = RawPool::new(&site.pool).stream(&stream).unwrap_err();
    assert_eq!(refused, StreamError::ForeignDevice);
    site.assert_conserved();
}
