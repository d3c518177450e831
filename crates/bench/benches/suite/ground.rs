//! Where a benchmark runs.

use super::contender::Awaited;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::{Device, DeviceStream};
use weirpool::{Pool, Stream};

/// A device with streams, and work that takes as long as it is told.
pub(crate) trait Ground: Sync + Sized {
    /// A stream as its owner has it.
    type Work: DeviceStream + Send + Sync;

    /// The device's own pool.
    type Driver<'a>: Awaited<Stream = Line<Self::Work>>
    where
        Self: 'a;

    fn name(&self) -> String;

    fn device(&self) -> Arc<dyn Device>;

    fn create_stream(&self) -> Self::Work;

    /// To be called on each thread before anything else.
    fn enter(&self);

    /// Submits work that keeps the stream busy.
    fn spend(&self, work: &Self::Work, time: Duration);

    /// Runs a future to its end on this thread.
    fn run<F: Future>(&self, future: F) -> F::Output;

    /// Whether the host takes no time there: what is measured of it says nothing then.
    fn is_virtual(&self) -> bool {
        false
    }

    /// A pool of the device's own, if it has such: it keeps what it has, and holds at most so many bytes.
    fn driver(&self, most: Option<u64>) -> Option<Self::Driver<'_>>;

    /// A stream that the pool knows.
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

/// A stream, as the device and as the pool know it.
pub(crate) struct Line<W> {
    pub(crate) work: W,
    pub(crate) stream: Stream,
}
