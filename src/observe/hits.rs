//! Grants by the rung that gave them.

use crate::engine::{Engine, Rung};
use crate::lane::Counts;

/// Grants by the rung that gave them.
///
/// ```
/// # use weirpool::{Pool, Rung, device::sim::SimDevice};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// for _ in 0..4 {
///     drop(pool.try_allocate(&stream, 4096)?);
/// }
/// let hits = pool.statistics().hits;
/// assert_eq!((hits.of(Rung::Grown), hits.of(Rung::Lane), hits.total()), (1, 3, 4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits([u64; Rung::COUNT]);

impl Hits {
    /// All so far, of a pool whose lanes counted so.
    pub(super) fn of_engine(engine: &Engine, in_lanes: &Counts) -> Self {
        Self(engine.hits(in_lanes))
    }

    /// Grants that `rung` gave.
    pub fn of(&self, rung: Rung) -> u64 {
        self.0[rung as usize]
    }

    /// All grants.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(super) fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|rung| {
            self.0[rung].saturating_sub(earlier.0[rung])
        }))
    }
}

/// As a map from rungs to their grants.
#[cfg(feature = "serde")]
impl serde::Serialize for Hits {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Rung::ALL.map(|rung| (rung, self.of(rung))))
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Hits {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let by_rung = std::collections::BTreeMap::<Rung, u64>::deserialize(deserializer)?;
        let of = |rung| by_rung.get(&rung).copied().unwrap_or(0);
        Ok(Self(Rung::ALL.map(of)))
    }
}
