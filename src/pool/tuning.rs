//! Settings that a pool hardly ever needs, and the default of every setting with its reason.

use crate::engine::CoalesceHeuristic;
use crate::heap::{GRANULE, GrowBy, Remapping, Reuse, WhenShort};
use crate::measure::debug_in_units;
use crate::queue::Overtaking;

/// Settings whose defaults suit nearly every pool: measure first. [`PoolBuilder::tuning`](crate::PoolBuilder::tuning)
/// sets them.
///
/// Each trades time against memory, or the wait of one request against that of another, and the best value depends on the
/// load. The [guide](crate::guide::performance) has figures, and `weirpool replay` compares settings on a recorded trace.
///
/// ```
/// use weirpool::{GrowBy, Pool, device::sim::SimDevice};
///
/// let builder = Pool::builder(SimDevice::new()).capacity(1 << 30);
/// let pool = builder.tuning(|tuning| {
///     tuning.initial_size = 256 << 20;
///     tuning.growth = GrowBy::AtLeast(64 << 20);
/// });
/// assert_eq!(pool.build()?.inspect().statistics().reserved.current, 256 << 20);
/// # Ok::<(), weirpool::BuildError>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Tuning {
    /// Bytes that the pool reserves from the device when it is built. Default: 0.
    pub initial_size: u64,
    /// How much the pool reserves from the device at a time. Default: what the request needs.
    pub growth: GrowBy,
    /// The alignment of every block in bytes, a power of two up to the device's step; at least 512, the default. Sizes are
    /// rounded up to it as well, so that a freed block can serve any other request. A single allocation can ask for more
    /// with [`Allocate::alignment`](crate::Allocate::alignment).
    pub alignment: u64,
    /// Bytes that each stream's lane may keep for the stream, in blocks of up to 2 MiB, or up to an eighth of these bytes
    /// if that is more (at most 64 MiB). With 0, every free goes to the heap: less fragmentation, but slower. Default:
    /// 8 MiB.
    ///
    /// A cached block serves a request of its size. If an untagged request finds none of its size, it gets a block that
    /// is larger by up to an eighth.
    ///
    /// Threads that use one stream get caches of their own once they have met at its lane several times: up to 16 for a
    /// stream, each of which keeps up to a quarter of these bytes, and serves exact sizes only. A block that one thread
    /// freed is found by another once the first keeps that much, or once a request looks beyond the lanes. The stream's
    /// high-water mark of used bytes is sampled then, and no longer exact.
    ///
    /// Each lane may keep eight times these bytes in larger blocks: up to 4 of them, each for a request of exactly its
    /// size. It keeps a large block once its stream takes turns: it allocated the block that it freed last, several times
    /// in a row, and no other size in between. The stream keeps the block for 200 µs while the pool can grow; then, or
    /// at once where the pool cannot grow, any stream may take it. Lanes keep no large blocks where memory is given
    /// back without being asked (a release threshold, a heuristic), where [waiting](WhenShort::WaitFirst) comes before
    /// growing, or where every free is [sealed](crate::Sealing::EveryFree). The event of such a block is recorded by the
    /// stream's next free, by its next allocation of another size, or on demand.
    ///
    /// Where allocations are [passed through](crate::extend::SegmentProperties::is_ordered), a stream keeps no memory, but
    /// the room of so many freed bytes, and of up to 4 larger blocks, for its next allocations of the same sizes. The
    /// high-water marks of reserved bytes include this room. Any other request takes it.
    pub lane_bytes: u64,
    /// What the pool does first when free memory does not suffice, and how far a wait on the device may delay a stream.
    /// Default: it grows.
    pub when_short: WhenShort,
    /// Which memory may be reused for a stream. Default: [all](Reuse::ALL).
    pub reuse: Reuse,
    /// The share of time that goes into mapping free memory elsewhere instead of reserving more. [`Remapping`] has an
    /// example. Default: an eighth.
    pub remapping: Remapping,
    /// When free memory is made one piece without being asked. Default: `None`, when a request needs it, and no more than
    /// it needs.
    pub coalesce: Option<CoalesceHeuristic>,
    /// How often a waiting request may be overtaken by requests for which there is memory. Default: never.
    pub overtaking: Overtaking,
}

debug_in_units!(struct Tuning { initial_size as bytes, growth, alignment as bytes, lane_bytes as bytes, when_short, reuse, remapping, coalesce, overtaking });

impl Default for Tuning {
    fn default() -> Self {
        Self {
            initial_size: 0,
            // Growing costs tens of microseconds, and memory that is not reserved is left to others.
            growth: GrowBy::Chunks,
            // CUDA's own alignment is 256 bytes; a step of 512 leaves fewer sizes to keep apart.
            alignment: GRANULE,
            // A stream's working set of small blocks, and no more than a chunk.
            lane_bytes: 8 << 20,
            // Growth happens a few times in a service's life, a stall at every turn. A stream hardly ever stalls for memory
            // that is expected before its own work is through.
            when_short: WhenShort::GrowFirst,
            // Each kind of reuse is safe; excluding one only costs memory or time.
            reuse: Reuse::ALL,
            // The traces stay far below an eighth; a loop of allocations would otherwise wait for the driver.
            remapping: Remapping::Share(0.125),
            coalesce: None,
            // First come, first served, until a service asks for something else.
            overtaking: Overtaking::NONE,
        }
    }
}

#[cfg(all(test, not(weirpool_loom)))]
mod tests {
    use super::*;

    #[test]
    fn defaults_agree_with_those_of_their_types() {
        let tuning = Tuning::default();
        assert_eq!(tuning.growth, GrowBy::default());
        assert_eq!(tuning.when_short, WhenShort::default());
        assert_eq!(tuning.reuse, Reuse::default());
        assert_eq!(tuning.remapping, Remapping::default());
        assert_eq!(tuning.overtaking, Overtaking::default());
    }
}
