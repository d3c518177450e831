//! The memory pools of the simulated driver, as code that calls the driver itself uses them.

use super::*;
use weirpool_device::{
    Access, DeviceError, DriverPoolProperties, DriverPools, HandleTypes, MemoryKind, PoolAttribute,
    RawPool, RawStream,
};
use weirpool_sim::Call;

/// A pool of the driver, whose calls are safe here because the simulated device detects invalid names.
struct Pool {
    sim: SimDevice,
    raw: RawPool,
}

impl Pool {
    fn new(sim: &SimDevice, max_size: u64) -> Self {
        let mut properties = DriverPoolProperties::new(MemoryKind::Device);
        properties.max_size = max_size;
        Self {
            raw: sim.create_pool(&properties).unwrap(),
            sim: sim.clone(),
        }
    }

    fn take(&self, bytes: u64, stream: &SimStream) -> Result<u64, DeviceError> {
        self.take_in_order_of(bytes, stream.raw())
    }

    fn take_in_order_of(&self, bytes: u64, stream: RawStream) -> Result<u64, DeviceError> {
        // SAFETY: the simulated device detects invalid names.
        unsafe { self.sim.allocate_from(self.raw, bytes, 512, stream) }
    }

    fn free(&self, address: u64, stream: &SimStream) -> Result<(), DeviceError> {
        // SAFETY: the simulated device detects invalid names.
        unsafe { self.sim.free_to(self.raw, address, stream.raw()) }
    }

    fn trim(&self, keep: u64) {
        // SAFETY: the pool exists.
        unsafe { self.sim.trim_pool(self.raw, keep) }.unwrap();
    }

    fn get(&self, attribute: PoolAttribute) -> u64 {
        // SAFETY: the pool exists.
        unsafe { self.sim.pool_attribute(self.raw, attribute) }.unwrap()
    }

    fn set(&self, attribute: PoolAttribute, value: u64) -> Result<(), DeviceError> {
        // SAFETY: the pool exists.
        unsafe { self.sim.set_pool_attribute(self.raw, attribute, value) }
    }

    fn allow_only(&self, flag: Option<PoolAttribute>) {
        for known in [FOLLOW, OPPORTUNISTIC, INTERNAL] {
            self.set(known, (Some(known) == flag).into()).unwrap();
        }
    }

    fn reserved(&self) -> u64 {
        self.get(PoolAttribute::ReservedMemCurrent)
    }
}

const FOLLOW: PoolAttribute = PoolAttribute::ReuseFollowEventDependencies;
const OPPORTUNISTIC: PoolAttribute = PoolAttribute::ReuseAllowOpportunistic;
const INTERNAL: PoolAttribute = PoolAttribute::ReuseAllowInternalDependencies;

#[test]
fn stream_gets_its_freed_memory_while_its_work_runs() {
    let sim = manual();
    let pool = Pool::new(&sim, 0);
    let (one, other) = (sim.create_stream(), sim.create_stream());
    let block = pool.take(GRANULE, &one).unwrap();
    one.submit(operation(100).writes(block, GRANULE));
    pool.free(block, &one).unwrap();
    assert_eq!(
        pool.get(PoolAttribute::UsedMemCurrent),
        0,
        "by the call, not by the work"
    );
    assert_ne!(pool.take(GRANULE, &other).unwrap(), block);
    assert_eq!(pool.take(GRANULE, &one).unwrap(), block);
    assert_eq!(pool.reserved(), 2 * GRANULE);
    assert_eq!(pool.get(PoolAttribute::UsedMemHigh), 2 * GRANULE);
    sim.assert_ordered();
}

/// Each flag allows one way to reuse memory of another stream, in a pool that cannot grow.
#[test]
fn flags_allow_the_reuse_of_other_streams_memory() {
    let meanwhile = |sim: &SimDevice, flag, one: &SimStream, other: &SimStream| match flag {
        FOLLOW => sim.wait(other.raw(), recorded(sim, one)).unwrap(),
        OPPORTUNISTIC => sim.advance(us(100)),
        _ => (),
    };
    for flag in [FOLLOW, OPPORTUNISTIC, INTERNAL] {
        for is_allowed in [false, true] {
            let sim = manual();
            let pool = Pool::new(&sim, GRANULE);
            pool.allow_only(is_allowed.then_some(flag));
            let (one, other) = (sim.create_stream(), sim.create_stream());
            let block = pool.take(GRANULE, &one).unwrap();
            one.submit(operation(100).writes(block, GRANULE));
            pool.free(block, &one).unwrap();
            meanwhile(&sim, flag, &one, &other);
            let taken = pool.take(GRANULE, &other);
            if !is_allowed {
                let released = flag == OPPORTUNISTIC; // complete memory makes room for new
                assert_eq!(taken.is_ok(), released, "{flag:?}");
                continue;
            }
            assert_eq!(taken.unwrap(), block, "{flag:?}");
            let waits = sim.counters().device_waits;
            assert_eq!(waits, u64::from(flag != OPPORTUNISTIC), "{flag:?}");
            other.submit(operation(1).writes(block, GRANULE));
            sim.advance_to_end();
            sim.assert_ordered();
        }
    }
}

#[test]
fn host_gets_complete_memory_only() {
    let sim = manual();
    let pool = Pool::new(&sim, GRANULE);
    let stream = sim.create_stream();
    let block = pool.take(GRANULE, &stream).unwrap();
    stream.submit(operation(100));
    pool.free(block, &stream).unwrap();
    let take = || pool.take_in_order_of(GRANULE, RawStream::HOST);
    assert_eq!(take().unwrap_err().kind(), DeviceErrorKind::OutOfMemory);
    sim.advance_to_end();
    take().unwrap();
}

#[test]
fn memory_above_the_threshold_goes_back_at_a_synchronization() {
    let sim = manual();
    let pool = Pool::new(&sim, 0);
    assert_eq!(pool.get(PoolAttribute::ReleaseThreshold), 0);
    pool.set(PoolAttribute::ReleaseThreshold, GRANULE).unwrap();
    let stream = sim.create_stream();
    let blocks = [(); 3].map(|()| pool.take(GRANULE, &stream).unwrap());
    stream.submit(operation(100));
    for block in blocks {
        pool.free(block, &stream).unwrap();
    }
    let event = recorded(&sim, &stream);
    assert!(!sim.query(event).unwrap());
    assert_eq!(
        pool.reserved(),
        3 * GRANULE,
        "its stream has not passed the frees"
    );
    sim.advance_to_end();
    assert_eq!(pool.reserved(), 3 * GRANULE);
    assert!(sim.query(event).unwrap());
    assert_eq!(
        (pool.reserved(), sim.counters().physical_in_use),
        (GRANULE, GRANULE)
    );
    assert_eq!(pool.get(PoolAttribute::ReservedMemHigh), 3 * GRANULE);
    pool.set(PoolAttribute::ReservedMemHigh, 0).unwrap();
    assert_eq!(pool.get(PoolAttribute::ReservedMemHigh), GRANULE);
    for (attribute, value) in [
        (PoolAttribute::ReservedMemHigh, 1),
        (PoolAttribute::ReservedMemCurrent, 0),
        (PoolAttribute::UsedMemCurrent, 0),
    ] {
        let refused = pool.set(attribute, value).unwrap_err();
        assert_eq!(refused.kind(), DeviceErrorKind::InvalidArgument);
    }
    pool.trim(0);
    assert_eq!(sim.counters().physical_in_use, 0);
}

#[test]
fn trim_keeps_used_and_pending_memory() {
    let sim = manual();
    let pool = Pool::new(&sim, 0);
    pool.set(PoolAttribute::ReleaseThreshold, u64::MAX).unwrap();
    let stream = sim.create_stream();
    let [used, pending, free] = [(); 3].map(|()| pool.take(GRANULE, &stream).unwrap());
    pool.free(free, &stream).unwrap();
    stream.submit(operation(100));
    pool.free(pending, &stream).unwrap();
    pool.trim(0);
    assert_eq!(pool.reserved(), 2 * GRANULE);
    assert!(sim.is_mapped(used, GRANULE) && !sim.is_mapped(free, GRANULE));
}

#[test]
fn destroyed_pool_lives_until_its_last_block_is_freed() {
    let sim = manual();
    let pool = Pool::new(&sim, 0);
    let stream = sim.create_stream();
    let block = pool.take(GRANULE, &stream).unwrap();
    // SAFETY: nothing is allocated from it any more.
    unsafe { sim.destroy_pool(pool.raw) }.unwrap();
    assert!(sim.is_mapped(block, GRANULE));
    pool.free(block, &stream).unwrap();
    assert!(sim.query(recorded(&sim, &stream)).unwrap());
    assert_eq!(sim.counters().physical_in_use, 0);
    let gone = pool.free(block, &stream).unwrap_err();
    assert_eq!(gone.kind(), DeviceErrorKind::InvalidArgument);
    let default = sim.default_pool().unwrap();
    // SAFETY: the device refuses.
    let refused = unsafe { sim.destroy_pool(default) }.unwrap_err();
    assert_eq!(refused.kind(), DeviceErrorKind::InvalidArgument);
}

#[test]
fn invalid_calls_are_refused_and_change_nothing() {
    let sim = manual();
    let pool = Pool::new(&sim, 4 * GRANULE);
    let stream = sim.create_stream();
    let invalid = |result: Result<u64, DeviceError>| result.unwrap_err().kind();
    assert_eq!(
        invalid(pool.take(0, &stream)),
        DeviceErrorKind::InvalidArgument
    );
    let too_large = pool.take(5 * GRANULE, &stream);
    assert_eq!(invalid(too_large), DeviceErrorKind::OutOfMemory);
    let unknown = pool.free(GRANULE, &stream).unwrap_err();
    assert_eq!(unknown.kind(), DeviceErrorKind::InvalidArgument);
    sim.faults()
        .fail_next(Call::AllocateFrom, DeviceErrorKind::OutOfMemory);
    assert!(pool.take(GRANULE, &stream).is_err());
    assert_eq!(pool.reserved(), 0);
    let block = pool.take(GRANULE, &stream).unwrap();
    sim.faults().fail_next(Call::FreeTo, DeviceErrorKind::Other);
    assert!(pool.free(block, &stream).is_err());
    pool.free(block, &stream).unwrap();

    let mut properties = DriverPoolProperties::new(MemoryKind::Device);
    properties.handle_types = HandleTypes::WIN32;
    let refused = sim.create_pool(&properties).unwrap_err();
    assert_eq!(refused.kind(), DeviceErrorKind::Unsupported);
    let host = DriverPoolProperties::new(MemoryKind::Host);
    let refused = sim.create_pool(&host).unwrap_err();
    assert_eq!(refused.kind(), DeviceErrorKind::Unsupported);
    let without = SimDevice::builder().memory_pools(false).build();
    assert!(without.driver_pools().is_none());
    assert!(!without.capabilities().memory_pools);
}

#[test]
fn access_belongs_to_the_pools_own_device() {
    let sim = manual();
    let pool = Pool::new(&sim, 0);
    let (own, other) = (sim.ordinal(), sim.ordinal() + 1);
    // SAFETY: the pool exists.
    let access = |device| unsafe { sim.pool_access(pool.raw, device) }.unwrap();
    assert_eq!(
        (access(own), access(other)),
        (Access::ReadWrite, Access::None)
    );
    for (device, rights) in [(own, Access::None), (other, Access::ReadWrite)] {
        // SAFETY: the device refuses.
        let refused = unsafe { sim.set_pool_access(pool.raw, device, rights) };
        assert_eq!(
            refused.unwrap_err().kind(),
            DeviceErrorKind::InvalidArgument
        );
    }
}
