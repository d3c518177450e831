//! The pool's statistics.

use super::Pool;
use crate::driver::Statistics;
use crate::heap::High;
use crate::measure::Tag;
#[cfg(feature = "metrics")]
use crate::observe::Metrics;
use crate::observe::{StatisticsScope, StreamStatistics, TagStatistics};

impl Pool {
    /// Returns the pool's current figures. Neither seals nor polls events; see [`reap`](Self::reap).
    pub fn statistics(&self) -> Statistics {
        self.service().driver.statistics()
    }

    /// Returns the current figures of every stream that is registered, or was and has memory pending, in the order of
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

    /// Returns the current figures of one tag in this pool. See [`Tag`] for an example.
    pub fn statistics_of_tag(&self, tag: Tag) -> TagStatistics {
        TagStatistics::of(&self.service().queue.accounts, tag)
    }

    /// Returns the current figures of every tag that this pool has seen. See [`TagStatistics`] for an example.
    pub fn statistics_by_tag(&self) -> Vec<TagStatistics> {
        TagStatistics::of_all(&self.service().queue.accounts)
    }

    /// Begins a scope, which reports what happens in the pool from now on.
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
    /// let before = request.before().used.current;
    /// let figures = request.end();
    /// assert_eq!((before, figures.used.high), (4 << 20, 7 << 20));
    /// assert_eq!(figures.retained(), kept.size());
    /// # drop(weights);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn statistics_scope(&self) -> StatisticsScope {
        StatisticsScope::new(self.presence.clone())
    }

    /// Sets all high-water marks, including those of streams and tags, to the current figures. Scopes keep
    /// their own.
    pub fn reset_high_water_marks(&self) {
        let service = self.service();
        for high in High::ALL {
            service.driver.reset_high(high);
        }
        service.queue.accounts.reset_highs();
    }

    /// Returns a publisher of the pool's figures for the installed recorder of the
    /// [`metrics`](https://docs.rs/metrics) crate, with the label `pool = name`. It publishes only when
    /// [`publish`](crate::Metrics::publish) is called.
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn metrics(&self, name: impl Into<String>) -> Metrics {
        Metrics::new(self.presence.clone(), name.into())
    }
}
