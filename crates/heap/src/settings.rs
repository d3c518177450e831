//! The allocation policies that a user chooses, and the pure functions that apply them.

use crate::units::debug_in_units;
use crate::{Donor, Forecast, TOLERANCE, Taker};
use std::time::Duration;

/// What a pool does first when free memory does not suffice, and how far a wait on the device may delay a stream.
///
/// A wait is *brief* if the memory is expected before the stream's own work ends, or at most 32 µs later: the stream hardly
/// ever stalls. The expectation comes from how long each stream's events took so far.
///
/// A call that does not wait on the host, such as [`Pool::try_allocate`](https://docs.rs/weirpool/latest/weirpool/struct.Pool.html#method.try_allocate), makes a wait of any
/// length as its last resort.
///
/// ```
/// use std::time::Duration;
/// use weirpool::device::sim::{Operation, SimDevice};
/// use weirpool::{Pool, Source, WhenShort::{GrowFirst, WaitBriefly, WaitFirst}};
///
/// let cases = [(GrowFirst, Source::Grown), (WaitBriefly, Source::Grown), (WaitFirst, Source::DeviceWait)];
/// for (when_short, source) in cases {
///     let device = SimDevice::new();
///     let pool = Pool::builder(device.clone()).tuning(|tuning| tuning.when_short = when_short).build()?;
///     let (work, other) = (device.create_stream(), device.create_stream());
///     let (first, second) = (pool.register(&work)?, pool.register(&other)?);
///     let block = pool.try_allocate(&first, 32 << 20)?;
///     work.submit(Operation::new(Duration::from_millis(1))); // uses it
///     drop(block); // pending: the second stream, which has nothing to do, would stall for a millisecond
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
pub enum WhenShort {
    /// Take more memory from the device, or map free memory elsewhere ([`Remapping`](crate::Remapping) chooses), before
    /// making a stream wait, and then only briefly. The default: a service grows a few times in its life, but would stall
    /// at every turn. Where no more memory can be taken or mapped, a stream may wait on the device for pending memory of
    /// exactly the requested size before the pool polls for completed events, if the wait delays it by at most a
    /// millisecond beyond its own work.
    #[default]
    GrowFirst,
    /// Do as [`GrowFirst`](Self::GrowFirst), but where no more memory can be taken, wait for any pending memory. Among
    /// blocks of equal size, the pool takes the one that is expected to complete first.
    GrowThenWait,
    /// Use memory that other streams are about to release before taking more: behind a brief wait on the device, or, for
    /// an awaited allocation, by awaiting the memory that was pending when the request arrived, and no longer. This needs
    /// less memory, but may delay streams and tasks.
    WaitBriefly,
    /// Do as [`WaitBriefly`](Self::WaitBriefly), but behind waits of any length, as CUDA's and HIP's pools do.
    WaitFirst,
}

impl WhenShort {
    /// Returns whether the pool grows or waits first.
    #[doc(hidden)]
    pub fn order(self) -> Order {
        match self {
            Self::GrowFirst | Self::GrowThenWait => Order::GrowFirst,
            Self::WaitBriefly | Self::WaitFirst => Order::WaitFirst,
        }
    }

    /// Returns how far a wait on the device may delay a stream.
    #[doc(hidden)]
    pub fn wait_limit(self) -> WaitLimit {
        match self {
            Self::GrowFirst | Self::WaitBriefly => WaitLimit::Tail,
            Self::GrowThenWait | Self::WaitFirst => WaitLimit::Unlimited,
        }
    }
}

/// Whether a pool grows or waits first when free memory does not suffice: a part of [`WhenShort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// More memory is taken before a stream waits.
    GrowFirst,
    /// A stream waits before more memory is taken.
    WaitFirst,
}

/// How far a wait on the device may delay a stream: a part of [`WhenShort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitLimit {
    /// A stream waits only for memory that is expected before its own work ends, or shortly after.
    Tail,
    /// A stream waits for any pending memory.
    Unlimited,
}

/// Which memory of other streams may be reused, by the reason why it is safe. CUDA and HIP have these three settings.
///
/// ```
/// use std::time::Duration;
/// use weirpool::device::sim::{Operation, SimDevice};
/// use weirpool::{Pool, Reuse, Source, Stream};
///
/// /// Returns the source from which a second stream is served after a first one used and freed all memory.
/// fn reused(reuse: Reuse, meanwhile: fn(&SimDevice, &Stream, &Stream)) -> Option<Source> {
///     let device = SimDevice::new();
///     let pool = Pool::builder(device.clone()).capacity(32 << 20).tuning(|tuning| tuning.reuse = reuse).build().unwrap();
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
    /// Memory of other streams whose work is complete, found by polling events during an allocation. Without it,
    /// reuse is deterministic: memory of other streams becomes free only when a caller synchronizes or waits for
    /// memory, or when it is above the [release threshold](ReleaseThreshold).
    pub opportunistic: bool,
    /// Memory pending on another stream, behind a wait on the device that the pool inserts. Switch it off where streams
    /// wait for each other without events, as kernels do that read a flag: if that stream waits for later work of this
    /// one, the wait is a deadlock. With [`WhenShort::GrowFirst`] the pool waits only where it cannot grow.
    pub internal_dependencies: bool,
}

impl Default for Reuse {
    fn default() -> Self {
        Self::ALL
    }
}

impl Reuse {
    /// All three. The default, as in CUDA.
    pub const ALL: Self = Self {
        follow_event_dependencies: true,
        opportunistic: true,
        internal_dependencies: true,
    };

    /// None of them: a stream reuses memory that it freed itself, and memory that is known to be complete.
    pub const NONE: Self = Self {
        follow_event_dependencies: false,
        opportunistic: false,
        internal_dependencies: false,
    };

    /// Returns the three as bits.
    #[doc(hidden)]
    pub fn to_bits(self) -> u8 {
        u8::from(self.follow_event_dependencies)
            | u8::from(self.opportunistic) << 1
            | u8::from(self.internal_dependencies) << 2
    }

    /// Returns the setting that [`to_bits`](Self::to_bits) made.
    #[doc(hidden)]
    pub fn of_bits(bits: u8) -> Self {
        Self {
            follow_event_dependencies: bits & 1 != 0,
            opportunistic: bits & 2 != 0,
            internal_dependencies: bits & 4 != 0,
        }
    }
}

/// How much memory a pool may hold before it releases free memory to the device unasked.
///
/// Maintenance does this off the hot path, 10 ms after a free on the device's clock, and only with memory that was not
/// used in between. It also inspects the lanes' caches, but a free that goes to a lane alone does not start it. CUDA and HIP call this `ReleaseThreshold`; Warp accepts a fraction of the device's memory,
/// too.
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
/// assert_eq!(pool.inspect().statistics().reserved.current, 256 << 20); // the free itself releases nothing
/// for _ in 0..4 {
///     device.advance(Duration::from_millis(10)); // the interval of maintenance
/// }
/// assert_eq!(pool.inspect().statistics().reserved.current, 64 << 20);
/// pool.maintain().set_release_threshold(ReleaseThreshold::Fraction(0.5))?; // of the device's memory, from now on
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum ReleaseThreshold {
    /// Release nothing unasked. The default. With a threshold of 0, the default of CUDA's pools, allocating, freeing
    /// and synchronizing 1 MiB takes 85 us on an H200; it takes 1.6 us where memory is kept.
    #[default]
    Keep,
    /// This many bytes.
    Bytes(u64),
    /// A fraction of the device's memory, from 0 to 1.
    Fraction(f64),
}

debug_in_units!(enum ReleaseThreshold { Keep, Bytes(inner as bytes), Fraction(inner) });

impl ReleaseThreshold {
    /// Returns whether the number is in range.
    #[doc(hidden)]
    pub fn is_valid(self) -> bool {
        match self {
            Self::Keep | Self::Bytes(_) => true,
            Self::Fraction(fraction) => (0.0..=1.0).contains(&fraction),
        }
    }

    /// Returns the threshold in bytes, on a device of `total` bytes.
    #[doc(hidden)]
    pub fn bytes(self, total: u64) -> u64 {
        match self {
            Self::Keep => u64::MAX,
            Self::Bytes(bytes) => bytes,
            Self::Fraction(fraction) => (total as f64 * fraction) as u64,
        }
    }
}

/// When the event of a free is recorded.
///
/// An event recorded later than the free also covers work submitted in between. That is safe, but delays other
/// streams. An event at every free is exact, but costs a driver call each. While any request waits, every policy seals
/// at once.
///
/// ```
/// use weirpool::device::sim::{Call, SimDevice};
/// use weirpool::{Pool, Sealing};
///
/// /// Returns how many events are recorded for 64 frees of 64 KiB.
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
/// assert_eq!(events(Sealing::Spaced(1 << 18))?, 4); // after 5, 9, 17 and 33 frees; spaced, since they come at once
/// assert_eq!(events(Sealing::OnDemand)?, 0); // until another stream needs the memory, or `Stream::seal`
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Sealing {
    /// At every free.
    EveryFree,
    /// Once more than this many bytes were freed on a stream since its last event, and not reused by it. The bound rises
    /// up to eightfold while frees would otherwise record an event every few microseconds: recording an event takes as
    /// long as several allocations. It does not rise where another stream wants the freed memory, or where the pool
    /// releases memory unasked. The default, with 4 MiB;
    /// [`guide::performance`](https://docs.rs/weirpool/latest/weirpool/guide/performance/) says why.
    Spaced(u64),
    /// On demand: for a waiter, for an allocation that finds no other memory, or by [`Stream::seal`].
    ///
    /// [`Stream::seal`]: https://docs.rs/weirpool/latest/weirpool/struct.Stream.html#method.seal
    OnDemand,
}

debug_in_units!(enum Sealing { EveryFree, Spaced(inner as bytes), OnDemand });

impl Default for Sealing {
    fn default() -> Self {
        Self::Spaced(4 << 20)
    }
}

impl Sealing {
    /// Returns the number of unsealed bytes above which a free seals.
    #[doc(hidden)]
    pub fn bound(self) -> u64 {
        match self {
            Self::EveryFree => 0,
            Self::Spaced(bytes) => bytes,
            Self::OnDemand => u64::MAX,
        }
    }
}

impl WaitLimit {
    /// Returns when the donor is expected to be complete, or `None` if the taker may not be made to wait for it. With
    /// [`Tail`](Self::Tail) all allowed donors are in time and count as equal, so that the best fit is taken.
    #[doc(hidden)]
    pub fn forecast(self, donor: Donor, taker: Taker) -> Option<Forecast> {
        self.allows(donor, taker).then(|| match self {
            Self::Tail => Forecast::default(),
            Self::Unlimited => Forecast::of(donor, taker),
        })
    }

    /// Returns whether the taker may be made to wait for the donor.
    ///
    /// A ticket that is not sealed yet would be sealed late and would cover work submitted after the free. Streams are
    /// not made to wait for it while other memory suffices.
    #[doc(hidden)]
    pub fn allows(self, donor: Donor, taker: Taker) -> bool {
        match (self, donor.sealed_at) {
            (Self::Unlimited, _) => true,
            (Self::Tail, None) => false,
            (Self::Tail, Some(sealed_at)) => {
                let at = sealed_at.saturating_add(donor.latency);
                let is_in_time = at <= latest(taker);
                // Nothing tells how long a point that is late will take.
                let is_late = taker.is_idle() && at.saturating_add(BRIEF) < taker.now;
                is_in_time && !is_late && taker.now < donor.overdue_at(taker.now)
            }
        }
    }

    /// Returns the time from which the taker may be made to wait for the donor, if it may not now but will without any
    /// other change: from then on its own work outlasts the rest of the donor's, or nearly does. An idle taker is not
    /// looked at again so shortly before the donor is complete.
    #[doc(hidden)]
    pub fn allows_from(self, donor: Donor, taker: Taker) -> Option<Duration> {
        let sealed_at = donor.sealed_at.filter(|_| self == Self::Tail)?;
        let longest = latest(taker).saturating_sub(taker.now);
        let at = sealed_at
            .saturating_add(donor.latency)
            .saturating_sub(longest);
        let is_to_come = at > taker.now && at < donor.overdue_at(taker.now);
        (is_to_come && !taker.is_idle()).then_some(at)
    }
}

/// Returns the time until which a taker may be made to wait within its [tail](WaitLimit::Tail).
fn latest(taker: Taker) -> Duration {
    let ahead = taker.tail.saturating_sub(taker.now);
    let longest = ahead.saturating_add(BRIEF.max(ahead / TOLERANCE));
    taker.now.saturating_add(longest)
}

/// A stream may be made to wait for this long beyond its own work. The wait of a task takes as long beside that of a
/// stream: to be woken, to search, and to submit its work to a device that is idle by then.
const BRIEF: Duration = Duration::from_micros(32);

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
    fn stream_waits_only_for_donors_before_its_own_tail() {
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
    fn overdue_donor_is_not_waited_for() {
        let at = |now| Taker {
            now,
            tail: now + ms(10),
        };
        assert!(WaitLimit::Tail.allows(donor(Some(ms(9))), at(ms(14))));
        assert!(!WaitLimit::Tail.allows(donor(Some(ms(9))), at(ms(15))));
    }

    #[test]
    fn wait_is_allowed_from_the_predicted_time() {
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
        assert_eq!(WaitLimit::Tail.allows_from(donor, idle_at(ms(10))), None);
    }

    fn idle_at(now: Duration) -> Taker {
        Taker { now, tail: now }
    }

    #[test]
    fn idle_stream_waits_briefly_at_most() {
        // Expected at 22 ms.
        let donor = donor(Some(ms(20)));
        let allows = |now| WaitLimit::Tail.allows(donor, idle_at(now));
        let instant = Duration::from_nanos(1);
        assert!(!allows(ms(22) - BRIEF - instant));
        assert!(allows(ms(22) - BRIEF) && allows(ms(22) + BRIEF));
        assert!(!allows(ms(22) + BRIEF + instant), "it is late");
        let unsealed = Donor {
            sealed_at: None,
            ..donor
        };
        assert!(!WaitLimit::Tail.allows(unsealed, idle_at(ms(22))));
        assert!(WaitLimit::Unlimited.allows(unsealed, idle_at(ms(22))));
    }

    #[test]
    fn idle_stream_does_not_wait_for_a_stream_of_unknown_pace() {
        let donor = Donor {
            latency: Duration::ZERO,
            ..donor(Some(ms(20)))
        };
        assert!(!WaitLimit::Tail.allows(donor, idle_at(ms(20))));
    }
}
