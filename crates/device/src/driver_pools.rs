//! The driver's own memory pools: a part of the contract that a device may lack.

use crate::{DeviceError, HandleTypes, MemoryKind, RawPool, RawStream};
use std::fmt;

/// The properties of a driver's memory pool, fixed when it is created: CUDA's `CUmemPoolProps`.
///
/// [`kind`](Self::kind) stands for the allocation type and the location together:
///
/// | kind | allocation type | location |
/// |---|---|---|
/// | [`Device`](MemoryKind::Device) | pinned | the device |
/// | [`Pinned`](MemoryKind::Pinned) | pinned | the host, its first NUMA node |
/// | [`Managed`](MemoryKind::Managed) | managed | the device |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct DriverPoolProperties {
    /// The kind of the memory.
    pub kind: MemoryKind,
    /// The kinds of handles as which the pool can be shared with other processes.
    pub handle_types: HandleTypes,
    /// The most bytes that the pool may reserve. 0: as much as the driver allows.
    pub max_size: u64,
}

impl DriverPoolProperties {
    /// Describes a pool of this kind of memory, without a maximum size, that is not shared.
    pub const fn new(kind: MemoryKind) -> Self {
        Self {
            kind,
            handle_types: HandleTypes::NONE,
            max_size: 0,
        }
    }
}

/// An attribute of a driver's memory pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolAttribute {
    /// 1 if memory freed on a stream may be reused on one that waited for a later event of it. Can be set.
    ReuseFollowEventDependencies,
    /// 1 if memory may be reused once the work before its free is complete. Can be set.
    ReuseAllowOpportunistic,
    /// 1 if the driver may make a stream wait for memory that is pending on another one. Can be set.
    ReuseAllowInternalDependencies,
    /// The reserved bytes above which free memory is released at a synchronization. Can be set.
    ReleaseThreshold,
    /// Bytes reserved.
    ReservedMemCurrent,
    /// The highest number of reserved bytes. Can be set to 0, which resets it.
    ReservedMemHigh,
    /// Bytes allocated.
    UsedMemCurrent,
    /// The highest number of allocated bytes. Can be set to 0, which resets it.
    UsedMemHigh,
}

/// What a device may do with the memory of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Access {
    /// Nothing.
    #[default]
    None,
    /// Read it.
    Read,
    /// Read and write it.
    ReadWrite,
}

/// `no access`, `access for reading`
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "no access",
            Self::Read => "access for reading",
            Self::ReadWrite => "access for reading and writing",
        })
    }
}

/// The calls on a driver's own memory pools, as CUDA has them (`cuMemPoolCreate`, `cuMemAllocFromPoolAsync`,
/// `cuMemFreeAsync` and the rest). [`Device::driver_pools`](crate::Device::driver_pools) returns them where there are
/// any.
///
/// Memory is allocated and freed in the order of a stream: a block may be used by work behind its allocation and before
/// its free. With [`RawStream::HOST`] the block may be used by any work submitted after
/// [`allocate_from`](Self::allocate_from) returned, and [`free_to`](Self::free_to) is called once all of its uses are
/// complete. Such a call can wait for work of the device.
///
/// # Safety
/// An implementation guarantees that live results of [`allocate_from`](Self::allocate_from) are disjoint from each
/// other and from all other memory of the device, and that work which may use a block by these rules can access it.
pub unsafe trait DriverPools {
    /// Creates a pool. Can wait.
    ///
    /// # Errors
    /// Returns [`Unsupported`](crate::DeviceErrorKind::Unsupported) if the device has no pool with these properties.
    fn create_pool(&self, properties: &DriverPoolProperties) -> Result<RawPool, DeviceError>;

    /// Destroys a pool. Its memory is released once all of its blocks are freed.
    ///
    /// # Errors
    /// Returns an error if the pool is unknown, or the default pool of the device.
    ///
    /// # Safety
    /// The pool is a result of [`create_pool`](Self::create_pool), and no later call allocates from it.
    unsafe fn destroy_pool(&self, pool: RawPool) -> Result<(), DeviceError>;

    /// Returns the default pool of the device, which is never destroyed.
    ///
    /// # Errors
    /// Returns an error if the device is broken.
    fn default_pool(&self) -> Result<RawPool, DeviceError>;

    /// Allocates `bytes` from a pool, at a multiple of `alignment` (a power of two up to the granularity), in the order
    /// of `stream`.
    ///
    /// # Errors
    /// Returns [`OutOfMemory`](crate::DeviceErrorKind::OutOfMemory) if the pool cannot get as much, and
    /// [`Unsupported`](crate::DeviceErrorKind::Unsupported) if the stream is being captured.
    ///
    /// # Safety
    /// The pool was not destroyed. The stream is one of this device and usable during the call.
    unsafe fn allocate_from(
        &self,
        pool: RawPool,
        bytes: u64,
        alignment: u64,
        stream: RawStream,
    ) -> Result<u64, DeviceError>;

    /// Frees a block in the order of `stream`.
    ///
    /// # Errors
    /// Returns [`Unsupported`](crate::DeviceErrorKind::Unsupported) if the stream is being captured. The block stays
    /// allocated.
    ///
    /// # Safety
    /// The address is a result of [`allocate_from`](Self::allocate_from) of that pool that was not freed. All of its
    /// uses come before the present point of the stream. The stream is one of this device and usable during the call.
    unsafe fn free_to(
        &self,
        pool: RawPool,
        address: u64,
        stream: RawStream,
    ) -> Result<(), DeviceError>;

    /// Releases free memory of a pool until `keep` bytes are reserved, or no more is free. Can wait.
    ///
    /// # Errors
    /// Returns an error if the device is broken.
    ///
    /// # Safety
    /// The pool was not destroyed.
    unsafe fn trim_pool(&self, pool: RawPool, keep: u64) -> Result<(), DeviceError>;

    /// Returns an attribute of a pool.
    ///
    /// # Errors
    /// Returns an error if the device is broken.
    ///
    /// # Safety
    /// The pool was not destroyed.
    unsafe fn pool_attribute(
        &self,
        pool: RawPool,
        attribute: PoolAttribute,
    ) -> Result<u64, DeviceError>;

    /// Sets an attribute of a pool.
    ///
    /// # Errors
    /// Returns [`InvalidArgument`](crate::DeviceErrorKind::InvalidArgument) if it cannot be set to the value.
    ///
    /// # Safety
    /// The pool was not destroyed.
    unsafe fn set_pool_attribute(
        &self,
        pool: RawPool,
        attribute: PoolAttribute,
        value: u64,
    ) -> Result<(), DeviceError>;

    /// Returns what the device with that [number](crate::Device::ordinal) may do with the memory of a pool.
    ///
    /// # Errors
    /// Returns an error if there is no such device.
    ///
    /// # Safety
    /// The pool was not destroyed.
    unsafe fn pool_access(&self, pool: RawPool, device: u32) -> Result<Access, DeviceError>;

    /// Sets what the device with that [number](crate::Device::ordinal) may do with the memory of a pool, blocks that
    /// live included.
    ///
    /// # Errors
    /// Returns an error if there is no such device, if it cannot reach the memory, or if it would lose the access to
    /// its own.
    ///
    /// # Safety
    /// The pool was not destroyed, and no work that would lose its access is running or submitted.
    unsafe fn set_pool_access(
        &self,
        pool: RawPool,
        device: u32,
        access: Access,
    ) -> Result<(), DeviceError>;

    /// Exports a pool as a descriptor, which is close-on-exec: CUDA's `cuMemPoolExportToShareableHandle`. Can wait. The
    /// default is an error.
    ///
    /// # Errors
    /// Returns an error if the pool was not created for [descriptors](HandleTypes::POSIX_FD).
    ///
    /// # Safety
    /// The pool was not destroyed.
    #[cfg(unix)]
    unsafe fn export_pool(&self, pool: RawPool) -> Result<std::os::fd::OwnedFd, DeviceError> {
        let _ = pool;
        Err(not_shared("export_pool"))
    }

    /// Imports a pool that a process exported for the same device. Nothing can be allocated from it: blocks are
    /// [imported](Self::import_block) one by one. It is destroyed like any other pool. Can wait. The default is an
    /// error.
    ///
    /// # Errors
    /// Returns [`InvalidArgument`](crate::DeviceErrorKind::InvalidArgument) if the descriptor is no such pool.
    #[cfg(unix)]
    fn import_pool(&self, descriptor: std::os::fd::OwnedFd) -> Result<RawPool, DeviceError> {
        let _ = descriptor;
        Err(not_shared("import_pool"))
    }

    /// Describes a block to a process that has imported its pool: CUDA's `cuMemPoolExportPointer`. The default is an
    /// error.
    ///
    /// # Errors
    /// Returns an error if the pool cannot be shared, or the address is no block of it.
    ///
    /// # Safety
    /// The pool was not destroyed, and the block was not freed.
    unsafe fn export_block(&self, pool: RawPool, address: u64) -> Result<[u8; 64], DeviceError> {
        let _ = (pool, address);
        Err(not_shared("export_block"))
    }

    /// Imports a block of an imported pool, and returns its address here. It is [freed](Self::free_to) here first, and
    /// then by the exporter. Can wait. The default is an error.
    ///
    /// # Errors
    /// Returns [`InvalidArgument`](crate::DeviceErrorKind::InvalidArgument) if this is no block of the pool, or it has
    /// fewer bytes.
    ///
    /// # Safety
    /// The pool is a result of [`import_pool`](Self::import_pool) that was not destroyed.
    unsafe fn import_block(
        &self,
        pool: RawPool,
        block: &[u8; 64],
        bytes: u64,
    ) -> Result<u64, DeviceError> {
        let _ = (pool, block, bytes);
        Err(not_shared("import_block"))
    }
}

fn not_shared(call: &'static str) -> DeviceError {
    let reason = "this device does not share memory pools with other processes";
    DeviceError::new(call, crate::DeviceErrorKind::Unsupported, reason)
}
