//! What a pool is built with: every default stands here, with its reason.

use super::Pool;
use crate::device::Device;
use crate::engine::{Engine, Settings, UpkeepSettings};
use crate::error::BuildError;
use crate::lane::Bounds;
use crate::ledger::policy::{Order, ReleaseThreshold, Reuse, Sealing, WaitLimit};
use crate::ledger::{CoalesceHeuristic, GRANULE, Geometry};
use crate::sync::plain;
use std::time::Duration;

/// Handles of 16 MiB: on an H200 a handle costs about 22 us to make accessible whatever its size up to
/// 32 MiB, so fewer are cheaper; but only what is wholly free can be mapped elsewhere, so larger ones
/// leave more unused. `guide::figures` has the frontier.
const HANDLE: u64 = 16 << 20;

/// A capacity is not cut by more than a 64th to fit the handles: smaller handles are used instead.
const LARGEST_CUT: u64 = 64;

/// Handles should be a few dozen at least, or one block would pin too large a part of the pool.
const FEWEST_HANDLES: u64 = 32;

/// A lane keeps blocks of up to 2 MiB: the sizes that are asked for most often, and too small for
/// their fragmentation to matter much.
const LARGEST_IN_LANE: u64 = 2 << 20;

/// A lane keeps 8 MiB: a stream's working set of small blocks, and less than a handle.
const LANE: u64 = 8 << 20;

/// Long against a batch of requests, after which memory is taken again; short against a person's patience.
const UPKEEP_INTERVAL: Duration = Duration::from_millis(10);

/// Builds a [`Pool`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct PoolBuilder {
    device: plain::Arc<dyn Device>,
    capacity: Option<u64>,
    initial: u64,
    handle: Option<u64>,
    lane: u64,
    order: Order,
    reuse: Reuse,
    sealing: Sealing,
    wait_limit: WaitLimit,
    release_threshold: ReleaseThreshold,
    heuristic: Option<CoalesceHeuristic>,
    upkeep_interval: Duration,
}

impl PoolBuilder {
    pub(super) fn new(device: plain::Arc<dyn Device>) -> Self {
        Self {
            device,
            capacity: None,
            initial: 0,
            handle: None,
            lane: LANE,
            order: Order::default(),
            reuse: Reuse::default(),
            sealing: Sealing::default(),
            wait_limit: WaitLimit::default(),
            release_threshold: ReleaseThreshold::default(),
            heuristic: None,
            upkeep_interval: UPKEEP_INTERVAL,
        }
    }

    /// What the pool may hold from the device at most, in bytes; rounded down to whole handles. Default:
    /// all the memory that the device has.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = Some(bytes);
        self
    }

    /// What the pool takes from the device when it is built, in bytes. Default: nothing.
    pub fn initial_size(mut self, bytes: u64) -> Self {
        self.initial = bytes;
        self
    }

    /// The size of physical handles, in bytes: a multiple of the device's step. Default: 16 MiB, less
    /// where the capacity is small.
    ///
    /// Smaller handles waste less memory and cost more device time: each is mapped by itself.
    pub fn handle_bytes(mut self, bytes: u64) -> Self {
        self.handle = Some(bytes);
        self
    }

    /// How many bytes each stream's lane may keep for that stream. Default: 8 MiB. With 0 every free
    /// goes to the ledger: less fragmentation, slower.
    pub fn lane_bytes(mut self, bytes: u64) -> Self {
        self.lane = bytes;
        self
    }

    /// Whether to grow or to make a stream wait first, when free memory does not do.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Which memory may be reused for a stream.
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.reuse = reuse;
        self
    }

    /// When the event of a free is recorded. Default: once 4 MiB were freed on a stream.
    pub fn sealing(mut self, sealing: Sealing) -> Self {
        self.sealing = sealing;
        self
    }

    /// How far a wait on the device may set a stream back.
    pub fn wait_limit(mut self, limit: WaitLimit) -> Self {
        self.wait_limit = limit;
        self
    }

    /// How much the pool may hold before it gives free memory back by itself. Default: it keeps all.
    pub fn release_threshold(mut self, threshold: ReleaseThreshold) -> Self {
        self.release_threshold = threshold;
        self
    }

    /// When free memory is made one piece by itself. Default: when a request needs it, and no more of it.
    pub fn coalesce(mut self, heuristic: CoalesceHeuristic) -> Self {
        self.heuristic = Some(heuristic);
        self
    }

    /// How long after memory came back the pool releases and coalesces, where the two settings above ask
    /// for it; what was used in between is not released. Default: 10 ms, on the device's clock; less than
    /// 0.1 ms counts as that.
    pub fn upkeep_interval(mut self, interval: Duration) -> Self {
        self.upkeep_interval = interval;
        self
    }

    /// Builds the pool.
    ///
    /// # Errors
    /// When a setting is out of range, which the error names, or the device cannot give what is needed.
    pub fn build(self) -> Result<Pool, BuildError> {
        let total = self.device.memory_info()?.total;
        let geometry = self.geometry(total)?;
        let upkeep = self.upkeep(total)?;
        if self.initial > geometry.capacity {
            return Err(BuildError::InitialOverCapacity {
                initial: self.initial,
                capacity: geometry.capacity,
            });
        }
        let lane = Bounds {
            bytes: self.lane,
            largest: LARGEST_IN_LANE.min(self.lane) / GRANULE * GRANULE,
            unsealed: self.sealing.bound(),
        };
        let settings = Settings {
            geometry,
            initial: self.initial,
            lane,
            order: self.order,
            reuse: self.reuse,
            wait_limit: self.wait_limit,
            upkeep,
        };
        Ok(Pool::new(Engine::new(self.device, settings)?))
    }

    fn upkeep(&self, total: u64) -> Result<UpkeepSettings, BuildError> {
        check_threshold(self.release_threshold)?;
        Ok(UpkeepSettings {
            threshold: self.release_threshold.bytes(total),
            heuristic: self.heuristic.clone(),
            interval: self.upkeep_interval,
        })
    }

    /// `total`: more than the device has can never be held, and a request for it would wait for ever.
    fn geometry(&self, total: u64) -> Result<Geometry, BuildError> {
        let capabilities = self.device.capabilities();
        let granularity = capabilities.granularity;
        let capacity = self.capacity.map_or(total, |capacity| capacity.min(total));
        if capacity < granularity {
            return Err(BuildError::CapacityTooSmall {
                capacity,
                granularity,
            });
        }
        let handle_bytes = match self.handle {
            Some(handle) => {
                let most = capacity / granularity * granularity;
                valid_handle(handle, granularity)?.min(most)
            }
            None => handle_for(capacity, granularity),
        };
        Ok(Geometry {
            capacity: capacity / handle_bytes * handle_bytes,
            handle_bytes,
            granularity,
            virtual_memory: capabilities.virtual_memory,
        })
    }
}

/// # Errors
/// When it is none.
pub(super) fn check_threshold(threshold: ReleaseThreshold) -> Result<(), BuildError> {
    match threshold {
        ReleaseThreshold::Fraction(fraction) if !threshold.is_valid() => {
            Err(BuildError::InvalidFraction { fraction })
        }
        _ => Ok(()),
    }
}

fn valid_handle(handle_bytes: u64, granularity: u64) -> Result<u64, BuildError> {
    if handle_bytes == 0 || handle_bytes % granularity != 0 {
        return Err(BuildError::InvalidHandle {
            handle_bytes,
            granularity,
        });
    }
    Ok(handle_bytes)
}

/// The largest handle, up to the default, that leaves enough of them and wastes little capacity.
fn handle_for(capacity: u64, granularity: u64) -> u64 {
    let mut handle = HANDLE.max(granularity);
    let is_too_large = |handle: u64| {
        capacity / handle < FEWEST_HANDLES || capacity % handle > capacity / LARGEST_CUT
    };
    while handle > granularity && is_too_large(handle) {
        handle /= 2;
    }
    handle
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn handles_fit_the_capacity() {
        assert_eq!(handle_for(8 << 30, 2 * MIB), 16 * MIB);
        assert_eq!(handle_for((8 << 30) + 2 * MIB, 2 * MIB), 16 * MIB);
        assert_eq!(handle_for(100 * MIB, 2 * MIB), 2 * MIB);
        assert_eq!(handle_for(2 * MIB, 2 * MIB), 2 * MIB);
        assert_eq!(handle_for(1 << 30, 2 * MIB), 16 * MIB);
    }
}
