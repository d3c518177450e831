//! Device calls on the driver's memory pools.
//!
//! Each call is counted, its cost added, and a scripted fault may fail it. Memory is allocated and freed in stream
//! order, as by `cudaMallocAsync`: a stream gets memory that it freed itself; else memory that it comes after, or that
//! is complete; else new memory; else it is made to wait. The three flags switch the second, third and last of these
//! off. Free memory above the threshold is released at a synchronization: here, a query that finds an event complete.

use super::SimDevice;
use super::call::Call;
use super::driver_pools::{Extent, Freed, SimPool};
use super::event_calls::{invalid, unsupported};
use super::events::Recorded;
use super::schedule::Item;
use super::state::State;
use weirpool_device::{
    Access, DeviceError, DeviceErrorKind, DriverPoolProperties, DriverPools, PoolAttribute,
    RawPool, RawStream,
};

impl State {
    pub(super) fn pool(&mut self, call: Call, pool: RawPool) -> Result<&mut SimPool, DeviceError> {
        let found = self.pools.names.get_mut(pool.0);
        found.ok_or_else(|| {
            let name = pool.0;
            let reason = format!(
                "there is no memory pool {name:#x}; it was destroyed, or is of another device"
            );
            invalid(call, reason)
        })
    }

    /// Returns an extent of the pool that the stream may take as it is.
    fn present_extent(&mut self, pool: RawPool, bytes: u64, stream: RawStream) -> Option<u64> {
        let pool = self.pools.names.get(pool.0)?;
        let (follows, is_opportunistic) = (pool.follows_events, pool.is_opportunistic);
        let own = |freed: Freed| freed.stream == stream;
        let complete = |freed: Freed| is_opportunistic && self.schedule.is_complete(freed.point);
        let is_of_host = stream == RawStream::HOST;
        let ordered = |freed| follows && !is_of_host && self.comes_after(stream, freed);
        let may_take = |extent| match extent {
            Extent::Pending(freed) => own(freed) || complete(freed) || ordered(freed),
            _ => true,
        };
        pool.best(bytes, may_take)
    }

    /// Takes an extent for a stream, which is made to wait for its last use if need be.
    fn take_extent(&mut self, pool: RawPool, address: u64, stream: RawStream) {
        let Some(found) = self.pools.names.get_mut(pool.0) else {
            return;
        };
        let Extent::Pending(freed) = found.take(address) else {
            return;
        };
        if self.schedule.is_complete(freed.point) {
            // The driver looked.
            if let Some(judge) = self.judge() {
                judge.order.observe(freed.event);
            }
        } else if freed.stream != stream && !self.comes_after(stream, freed) {
            self.counters.device_waits += 1;
            self.submit(stream, Item::Wait(freed.point));
            if let Some(judge) = self.judge() {
                judge.order.wait(stream, freed.event);
            }
        }
        self.forget_event(freed);
    }

    /// Returns whether the stream is known to come after a free. Without the checker it is not.
    fn comes_after(&self, stream: RawStream, freed: Freed) -> bool {
        let judge = self.judge.as_ref();
        judge.is_some_and(|judge| judge.order.comes_after(stream, freed.event))
    }

    fn forget_event(&mut self, freed: Freed) {
        self.events.destroy(freed.event);
        if let Some(judge) = self.judge() {
            judge.order.forget(freed.event);
        }
    }

    /// Notes which extents are complete, and releases free ones until `keep` bytes are reserved.
    fn settle_pool(&mut self, pool: RawPool, keep: impl Fn(&SimPool) -> u64) {
        let Self {
            pools, schedule, ..
        } = self;
        let Some(found) = pools.names.get_mut(pool.0) else {
            return;
        };
        let events = found.settle(|point| schedule.is_complete(point));
        let keep = keep(found);
        let released = found.release(keep);
        let kind = found.properties.kind;
        for event in events {
            if let Some(judge) = self.judge() {
                judge.order.observe(event);
                judge.order.forget(event);
            }
            self.events.destroy(event);
        }
        for (address, bytes) in released {
            if let Some(judge) = self.judge() {
                judge.returned(address, bytes);
            }
            self.space
                .free(kind, address, bytes)
                .expect("memory that the pool holds");
        }
    }

    /// Releases what pools hold above their thresholds.
    pub(super) fn synchronize_pools(&mut self) {
        let names: Vec<_> = self
            .pools
            .names
            .iter()
            .map(|(name, _)| RawPool(name))
            .collect();
        for pool in names {
            self.settle_pool(pool, |pool| pool.threshold);
            self.end_pool(pool);
        }
    }

    /// Removes a destroyed pool without blocks.
    fn end_pool(&mut self, pool: RawPool) {
        let is_over = |pool: &SimPool| pool.is_destroyed && pool.is_unused();
        if self.pools.names.get(pool.0).is_some_and(is_over) {
            self.settle_pool(pool, |_| 0);
            let is_empty = |pool: &SimPool| pool.extents.is_empty();
            if self.pools.names.get(pool.0).is_some_and(is_empty) {
                self.pools.names.remove(pool.0);
            }
        }
    }

    /// Takes memory of the device for a pool.
    fn grow_pool(&mut self, pool: RawPool, bytes: u64) -> Result<u64, DeviceError> {
        let call = Call::AllocateFrom;
        let found = self.pool(call, pool)?;
        let (kind, left) = (found.properties.kind, found.left());
        let (device, peers) = (found.device, found.peers());
        if bytes > left {
            let reason = format!("{bytes} bytes requested, but the pool may reserve {left} more");
            return Err(DeviceError::new(
                call.name(),
                DeviceErrorKind::OutOfMemory,
                reason,
            ));
        }
        #[cfg(target_os = "linux")]
        let part = found.file.as_mut().map(|file| file.take(bytes));
        #[cfg(target_os = "linux")]
        let taken = match part {
            Some(part) => self.space.allocate_shared(device, kind, bytes, part, false),
            None => self.space.allocate(device, kind, bytes),
        };
        #[cfg(not(target_os = "linux"))]
        let taken = self.space.allocate(device, kind, bytes);
        let address =
            taken.map_err(|refusal| DeviceError::new(call.name(), refusal.kind, refusal.reason))?;
        self.counters.charge_for_growth(bytes);
        self.space.share_extent(address, peers);
        self.pool(call, pool)?.grow(address, bytes);
        Ok(address)
    }

    fn allocate_from(
        &mut self,
        pool: RawPool,
        bytes: u64,
        stream: RawStream,
    ) -> Result<u64, DeviceError> {
        if self.pool(Call::AllocateFrom, pool)?.is_imported {
            let reason = "an imported pool allocates nothing; import its blocks";
            return Err(unsupported(Call::AllocateFrom, reason));
        }
        if let Some(address) = self.present_extent(pool, bytes, stream) {
            self.take_extent(pool, address, stream);
            return Ok(address);
        }
        let mut grown = self.grow_pool(pool, bytes);
        if grown.is_err() {
            // Extents of the wrong size make room.
            self.settle_pool(pool, |_| 0);
            grown = self.grow_pool(pool, bytes);
        }
        let address = match grown {
            Ok(address) => address,
            Err(error) => {
                let may_wait = stream != RawStream::HOST
                    && self.pool(Call::AllocateFrom, pool)?.adds_dependencies;
                let pending = self
                    .pool(Call::AllocateFrom, pool)?
                    .best(bytes, |_| may_wait);
                pending.ok_or(error)?
            }
        };
        self.take_extent(pool, address, stream);
        Ok(address)
    }

    /// Reports the free of a block that another device of this process has imported and not freed.
    #[cfg(target_os = "linux")]
    fn judge_imports(&mut self, pool: RawPool, address: u64) {
        let Some(found) = self
            .pools
            .names
            .get(pool.0)
            .filter(|pool| !pool.is_imported)
        else {
            return;
        };
        let (Some(file), Some(part)) = (&found.file, self.space.part_at(address)) else {
            return;
        };
        let extent = found.extents.get(&address).map(|(bytes, _)| *bytes);
        if let Some(bytes) = extent.filter(|_| file.is_imported(&part))
            && let Some(judge) = self.judge()
        {
            judge.freed_while_imported(address, bytes);
        }
    }

    fn free_to(
        &mut self,
        pool: RawPool,
        address: u64,
        stream: RawStream,
    ) -> Result<(), DeviceError> {
        let call = Call::FreeTo;
        if !self.pool(call, pool)?.has_block(address) {
            let reason = format!(
                "{address:#x} is no block of the pool; it was freed, or is of another pool"
            );
            return Err(invalid(call, reason));
        }
        #[cfg(target_os = "linux")]
        self.judge_imports(pool, address);
        let extent = match stream {
            RawStream::HOST => Extent::Free,
            _ => {
                let device = self.schedule.device_of(stream).unwrap_or_default();
                let event = self.events.create(device);
                let point = self.submit(stream, Item::Record);
                self.events.record(event, Recorded { point, fails: None });
                if let Some(judge) = self.judge() {
                    judge.order.record(event, stream);
                }
                Extent::Pending(Freed {
                    stream,
                    point,
                    event,
                })
            }
        };
        self.pool(call, pool)?.free(address, extent);
        if stream == RawStream::HOST {
            // The call has synchronized.
            self.settle_pool(pool, |pool| pool.threshold);
        }
        self.end_pool(pool);
        Ok(())
    }
}

impl SimDevice {
    /// Makes a call on a pool.
    pub(super) fn pool_call<R>(
        &self,
        call: Call,
        pool: RawPool,
        make: impl FnOnce(&mut State) -> Result<R, DeviceError>,
    ) -> Result<R, DeviceError> {
        weirpool_device::assert_unlocked(call.name());
        self.engine.call(|state| {
            state.enter(call, 0)?;
            if state.pool(call, pool)?.device != self.number {
                let reason = "the memory pool is of another device: call that device".to_owned();
                return Err(invalid(call, reason));
            }
            make(state)
        })
    }
}

// SAFETY: `Space` hands out disjoint ranges, and an extent has one block at a time. A stream takes an extent only where
// it comes after the point of its free, or is made to wait for it.
unsafe impl DriverPools for SimDevice {
    fn create_pool(&self, properties: &DriverPoolProperties) -> Result<RawPool, DeviceError> {
        weirpool_device::assert_unlocked("create_pool");
        let settings = &self.engine.settings;
        let call = Call::CreatePool;
        self.engine.call(|state| {
            state.enter(call, 0)?;
            let DriverPoolProperties {
                kind, handle_types, ..
            } = *properties;
            if !settings.memory_kinds.contains(kind) || kind == weirpool_device::MemoryKind::Host {
                return Err(unsupported(
                    call,
                    "the driver has no pools of this kind of memory",
                ));
            }
            if !settings.handle_types().contains_all(handle_types) {
                let reason = "the driver shares no pools by these handles";
                return Err(unsupported(call, reason));
            }
            #[allow(unused_mut, reason = "only Linux has the file")]
            let mut pool = SimPool::new(*properties, false, self.number);
            #[cfg(target_os = "linux")]
            if !handle_types.is_empty() {
                let file = super::memory::PoolFile::create();
                pool.file = Some(file.map_err(|refusal| {
                    DeviceError::new(call.name(), refusal.kind, refusal.reason)
                })?);
            }
            Ok(RawPool(state.pools.names.insert(pool)))
        })
    }

    unsafe fn destroy_pool(&self, pool: RawPool) -> Result<(), DeviceError> {
        self.pool_call(Call::DestroyPool, pool, |state| {
            let found = state.pool(Call::DestroyPool, pool)?;
            if found.is_default {
                let reason = "the default pool of a device is not destroyed".to_owned();
                return Err(invalid(Call::DestroyPool, reason));
            }
            found.is_destroyed = true;
            state.end_pool(pool);
            Ok(())
        })
    }

    fn default_pool(&self) -> Result<RawPool, DeviceError> {
        self.engine.call(|state| {
            state.enter(Call::PoolAttribute, 0)?;
            if let Some(pool) = state.pools.default.get(&self.number) {
                return Ok(*pool);
            }
            let properties = DriverPoolProperties::new(weirpool_device::MemoryKind::Device);
            let pool = SimPool::new(properties, true, self.number);
            let pool = RawPool(state.pools.names.insert(pool));
            state.pools.default.insert(self.number, pool);
            Ok(pool)
        })
    }

    unsafe fn allocate_from(
        &self,
        pool: RawPool,
        bytes: u64,
        _alignment: u64,
        stream: RawStream,
    ) -> Result<u64, DeviceError> {
        // Every extent is aligned to the granularity.
        let rounded = bytes.checked_next_multiple_of(super::builder::GRANULARITY);
        self.pool_call(Call::AllocateFrom, pool, |state| {
            let is_valid = |rounded: &u64| *rounded > 0;
            let Some(rounded) = rounded.filter(is_valid) else {
                return Err(invalid(
                    Call::AllocateFrom,
                    format!("invalid size of {bytes} bytes"),
                ));
            };
            if stream != RawStream::HOST {
                self.on(stream).check_live(state, Call::AllocateFrom)?;
            }
            state.allocate_from(pool, rounded, stream)
        })
    }

    unsafe fn free_to(
        &self,
        pool: RawPool,
        address: u64,
        stream: RawStream,
    ) -> Result<(), DeviceError> {
        self.pool_call(Call::FreeTo, pool, |state| {
            if stream != RawStream::HOST {
                self.on(stream).check_live(state, Call::FreeTo)?;
            }
            state.free_to(pool, address, stream)
        })
    }

    unsafe fn trim_pool(&self, pool: RawPool, keep: u64) -> Result<(), DeviceError> {
        self.pool_call(Call::TrimPool, pool, |state| {
            state.settle_pool(pool, |_| keep);
            Ok(())
        })
    }

    unsafe fn pool_attribute(
        &self,
        pool: RawPool,
        attribute: PoolAttribute,
    ) -> Result<u64, DeviceError> {
        let call = Call::PoolAttribute;
        self.pool_call(call, pool, |state| {
            Ok(state.pool(call, pool)?.attribute(attribute))
        })
    }

    unsafe fn set_pool_attribute(
        &self,
        pool: RawPool,
        attribute: PoolAttribute,
        value: u64,
    ) -> Result<(), DeviceError> {
        let call = Call::PoolAttribute;
        self.pool_call(call, pool, |state| {
            match state.pool(call, pool)?.set_attribute(attribute, value) {
                true => Ok(()),
                false => Err(invalid(
                    call,
                    format!("{attribute:?} cannot be set to {value}"),
                )),
            }
        })
    }

    unsafe fn pool_access(&self, pool: RawPool, device: u32) -> Result<Access, DeviceError> {
        let call = Call::PoolAttribute;
        self.pool_call(call, pool, |state| {
            Ok(state.pool(call, pool)?.access(device))
        })
    }

    unsafe fn set_pool_access(
        &self,
        pool: RawPool,
        device: u32,
        access: Access,
    ) -> Result<(), DeviceError> {
        let call = Call::PoolAttribute;
        let is_own = device == self.number;
        let can_reach = is_own || self.reachable_peers().contains(device);
        self.pool_call(call, pool, |state| {
            let reason = match (is_own, access) {
                (true, Access::None | Access::Read) => {
                    "a device keeps the access to its own memory".to_owned()
                }
                _ if can_reach => {
                    let found = state.pool(call, pool)?;
                    found.set_access(device, access);
                    let peers = found.peers();
                    let extents: Vec<_> = found.extents.keys().copied().collect();
                    let share = |address| state.space.share_extent(address, peers);
                    extents.into_iter().for_each(share);
                    return Ok(());
                }
                _ => format!("device {device} cannot reach the memory of this one"),
            };
            Err(invalid(call, reason))
        })
    }

    #[cfg(target_os = "linux")]
    unsafe fn export_pool(&self, pool: RawPool) -> Result<std::os::fd::OwnedFd, DeviceError> {
        super::sharing::export_pool(self, pool)
    }

    #[cfg(target_os = "linux")]
    fn import_pool(&self, descriptor: std::os::fd::OwnedFd) -> Result<RawPool, DeviceError> {
        super::sharing::import_pool(self, descriptor)
    }

    #[cfg(target_os = "linux")]
    unsafe fn export_block(&self, pool: RawPool, address: u64) -> Result<[u8; 64], DeviceError> {
        super::sharing::export_block(self, pool, address)
    }

    #[cfg(target_os = "linux")]
    unsafe fn import_block(
        &self,
        pool: RawPool,
        block: &[u8; 64],
        bytes: u64,
    ) -> Result<u64, DeviceError> {
        super::sharing::import_block(self, pool, block, bytes)
    }
}
