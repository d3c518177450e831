//! Streams that are not like others: the default ones, the pool's own, and those that go away.

use crate::bench::Bench;
use crate::common::{MIB, poll};
use crate::cuda::{Cuda, Mapped};
use crate::site::{Site, eventually};
use futures::executor::block_on;
use std::sync::Arc;
use weirpool::device::{DeviceError, DeviceErrorKind};
use weirpool::{Source, StreamError};

type Here = Cuda<Mapped>;

fn unsupported(refused: StreamError) -> DeviceError {
    match refused {
        StreamError::Device(error) if error.kind() == DeviceErrorKind::Unsupported => error,
        other => panic!("{other:?} instead of something that is not supported"),
    }
}

/// Every blocking stream is ordered with the legacy default stream: a wait in it would hold up all of them.
/// It allocates and frees like another, and what would need a wait it gets in another way, or later.
pub(crate) fn legacy_default_stream_is_never_made_to_wait() {
    let site = Site::<Here>::new(16 * MIB);
    let legacy = site.worker_on(site.bench.gpu.context().default_stream());
    let other = site.worker();

    let block = legacy.take(8 * MIB);
    let address = block.address();
    legacy.use_up(&block, 1);
    drop(block);
    let own = legacy.take_from(Source::SameStream, 8 * MIB);
    assert_eq!(own.address(), address);
    legacy.use_up(&own, 2);

    let pending = other.take(8 * MIB);
    let gate = other.use_until_opened(&pending, 3);
    let event = other.stream.event().unwrap();
    drop(pending);
    // Any other stream would have it behind a wait.
    legacy.take_nothing(8 * MIB);
    let refused = unsupported(legacy.stream.wait(&event).unwrap_err());
    assert!(refused.reason().contains("legacy default"), "{refused}");
    let mut waiting = site.pool.allocate(&legacy.stream, 8 * MIB);
    assert!(poll(&mut waiting).is_pending());
    gate.open();
    let theirs = block_on(waiting).unwrap();
    legacy.use_up(&theirs, 4);
    // Complete work need not be waited for.
    block_on(event.clone().into_future()).unwrap();
    legacy.stream.wait(&event).unwrap();
    drop((own, theirs));
    legacy.settle();
    assert_eq!(site.pool.inspect().statistics().device_waits, 0);
    site.assert_sound();
}

/// It is another stream on each thread, under one name.
pub(crate) fn per_thread_default_stream_is_refused() {
    let site = Site::<Here>::new(8 * MIB);
    let stream = site.bench.gpu.context().per_thread_stream();
    let refused = unsupported(site.pool.register(&stream).unwrap_err());
    assert_eq!(refused.call(), "register");
    for words in ["per-thread default stream", "create_stream"] {
        assert!(refused.reason().contains(words), "{refused}");
    }
    site.assert_conserved();
}

/// The device gives a pool's own stream by its name, for as long as the pool needs it.
pub(crate) fn streams_of_the_pool_accept_work() {
    let site = Site::<Here>::new(8 * MIB);
    let stream = site.pool.create_stream().unwrap();
    let raw = stream.raw();
    let given = || site.bench.device.stream(raw);
    let work = given().expect("a stream that the device made");
    let block = site.pool.try_allocate(&stream, 4 * MIB).unwrap();
    site.bench.fill(&work, (&block).into(), 7);
    let gate = site.bench.hold(&work);
    let answer = site.witness.ask();
    site.bench.compare(&work, (&block).into(), 7, answer);
    drop((stream, work));
    drop(block);
    assert!(given().is_some(), "its work runs still");
    gate.open();
    eventually(|| {
        site.pool.maintain().reap().unwrap();
        given().is_none()
    });
    site.assert_sound();
}

/// A user's stream stays usable for the pool until the memory freed on it is complete, and no longer.
pub(crate) fn stream_is_kept_while_its_memory_is_pending() {
    let site = Site::<Here>::new(8 * MIB);
    let gone = site.worker();
    let stream = Arc::downgrade(&gone.work);
    let is_alive = || stream.strong_count() > 0;
    let block = gone.take(8 * MIB);
    let gate = gone.use_until_opened(&block, 1);
    drop(gone);
    drop(block);
    assert!(is_alive(), "its work runs still");
    gate.open();
    eventually(|| {
        site.pool.maintain().reap().unwrap();
        !is_alive()
    });
    site.assert_sound();
}
