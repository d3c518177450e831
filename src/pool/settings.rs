//! From a builder to the settings of an engine and the rules of a queue: checks every setting once, and makes the choices
//! that the builder leaves open.

use super::builder::{Capacity, PoolBuilder};
use crate::device::{Device, MemoryKind};
use crate::engine::{Announcer, Lender, MaintenanceSettings, PlainMemory, Settings, Upstream};
use crate::error::BuildError;
use crate::heap::{GRANULE, Geometry, GrowBy, ReleaseThreshold, Remapping, Sealing};
use crate::lane::CacheBounds;
use crate::queue::Rules;
use crate::seam::{CapacitySource, Joining, SegmentProperties, SegmentSource};
use crate::sync::plain;
use std::time::Duration;

/// Lanes keep blocks of up to 2 MiB: the most frequent sizes, and too small for their fragmentation to matter much.
const LARGEST_IN_LANE: u64 = 2 << 20;

/// A lane of many bytes keeps blocks of up to this part of them.
const PART_OF_LANE: u64 = 8;

/// Each lane has a word for each size, up to this one.
const MOST_IN_LANE: u64 = 64 << 20;

/// A lane keeps this many times as many bytes in larger blocks: a request's largest buffer, or a few of a batch.
const LARGE_IN_LANE: u64 = 8;

/// How long nothing may change before a queue counts as deadlocked, if deadlocks fail no request: long against a kernel and
/// a task's turn, short against a request's patience. If they do, this part of the time until then.
const DEADLOCK_GRACE: Duration = Duration::from_millis(10);
const PART_OF_DEADLOCK: u32 = 10;
const SHORTEST_GRACE: Duration = Duration::from_millis(1);

/// The size of chunks where the capacity allows it. On an H200 a chunk takes about 22 µs to make accessible whatever
/// its size up to 32 MiB, so fewer chunks are cheaper; but only wholly free chunks can be mapped elsewhere, so larger
/// ones leave more memory unused. `guide::performance` has the frontier.
const CHUNK: u64 = 8 << 20;

/// A capacity is not cut by more than a 64th to fit the chunks: smaller chunks are used instead.
const LARGEST_CUT: u64 = 64;

/// A pool has a few dozen chunks at least, or one block would pin too large a part of it.
const FEWEST_CHUNKS: u64 = 32;

impl Settings {
    /// Joins a source of capacity, and bounds the settings by the bytes that it can lend.
    ///
    /// # Errors
    /// Returns an error if a setting excludes a source, or the source has no capacity for the pool.
    pub(super) fn join(
        &mut self,
        source: plain::Arc<dyn CapacitySource>,
        name: Option<&str>,
    ) -> Result<(), BuildError> {
        let excluded = [
            (self.kind != MemoryKind::Device, "upstream"),
            (self.initial > 0, "initial_size"),
        ];
        if let Some((_, other)) = excluded.iter().find(|(is_set, _)| *is_set) {
            let one = "capacity_source";
            return Err(BuildError::Conflict { one, other });
        }
        let geometry = &mut self.geometry;
        let (capacity, chunk_bytes) = (geometry.capacity, geometry.chunk_bytes);
        let joined = source.join(&Joining::new(name, capacity, chunk_bytes));
        let Some(limit) = joined.map_err(|error| BuildError::CapacitySource(error.into()))? else {
            return Ok(());
        };
        let limit = limit.min(capacity);
        let lender = Lender::new(source, limit, self.announcer.clone());
        geometry.capacity = limit / chunk_bytes * chunk_bytes;
        if geometry.capacity == 0 {
            lender.end();
            return Err(BuildError::CapacityTooSmall {
                capacity: limit,
                granularity: chunk_bytes,
            });
        }
        self.lender = Some(plain::Arc::new(lender));
        Ok(())
    }
}

impl PoolBuilder {
    /// Returns the rules by which requests wait.
    pub(super) fn rules(&self) -> Rules {
        let part = |limit: Duration| (limit / PART_OF_DEADLOCK).max(SHORTEST_GRACE);
        Rules {
            overtaking: self.tuning.overtaking,
            deadlock_grace: self.fail_deadlocks_after.map_or(DEADLOCK_GRACE, part),
            deadlock_limit: self.fail_deadlocks_after,
            queue_limit: self.queue_limit,
            sheds: self.sheds,
        }
    }

    /// Returns the settings of an engine for `device`.
    ///
    /// # Errors
    /// Returns an error if a setting is out of range, settings exclude each other, or the device lacks a feature.
    pub(super) fn settings(
        &self,
        device: &plain::Arc<dyn Device>,
        announcer: plain::Arc<Announcer>,
    ) -> Result<Settings, BuildError> {
        let (segments, is_virtual) = match &self.segment_source {
            Some(given) => (self.checked(&**device, given)?, false),
            None => self.own_memory(device)?,
        };
        let SegmentProperties {
            kind,
            granularity: step,
            most,
            is_ordered,
            ..
        } = segments.properties();
        // A block of an ordered source is a whole segment.
        let is_pooled = self.upstream != Upstream::Unpooled && !is_ordered;
        if !is_pooled {
            self.check_conflicts(match is_ordered {
                true => "segment_source",
                false => "Upstream::Unpooled",
            })?;
        }
        check_remapping(self.tuning.remapping)?;
        // More than this can never be reserved, and a request for it would wait for ever.
        let total = device.memory_info(kind)?.total.min(most);
        let tuning = &self.tuning;
        Ok(Settings {
            geometry: self.geometry(step, is_virtual, is_pooled, total)?,
            upstream: self.upstream,
            kind,
            segments,
            has_source: self.segment_source.is_some(),
            is_ordered,
            is_pooled,
            alignment: self.alignment_within(
                device.capabilities().granularity,
                match is_pooled {
                    true => GRANULE,
                    // A block is a whole segment.
                    false => step,
                },
            )?,
            initial: tuning.initial_size,
            lane: self.lane_bounds(is_ordered, is_pooled),
            order: tuning.when_short.order(),
            reuse: tuning.reuse,
            wait_limit: tuning.when_short.wait_limit(),
            remapping: tuning.remapping,
            maintenance: self.maintenance(is_pooled, total)?,
            fills: self.fills,
            lender: None,
            announcer,
        })
    }

    /// Returns a source of segments that is given, if it can be used.
    fn checked(
        &self,
        device: &dyn Device,
        given: &plain::Arc<dyn SegmentSource>,
    ) -> Result<plain::Arc<dyn SegmentSource>, BuildError> {
        if self.upstream != Upstream::default() {
            let (one, other) = ("segment_source", "upstream");
            return Err(BuildError::Conflict { one, other });
        }
        match given.properties().device == device.id() {
            true => Ok(given.clone()),
            false => Err(BuildError::ForeignSegments {
                device: device.describe(),
            }),
        }
    }

    /// Returns the device's own memory as a source of segments, and whether it is rather mapped chunk by chunk.
    fn own_memory(
        &self,
        device: &plain::Arc<dyn Device>,
    ) -> Result<(plain::Arc<dyn SegmentSource>, bool), BuildError> {
        let source = self.upstream.source(&device.capabilities());
        let source = source.ok_or_else(|| BuildError::Unsupported {
            feature: self.upstream.kind().name(),
            device: device.describe(),
        })?;
        let (device, kind) = (device.clone(), source.kind);
        let memory = plain::Arc::new(PlainMemory { device, kind });
        Ok((memory, source.is_virtual))
    }

    /// Settings that a pool which keeps nothing cannot have.
    fn check_conflicts(&self, other: &'static str) -> Result<(), BuildError> {
        let settings = [
            (self.tuning.initial_size > 0, "initial_size"),
            (self.tuning.growth != GrowBy::Chunks, "growth"),
            (self.chunk_bytes.is_some(), "chunk_bytes"),
            (self.tuning.coalesce.is_some(), "coalesce"),
        ];
        match settings.iter().find(|(is_set, _)| *is_set) {
            Some((_, one)) => Err(BuildError::Conflict { one, other }),
            None => Ok(()),
        }
    }

    fn geometry(
        &self,
        granularity: u64,
        is_virtual: bool,
        is_pooled: bool,
        total: u64,
    ) -> Result<Geometry, BuildError> {
        let capacity = self.capacity.bytes(total)?.min(total);
        if capacity < granularity {
            return Err(BuildError::CapacityTooSmall {
                capacity,
                granularity,
            });
        }
        let chunk_bytes = match self.chunk_bytes {
            Some(chunk_bytes) => {
                check_chunk(chunk_bytes, granularity)?;
                chunk_bytes.min(capacity / granularity * granularity)
            }
            None if is_pooled => chunk_for(capacity, granularity),
            // Every allocation is a segment of its own, no larger than it must be.
            None => granularity,
        };
        let capacity = capacity / chunk_bytes * chunk_bytes;
        self.check_sizes(capacity)?;
        Ok(Geometry {
            capacity,
            chunk_bytes,
            granularity,
            virtual_memory: is_virtual,
            growth: self.tuning.growth,
        })
    }

    fn check_sizes(&self, capacity: u64) -> Result<(), BuildError> {
        if self.tuning.initial_size > capacity {
            return Err(BuildError::InitialOverCapacity {
                initial: self.tuning.initial_size,
                capacity,
            });
        }
        match self.tuning.growth.fault(capacity) {
            Some(reason) => Err(BuildError::InvalidGrowth { capacity, reason }),
            None => Ok(()),
        }
    }

    /// Returns the alignment of every block: at least `least`.
    fn alignment_within(&self, granularity: u64, least: u64) -> Result<u64, BuildError> {
        let alignment = self.tuning.alignment;
        if !alignment.is_power_of_two() || alignment > granularity {
            return Err(BuildError::InvalidAlignment {
                alignment,
                largest: granularity,
            });
        }
        Ok(alignment.max(least))
    }

    fn maintenance(&self, is_pooled: bool, total: u64) -> Result<MaintenanceSettings, BuildError> {
        check_threshold(self.release_threshold)?;
        Ok(MaintenanceSettings {
            threshold: match is_pooled {
                true => self.release_threshold.bytes(total),
                false => 0,
            },
            heuristic: self.tuning.coalesce.clone(),
        })
    }

    fn lane_bounds(&self, is_ordered: bool, is_pooled: bool) -> CacheBounds {
        if is_ordered {
            // The source keeps the order of frees: no event has to be recorded.
            return CacheBounds {
                unsealed: u64::MAX,
                spares: Some(self.tuning.lane_bytes),
                ..CacheBounds::NONE
            };
        }
        if !is_pooled {
            // Each free is to be seen complete by itself.
            return CacheBounds::NONE;
        }
        let bytes = self.tuning.lane_bytes;
        CacheBounds {
            bytes,
            largest: LARGEST_IN_LANE
                .max(bytes / PART_OF_LANE)
                .min(bytes)
                .min(MOST_IN_LANE)
                / GRANULE
                * GRANULE,
            large_cache: match self.sealing {
                // Each free is to be seen complete by itself.
                Sealing::EveryFree => 0,
                _ => bytes.saturating_mul(LARGE_IN_LANE),
            },
            spares: None,
            unsealed: self.sealing.bound(),
            may_widen: matches!(self.sealing, Sealing::Spaced(_)),
        }
    }
}

impl Capacity {
    /// Returns the capacity on a device of `total` bytes.
    ///
    /// # Errors
    /// Returns an error if the value is a fraction out of range.
    fn bytes(self, total: u64) -> Result<u64, BuildError> {
        match self {
            Self::Device => Ok(total),
            Self::Bytes(bytes) => Ok(bytes),
            Self::Fraction(fraction) if fraction > 0.0 && fraction <= 1.0 => {
                Ok((total as f64 * fraction) as u64)
            }
            Self::Fraction(fraction) => Err(BuildError::InvalidCapacityFraction { fraction }),
        }
    }
}

/// # Errors
/// Returns an error if the threshold is a fraction out of range.
pub(super) fn check_threshold(threshold: ReleaseThreshold) -> Result<(), BuildError> {
    match threshold {
        ReleaseThreshold::Fraction(fraction) if !threshold.is_valid() => {
            Err(BuildError::InvalidFraction { fraction })
        }
        _ => Ok(()),
    }
}

/// # Errors
/// Returns an error if the share is out of range.
fn check_remapping(remapping: Remapping) -> Result<(), BuildError> {
    match remapping {
        Remapping::Share(share) if !remapping.is_valid() => Err(BuildError::InvalidShare { share }),
        _ => Ok(()),
    }
}

/// # Errors
/// Returns an error if the chunk size is not a multiple of the device's granularity.
fn check_chunk(chunk_bytes: u64, granularity: u64) -> Result<(), BuildError> {
    if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(granularity) {
        return Err(BuildError::InvalidChunk {
            chunk_bytes,
            granularity,
        });
    }
    Ok(())
}

/// Returns the largest chunk size, up to the default, of which there are enough chunks, and that wastes little
/// capacity.
fn chunk_for(capacity: u64, granularity: u64) -> u64 {
    let mut chunk = CHUNK.max(granularity);
    let is_too_large =
        |chunk: u64| capacity / chunk < FEWEST_CHUNKS || capacity % chunk > capacity / LARGEST_CUT;
    while chunk > granularity && is_too_large(chunk) {
        chunk /= 2;
    }
    chunk
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn chunks_fit_the_capacity() {
        assert_eq!(chunk_for(8 << 30, 2 * MIB), 8 * MIB);
        assert_eq!(chunk_for((8 << 30) + 2 * MIB, 2 * MIB), 8 * MIB);
        assert_eq!(chunk_for(100 * MIB, 2 * MIB), 2 * MIB);
        assert_eq!(chunk_for(2 * MIB, 2 * MIB), 2 * MIB);
        assert_eq!(chunk_for(1 << 30, 2 * MIB), 8 * MIB);
    }

    #[test]
    fn fraction_is_of_the_device() {
        assert_eq!(Capacity::Fraction(0.5).bytes(64 * MIB), Ok(32 * MIB));
        assert_eq!(Capacity::Fraction(1.0).bytes(64 * MIB), Ok(64 * MIB));
        for fraction in [0.0, -0.5, 1.1, f64::NAN] {
            let refused = Capacity::Fraction(fraction).bytes(64 * MIB);
            assert!(matches!(
                refused,
                Err(BuildError::InvalidCapacityFraction { .. })
            ));
        }
    }
}
