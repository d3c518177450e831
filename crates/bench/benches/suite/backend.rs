//! The device on which a benchmark runs.

use super::contender::Awaited;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::{Device, DeviceStream, NativeStream};
use weirpool::{Pool, Stream};

/// A device with streams, and work of any given duration.
pub(crate) trait Backend: Sync + Sized {
    /// The type of a stream before it is registered with a pool.
    type Work: DeviceStream + NativeStream + Send + Sync;

    /// The pool that the driver itself provides.
    type Driver<'a>: Awaited<Stream = Line<Self::Work>>
    where
        Self: 'a;

    fn name(&self) -> String;

    fn device(&self) -> Arc<dyn Device>;

    fn create_stream(&self) -> Self::Work;

    /// Prepares the calling thread. Called on each thread before any other method.
    fn enter(&self);

    /// Submits work that keeps the stream busy.
    fn spend(&self, work: &Self::Work, time: Duration);

    /// Runs a future to its end on this thread.
    fn run<F: Future>(&self, future: F) -> F::Output;

    /// Returns whether the host takes no time on this device, so that measured times mean nothing.
    fn is_virtual(&self) -> bool {
        false
    }

    /// Returns the bandwidth of the driver's own copies between pinned memory of the host and memory of the device, in GiB/s: to the
    /// host, and to the device. `None` if there are none.
    fn bare_copies(&self) -> Option<[f64; 2]> {
        None
    }

    /// Returns the driver's own pool, if there is one. It keeps its memory, and holds at most `most` bytes.
    fn driver(&self, most: Option<u64>) -> Option<Self::Driver<'_>>;

    /// Creates a stream and registers it with the pool.
    fn line(&self, pool: &Pool) -> Line<Self::Work> {
        let work = self.create_stream();
        let stream = pool.register(&work).expect("a stream of the device");
        Line { work, stream }
    }

    /// Waits for all work of the streams.
    fn finish<'a>(&self, lines: impl IntoIterator<Item = &'a Line<Self::Work>>)
    where
        Self::Work: 'a,
    {
        let lines = lines.into_iter();
        let ends: Vec<_> = lines.map(|line| line.stream.synchronize()).collect();
        let ended = self.run(futures::future::try_join_all(ends));
        ended.expect("work that does not fail");
    }
}

/// A stream of the device, and the same stream as registered with the pool.
pub(crate) struct Line<W> {
    pub(crate) work: W,
    pub(crate) stream: Stream,
}

impl<W> Line<W> {
    /// Orders later work of this stream after the other's work so far.
    pub(crate) fn come_after(&self, other: &Self) {
        let event = other.stream.event().expect("an event");
        self.stream.wait(&event).expect("an order");
    }
}
