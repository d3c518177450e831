//! The figures and settings of CUDA's and HIP's memory pools, by their names.

use crate::heap::High;
use crate::pool::Pool;

/// An attribute of CUDA's and HIP's memory pools.
///
/// [`get`](Self::get) and [`set`](Self::set) correspond to `cudaMemPoolGetAttribute` and
/// `cudaMemPoolSetAttribute`. [`Statistics`](crate::Statistics) has these figures and more; the settings are methods of
/// [`PoolBuilder`](crate::PoolBuilder) and [`Pool`].
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// use weirpool::compat::Attribute;
///
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// drop(pool.try_allocate(&stream, 1 << 20)?);
/// assert_eq!(Attribute::UsedMemHigh.get(&pool), 1 << 20);
/// Attribute::UsedMemHigh.set(&pool, 0)?; // as in CUDA: sets the mark to the current figure
/// assert_eq!(Attribute::UsedMemHigh.get(&pool), 0);
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
    /// [`Reuse::follow_event_dependencies`](crate::Reuse::follow_event_dependencies), 1 or 0. Read-only.
    #[doc(alias = "cudaMemPoolReuseFollowEventDependencies")]
    #[doc(alias = "CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES")]
    #[doc(alias = "hipMemPoolReuseFollowEventDependencies")]
    ReuseFollowEventDependencies,
    /// [`Reuse::opportunistic`](crate::Reuse::opportunistic), 1 or 0. Read-only.
    #[doc(alias = "cudaMemPoolReuseAllowOpportunistic")]
    #[doc(alias = "CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC")]
    #[doc(alias = "hipMemPoolReuseAllowOpportunistic")]
    ReuseAllowOpportunistic,
    /// [`Reuse::internal_dependencies`](crate::Reuse::internal_dependencies), 1 or 0. Read-only.
    #[doc(alias = "cudaMemPoolReuseAllowInternalDependencies")]
    #[doc(alias = "CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES")]
    #[doc(alias = "hipMemPoolReuseAllowInternalDependencies")]
    ReuseAllowInternalDependencies,
    /// The reserved bytes above which the pool releases free memory by itself; `u64::MAX`, the default,
    /// means never. See [`ReleaseThreshold`](crate::ReleaseThreshold).
    #[doc(alias = "cudaMemPoolAttrReleaseThreshold")]
    #[doc(alias = "CU_MEMPOOL_ATTR_RELEASE_THRESHOLD")]
    #[doc(alias = "hipMemPoolAttrReleaseThreshold")]
    ReleaseThreshold,
    /// Bytes reserved from the device.
    #[doc(alias = "cudaMemPoolAttrReservedMemCurrent")]
    #[doc(alias = "CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT")]
    #[doc(alias = "hipMemPoolAttrReservedMemCurrent")]
    ReservedMemCurrent,
    /// The highest number of reserved bytes since the pool was built or this attribute was set to 0.
    #[doc(alias = "cudaMemPoolAttrReservedMemHigh")]
    #[doc(alias = "CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH")]
    #[doc(alias = "hipMemPoolAttrReservedMemHigh")]
    ReservedMemHigh,
    /// Bytes of live blocks.
    #[doc(alias = "cudaMemPoolAttrUsedMemCurrent")]
    #[doc(alias = "CU_MEMPOOL_ATTR_USED_MEM_CURRENT")]
    #[doc(alias = "hipMemPoolAttrUsedMemCurrent")]
    UsedMemCurrent,
    /// The highest number of bytes of live blocks since the pool was built or this attribute was set to
    /// 0. [`Statistics::used`](crate::Statistics::used) states how exact it is.
    #[doc(alias = "cudaMemPoolAttrUsedMemHigh")]
    #[doc(alias = "CU_MEMPOOL_ATTR_USED_MEM_HIGH")]
    #[doc(alias = "hipMemPoolAttrUsedMemHigh")]
    UsedMemHigh,
}

/// The reason why an attribute was not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttributeError {
    /// The attribute is a figure, or a setting that is fixed when the pool is built.
    #[error("{attribute:?} is read-only: reuse is configured with PoolBuilder::reuse")]
    ReadOnly {
        /// The attribute.
        attribute: Attribute,
    },
    /// A high-water mark can only be set to 0, which resets it to the current figure.
    #[error(
        "{attribute:?} was set to {value}: a high-water mark can only be reset, with the value 0"
    )]
    NotZero {
        /// The attribute.
        attribute: Attribute,
        /// The value that was refused.
        value: u64,
    },
}

impl Attribute {
    /// Returns the value of this attribute of `pool`.
    #[doc(alias = "cudaMemPoolGetAttribute")]
    #[doc(alias = "cuMemPoolGetAttribute")]
    #[doc(alias = "hipMemPoolGetAttribute")]
    pub fn get(self, pool: &Pool) -> u64 {
        let reuse = pool.service().driver.settings.reuse;
        match self {
            Self::ReuseFollowEventDependencies => reuse.follow_event_dependencies.into(),
            Self::ReuseAllowOpportunistic => reuse.opportunistic.into(),
            Self::ReuseAllowInternalDependencies => reuse.internal_dependencies.into(),
            Self::ReleaseThreshold => pool.release_threshold(),
            Self::ReservedMemCurrent => pool.statistics().reserved.current,
            Self::ReservedMemHigh => pool.statistics().reserved.high,
            Self::UsedMemCurrent => pool.statistics().used.current,
            Self::UsedMemHigh => pool.statistics().used.high,
        }
    }

    /// Sets this attribute of `pool`: the release threshold in bytes, or a high-water mark to the current
    /// figure, for which `value` is 0. Resetting [`UsedMemHigh`](Self::UsedMemHigh) also resets the marks
    /// of the streams, from which it is computed.
    ///
    /// # Errors
    /// Returns [`AttributeError::ReadOnly`] for the other attributes, and [`AttributeError::NotZero`] for a high-water mark
    /// with a value other than 0.
    #[doc(alias = "cudaMemPoolSetAttribute")]
    #[doc(alias = "cuMemPoolSetAttribute")]
    #[doc(alias = "hipMemPoolSetAttribute")]
    pub fn set(self, pool: &Pool, value: u64) -> Result<(), AttributeError> {
        let driver = &pool.service().driver;
        let attribute = self;
        let high = match self {
            Self::ReleaseThreshold => {
                driver.set_release_threshold(value);
                return Ok(());
            }
            Self::ReservedMemHigh => High::Reserved,
            Self::UsedMemHigh => High::Used,
            _ => return Err(AttributeError::ReadOnly { attribute }),
        };
        if value != 0 {
            return Err(AttributeError::NotZero { attribute, value });
        }
        driver.reset_high(high);
        Ok(())
    }
}
