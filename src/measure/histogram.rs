//! How long things took: a count for each of some hundreds of buckets.
//!
//! The buckets are those of HdrHistogram (Gil Tene): sixteen to each power of two, so that a time is
//! known to a sixteenth of itself whatever its size. Recording is one addition to one of them, with no
//! lock: many may record at once, and a reader takes what it finds.

use crate::sync::Count;
use std::time::Duration;

/// Buckets to each power of two: 2 to the power of this.
const STEP_BITS: u32 = 4;
const STEPS: u64 = 1 << STEP_BITS;

/// Times from here on are all in the last bucket: 2^44 ns, some five hours.
const RANGE_BITS: u32 = 44;
const BUCKETS: usize = ((RANGE_BITS - STEP_BITS + 1) << STEP_BITS) as usize;

/// The bucket of a time in nanoseconds. The first ones are a nanosecond wide.
fn bucket_of(nanoseconds: u64) -> usize {
    let nanoseconds = nanoseconds.min((1 << RANGE_BITS) - 1);
    if nanoseconds < STEPS {
        return nanoseconds as usize;
    }
    let shift = nanoseconds.ilog2() - STEP_BITS;
    ((u64::from(shift) << STEP_BITS) + (nanoseconds >> shift)) as usize
}

/// The first nanosecond of a bucket.
const fn start_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let shift = (bucket >> STEP_BITS) - 1;
    (STEPS + bucket % STEPS) << shift
}

/// Saturates after some five hundred years.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Where times are recorded.
#[derive(Debug)]
pub(crate) struct Recorder {
    buckets: Box<[Count]>,
    total: Count,
    longest: Count,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self {
            buckets: std::iter::repeat_with(Count::default)
                .take(BUCKETS)
                .collect(),
            total: Count::default(),
            longest: Count::default(),
        }
    }

    pub(crate) fn record(&self, time: Duration) {
        self.record_all(std::iter::once(time));
    }

    /// The same for several at once, for less.
    pub(crate) fn record_all(&self, times: impl Iterator<Item = Duration>) {
        let mut total = 0;
        for time in times.map(nanoseconds) {
            // First: no reader finds a time in a bucket that is longer than the longest.
            self.longest.raise(time);
            self.buckets[bucket_of(time)].add(1);
            total += time;
        }
        self.total.add(total);
    }

    /// What was recorded so far.
    pub(crate) fn histogram(&self) -> Histogram {
        let counts = self.buckets.iter().map(Count::get).enumerate();
        Histogram {
            buckets: counts
                .filter(|(_, count)| *count > 0)
                .map(|(bucket, count)| (start_of(bucket), count))
                .collect(),
            total: Duration::from_nanos(self.total.get()),
            longest: Duration::from_nanos(self.longest.get()),
        }
    }
}

/// How long things took, on the device's clock: each time is known to a sixteenth of itself, and is
/// never told shorter than it was.
///
/// ```
/// # use std::time::Duration;
/// # use weirpool::{Pool, device::sim::{Operation, SimDevice}};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).capacity(8 << 20).build()?;
/// # let work = device.create_stream();
/// # let stream = pool.register(&work)?;
/// let block = pool.try_allocate(&stream, 8 << 20)?;
/// work.submit(Operation::new(Duration::from_micros(100)));
/// device.block_on(block.deallocate())?; // the free's event, recorded and seen complete
///
/// let ages = pool.pending_ages();
/// assert_eq!(ages.count(), 1);
/// assert!(ages.percentile(99.0) >= Duration::from_micros(100));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Histogram {
    /// The first nanosecond of a bucket and what it counts, in order, without the empty ones.
    buckets: Vec<(u64, u64)>,
    total: Duration,
    longest: Duration,
}

/// A part of a [`Histogram`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bucket {
    /// The shortest time that is counted here.
    pub from: Duration,
    /// The longest time that is counted here.
    pub to: Duration,
    /// How many there were.
    pub count: u64,
}

impl Bucket {
    fn new((from, count): (u64, u64)) -> Self {
        let to = start_of(bucket_of(from) + 1) - 1;
        Self {
            from: Duration::from_nanos(from),
            to: Duration::from_nanos(to),
            count,
        }
    }
}

impl Histogram {
    /// How many times there are.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// The longest. Exact, but in what [`since`](Self::since) gives.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// All of them together. Exact.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// Their mean; zero when there are none.
    pub fn mean(&self) -> Duration {
        let count = u128::from(self.count().max(1));
        let mean = self.total.as_nanos() / count;
        Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// The time that `percent` of them did not exceed, 0 to 100; at most a sixteenth too long, and never
    /// too short. Zero when there are none.
    pub fn percentile(&self, percent: f64) -> Duration {
        let rank = (percent.clamp(0.0, 100.0) / 100.0 * self.count() as f64).ceil();
        let rank = (rank as u64).max(1);
        let mut seen = 0;
        let reached = self.buckets().find(|bucket| {
            seen += bucket.count;
            seen >= rank
        });
        reached.map_or(Duration::ZERO, |bucket| bucket.to.min(self.longest))
    }

    /// The parts that count anything, shortest times first.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + '_ {
        self.buckets.iter().copied().map(Bucket::new)
    }

    /// What came since an earlier histogram of the same pool, for figures of an interval. The longest is
    /// known to a sixteenth of itself then.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let pool = Pool::builder(SimDevice::new()).build()?;
    /// let before = pool.wait_times();
    /// // ... a minute of service
    /// let of_this_minute = pool.wait_times().since(&before);
    /// assert_eq!(of_this_minute.count(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let count_before = |from: u64| {
            let at = earlier.buckets.binary_search_by_key(&from, |(at, _)| *at);
            at.map_or(0, |at| earlier.buckets[at].1)
        };
        let buckets: Vec<_> = self
            .buckets
            .iter()
            .map(|(from, count)| (*from, count.saturating_sub(count_before(*from))))
            .filter(|(_, count)| *count > 0)
            .collect();
        let last = buckets.last().map(|bucket| Bucket::new(*bucket).to);
        Self {
            longest: last.map_or(Duration::ZERO, |last| last.min(self.longest)),
            total: self.total.saturating_sub(earlier.total),
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn ns(ns: u64) -> Duration {
        Duration::from_nanos(ns)
    }

    fn recorded(times: &[u64]) -> Histogram {
        let recorder = Recorder::new();
        times.iter().for_each(|time| recorder.record(ns(*time)));
        recorder.histogram()
    }

    #[test]
    fn buckets_follow_on_each_other() {
        for bucket in 0..BUCKETS {
            let (start, end) = (start_of(bucket), start_of(bucket + 1) - 1);
            assert!(start <= end);
            assert_eq!((bucket_of(start), bucket_of(end)), (bucket, bucket));
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn no_times_have_no_percentiles() {
        let none = recorded(&[]);
        assert_eq!((none.count(), none.mean()), (0, Duration::ZERO));
        assert_eq!(none.percentile(50.0), Duration::ZERO);
    }

    #[test]
    fn an_interval_has_what_came_in_it() {
        let recorder = Recorder::new();
        recorder.record(ns(1_000_000));
        let before = recorder.histogram();
        recorder.record(ns(10));
        recorder.record(ns(12));
        let interval = recorder.histogram().since(&before);
        assert_eq!((interval.count(), interval.total()), (2, ns(22)));
        assert_eq!(interval.longest(), ns(12));
        assert_eq!(before.since(&before), Histogram::default());
    }

    proptest! {
        /// Against the sorted times themselves.
        #[test]
        fn percentiles_are_right_to_a_sixteenth(
            mut times in prop::collection::vec((0..40u32).prop_flat_map(|bits| 0..1u64 << bits), 1..200),
            percent in 0.0..=100.0f64,
        ) {
            let histogram = recorded(&times);
            times.sort_unstable();
            let rank = (percent / 100.0 * times.len() as f64).ceil().max(1.0) as usize;
            let exact = times[rank - 1];
            let told = nanoseconds(histogram.percentile(percent));
            prop_assert!(exact <= told && told <= exact + exact / STEPS, "{exact} told as {told}");
            prop_assert_eq!(histogram.longest(), ns(*times.last().unwrap()));
            prop_assert_eq!(histogram.percentile(100.0), histogram.longest());
            prop_assert_eq!(histogram.total(), ns(times.iter().sum()));
            prop_assert_eq!(histogram.count(), times.len() as u64);
        }
    }
}
