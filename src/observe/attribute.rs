//! The figures and settings that CUDA's and HIP's pools have, by their names.

use super::Statistics;
use crate::driver::Driver;
use crate::heap::High;
use crate::queue::Service;

/// An attribute of CUDA's and HIP's memory pools: for code that is moved here from
/// `cudaMemPoolGetAttribute`, or that is written against several pools. All of them, and more, are in
/// [`Statistics`], the builder, and [`Pool::set_release_threshold`](crate::Pool::set_release_threshold).
///
/// ```
/// # use weirpool::{Attribute, Pool, device::sim::SimDevice};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// drop(pool.try_allocate(&stream, 1 << 20)?);
/// assert_eq!(pool.attribute(Attribute::UsedMemHigh), 1 << 20);
/// pool.set_attribute(Attribute::UsedMemHigh, 0)?; // as CUDA does: to the present figure
/// assert_eq!(pool.attribute(Attribute::UsedMemHigh), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Attribute {
    /// [`Reuse::follow_event_dependencies`](crate::Reuse::follow_event_dependencies): 1 or 0. Set when the
    /// pool is built.
    #[doc(alias = "cudaMemPoolReuseFollowEventDependencies")]
    #[doc(alias = "CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES")]
    #[doc(alias = "hipMemPoolReuseFollowEventDependencies")]
    ReuseFollowEventDependencies,
    /// [`Reuse::opportunistic`](crate::Reuse::opportunistic): 1 or 0. Set when the pool is built.
    #[doc(alias = "cudaMemPoolReuseAllowOpportunistic")]
    #[doc(alias = "CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC")]
    #[doc(alias = "hipMemPoolReuseAllowOpportunistic")]
    ReuseAllowOpportunistic,
    /// [`Reuse::internal_dependencies`](crate::Reuse::internal_dependencies): 1 or 0. Set when the pool is
    /// built.
    #[doc(alias = "cudaMemPoolReuseAllowInternalDependencies")]
    #[doc(alias = "CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES")]
    #[doc(alias = "hipMemPoolReuseAllowInternalDependencies")]
    ReuseAllowInternalDependencies,
    /// How many bytes the pool may hold before it gives free memory back by itself; `u64::MAX` where it
    /// keeps all, which is the default here. See [`ReleaseThreshold`](crate::ReleaseThreshold).
    #[doc(alias = "cudaMemPoolAttrReleaseThreshold")]
    #[doc(alias = "CU_MEMPOOL_ATTR_RELEASE_THRESHOLD")]
    #[doc(alias = "hipMemPoolAttrReleaseThreshold")]
    ReleaseThreshold,
    /// Bytes held from the device.
    #[doc(alias = "cudaMemPoolAttrReservedMemCurrent")]
    #[doc(alias = "CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT")]
    #[doc(alias = "hipMemPoolAttrReservedMemCurrent")]
    ReservedMemCurrent,
    /// The most bytes that were held since the pool was made or this was set to 0.
    #[doc(alias = "cudaMemPoolAttrReservedMemHigh")]
    #[doc(alias = "CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH")]
    #[doc(alias = "hipMemPoolAttrReservedMemHigh")]
    ReservedMemHigh,
    /// Bytes in blocks that somebody owns.
    #[doc(alias = "cudaMemPoolAttrUsedMemCurrent")]
    #[doc(alias = "CU_MEMPOOL_ATTR_USED_MEM_CURRENT")]
    #[doc(alias = "hipMemPoolAttrUsedMemCurrent")]
    UsedMemCurrent,
    /// The most bytes that were in such blocks since the pool was made or this was set to 0. See
    /// [`Statistics::used`] for how exact it is.
    #[doc(alias = "cudaMemPoolAttrUsedMemHigh")]
    #[doc(alias = "CU_MEMPOOL_ATTR_USED_MEM_HIGH")]
    #[doc(alias = "hipMemPoolAttrUsedMemHigh")]
    UsedMemHigh,
}

/// Why an attribute was not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttributeError {
    /// It is a figure, or a setting that is given when the pool is built.
    #[error("{attribute:?} can be read and not set")]
    ReadOnly {
        /// Which.
        attribute: Attribute,
    },
    /// A high-water mark is set to 0, which means the present figure, and to nothing else.
    #[error("{attribute:?} can be set to 0 only, not to {value}")]
    NotZero {
        /// Which.
        attribute: Attribute,
        /// What it was to be.
        value: u64,
    },
}

impl Attribute {
    pub(crate) fn read(self, service: &Service) -> u64 {
        let reuse = service.driver.settings.reuse;
        let figures = || Statistics::of(service);
        match self {
            Self::ReuseFollowEventDependencies => reuse.follow_event_dependencies.into(),
            Self::ReuseAllowOpportunistic => reuse.opportunistic.into(),
            Self::ReuseAllowInternalDependencies => reuse.internal_dependencies.into(),
            Self::ReleaseThreshold => service.driver.maintenance.threshold(),
            Self::ReservedMemCurrent => figures().reserved.current,
            Self::ReservedMemHigh => figures().reserved.high,
            Self::UsedMemCurrent => figures().used.current,
            Self::UsedMemHigh => figures().used.high,
        }
    }

    pub(crate) fn set(self, driver: &Driver, value: u64) -> Result<(), AttributeError> {
        match self {
            Self::ReleaseThreshold => {
                driver.set_release_threshold(value);
                Ok(())
            }
            Self::ReservedMemHigh => self.reset(High::Reserved, driver, value),
            Self::UsedMemHigh => self.reset(High::Used, driver, value),
            attribute => Err(AttributeError::ReadOnly { attribute }),
        }
    }

    fn reset(self, high: High, driver: &Driver, value: u64) -> Result<(), AttributeError> {
        if value != 0 {
            let attribute = self;
            return Err(AttributeError::NotZero { attribute, value });
        }
        driver.reset_high(high);
        Ok(())
    }
}
