//! Grants by the source that gave them.

use crate::driver::{Driver, Source};
use crate::lane::Counts;

/// Grants by the source that gave them.
///
/// ```
/// # use weirpool::{Pool, Source, device::sim::SimDevice};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// for _ in 0..4 {
///     drop(pool.try_allocate(&stream, 4096)?);
/// }
/// let hits = pool.statistics().hits;
/// assert_eq!((hits.of(Source::Grown), hits.of(Source::Lane), hits.total()), (1, 3, 4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits([u64; Source::COUNT]);

impl Hits {
    /// All so far, of a pool whose lanes counted so.
    pub(super) fn of_engine(driver: &Driver, in_lanes: &Counts) -> Self {
        Self(driver.hits(in_lanes))
    }

    /// Grants that `source` gave.
    pub fn of(&self, source: Source) -> u64 {
        self.0[source as usize]
    }

    /// All grants.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(super) fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|source| {
            self.0[source].saturating_sub(earlier.0[source])
        }))
    }
}

/// As a map from sources to their grants.
#[cfg(feature = "serde")]
impl serde::Serialize for Hits {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Source::ALL.map(|source| (source, self.of(source))))
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Hits {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let by_source = std::collections::BTreeMap::<Source, u64>::deserialize(deserializer)?;
        let of = |source| by_source.get(&source).copied().unwrap_or(0);
        Ok(Self(Source::ALL.map(of)))
    }
}
