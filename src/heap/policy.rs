//! Decisions as pure functions, and the words in which a user states them.

use super::forecast::{Donor, Forecast, TOLERANCE, Taker};
use std::time::Duration;

/// What comes first when free memory does not do: sources 4 and 5 of the reuse ladder.
///
/// ```
/// use std::time::Duration;
/// use weirpool::device::sim::{Operation, SimDevice};
/// use weirpool::{Order, Pool, Source, WaitLimit};
///
/// for (order, source) in [(Order::GrowFirst, Source::Grown), (Order::WaitFirst, Source::DeviceWait)] {
///     let device = SimDevice::new();
///     let limit = WaitLimit::Unlimited;
///     let pool = Pool::builder(device.clone()).order(order).wait_limit(limit).build()?;
///     let (work, other) = (device.create_stream(), device.create_stream());
///     let (first, second) = (pool.register(&work)?, pool.register(&other)?);
///     let block = pool.try_allocate(&first, 32 << 20)?;
///     work.submit(Operation::new(Duration::from_millis(1))); // uses it
///     drop(block); // pending: the second stream takes more from the device, or waits
///     assert_eq!(pool.try_allocate(&second, 32 << 20)?.source(), source);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Order {
    /// Take more from the device, or map free memory elsewhere (which of them, [`Remapping`](crate::Remapping) says),
    /// before making a stream wait.
    ///
    /// The default: growth happens a few times in a service's life, a stall at every turn. Where there is no more to
    /// be taken or mapped, a stream that may be made to wait, as [`WaitLimit`] says, waits for pending memory of just
    /// the size that is wanted before others are asked whether they are done: if it is set back by a millisecond at
    /// most, beyond its own work.
    #[default]
    GrowFirst,
    /// Use memory that streams are about to pass before taking more: behind a wait on the device, or,
    /// for an awaited allocation, by awaiting what was on its way when it came, and no longer. Less
    /// memory; streams and tasks may be delayed within what [`WaitLimit`] allows.
    WaitFirst,
}

/// How far a device-side wait may set a stream back.
///
/// ```
/// use std::time::Duration;
/// use weirpool::device::sim::{Operation, SimDevice};
/// use weirpool::{Order, Pool, Source, WaitLimit};
///
/// for (limit, source) in [(WaitLimit::Tail, Source::Grown), (WaitLimit::Unlimited, Source::DeviceWait)] {
///     let device = SimDevice::new();
///     let order = Order::WaitFirst;
///     let pool = Pool::builder(device.clone()).order(order).wait_limit(limit).build()?;
///     let (work, idle) = (device.create_stream(), device.create_stream());
///     let (first, second) = (pool.register(&work)?, pool.register(&idle)?);
///     let block = pool.try_allocate(&first, 32 << 20)?;
///     work.submit(Operation::new(Duration::from_millis(1)));
///     drop(block); // a stream with nothing to do would stall for all of a millisecond
///     assert_eq!(pool.try_allocate(&second, 32 << 20)?.source(), source);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum WaitLimit {
    /// Only for memory that is expected before the stream's own work is through, so that it hardly
    /// ever stalls. What is expected comes from how long each stream's events took so far.
    #[default]
    Tail,
    /// For whatever is pending, as CUDA's and HIP's pools do. Of memory of one size it is the one that is expected to
    /// be complete first.
    Unlimited,
}

/// Which memory may be reused for a stream, by why it is safe. CUDA and HIP have the same three.
///
/// ```
/// use std::time::Duration;
/// use weirpool::device::sim::{Operation, SimDevice};
/// use weirpool::{Pool, Reuse, Source, Stream};
///
/// /// What a second stream is given of the memory that a first one uses and has freed.
/// fn reused(reuse: Reuse, meanwhile: fn(&SimDevice, &Stream, &Stream)) -> Option<Source> {
///     let device = SimDevice::new();
///     let pool = Pool::builder(device.clone()).capacity(32 << 20).reuse(reuse).build().unwrap();
///     let (work, other) = (device.create_stream(), device.create_stream());
///     let (first, second) = (pool.register(&work).unwrap(), pool.register(&other).unwrap());
///     let block = pool.try_allocate(&first, 32 << 20).unwrap();
///     work.submit(Operation::new(Duration::from_millis(1)));
///     drop(block);
///     meanwhile(&device, &first, &second);
///     pool.try_allocate(&second, 32 << 20).ok().map(|block| block.source())
/// }
///
/// let nothing = |_: &SimDevice, _: &Stream, _: &Stream| ();
/// let ordered = |_: &SimDevice, first: &Stream, second: &Stream| {
///     second.wait(&first.event().unwrap()).unwrap(); // for the data's sake
/// };
/// let complete = |device: &SimDevice, _: &Stream, _: &Stream| device.advance(Duration::from_millis(1));
///
/// let follow = Reuse { follow_event_dependencies: true, ..Reuse::NONE };
/// assert_eq!((reused(Reuse::NONE, ordered), reused(follow, ordered)), (None, Some(Source::Ordered)));
/// let opportunistic = Reuse { opportunistic: true, ..Reuse::NONE };
/// assert_eq!((reused(Reuse::NONE, complete), reused(opportunistic, complete)), (None, Some(Source::Free)));
/// let internal = Reuse { internal_dependencies: true, ..Reuse::NONE };
/// assert_eq!((reused(Reuse::NONE, nothing), reused(internal, nothing)), (None, Some(Source::DeviceWait)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Reuse {
    /// Memory freed on another stream before an event that this stream waited for.
    pub follow_event_dependencies: bool,
    /// Memory of other streams whose work is seen to be complete, by asking while allocating. Without
    /// it reuse is deterministic: other streams' memory is free only once somebody synchronized, or
    /// waits for memory, which is the same.
    pub opportunistic: bool,
    /// Memory pending on another stream, behind a wait on the device that the pool inserts.
    pub internal_dependencies: bool,
}

impl Default for Reuse {
    fn default() -> Self {
        Self::ALL
    }
}

impl Reuse {
    /// All three: the default, as in CUDA.
    pub const ALL: Self = Self {
        follow_event_dependencies: true,
        opportunistic: true,
        internal_dependencies: true,
    };

    /// None: a stream reuses what it freed itself, and what is known to be complete.
    pub const NONE: Self = Self {
        follow_event_dependencies: false,
        opportunistic: false,
        internal_dependencies: false,
    };
}

/// How much a pool may hold before it gives free memory back to the device by itself.
///
/// It does so now and then, off the hot path, and only with what was free for a while (see
/// [`PoolBuilder::maintenance_interval`]). What a stream's lane keeps is looked at with that: a free that goes to
/// the lane alone begins no maintenance. CUDA and HIP call this `ReleaseThreshold`; Warp takes a fraction of the
/// device's memory, too.
///
/// ```
/// use std::time::Duration;
/// use weirpool::{Pool, ReleaseThreshold, device::sim::SimDevice};
///
/// let device = SimDevice::new();
/// let threshold = ReleaseThreshold::Bytes(64 << 20);
/// let pool = Pool::builder(device.clone()).release_threshold(threshold).build()?;
/// let stream = pool.register(&device.create_stream())?;
/// drop(pool.try_allocate(&stream, 256 << 20)?);
/// assert_eq!(pool.statistics().reserved.current, 256 << 20); // not by the free itself
/// for _ in 0..4 {
///     device.advance(Duration::from_millis(10)); // maintenance is due once in so long
/// }
/// assert_eq!(pool.statistics().reserved.current, 64 << 20);
/// pool.set_release_threshold(ReleaseThreshold::Fraction(0.5))?; // of the device's memory, from now on
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`PoolBuilder::maintenance_interval`]: crate::PoolBuilder::maintenance_interval
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum ReleaseThreshold {
    /// Give nothing back unasked: the default. With the threshold of 0 that CUDA's pools have, an
    /// allocation, a free and a synchronization of 1 MiB take 85 us on an H200, and 1.6 us where memory
    /// is kept.
    #[default]
    Keep,
    /// So many bytes.
    Bytes(u64),
    /// A fraction of the device's memory, from 0 to 1.
    Fraction(f64),
}

impl ReleaseThreshold {
    pub(crate) fn is_valid(self) -> bool {
        match self {
            Self::Keep | Self::Bytes(_) => true,
            Self::Fraction(fraction) => (0.0..=1.0).contains(&fraction),
        }
    }

    /// In bytes, on a device of `total` bytes.
    pub(crate) fn bytes(self, total: u64) -> u64 {
        match self {
            Self::Keep => u64::MAX,
            Self::Bytes(bytes) => bytes,
            Self::Fraction(fraction) => (total as f64 * fraction) as u64,
        }
    }
}

/// When the event of a free is recorded.
///
/// An event recorded later than the free also covers what was submitted in between: safe, but it
/// delays other streams. An event at every free is exact, but costs a driver call. While anybody
/// waits, every policy seals at once.
///
/// ```
/// use weirpool::device::sim::{Call, SimDevice};
/// use weirpool::{Pool, Sealing};
///
/// /// How many events are recorded for 64 frees of 64 KiB.
/// fn events(sealing: Sealing) -> Result<u64, Box<dyn std::error::Error>> {
///     let device = SimDevice::new();
///     let pool = Pool::builder(device.clone()).sealing(sealing).build()?;
///     let stream = pool.register(&device.create_stream())?;
///     let blocks: Vec<_> = (0..64).map(|_| pool.try_allocate(&stream, 64 << 10)).collect::<Result<_, _>>()?;
///     let before = device.counters().calls(Call::Record);
///     drop(blocks);
///     Ok(device.counters().calls(Call::Record) - before)
/// }
///
/// assert_eq!(events(Sealing::EveryFree)?, 64);
/// assert_eq!(events(Sealing::Bytes(1 << 20))?, 3); // whenever more than that was freed
/// assert_eq!(events(Sealing::Spaced(1 << 18))?, 4); // after 5, 9, 17 and 33, since they come at once; and not 12 times
/// assert_eq!(events(Sealing::OnDemand)?, 0); // until somebody needs it, or `Stream::seal`
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Sealing {
    /// At every free.
    EveryFree,
    /// Once so many bytes were freed on a stream since its last event, and not taken again by it.
    Bytes(u64),
    /// The same, but once up to eight times as many were while there would be an event every few microseconds otherwise: an
    /// event takes as long as several allocations. Not where somebody else wants what was freed, or memory is given back
    /// to the device unasked. The default, with 4 MiB; [`guide::performance`](crate::guide::performance) says why.
    Spaced(u64),
    /// When somebody asks: a waiter, an allocation that finds nothing else, [`Stream::seal`].
    ///
    /// [`Stream::seal`]: crate::Stream::seal
    OnDemand,
}

impl Default for Sealing {
    fn default() -> Self {
        Self::Spaced(4 << 20)
    }
}

impl Sealing {
    /// Unsealed bytes above which a free seals.
    pub(crate) fn bound(self) -> u64 {
        match self {
            Self::EveryFree => 0,
            Self::Bytes(bytes) | Self::Spaced(bytes) => bytes,
            Self::OnDemand => u64::MAX,
        }
    }
}

impl WaitLimit {
    /// When the donor is expected, if the taker may be made to wait for it. Within the tail it is in time, whenever
    /// that is: which of several is taken is left to how well they pack.
    pub(crate) fn forecast(self, donor: Donor, taker: Taker) -> Option<Forecast> {
        self.allows(donor, taker).then(|| match self {
            Self::Tail => Forecast::default(),
            Self::Unlimited => Forecast::of(donor, taker),
        })
    }

    /// Whether the taker may be made to wait for the donor.
    ///
    /// A ticket that is not sealed would be sealed late, and cover work submitted after the free:
    /// nobody is made to wait for it while other memory can do.
    pub(crate) fn allows(self, donor: Donor, taker: Taker) -> bool {
        match (self, donor.sealed_at) {
            (Self::Unlimited, _) => true,
            (Self::Tail, None) => false,
            (Self::Tail, Some(sealed_at)) => {
                let ahead = taker.tail.saturating_sub(taker.now);
                let expected = (sealed_at + donor.latency).saturating_sub(taker.now);
                let is_in_time = !ahead.is_zero() && expected <= ahead + ahead / TOLERANCE;
                is_in_time && taker.now < donor.overdue_at(taker.now)
            }
        }
    }

    /// Returns when the taker may be made to wait for the donor, if it may not now, but will although nothing else
    /// happens: its own work outlasts the rest of the donor's from then on.
    pub(crate) fn allows_from(self, donor: Donor, taker: Taker) -> Option<Duration> {
        let sealed_at = donor.sealed_at.filter(|_| self == Self::Tail)?;
        let ahead = taker.tail.saturating_sub(taker.now);
        let at = (sealed_at + donor.latency).saturating_sub(ahead + ahead / TOLERANCE);
        let is_to_come = at > taker.now && at < donor.overdue_at(taker.now);
        (is_to_come && !ahead.is_zero()).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn donor(sealed_at: Option<Duration>) -> Donor {
        Donor {
            sealed_at,
            expected_at: None,
            number: 0,
            latency: ms(2),
        }
    }

    #[test]
    fn a_stream_waits_only_for_what_comes_before_its_own_tail() {
        let taker = Taker {
            now: ms(10),
            tail: ms(12),
        };
        assert!(WaitLimit::Tail.allows(donor(Some(ms(9))), taker));
        assert!(WaitLimit::Tail.allows(donor(Some(ms(10))), taker));
        assert!(
            !WaitLimit::Tail.allows(donor(Some(ms(11))), taker),
            "it would stall"
        );
        assert!(!WaitLimit::Tail.allows(donor(None), taker));
    }

    #[test]
    fn nobody_waits_for_what_is_overdue() {
        let at = |now| Taker {
            now,
            tail: now + ms(10),
        };
        assert!(WaitLimit::Tail.allows(donor(Some(ms(9))), at(ms(14))));
        assert!(!WaitLimit::Tail.allows(donor(Some(ms(9))), at(ms(15))));
    }

    #[test]
    fn wait_is_allowed_from_the_time_that_is_told_ahead() {
        let donor = donor(Some(ms(20)));
        let at = |now| Taker {
            now,
            tail: now + ms(1),
        };
        let from = WaitLimit::Tail.allows_from(donor, at(ms(10))).unwrap();
        let before = from - Duration::from_nanos(1);
        assert!(!WaitLimit::Tail.allows(donor, at(before)));
        assert!(WaitLimit::Tail.allows(donor, at(from)));
        assert_eq!(WaitLimit::Tail.allows_from(donor, at(from)), None);
        assert_eq!(WaitLimit::Unlimited.allows_from(donor, at(ms(10))), None);
        let idle = Taker {
            now: ms(10),
            tail: ms(10),
        };
        assert_eq!(WaitLimit::Tail.allows_from(donor, idle), None);
    }

    #[test]
    fn an_idle_stream_is_not_made_to_wait() {
        let taker = Taker {
            now: ms(10),
            tail: ms(10),
        };
        assert!(!WaitLimit::Tail.allows(donor(Some(ms(1))), taker));
        assert!(WaitLimit::Unlimited.allows(donor(None), taker));
    }
}
