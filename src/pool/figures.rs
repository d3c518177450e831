//! What a pool tells of itself.

use super::Pool;
use crate::error::StreamError;
use crate::heap::High;
use crate::measure::{Histogram, Tag};
#[cfg(feature = "metrics")]
use crate::observe::Metrics;
use crate::observe::{Statistics, StatisticsScope, StreamStatistics, TagStatistics};
use crate::stream::Stream;

impl Pool {
    /// The pool's figures, now. Neither seals nor reaps; see [`reap`](Self::reap).
    pub fn statistics(&self) -> Statistics {
        Statistics::of(self.service())
    }

    /// The figures of one stream, now. See [`StreamStatistics`] for an example.
    ///
    /// # Errors
    /// [`StreamError::ForeignPool`] when the stream is of another pool.
    pub fn statistics_of(&self, stream: &Stream) -> Result<StreamStatistics, StreamError> {
        if !stream.is_of(&self.presence) {
            return Err(StreamError::ForeignPool);
        }
        let lane = &stream.registration().lane;
        Ok(StreamStatistics::of(&self.service().driver, lane))
    }

    /// The figures of every stream that is registered, or was and has memory pending, now; in the order of
    /// their ids.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// let stream = pool.register(&device.create_stream())?;
    /// let all = pool.statistics_by_stream();
    /// assert_eq!(all.iter().map(|figures| figures.stream).collect::<Vec<_>>(), [stream.id()]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn statistics_by_stream(&self) -> Vec<StreamStatistics> {
        let driver = &self.service().driver;
        let lanes = driver.lanes();
        lanes
            .iter()
            .map(|lane| StreamStatistics::of(driver, lane))
            .collect()
    }

    /// What one tag has of this pool, now: nothing, if it was not seen here. See [`Tag`] for an example.
    pub fn statistics_of_tag(&self, tag: Tag) -> TagStatistics {
        TagStatistics::of(&self.service().queue.accounts, tag)
    }

    /// What every tag has that this pool has seen, now. See [`TagStatistics`] for an example.
    pub fn statistics_by_tag(&self) -> Vec<TagStatistics> {
        TagStatistics::of_all(&self.service().queue.accounts)
    }

    /// Begins a scope, which tells what happens in the pool from now on.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// let weights = pool.try_allocate(&stream, 4 << 20)?;
    /// let request = pool.statistics_scope();
    /// let kept = pool.try_allocate(&stream, 1 << 20)?;
    /// let step = pool.statistics_scope();
    /// drop(pool.try_allocate(&stream, 2 << 20)?);
    /// assert_eq!((step.end().allocations, request.read().allocations), (1, 2));
    ///
    /// let figures = request.end();
    /// assert_eq!((figures.used_before, figures.peak), (4 << 20, 7 << 20));
    /// assert_eq!(figures.retained(), kept.size());
    /// # drop(weights);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn statistics_scope(&self) -> StatisticsScope {
        StatisticsScope::new(self.presence.clone())
    }

    /// How long those waited who were served. See [`Histogram::since`] for the figures of an interval.
    pub fn wait_times(&self) -> Histogram {
        self.service().queue.times()
    }

    /// How long frees were pending: from the recording of an event that covers them to its being *seen*
    /// complete. So it tells of the device, and of how often somebody asks. An event counts once, however
    /// many frees it covers. See [`Histogram`] for an example.
    pub fn pending_ages(&self) -> Histogram {
        self.service().driver.pending_ages()
    }

    /// Sets the high-water marks of the statistics, those of streams and tags included, to the present
    /// figures. Scopes keep theirs.
    pub fn reset_high_water_marks(&self) {
        let service = self.service();
        for high in High::ALL {
            service.driver.reset_high(high);
        }
        service.queue.accounts.reset_highs();
    }

    /// The figures for the recorder of the [`metrics`](https://docs.rs/metrics) crate that is installed
    /// here, labelled `pool = name`. Nothing is published before
    /// [`publish`](crate::Metrics::publish) is called, nor between two calls of it.
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn metrics(&self, name: impl Into<String>) -> Metrics {
        Metrics::new(self.presence.clone(), name.into())
    }
}
