//! Chunks, pools and their blocks between processes, implemented by the simulated device: their bytes are files without
//! names.

use super::SimDevice;
use super::call::Call;
use super::driver_pools::SimPool;
use super::event_calls::invalid;
use super::memory::{PoolFile, Refusal};
use std::os::fd::OwnedFd;
use weirpool_device::{
    Chunk, DeviceError, DriverPoolProperties, HandleTypes, MemoryKind, RawPool, Sharing,
};

fn refused(call: Call) -> impl FnOnce(Refusal) -> DeviceError {
    move |refusal| DeviceError::new(call.name(), refusal.kind, refusal.reason)
}

/// The calls of [`DriverPools`](weirpool_device::DriverPools) on pools that are shared. Invalid names are detected.
pub(super) fn export_pool(device: &SimDevice, pool: RawPool) -> Result<OwnedFd, DeviceError> {
    let call = Call::Export;
    device.pool_call(call, pool, |state| match &state.pool(call, pool)?.file {
        Some(file) => file.export().map_err(refused(call)),
        None => Err(invalid(
            call,
            "the pool was created without handle types; ask for file descriptors".to_owned(),
        )),
    })
}

pub(super) fn import_pool(device: &SimDevice, descriptor: OwnedFd) -> Result<RawPool, DeviceError> {
    let call = Call::Import;
    weirpool_device::assert_unlocked(call.name());
    device.engine.call(|state| {
        state.enter(call, 0)?;
        let file = PoolFile::import(descriptor).map_err(refused(call))?;
        let mut properties = DriverPoolProperties::new(MemoryKind::Device);
        properties.handle_types = HandleTypes::POSIX_FD;
        let mut pool = SimPool::new(properties, false, device.number);
        pool.file = Some(file);
        pool.is_imported = true;
        Ok(RawPool(state.pools.names.insert(pool)))
    })
}

pub(super) fn export_block(
    device: &SimDevice,
    pool: RawPool,
    address: u64,
) -> Result<[u8; 64], DeviceError> {
    let call = Call::Export;
    device.pool_call(call, pool, |state| {
        let part = state.space.part_at(address);
        let pool = state.pool(call, pool)?;
        let bytes = pool.extents.get(&address).map(|(bytes, _)| *bytes);
        match (part, bytes, &pool.file) {
            (Some(part), Some(bytes), Some(file)) if pool.has_block(address) => {
                Ok(file.describe(&part, bytes))
            }
            _ => Err(invalid(
                call,
                format!("{address:#x} is no block of a pool that can be shared"),
            )),
        }
    })
}

pub(super) fn import_block(
    device: &SimDevice,
    pool: RawPool,
    block: &[u8; 64],
    bytes: u64,
) -> Result<u64, DeviceError> {
    let call = Call::Import;
    device.pool_call(call, pool, |state| {
        let found = state.pool(call, pool)?;
        let Some(file) = found.file.as_ref().filter(|_| found.is_imported) else {
            return Err(invalid(call, "the pool was not imported".to_owned()));
        };
        let (part, size) = file.find(block).map_err(refused(call))?;
        if bytes > size {
            let reason = format!("the block has {size} bytes, fewer than {bytes}");
            return Err(invalid(call, reason));
        }
        let imported = file.record_import(&part);
        let address = state
            .space
            .allocate_shared(device.number, MemoryKind::Device, size, part, true)
            .map_err(refused(call))?;
        let found = state.pool(call, pool)?;
        found.grow(address, size);
        found.take(address);
        found.imported.insert(address, imported);
        Ok(address)
    })
}

// SAFETY: the bytes of a chunk are those of its descriptor's file, and each chunk that is created has a file of its
// own.
unsafe impl Sharing for SimDevice {
    fn create_shareable(&self, bytes: u64) -> Result<Chunk, DeviceError> {
        let chunk = self.engine.memory_call(
            Call::Create,
            |_| bytes,
            |space| space.create_shareable(self.number, bytes),
        )?;
        Ok(Chunk(chunk))
    }

    unsafe fn export(&self, chunk: Chunk) -> Result<OwnedFd, DeviceError> {
        self.engine.memory_call(
            Call::Export,
            |space| space.size_of(chunk.0),
            |space| space.export(chunk.0),
        )
    }

    fn import(&self, descriptor: OwnedFd, bytes: u64) -> Result<Chunk, DeviceError> {
        let chunk = self.engine.memory_call(
            Call::Import,
            |_| bytes,
            |space| space.import(self.number, descriptor, bytes),
        )?;
        Ok(Chunk(chunk))
    }
}
