//! The driver's own memory pools, as owned values.

#![allow(unsafe_code, reason = "calls pools by their handles")]

use std::fmt;
use std::sync::Arc;
use weirpool::device::{
    Access, AsDevice, Device, DeviceError, DeviceId, DriverPoolProperties, DriverPools,
    HandleTypes, MemoryKind, PoolAttribute, RawPool,
};
use weirpool::{BuildError, Level, ReleaseThreshold, Reuse};
use weirpool_device::{AccessUsers, assert_unlocked};
use weirpool_heap::units::Bytes;

/// A memory pool of the driver: CUDA's `cudaMemPool_t`, HIP's `hipMemPool_t`.
///
/// A [`Pool`](weirpool::Pool) can take its memory from it: see [`segments`](Self::segments). The pool may be shared with
/// code that allocates from it directly. This is a handle; clones are the same pool. A custom pool is destroyed with its
/// last handle, and after the last block of it is freed.
///
/// ```
/// use weirpool::device::sim::SimDevice;
/// use weirpool::{Pool, ReleaseThreshold};
/// use weirpool_driver_pool::{DriverPool, DriverPoolUse};
///
/// let device = SimDevice::new();
/// let driver_pool = DriverPool::builder(&device).max_size(1 << 30).build()?;
/// driver_pool.set_release_threshold(ReleaseThreshold::Bytes(64 << 20))?;
/// let segments = driver_pool.segments(DriverPoolUse::PassedThrough);
/// let pool = Pool::builder(device.clone()).segment_source(segments).build()?;
/// let stream = pool.register(&device.create_stream())?;
/// let block = pool.try_allocate(&stream, 4 << 20)?; // `cudaMallocFromPoolAsync`
/// assert_eq!(driver_pool.used()?.current, 4 << 20);
/// drop(block); // `cudaFreeAsync`
/// assert_eq!((driver_pool.used()?.current, driver_pool.reserved()?.current), (0, 4 << 20));
/// driver_pool.trim_to(0)?;
/// assert_eq!(driver_pool.reserved()?.current, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`attribute`](Self::attribute) and [`set_attribute`](Self::set_attribute) have its other attributes.
#[derive(Clone)]
pub struct DriverPool(Arc<OwnedDriverPool>);

/// The access of devices, by their numbers, to the memory of the driver's pools. The driver has one access of a device to
/// all memory of a pool, which handles and pools over them share.
static ACCESS: AccessUsers<AccessKey> = AccessUsers::new();

type AccessKey = (DeviceId, RawPool, u32);

struct OwnedDriverPool {
    device: Arc<dyn Device>,
    raw: RawPool,
    properties: DriverPoolProperties,
    is_default: bool,
}

/// Builds a custom [`DriverPool`].
#[must_use = "a builder does nothing until it builds"]
pub struct DriverPoolBuilder {
    device: Arc<dyn Device>,
    properties: DriverPoolProperties,
    max_fraction: Option<f64>,
}

/// Prints sizes in binary units. Written by hand, because the type of `properties` belongs to another crate.
impl fmt::Debug for DriverPoolBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            device,
            properties,
            max_fraction,
        } = self;
        let max_size = properties.max_size;
        f.debug_struct("DriverPoolBuilder")
            .field("device", device)
            .field("kind", &properties.kind)
            .field("handle_types", &properties.handle_types)
            .field("max_size", &(max_size > 0).then_some(Bytes(max_size)))
            .field("max_fraction", max_fraction)
            .finish()
    }
}

impl DriverPoolBuilder {
    /// Sets the kind of memory, which stands for CUDA's allocation type and location; see
    /// [`DriverPoolProperties::kind`]. Default: memory of the device.
    pub fn kind(mut self, kind: MemoryKind) -> Self {
        self.properties.kind = kind;
        self
    }

    /// Sets the kinds of handles by which the pool can be shared with other processes. Default: none.
    pub fn handle_types(mut self, handle_types: HandleTypes) -> Self {
        self.properties.handle_types = handle_types;
        self
    }

    /// Sets the most bytes that the pool may reserve. The driver takes memory in whole
    /// [steps](weirpool::device::Capabilities::granularity), so that the capacity of a pool over it is as many whole steps
    /// as fit. Default: as many as the driver allows.
    pub fn max_size(mut self, bytes: u64) -> Self {
        self.properties.max_size = bytes;
        self.max_fraction = None;
        self
    }

    /// Sets the most bytes that the pool may reserve, as a fraction of the memory of its kind, more than 0 and up to 1.
    pub fn max_fraction(mut self, fraction: f64) -> Self {
        self.max_fraction = Some(fraction);
        self
    }

    /// Creates the pool.
    ///
    /// # Errors
    /// Returns [`BuildError::Unsupported`] if the device's driver has no pools,
    /// [`BuildError::InvalidCapacityFraction`], or the device's error.
    pub fn build(self) -> Result<DriverPool, BuildError> {
        let Self {
            device,
            mut properties,
            max_fraction,
        } = self;
        if let Some(fraction) = max_fraction {
            if !(fraction > 0.0 && fraction <= 1.0) {
                return Err(BuildError::InvalidCapacityFraction { fraction });
            }
            let total = device.memory_info(properties.kind)?.total;
            properties.max_size = (total as f64 * fraction) as u64;
        }
        assert_unlocked("create_pool");
        let raw = pools_of(&*device)?.create_pool(&properties)?;
        Ok(DriverPool(Arc::new(OwnedDriverPool {
            device,
            raw,
            properties,
            is_default: false,
        })))
    }
}

/// # Errors
/// Returns [`BuildError::Unsupported`] if the device's driver has no pools.
fn pools_of(device: &dyn Device) -> Result<&dyn DriverPools, BuildError> {
    device
        .driver_pools()
        .ok_or_else(|| BuildError::Unsupported {
            feature: "memory pools of the driver",
            device: device.describe(),
        })
}

impl DriverPool {
    /// Begins a custom pool of a device.
    pub fn builder(device: &impl AsDevice) -> DriverPoolBuilder {
        DriverPoolBuilder {
            device: device.to_shared(),
            properties: DriverPoolProperties::new(MemoryKind::Device),
            max_fraction: None,
        }
    }

    /// Returns the default pool of a device, from which `cudaMallocAsync` allocates.
    ///
    /// # Errors
    /// Returns [`BuildError::Unsupported`] if the device's driver has no pools, or the device's error.
    #[doc(alias = "cudaDeviceGetDefaultMemPool")]
    #[doc(alias = "hipDeviceGetDefaultMemPool")]
    pub fn default_of(device: &impl AsDevice) -> Result<Self, BuildError> {
        let device = device.to_shared();
        assert_unlocked("default_pool");
        let raw = pools_of(&*device)?.default_pool()?;
        Ok(Self(Arc::new(OwnedDriverPool {
            device,
            raw,
            properties: DriverPoolProperties::new(MemoryKind::Device),
            is_default: true,
        })))
    }

    /// Returns the properties that the pool was created with.
    pub fn properties(&self) -> DriverPoolProperties {
        self.0.properties
    }

    /// Returns whether this is the default pool of its device.
    pub fn is_default(&self) -> bool {
        self.0.is_default
    }

    /// Returns the backend's name of the pool, for calls of the driver: `cudaMemPool_t`.
    pub fn raw(&self) -> RawPool {
        self.0.raw
    }

    /// Returns the device, for calls with the [backend's name](Self::raw).
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.0.device
    }

    pub(crate) fn calls(&self) -> &dyn DriverPools {
        assert_unlocked("a call of the driver's pools");
        let pools = self.0.device.driver_pools();
        pools.expect("the device made the pool")
    }

    /// Returns the reserved bytes above which free memory is released at a synchronization. 0 is CUDA's default.
    ///
    /// # Errors
    /// Returns the device's error.
    pub fn release_threshold(&self) -> Result<u64, DeviceError> {
        self.attribute(PoolAttribute::ReleaseThreshold)
    }

    /// Sets the reserved bytes above which free memory is released at a synchronization.
    ///
    /// # Errors
    /// Returns [`BuildError::InvalidFraction`], or the device's error.
    pub fn set_release_threshold(&self, threshold: ReleaseThreshold) -> Result<(), BuildError> {
        if let ReleaseThreshold::Fraction(fraction) = threshold
            && !threshold.is_valid()
        {
            return Err(BuildError::InvalidFraction { fraction });
        }
        let total = self.0.device.memory_info(self.0.properties.kind)?.total;
        self.set_attribute(PoolAttribute::ReleaseThreshold, threshold.bytes(total))?;
        Ok(())
    }

    /// Returns which memory of other streams the driver may reuse.
    ///
    /// # Errors
    /// Returns the device's error.
    pub fn reuse(&self) -> Result<Reuse, DeviceError> {
        let flag = |attribute| Ok::<_, DeviceError>(self.attribute(attribute)? != 0);
        Ok(Reuse {
            follow_event_dependencies: flag(PoolAttribute::ReuseFollowEventDependencies)?,
            opportunistic: flag(PoolAttribute::ReuseAllowOpportunistic)?,
            internal_dependencies: flag(PoolAttribute::ReuseAllowInternalDependencies)?,
        })
    }

    /// Sets which memory of other streams the driver may reuse.
    ///
    /// # Errors
    /// Returns the device's error; flags before the one that failed are set.
    pub fn set_reuse(&self, reuse: Reuse) -> Result<(), DeviceError> {
        use PoolAttribute::*;
        let flags = [
            (
                ReuseFollowEventDependencies,
                reuse.follow_event_dependencies,
            ),
            (ReuseAllowOpportunistic, reuse.opportunistic),
            (ReuseAllowInternalDependencies, reuse.internal_dependencies),
        ];
        flags
            .into_iter()
            .try_for_each(|(attribute, flag)| self.set_attribute(attribute, flag.into()))
    }

    /// Returns the bytes that the driver's pool has reserved, and the most since the marks were reset.
    ///
    /// # Errors
    /// Returns the device's error.
    pub fn reserved(&self) -> Result<Level, DeviceError> {
        use PoolAttribute::{ReservedMemCurrent, ReservedMemHigh};
        self.level(ReservedMemCurrent, ReservedMemHigh)
    }

    /// Returns the bytes that are allocated from the driver's pool, and the most since the marks were reset.
    ///
    /// # Errors
    /// Returns the device's error.
    pub fn used(&self) -> Result<Level, DeviceError> {
        use PoolAttribute::{UsedMemCurrent, UsedMemHigh};
        self.level(UsedMemCurrent, UsedMemHigh)
    }

    fn level(&self, current: PoolAttribute, high: PoolAttribute) -> Result<Level, DeviceError> {
        Ok(Level {
            current: self.attribute(current)?,
            high: self.attribute(high)?,
        })
    }

    /// Sets both high-water marks to the current figures.
    ///
    /// # Errors
    /// Returns the device's error.
    pub fn reset_high_water_marks(&self) -> Result<(), DeviceError> {
        self.set_attribute(PoolAttribute::ReservedMemHigh, 0)?;
        self.set_attribute(PoolAttribute::UsedMemHigh, 0)
    }

    /// Releases free memory of the driver's pool until `keep` bytes are reserved, or no more is free. May take a while.
    ///
    /// # Errors
    /// Returns the device's error.
    #[doc(alias = "cudaMemPoolTrimTo")]
    #[doc(alias = "hipMemPoolTrimTo")]
    pub fn trim_to(&self, keep: u64) -> Result<(), DeviceError> {
        // SAFETY: the handle keeps the pool.
        unsafe { self.calls().trim_pool(self.0.raw, keep) }
    }

    /// Returns what a device may do with the pool's memory: HIP's query of the access path between the two.
    ///
    /// # Errors
    /// Returns the device's error.
    #[doc(alias = "cudaMemPoolGetAccess")]
    #[doc(alias = "hipMemPoolGetAccess")]
    pub fn access_from(&self, device: &impl AsDevice) -> Result<Access, DeviceError> {
        let ordinal = device.to_shared().ordinal();
        // SAFETY: the handle keeps the pool.
        unsafe { self.calls().pool_access(self.0.raw, ordinal) }
    }

    /// Allows a device to read and write the pool's memory, that of live blocks included. No
    /// [`Peers::disable`](weirpool::Peers::disable) of a pool over this one takes that back.
    ///
    /// # Errors
    /// Returns the device's error: the device cannot reach the memory.
    #[doc(alias = "cudaMemPoolSetAccess")]
    #[doc(alias = "hipMemPoolSetAccess")]
    pub fn allow_access_from(&self, device: &impl AsDevice) -> Result<(), DeviceError> {
        self.allow_access_of(device.to_shared().ordinal())
    }

    /// Allows the device with that number to use the memory, until this is [taken back](Self::forbid_access_from) as often.
    pub(crate) fn allow_access_of(&self, device: u32) -> Result<(), DeviceError> {
        let (calls, raw) = (self.calls(), self.0.raw);
        ACCESS.allow(self.0.access_key(device), || {
            // SAFETY: the handle keeps the pool, and no work loses its access.
            unsafe {
                let was_there = calls.pool_access(raw, device)? != Access::None;
                calls.set_pool_access(raw, device, Access::ReadWrite)?;
                Ok(was_there)
            }
        })
    }

    /// Takes one [`allow_access_of`](Self::allow_access_of) back.
    ///
    /// # Errors
    /// Returns the device's error. The device keeps its access then.
    ///
    /// # Safety
    /// No work that would lose its access is running or submitted.
    pub(crate) unsafe fn forbid_access_from(&self, device: u32) -> Result<(), DeviceError> {
        let (calls, raw) = (self.calls(), self.0.raw);
        // SAFETY: the handle keeps the pool; the caller guarantees the rest.
        let take = || unsafe { calls.set_pool_access(raw, device, Access::None) };
        ACCESS.forbid(&self.0.access_key(device), take)
    }

    /// Exports the pool as a file descriptor, by which another process [imports](Self::import) it. The pool was built
    /// with [`HandleTypes::POSIX_FD`].
    ///
    /// # Errors
    /// Returns the device's error.
    #[cfg(unix)]
    #[doc(alias = "cudaMemPoolExportToShareableHandle")]
    #[doc(alias = "hipMemPoolExportToShareableHandle")]
    pub fn export(&self) -> Result<std::os::fd::OwnedFd, DeviceError> {
        // SAFETY: the handle keeps the pool.
        unsafe { self.calls().export_pool(self.0.raw) }
    }

    /// Imports a pool that another process [exported](Self::export). Its blocks are imported one by one, with
    /// `PointerData` of the crate `weirpool-share`; nothing is allocated from it.
    ///
    /// # Errors
    /// Returns [`BuildError::Unsupported`] if the device's driver has no pools, or the device's error if the descriptor
    /// is no pool of the same device.
    #[cfg(unix)]
    #[doc(alias = "cudaMemPoolImportFromShareableHandle")]
    #[doc(alias = "hipMemPoolImportFromShareableHandle")]
    pub fn import(
        device: &impl AsDevice,
        descriptor: std::os::fd::OwnedFd,
    ) -> Result<Self, BuildError> {
        let device = device.to_shared();
        assert_unlocked("import_pool");
        let raw = pools_of(&*device)?.import_pool(descriptor)?;
        let mut properties = DriverPoolProperties::new(MemoryKind::Device);
        properties.handle_types = HandleTypes::POSIX_FD;
        Ok(Self(Arc::new(OwnedDriverPool {
            device,
            raw,
            properties,
            is_default: false,
        })))
    }

    /// Returns the value of an attribute.
    ///
    /// # Errors
    /// Returns the device's error.
    pub fn attribute(&self, attribute: PoolAttribute) -> Result<u64, DeviceError> {
        // SAFETY: the handle keeps the pool.
        unsafe { self.calls().pool_attribute(self.0.raw, attribute) }
    }

    /// Sets an attribute, which takes the values that CUDA does.
    ///
    /// # Errors
    /// Returns the device's error.
    pub fn set_attribute(&self, attribute: PoolAttribute, value: u64) -> Result<(), DeviceError> {
        // SAFETY: the handle keeps the pool.
        unsafe {
            self.calls()
                .set_pool_attribute(self.0.raw, attribute, value)
        }
    }
}

impl OwnedDriverPool {
    fn access_key(&self, device: u32) -> AccessKey {
        (self.device.id(), self.raw, device)
    }
}

impl Drop for OwnedDriverPool {
    fn drop(&mut self) {
        if self.is_default {
            return;
        }
        let own = (self.device.id(), self.raw);
        ACCESS.forget(|(device, pool, _)| (*device, *pool) == own);
        if let Some(pools) = self.device.driver_pools() {
            // What the driver refuses to destroy is leaked: no caller is left to be told.
            // SAFETY: no handle is left.
            let _ = unsafe { pools.destroy_pool(self.raw) };
        }
    }
}

/// Two handles are equal if they are of the same pool.
impl PartialEq for DriverPool {
    fn eq(&self, other: &Self) -> bool {
        (self.0.device.id(), self.0.raw) == (other.0.device.id(), other.0.raw)
    }
}

impl Eq for DriverPool {}

impl fmt::Debug for DriverPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverPool")
            .field("raw", &self.0.raw)
            .field("is_default", &self.0.is_default)
            .field("properties", &self.0.properties)
            .finish()
    }
}
