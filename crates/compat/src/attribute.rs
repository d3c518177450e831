//! The figures and settings of CUDA's and HIP's memory pools, by their names.

use weirpool::Pool;
use weirpool::device::{DeviceError, PoolAttribute};

/// An attribute of CUDA's and HIP's memory pools.
///
/// [`get`](Self::get) and [`set`](Self::set) correspond to `cudaMemPoolGetAttribute` and
/// `cudaMemPoolSetAttribute`. [`Statistics`](weirpool::Statistics) has these figures and more; the settings are methods of
/// [`PoolBuilder`](weirpool::PoolBuilder) and [`Pool`].
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// use weirpool_compat::Attribute;
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
    /// [`Reuse::follow_event_dependencies`](weirpool::Reuse::follow_event_dependencies), 1 or 0.
    #[doc(alias = "cudaMemPoolReuseFollowEventDependencies")]
    #[doc(alias = "CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES")]
    #[doc(alias = "hipMemPoolReuseFollowEventDependencies")]
    ReuseFollowEventDependencies,
    /// [`Reuse::opportunistic`](weirpool::Reuse::opportunistic), 1 or 0.
    #[doc(alias = "cudaMemPoolReuseAllowOpportunistic")]
    #[doc(alias = "CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC")]
    #[doc(alias = "hipMemPoolReuseAllowOpportunistic")]
    ReuseAllowOpportunistic,
    /// [`Reuse::internal_dependencies`](weirpool::Reuse::internal_dependencies), 1 or 0.
    #[doc(alias = "cudaMemPoolReuseAllowInternalDependencies")]
    #[doc(alias = "CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES")]
    #[doc(alias = "hipMemPoolReuseAllowInternalDependencies")]
    ReuseAllowInternalDependencies,
    /// The reserved bytes above which the pool releases free memory by itself; `u64::MAX`, the default,
    /// means never. See [`ReleaseThreshold`](weirpool::ReleaseThreshold).
    #[doc(alias = "cudaMemPoolAttrReleaseThreshold")]
    #[doc(alias = "CU_MEMPOOL_ATTR_RELEASE_THRESHOLD")]
    #[doc(alias = "hipMemPoolAttrReleaseThreshold")]
    ReleaseThreshold,
    /// Bytes reserved from the device. Setting it reserves more, as far as the capacity goes, or
    /// [trims](Pool::trim_to).
    #[doc(alias = "cudaMemPoolAttrReservedMemCurrent")]
    #[doc(alias = "CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT")]
    #[doc(alias = "hipMemPoolAttrReservedMemCurrent")]
    ReservedMemCurrent,
    /// The highest number of reserved bytes since the pool was built or this attribute was set, and at least the value
    /// it was set to.
    ///
    /// A value other than 0 is a soft cap. The pool may exceed it. Then this attribute is larger than the value, a
    /// subscriber of `tracing` is warned, and the pool gives free memory above the cap back, as above a
    /// [release threshold](weirpool::ReleaseThreshold). 0 removes the cap.
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
    /// 0. [`Statistics::used`](weirpool::Statistics::used) states how exact it is;
    /// [`Inspect::exact_statistics_scope`](weirpool::Inspect::exact_statistics_scope) makes it exact.
    #[doc(alias = "cudaMemPoolAttrUsedMemHigh")]
    #[doc(alias = "CU_MEMPOOL_ATTR_USED_MEM_HIGH")]
    #[doc(alias = "hipMemPoolAttrUsedMemHigh")]
    UsedMemHigh,
}

/// The reason why an attribute was not set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttributeError {
    /// The attribute is a figure.
    #[error("{attribute:?} is read-only: free blocks to lower it")]
    ReadOnly {
        /// The attribute.
        attribute: Attribute,
    },
    /// This high-water mark can only be set to 0, which resets it to the current figure.
    #[error(
        "{attribute:?} was set to {value}: a high-water mark can only be reset, with the value 0"
    )]
    NotZero {
        /// The attribute.
        attribute: Attribute,
        /// The value that was refused.
        value: u64,
    },
    /// The device failed to give memory or to take it back; memory given or taken back before stays so.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl Attribute {
    /// Returns the value of this attribute of `pool`.
    #[doc(alias = "cudaMemPoolGetAttribute")]
    #[doc(alias = "cuMemPoolGetAttribute")]
    #[doc(alias = "hipMemPoolGetAttribute")]
    pub fn get(self, pool: &Pool) -> u64 {
        pool.inspect().attribute(self.into())
    }

    /// Sets this attribute of `pool`: a reuse flag to 0 or, with any other value, to 1; a figure in bytes; or
    /// [`UsedMemHigh`](Self::UsedMemHigh) to the current figure, for which `value` is 0. That also resets the marks of
    /// the streams, from which it is computed.
    ///
    /// [`ReservedMemCurrent`](Self::ReservedMemCurrent) makes memory calls, which may take a while. It releases memory as
    /// [`Pool::trim_to`] does, and takes memory if the pool then has less.
    ///
    /// # Errors
    /// Returns [`AttributeError::ReadOnly`] for [`UsedMemCurrent`](Self::UsedMemCurrent), [`AttributeError::NotZero`]
    /// for [`UsedMemHigh`](Self::UsedMemHigh) with a value other than 0, or the device's error.
    #[doc(alias = "cudaMemPoolSetAttribute")]
    #[doc(alias = "cuMemPoolSetAttribute")]
    #[doc(alias = "hipMemPoolSetAttribute")]
    pub fn set(self, pool: &Pool, value: u64) -> Result<(), AttributeError> {
        let attribute = self;
        match self {
            Self::UsedMemCurrent => Err(AttributeError::ReadOnly { attribute }),
            Self::UsedMemHigh if value != 0 => Err(AttributeError::NotZero { attribute, value }),
            _ => Ok(pool.maintain().set_attribute(self.into(), value)?),
        }
    }
}

/// The attribute as the device's contract names it, for the driver's own pools.
impl From<Attribute> for PoolAttribute {
    fn from(attribute: Attribute) -> Self {
        match attribute {
            Attribute::ReuseFollowEventDependencies => Self::ReuseFollowEventDependencies,
            Attribute::ReuseAllowOpportunistic => Self::ReuseAllowOpportunistic,
            Attribute::ReuseAllowInternalDependencies => Self::ReuseAllowInternalDependencies,
            Attribute::ReleaseThreshold => Self::ReleaseThreshold,
            Attribute::ReservedMemCurrent => Self::ReservedMemCurrent,
            Attribute::ReservedMemHigh => Self::ReservedMemHigh,
            Attribute::UsedMemCurrent => Self::UsedMemCurrent,
            Attribute::UsedMemHigh => Self::UsedMemHigh,
        }
    }
}
