//! The shape of a pool's memory: how much, in which steps, from where.

use super::PoolBuilder;
use crate::device::Capabilities;
use crate::driver::MemorySource;
use crate::error::BuildError;
use crate::heap::{GRANULE, Geometry, GrowBy};

/// Handles of 8 MiB: on an H200 a handle costs about 22 us to make accessible whatever its size up to
/// 32 MiB, so fewer are cheaper; but only what is wholly free can be mapped elsewhere, so larger ones
/// leave more unused. `guide::performance` has the frontier.
const CHUNK: u64 = 8 << 20;

/// A capacity is not cut by more than a 64th to fit the handles: smaller handles are used instead.
const LARGEST_CUT: u64 = 64;

/// Handles should be a few dozen at least, or one block would pin too large a part of the pool.
const FEWEST_CHUNKS: u64 = 32;

impl PoolBuilder {
    /// What the device is asked for.
    pub(super) fn source(&self, capabilities: &Capabilities) -> Result<MemorySource, BuildError> {
        let mut source = self.upstream.source(capabilities);
        if let Some(source) = source.as_mut() {
            source.is_virtual &= self.is_pooled;
        }
        source.ok_or_else(|| BuildError::Unsupported {
            feature: self.upstream.kind().name(),
            device: self.device.describe(),
        })
    }

    /// `total`: more than there is can never be held, and a request for it would wait for ever.
    pub(super) fn geometry(
        &self,
        capabilities: &Capabilities,
        source: MemorySource,
        total: u64,
    ) -> Result<Geometry, BuildError> {
        let granularity = capabilities.granularity;
        let capacity = self.capacity.map_or(total, |capacity| capacity.min(total));
        if capacity < granularity {
            return Err(BuildError::CapacityTooSmall {
                capacity,
                granularity,
            });
        }
        let chunk_bytes = match self.handle {
            Some(handle) => {
                let most = capacity / granularity * granularity;
                valid_handle(handle, granularity)?.min(most)
            }
            None if self.is_pooled => chunk_for(capacity, granularity),
            // An allocation is a segment of its own, no larger than it must be.
            None => granularity,
        };
        let capacity = capacity / chunk_bytes * chunk_bytes;
        self.check_sizes(capacity)?;
        Ok(Geometry {
            capacity,
            chunk_bytes,
            granularity,
            virtual_memory: source.is_virtual,
            growth: self.growth,
        })
    }

    fn check_sizes(&self, capacity: u64) -> Result<(), BuildError> {
        if self.initial > capacity {
            return Err(BuildError::InitialOverCapacity {
                initial: self.initial,
                capacity,
            });
        }
        match self.growth.fault(capacity) {
            Some(reason) => Err(BuildError::InvalidGrowth { capacity, reason }),
            None => Ok(()),
        }
    }

    /// The alignment of every block. Without pooling it is the device's step: so a block is all of what the
    /// device gave.
    pub(super) fn alignment_within(&self, granularity: u64) -> Result<u64, BuildError> {
        let alignment = self.alignment;
        if !alignment.is_power_of_two() || alignment > granularity {
            return Err(BuildError::InvalidAlignment {
                alignment,
                largest: granularity,
            });
        }
        Ok(if self.is_pooled {
            alignment.max(GRANULE)
        } else {
            granularity
        })
    }

    /// What a pool that keeps nothing cannot have.
    pub(super) fn check_conflicts(&self) -> Result<(), BuildError> {
        let keeps = [
            (self.initial > 0, "initial_size"),
            (self.growth != GrowBy::Chunks, "growth"),
            (self.handle.is_some(), "chunk_bytes"),
            (self.heuristic.is_some(), "coalesce"),
        ];
        let kept = keeps.iter().find(|(is_set, _)| *is_set && !self.is_pooled);
        match kept {
            Some((_, one)) => Err(BuildError::Conflict {
                one,
                other: "unpooled",
            }),
            None => Ok(()),
        }
    }
}

fn valid_handle(chunk_bytes: u64, granularity: u64) -> Result<u64, BuildError> {
    if chunk_bytes == 0 || chunk_bytes % granularity != 0 {
        return Err(BuildError::InvalidHandle {
            chunk_bytes,
            granularity,
        });
    }
    Ok(chunk_bytes)
}

/// The largest handle, up to the default, that leaves enough of them and wastes little capacity.
fn chunk_for(capacity: u64, granularity: u64) -> u64 {
    let mut handle = CHUNK.max(granularity);
    let is_too_large = |handle: u64| {
        capacity / handle < FEWEST_CHUNKS || capacity % handle > capacity / LARGEST_CUT
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
        assert_eq!(chunk_for(8 << 30, 2 * MIB), 8 * MIB);
        assert_eq!(chunk_for((8 << 30) + 2 * MIB, 2 * MIB), 8 * MIB);
        assert_eq!(chunk_for(100 * MIB, 2 * MIB), 2 * MIB);
        assert_eq!(chunk_for(2 * MIB, 2 * MIB), 2 * MIB);
        assert_eq!(chunk_for(1 << 30, 2 * MIB), 8 * MIB);
    }
}
