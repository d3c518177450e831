//! The driver's own memory pools.

use super::CudaDevice;
use super::driver::{Visit, check};
use super::mapping::{MemoryLocation, access_with};
#[cfg(target_os = "linux")]
use super::sharing::{DESCRIPTOR, as_driver_takes_it, owned};
use super::stream::{PER_THREAD, handle, is_legacy_default};
use cudarc::driver::sys::{self, CUevent, CUmemPool_attribute, CUmemoryPool, CUresult, CUstream};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use weirpool_device::plain::{AtomicBool, Mutex, Ordering};
use weirpool_device::{
    Access, DeviceError, DeviceErrorKind, DriverPoolProperties, DriverPools, HandleType,
    HandleTypes, MemoryKind, PoolAttribute, RawPool, RawStream,
};

/// The driver's numbers of handle types.
const HANDLE_TYPES: [(HandleType, u32); 3] = [
    (HandleType::PosixFd, 1),
    (HandleType::Win32, 2),
    (HandleType::Win32Kmt, 4),
];

/// Returns the set of handle types from the driver's bits.
pub(super) fn handle_types(bits: c_int) -> HandleTypes {
    let is_set = |(_, bit): &&(HandleType, u32)| bits as u32 & bit != 0;
    HANDLE_TYPES
        .iter()
        .filter(is_set)
        .map(|(kind, _)| *kind)
        .collect()
}

/// What this device knows of blocks of the driver's pools.
#[derive(Debug, Default)]
pub(super) struct PoolState {
    /// A pool of the driver was asked for.
    is_used: AtomicBool,
    /// The addresses that the driver returned, where they were not aligned and the block begins behind them.
    padded: Mutex<BTreeMap<u64, u64>>,
    /// A block was padded. It is set before the block has a user, so that its free reads it.
    has_padded: AtomicBool,
    /// The pools whose memory the host sees, with their kinds.
    seen_by_host: Mutex<BTreeMap<RawPool, MemoryKind>>,
    /// There was such a pool. It is set before the pool has a user.
    has_seen: AtomicBool,
    /// The stream for memory that is not of a stream's order; 0 until it is needed.
    stream: Mutex<u64>,
}

impl PoolState {
    /// Returns the stream for memory that is not of a stream's order. The context is current.
    fn own_stream(&self, call: &'static str) -> Result<CUstream, DeviceError> {
        let present = *self.stream.lock();
        if present != 0 {
            return Ok(present as CUstream);
        }
        let mut created = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the call writes to `created`.
        check(call, unsafe { sys::cuStreamCreate(&mut created, flags) })?;
        let kept = {
            let mut stream = self.stream.lock();
            if *stream == 0 {
                *stream = created as u64;
            }
            *stream as CUstream
        };
        if kept != created {
            // SAFETY: another thread created one meanwhile, and no other code knows this one.
            let _ = unsafe { sys::cuStreamDestroy_v2(created) };
        }
        Ok(kept)
    }

    /// Returns the kind of a pool's memory if the host sees it.
    #[inline]
    fn kind_seen(&self, pool: RawPool) -> Option<MemoryKind> {
        if !self.has_seen.load(Ordering::Relaxed) {
            return None;
        }
        self.seen_by_host.lock().get(&pool).copied()
    }

    /// Lets the driver's pools hear of an event that is complete. They release memory above their threshold when the
    /// host synchronizes, and a query is no synchronization to them. This one does not wait.
    ///
    /// # Safety
    /// The event is usable, and was seen complete. The context is current.
    pub(super) unsafe fn record_complete(&self, event: CUevent) -> CUresult {
        if !self.is_used.load(Ordering::Relaxed) {
            return CUresult::CUDA_SUCCESS;
        }
        // SAFETY: the caller's guarantee.
        unsafe { sys::cuEventSynchronize(event) }
    }

    /// Destroys the stream. The context is current.
    pub(super) fn end(&self) {
        let stream = std::mem::take(&mut *self.stream.lock());
        if stream != 0 {
            // SAFETY: the device created it, and no later call names it.
            let _ = unsafe { sys::cuStreamDestroy_v2(stream as CUstream) };
        }
    }
}

fn pool_handle(pool: RawPool) -> CUmemoryPool {
    pool.0 as CUmemoryPool
}

/// The driver's description of a pool: `CUmemPoolProps`, whose fields' names depend on the version of CUDA.
#[repr(C)]
struct Properties {
    allocation_type: u32,
    handle_types: u32,
    /// Kind and number.
    location: [c_int; 2],
    security_attributes: *mut c_void,
    /// Drivers before CUDA 12.2 have no maximum, and expect zeros here.
    max_size: usize,
    reserved: [u8; 56],
}

const _: () = assert!(size_of::<Properties>() == size_of::<sys::CUmemPoolProps>());

impl Properties {
    fn of(properties: &DriverPoolProperties, device: c_int) -> Self {
        const PINNED: u32 = 1;
        const MANAGED: u32 = 2;
        let location = match properties.kind {
            MemoryKind::Pinned => MemoryLocation::Host(0),
            _ => MemoryLocation::Device(device),
        };
        let is_chosen = |(kind, _): &&(HandleType, u32)| properties.handle_types.contains(*kind);
        let bits = HANDLE_TYPES.iter().filter(is_chosen).map(|(_, bit)| bit);
        Self {
            allocation_type: match properties.kind {
                MemoryKind::Managed => MANAGED,
                _ => PINNED,
            },
            handle_types: bits.sum(),
            location: location.numbers(),
            security_attributes: std::ptr::null_mut(),
            max_size: properties.max_size as usize,
            reserved: [0; 56],
        }
    }
}

fn attribute_of(attribute: PoolAttribute) -> CUmemPool_attribute {
    use CUmemPool_attribute::*;
    match attribute {
        PoolAttribute::ReuseFollowEventDependencies => {
            CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
        }
        PoolAttribute::ReuseAllowOpportunistic => CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        PoolAttribute::ReuseAllowInternalDependencies => {
            CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES
        }
        PoolAttribute::ReleaseThreshold => CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
        PoolAttribute::ReservedMemCurrent => CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
        PoolAttribute::ReservedMemHigh => CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
        PoolAttribute::UsedMemCurrent => CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
        PoolAttribute::UsedMemHigh => CU_MEMPOOL_ATTR_USED_MEM_HIGH,
    }
}

/// Returns whether the driver's value is an `int` rather than a 64-bit number.
fn is_flag(attribute: PoolAttribute) -> bool {
    use PoolAttribute::*;
    matches!(
        attribute,
        ReuseFollowEventDependencies | ReuseAllowOpportunistic | ReuseAllowInternalDependencies
    )
}

impl CudaDevice {
    /// Allocates from a pool in the order of a stream. The context is current.
    ///
    /// # Safety
    /// The pool was not destroyed, and the stream is usable.
    unsafe fn take_from(pool: RawPool, bytes: u64, stream: CUstream) -> Result<u64, DeviceError> {
        let mut address = 0;
        // SAFETY: the caller's guarantee; the call writes to `address`.
        check("allocate_from", unsafe {
            sys::cuMemAllocFromPoolAsync(&mut address, bytes as usize, pool_handle(pool), stream)
        })?;
        Ok(address)
    }

    /// Frees what [`take_from`](Self::take_from) returned. The context is current.
    ///
    /// # Safety
    /// All uses of the block come before the present point of the stream, which is usable.
    unsafe fn give_to(own: u64, stream: CUstream) -> Result<(), DeviceError> {
        // SAFETY: the caller's guarantee.
        check("free_to", unsafe { sys::cuMemFreeAsync(own, stream) })
    }

    /// Begins an allocation or a free in the order of a stream. Fails for a default stream that is captured.
    ///
    /// The thread's context stays as it is, unless the stream is a default one, which is that of the current context. Any
    /// other stream has a context of its own. The capture mode is relaxed: in the global one, an allocation breaks a capture
    /// of another stream, as an H200 showed.
    ///
    /// # Safety
    /// The stream is usable.
    #[inline(always)]
    unsafe fn begin_in_order(
        &self,
        call: &'static str,
        stream: RawStream,
    ) -> Result<Visit, DeviceError> {
        weirpool_device::assert_unlocked(call);
        if !is_legacy_default(stream) && stream.0 != PER_THREAD {
            return Ok(Visit::in_any_context());
        }
        // SAFETY: the caller's guarantee.
        unsafe { self.begin_on_default(call, stream) }
    }

    /// Begins a call on a default stream. Fails if it is captured, or if a stream is that the legacy one is ordered with: the
    /// call would break that capture.
    ///
    /// # Safety
    /// The stream is usable.
    #[cold]
    unsafe fn begin_on_default(
        &self,
        call: &'static str,
        stream: RawStream,
    ) -> Result<Visit, DeviceError> {
        let visit = self.visit(call)?;
        // SAFETY: the caller's guarantee.
        unsafe { Self::refuse_captured(call, stream) }?;
        Ok(visit)
    }

    /// Allocates in the order of a stream.
    ///
    /// # Safety
    /// The pool was not destroyed, and the stream is usable.
    #[inline(always)]
    unsafe fn allocate_in_order(
        &self,
        pool: RawPool,
        bytes: u64,
        alignment: u64,
        stream: RawStream,
    ) -> Result<u64, DeviceError> {
        let call = "allocate_from";
        // SAFETY: the caller guarantees that the stream is usable.
        let _visit = unsafe { self.begin_in_order(call, stream) }?;
        // A captured allocation would be made by each launch of the graph.
        // SAFETY: as above.
        unsafe { Self::refuse_captured(call, stream) }?;
        // SAFETY: the caller's guarantee.
        let address = unsafe { self.take_aligned(pool, bytes, alignment, handle(stream)) }?;
        self.record_if_seen(pool, address, bytes);
        Ok(address)
    }

    /// Allocates memory that is complete on every stream.
    ///
    /// # Safety
    /// The pool was not destroyed.
    #[cold]
    unsafe fn allocate_complete(
        &self,
        pool: RawPool,
        bytes: u64,
        alignment: u64,
    ) -> Result<u64, DeviceError> {
        let call = "allocate_from";
        let _visit = self.memory_call(call)?;
        let own = self.inner.pools.own_stream(call)?;
        // SAFETY: the caller guarantees the pool; the stream is the device's own.
        let address = unsafe { self.take_aligned(pool, bytes, alignment, own) }?;
        // SAFETY: the stream is the device's own.
        check(call, unsafe { sys::cuStreamSynchronize(own) })?;
        self.record_if_seen(pool, address, bytes);
        Ok(address)
    }

    /// Frees a block in the order of a stream.
    ///
    /// # Safety
    /// The pool has the block, whose uses all come before the present point of the stream, which is usable.
    #[inline(always)]
    unsafe fn free_in_order(
        &self,
        pool: RawPool,
        address: u64,
        stream: RawStream,
    ) -> Result<(), DeviceError> {
        let call = "free_to";
        // SAFETY: the caller guarantees that the stream is usable.
        let _visit = unsafe { self.begin_in_order(call, stream) }?;
        // SAFETY: the caller guarantees the order of the uses.
        let freed = unsafe { self.give_recorded(pool, address, handle(stream)) };
        freed.map_err(|error| {
            // A captured stream takes no free of a block that is of no graph, and its capture goes on. It is asked only
            // then: the query would take a tenth of the call's time.
            // SAFETY: the caller guarantees that the stream is usable.
            match unsafe { Self::refuse_captured(call, stream) } {
                Err(captured) if captured.kind() == DeviceErrorKind::Unsupported => captured,
                _ => error,
            }
        })
    }

    /// Frees a block whose uses are all complete.
    ///
    /// # Safety
    /// The pool has the block.
    #[cold]
    unsafe fn free_complete(&self, pool: RawPool, address: u64) -> Result<(), DeviceError> {
        let call = "free_to";
        let _visit = self.memory_call(call)?;
        let own = self.inner.pools.own_stream(call)?;
        // SAFETY: the caller's guarantee.
        unsafe { self.give_recorded(pool, address, own) }?;
        // With it, the driver releases memory above the threshold. The block is gone in any case.
        // SAFETY: the stream is the device's own.
        let _ = unsafe { sys::cuStreamSynchronize(own) };
        Ok(())
    }

    /// Frees a block, and forgets the notes about it.
    ///
    /// # Safety
    /// As [`give_to`](Self::give_to).
    #[inline(always)]
    unsafe fn give_recorded(
        &self,
        pool: RawPool,
        address: u64,
        order: CUstream,
    ) -> Result<(), DeviceError> {
        let pools = &self.inner.pools;
        if pools.has_padded.load(Ordering::Relaxed) || pools.has_seen.load(Ordering::Relaxed) {
            // SAFETY: the caller's guarantee.
            return unsafe { self.give_noted(pool, address, order) };
        }
        // SAFETY: the caller's guarantee.
        unsafe { Self::give_to(address, order) }
    }

    /// As [`give_recorded`](Self::give_recorded), where something is noted about some block.
    ///
    /// # Safety
    /// As [`give_to`](Self::give_to).
    #[inline(never)]
    unsafe fn give_noted(
        &self,
        pool: RawPool,
        address: u64,
        order: CUstream,
    ) -> Result<(), DeviceError> {
        // Before the driver frees it: from then on another allocation may get the address.
        let padded = self.inner.pools.padded.lock().remove(&address);
        let seen = match self.inner.pools.kind_seen(pool) {
            Some(_) => self.inner.plain.forget_pooled(address),
            None => None,
        };
        // SAFETY: the caller guarantees the order of the uses.
        let freed = unsafe { Self::give_to(padded.unwrap_or(address), order) };
        freed.inspect_err(|_| {
            if let Some(own) = padded {
                self.inner.pools.padded.lock().insert(address, own);
            }
            if let Some((kind, bytes)) = seen {
                self.inner.plain.record_pooled(kind, address, bytes);
            }
        })
    }

    /// Notes a block that the host may access.
    #[inline]
    fn record_if_seen(&self, pool: RawPool, address: u64, bytes: u64) {
        if let Some(kind) = self.inner.pools.kind_seen(pool) {
            self.inner.plain.record_pooled(kind, address, bytes);
        }
    }

    /// Allocates a block at a multiple of `alignment`.
    ///
    /// # Safety
    /// As [`take_from`](Self::take_from).
    #[inline(always)]
    unsafe fn take_aligned(
        &self,
        pool: RawPool,
        bytes: u64,
        alignment: u64,
        stream: CUstream,
    ) -> Result<u64, DeviceError> {
        // SAFETY: the caller's guarantee.
        let own = unsafe { Self::take_from(pool, bytes, stream) }?;
        debug_assert!(alignment.is_power_of_two());
        if own & (alignment - 1) == 0 {
            return Ok(own);
        }
        // SAFETY: the caller's guarantee.
        unsafe { self.allocate_padded(pool, bytes, alignment, own, stream) }
    }

    /// Allocates a larger block in place of one whose address is no multiple of `alignment`.
    ///
    /// # Safety
    /// As [`take_from`](Self::take_from), which returned the block in the order of the stream.
    #[cold]
    unsafe fn allocate_padded(
        &self,
        pool: RawPool,
        bytes: u64,
        alignment: u64,
        own: u64,
        stream: CUstream,
    ) -> Result<u64, DeviceError> {
        // SAFETY: the block was just allocated in the order of this stream, and nothing uses it.
        unsafe { Self::give_to(own, stream) }?;
        // SAFETY: the caller's guarantee.
        let own = unsafe { Self::take_from(pool, bytes.saturating_add(alignment), stream) }?;
        let address = own.next_multiple_of(alignment);
        if address != own {
            let pools = &self.inner.pools;
            pools.has_padded.store(true, Ordering::Relaxed);
            pools.padded.lock().insert(address, own);
        }
        Ok(address)
    }
}

// SAFETY: live blocks of the driver's pools are disjoint, from each other and from all other memory. Memory of
// `cuMemAllocFromPoolAsync` may be used behind the allocation and before `cuMemFreeAsync` in stream order. A block that
// is of no stream's order is allocated on a stream of the device's own, which is synchronized before the call returns.
unsafe impl DriverPools for CudaDevice {
    fn create_pool(&self, properties: &DriverPoolProperties) -> Result<RawPool, DeviceError> {
        let call = "create_pool";
        self.inner.facts.check_kind(call, properties.kind)?;
        let offered = self.inner.facts.handle_types();
        if !offered.contains_all(properties.handle_types) {
            let reason =
                format!("the driver shares pools by: {offered}; ask for those, or for none");
            return Err(DeviceError::new(call, DeviceErrorKind::Unsupported, reason));
        }
        let _visit = self.memory_call(call)?;
        self.inner.pools.is_used.store(true, Ordering::Relaxed);
        let device = self.inner.context.cu_device();
        let described = Properties::of(properties, device);
        let mut pool = std::ptr::null_mut();
        // SAFETY: `Properties` has the layout of the driver's structure; the call writes to `pool`.
        check(call, unsafe {
            sys::cuMemPoolCreate(&mut pool, (&raw const described).cast())
        })?;
        let pool = RawPool(pool as u64);
        if properties.kind.is_seen_by_host() {
            self.inner.pools.has_seen.store(true, Ordering::Relaxed);
            let mut seen = self.inner.pools.seen_by_host.lock();
            seen.insert(pool, properties.kind);
        }
        if properties.kind == MemoryKind::Pinned {
            // The host has access to its own memory, and the device is given it.
            let ordinal = self.inner.facts.ordinal() as u32;
            // SAFETY: the pool was just created.
            let given = unsafe { self.set_pool_access(pool, ordinal, Access::ReadWrite) };
            given.inspect_err(|_| {
                // SAFETY: no other code knows the pool.
                let _ = unsafe { self.destroy_pool(pool) };
            })?;
        }
        Ok(pool)
    }

    unsafe fn destroy_pool(&self, pool: RawPool) -> Result<(), DeviceError> {
        let _visit = self.memory_call("destroy_pool")?;
        self.inner.pools.seen_by_host.lock().remove(&pool);
        // SAFETY: the caller's guarantee. The driver keeps the memory until the last block is freed.
        check("destroy_pool", unsafe {
            sys::cuMemPoolDestroy(pool_handle(pool))
        })
    }

    fn default_pool(&self) -> Result<RawPool, DeviceError> {
        let _visit = self.visit("default_pool")?;
        self.inner.pools.is_used.store(true, Ordering::Relaxed);
        let mut pool = std::ptr::null_mut();
        let device = self.inner.context.cu_device();
        // SAFETY: the call writes to `pool`.
        check("default_pool", unsafe {
            sys::cuDeviceGetDefaultMemPool(&mut pool, device)
        })?;
        Ok(RawPool(pool as u64))
    }

    unsafe fn allocate_from(
        &self,
        pool: RawPool,
        bytes: u64,
        alignment: u64,
        stream: RawStream,
    ) -> Result<u64, DeviceError> {
        if stream == RawStream::HOST {
            // SAFETY: the caller's guarantee.
            return unsafe { self.allocate_complete(pool, bytes, alignment) };
        }
        // SAFETY: the caller's guarantee.
        unsafe { self.allocate_in_order(pool, bytes, alignment, stream) }
    }

    unsafe fn free_to(
        &self,
        pool: RawPool,
        address: u64,
        stream: RawStream,
    ) -> Result<(), DeviceError> {
        if stream == RawStream::HOST {
            // SAFETY: the caller's guarantee.
            return unsafe { self.free_complete(pool, address) };
        }
        // SAFETY: the caller's guarantee.
        unsafe { self.free_in_order(pool, address, stream) }
    }

    unsafe fn trim_pool(&self, pool: RawPool, keep: u64) -> Result<(), DeviceError> {
        let _visit = self.memory_call("trim_pool")?;
        // SAFETY: the caller's guarantee.
        check("trim_pool", unsafe {
            sys::cuMemPoolTrimTo(pool_handle(pool), keep as usize)
        })
    }

    unsafe fn pool_attribute(
        &self,
        pool: RawPool,
        attribute: PoolAttribute,
    ) -> Result<u64, DeviceError> {
        let _visit = self.visit("pool_attribute")?;
        let (mut flag, mut number): (c_int, u64) = (0, 0);
        let into = match is_flag(attribute) {
            true => (&raw mut flag).cast::<c_void>(),
            false => (&raw mut number).cast(),
        };
        // SAFETY: the caller's guarantee; the call writes a value of the attribute's type.
        check("pool_attribute", unsafe {
            sys::cuMemPoolGetAttribute(pool_handle(pool), attribute_of(attribute), into)
        })?;
        Ok(number + u64::from(flag != 0))
    }

    unsafe fn set_pool_attribute(
        &self,
        pool: RawPool,
        attribute: PoolAttribute,
        value: u64,
    ) -> Result<(), DeviceError> {
        let _visit = self.visit("set_pool_attribute")?;
        let (mut flag, mut number) = (c_int::from(value != 0), value);
        let from = match is_flag(attribute) {
            true => (&raw mut flag).cast::<c_void>(),
            false => (&raw mut number).cast(),
        };
        // SAFETY: the caller's guarantee; the call reads a value of the attribute's type.
        check("set_pool_attribute", unsafe {
            sys::cuMemPoolSetAttribute(pool_handle(pool), attribute_of(attribute), from)
        })
    }

    unsafe fn pool_access(&self, pool: RawPool, device: u32) -> Result<Access, DeviceError> {
        let _visit = self.visit("pool_access")?;
        let mut location = MemoryLocation::Device(device as c_int).to_raw();
        let mut flags = 0_u32;
        // SAFETY: the caller's guarantee; the call reads the location, and writes a number of 32 bits.
        check("pool_access", unsafe {
            sys::cuMemPoolGetAccess(
                (&raw mut flags).cast(),
                pool_handle(pool),
                location.as_mut_ptr(),
            )
        })?;
        Ok(match flags {
            3 => Access::ReadWrite,
            1 => Access::Read,
            _ => Access::None,
        })
    }

    unsafe fn set_pool_access(
        &self,
        pool: RawPool,
        device: u32,
        rights: Access,
    ) -> Result<(), DeviceError> {
        let _visit = self.memory_call("set_pool_access")?;
        let description = access_with(MemoryLocation::Device(device as c_int), rights);
        // SAFETY: the caller's guarantee; the call reads one description.
        check("set_pool_access", unsafe {
            sys::cuMemPoolSetAccess(pool_handle(pool), description.as_ptr(), 1)
        })
    }

    #[cfg(target_os = "linux")]
    unsafe fn export_pool(&self, pool: RawPool) -> Result<OwnedFd, DeviceError> {
        let call = "export_pool";
        let _visit = self.memory_call(call)?;
        let mut descriptor: c_int = -1;
        // SAFETY: the caller's guarantee; the call writes a descriptor.
        check(call, unsafe {
            let into = (&raw mut descriptor).cast();
            sys::cuMemPoolExportToShareableHandle(into, pool_handle(pool), DESCRIPTOR, 0)
        })?;
        owned(call, descriptor)
    }

    #[cfg(target_os = "linux")]
    fn import_pool(&self, descriptor: OwnedFd) -> Result<RawPool, DeviceError> {
        let call = "import_pool";
        let pool = {
            let _visit = self.memory_call(call)?;
            self.inner.pools.is_used.store(true, Ordering::Relaxed);
            let mut pool = std::ptr::null_mut();
            // SAFETY: the call writes to `pool`. The driver refuses a descriptor that is not its own.
            check(call, unsafe {
                let from = as_driver_takes_it(&descriptor);
                sys::cuMemPoolImportFromShareableHandle(&mut pool, from, DESCRIPTOR, 0)
            })?;
            RawPool(pool as u64)
        };
        let ordinal = self.inner.facts.ordinal() as u32;
        // SAFETY: the pool was just imported, and no work uses its memory.
        let allowed = unsafe {
            match self.pool_access(pool, ordinal) {
                Ok(Access::ReadWrite) => Ok(()),
                Ok(_) => self.set_pool_access(pool, ordinal, Access::ReadWrite),
                Err(error) => Err(error),
            }
        };
        allowed.inspect_err(|_| {
            // SAFETY: no other code knows the pool.
            let _ = unsafe { self.destroy_pool(pool) };
        })?;
        Ok(pool)
    }

    unsafe fn export_block(&self, _pool: RawPool, address: u64) -> Result<[u8; 64], DeviceError> {
        let call = "export_block";
        let _visit = self.memory_call(call)?;
        if self.inner.pools.padded.lock().contains_key(&address) {
            let reason =
                "the block is aligned by padding, and cannot be shared; ask for no alignment";
            return Err(DeviceError::new(call, DeviceErrorKind::Unsupported, reason));
        }
        let mut data = [0_u8; 64];
        const _: () = assert!(size_of::<sys::CUmemPoolPtrExportData>() == 64);
        // SAFETY: the caller's guarantee; the structure consists of 64 bytes.
        check(call, unsafe {
            sys::cuMemPoolExportPointer(data.as_mut_ptr().cast(), address)
        })?;
        Ok(data)
    }

    unsafe fn import_block(
        &self,
        pool: RawPool,
        block: &[u8; 64],
        bytes: u64,
    ) -> Result<u64, DeviceError> {
        let call = "import_block";
        let _visit = self.memory_call(call)?;
        let (mut address, mut data) = (0, *block);
        // SAFETY: the caller's guarantee; the structure consists of 64 bytes, and the call writes to `address`.
        check(call, unsafe {
            let data = data.as_mut_ptr().cast();
            sys::cuMemPoolImportPointer(&mut address, pool_handle(pool), data)
        })?;
        let (mut base, mut size) = (0, 0);
        // SAFETY: the address was just imported; the call writes to both variables.
        let range = check(call, unsafe {
            sys::cuMemGetAddressRange_v2(&mut base, &mut size, address)
        });
        let end = base.saturating_add(size as u64);
        let is_enough = range.is_ok() && address.saturating_add(bytes) <= end;
        if is_enough {
            return Ok(address);
        }
        let order = self.inner.pools.own_stream(call)?;
        // SAFETY: nothing uses the block; the stream is the device's own.
        let _ = unsafe { Self::give_to(address, order) };
        range?;
        let reason = format!("the block has fewer than {bytes} bytes");
        let kind = DeviceErrorKind::InvalidArgument;
        Err(DeviceError::new(call, kind, reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_have_the_drivers_numbers() {
        let mut properties = DriverPoolProperties::new(MemoryKind::Device);
        properties.handle_types = HandleTypes::POSIX_FD;
        properties.max_size = 7;
        let described = Properties::of(&properties, 3);
        let Properties {
            allocation_type,
            handle_types,
            location,
            max_size,
            ..
        } = described;
        assert_eq!((allocation_type, handle_types, max_size), (1, 1, 7));
        assert_eq!(location, [1, 3], "on the device");
        let pinned = Properties::of(&DriverPoolProperties::new(MemoryKind::Pinned), 3);
        assert_eq!(pinned.location, [3, 0], "the first node of the host");
        let managed = Properties::of(&DriverPoolProperties::new(MemoryKind::Managed), 3);
        assert_eq!((managed.allocation_type, managed.location), (2, [1, 3]));
    }

    #[test]
    fn handle_types_have_the_drivers_bits() {
        assert_eq!(handle_types(0), HandleTypes::NONE);
        assert_eq!(handle_types(1), HandleTypes::POSIX_FD);
        let windows = HandleTypes::WIN32.with(HandleType::Win32Kmt);
        assert_eq!(handle_types(6), windows);
        assert_eq!(
            handle_types(8),
            HandleTypes::NONE,
            "a kind that is not known here"
        );
    }
}
