//! Distributions of times: a count for each of some hundreds of buckets.
//!
//! The buckets are those of HdrHistogram (Gil Tene): sixteen to each power of two, so that the relative error of a
//! time is at most a sixteenth. Recording is one atomic addition to a bucket, without a lock; a reader may see some of
//! the times that are being recorded.

use std::time::Duration;
use weirpool_sync::{Count, plain::OnceLock};

/// Binary logarithm of the number of buckets to each power of two.
const STEP_BITS: u32 = 4;
const STEPS: u64 = 1 << STEP_BITS;

/// Times of 2^44 ns (five hours) and more are all in the last bucket.
const RANGE_BITS: u32 = 44;
const ROWS: usize = (RANGE_BITS - STEP_BITS + 1) as usize;
const BUCKETS: usize = ROWS * STEPS as usize;

/// Returns the bucket of a time in nanoseconds. The first buckets are one nanosecond wide.
fn bucket_of(nanoseconds: u64) -> usize {
    let nanoseconds = nanoseconds.min((1 << RANGE_BITS) - 1);
    if nanoseconds < STEPS {
        return nanoseconds as usize;
    }
    let shift = nanoseconds.ilog2() - STEP_BITS;
    ((u64::from(shift) << STEP_BITS) + (nanoseconds >> shift)) as usize
}

/// Returns the first nanosecond of a bucket.
const fn start_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let shift = (bucket >> STEP_BITS) - 1;
    (STEPS + bucket % STEPS) << shift
}

/// Returns a time in nanoseconds. Saturates at 584 years.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The buckets of one power of two.
type Row = [Count; STEPS as usize];

/// Records times as a [`Histogram`], from any thread.
///
/// ```
/// use std::time::Duration;
/// use weirpool::Recorder;
///
/// let recorder = Recorder::default();
/// recorder.record(Duration::from_millis(40));
/// assert_eq!(recorder.histogram().count(), 1);
/// ```
#[derive(Debug)]
pub struct Recorder {
    /// Created at their first use, because waits of one kind fall into few of them.
    rows: [OnceLock<Box<Row>>; ROWS],
    /// Saturates.
    total: Count,
    longest: Count,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            rows: [const { OnceLock::new() }; ROWS],
            total: Count::default(),
            longest: Count::default(),
        }
    }
}

impl Recorder {
    /// Records a time: one atomic addition, without a lock.
    pub fn record(&self, time: Duration) {
        self.record_all(std::iter::once(time));
    }

    /// Records several times, at less cost than one by one.
    pub fn record_all(&self, times: impl Iterator<Item = Duration>) {
        let mut total = 0_u64;
        for time in times.map(nanoseconds) {
            // First: no reader finds a time in a bucket that is longer than the longest.
            self.longest.raise(time);
            let bucket = bucket_of(time);
            let row = self.rows[bucket / STEPS as usize].get_or_init(Box::default);
            row[bucket % STEPS as usize].add(1);
            total = total.saturating_add(time);
        }
        self.total.add_saturating(total);
    }

    /// Returns the times recorded so far.
    pub fn histogram(&self) -> Histogram {
        let rows = self.rows.iter().enumerate();
        let rows = rows.filter_map(|(row, counts)| Some((row * STEPS as usize, counts.get()?)));
        let counts = rows.flat_map(|(first, row)| (first..).zip(row.iter().map(Count::get)));
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

/// The distribution of times on the device's clock. A time is reported with a relative error of at most a sixteenth,
/// and never shorter than it was.
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
/// let ages = pool.inspect().statistics().pending_ages;
/// assert_eq!(ages.count(), 1);
/// assert!(ages.percentile(99.0) >= Duration::from_micros(100));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Histogram {
    /// The first nanosecond and the count of each bucket that is not empty, in order.
    buckets: Vec<(u64, u64)>,
    total: Duration,
    longest: Duration,
}

/// A bucket of a [`Histogram`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bucket {
    /// The shortest time counted here.
    pub from: Duration,
    /// The longest time counted here.
    pub to: Duration,
    /// Number of times.
    pub count: u64,
}

impl Bucket {
    /// Creates a bucket of a histogram whose longest time is `longest`.
    fn new((from, count): (u64, u64), longest: Duration) -> Self {
        let to = match bucket_of(from) + 1 {
            BUCKETS => longest,
            next => Duration::from_nanos(start_of(next) - 1),
        };
        let from = Duration::from_nanos(from);
        Self { from, to, count }
    }
}

impl Histogram {
    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// Returns the longest time: exact, except in a histogram made by [`since`](Self::since).
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// Returns the sum of all times: exact up to 584 years.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// Returns the mean time; zero if there are no times.
    pub fn mean(&self) -> Duration {
        let count = u128::from(self.count().max(1));
        let mean = self.total.as_nanos() / count;
        Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// Returns the time that `percent` of the times (0 to 100) did not exceed: at most a sixteenth too long, never too
    /// short, and zero if there are no times.
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

    /// Returns the buckets that are not empty, shortest times first.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + '_ {
        let buckets = self.buckets.iter().copied();
        buckets.map(|bucket| Bucket::new(bucket, self.longest))
    }

    /// Returns the times recorded since an earlier histogram of the same figure. The longest time of the result has a
    /// relative error of at most a sixteenth.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let pool = Pool::builder(SimDevice::new()).build()?;
    /// let before = pool.inspect().statistics().waits.times;
    /// // ... a minute of service
    /// let of_this_minute = pool.inspect().statistics().waits.times.since(&before);
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
        let last = buckets
            .last()
            .map(|bucket| Bucket::new(*bucket, self.longest).to);
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
        let recorder = Recorder::default();
        times.iter().for_each(|time| recorder.record(ns(*time)));
        recorder.histogram()
    }

    #[test]
    fn buckets_are_contiguous() {
        for bucket in 0..BUCKETS {
            let (start, end) = (start_of(bucket), start_of(bucket + 1) - 1);
            assert!(start <= end);
            assert_eq!((bucket_of(start), bucket_of(end)), (bucket, bucket));
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentile_of_no_times_is_zero() {
        let none = recorded(&[]);
        assert_eq!((none.count(), none.mean()), (0, Duration::ZERO));
        assert_eq!(none.percentile(50.0), Duration::ZERO);
    }

    #[test]
    fn interval_holds_the_times_recorded_in_it() {
        let recorder = Recorder::default();
        recorder.record(ns(1_000_000));
        let before = recorder.histogram();
        recorder.record(ns(10));
        recorder.record(ns(12));
        let interval = recorder.histogram().since(&before);
        assert_eq!((interval.count(), interval.total()), (2, ns(22)));
        assert_eq!(interval.longest(), ns(12));
        assert_eq!(before.since(&before), Histogram::default());
    }

    #[test]
    fn sum_of_long_waits_saturates() {
        let times = recorded(&[u64::MAX, 5, u64::MAX]);
        assert_eq!((times.count(), times.total()), (3, ns(u64::MAX)));
        let recorder = Recorder::default();
        recorder.record_all([Duration::MAX, ns(1)].into_iter());
        let times = recorder.histogram();
        assert_eq!(
            (times.total(), times.longest()),
            (ns(u64::MAX), ns(u64::MAX))
        );
        assert_eq!(times.percentile(100.0), ns(u64::MAX), "never too short");
        assert_eq!(times.mean(), ns(u64::MAX / 2));
    }

    proptest! {
        /// Compares with the sorted times themselves.
        #[test]
        fn percentile_is_right_to_a_sixteenth(
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
