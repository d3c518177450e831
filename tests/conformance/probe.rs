//! A device in front of another. It counts the calls, tracks the memory, and can make calls fail or return wrong
//! results. So tests that need this run on every backend.

use crate::common::pass_on;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weirpool::device::*;

/// A handle of the device in front. Clones are the same device.
#[derive(Clone, Debug)]
pub(crate) struct Probe(Arc<Front>);

struct Front {
    device: Arc<dyn Device>,
    state: Mutex<State>,
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Front").field(&self.device).finish()
    }
}

#[derive(Default)]
struct State {
    calls: BTreeMap<&'static str, u64>,
    /// The calls that name a stream, by stream.
    named: BTreeMap<RawStream, u64>,
    /// Calls that are to fail: how many may still pass, and how the next one fails.
    faults: BTreeMap<&'static str, (u64, DeviceErrorKind)>,
    /// Calls that fail each time, and how.
    refused: BTreeMap<&'static str, DeviceErrorKind>,
    /// Calls that are not made, but reported as successful.
    lies: BTreeSet<&'static str>,
    /// Every call fails from now on.
    is_broken: bool,
    /// Bytes of physical memory, by chunk or address.
    memory: BTreeMap<u64, u64>,
    peak: u64,
    /// Functions to run when a call has returned, before its caller continues.
    meanwhile: BTreeMap<&'static str, Meanwhile>,
}

/// An action of another thread in the middle of a call.
type Meanwhile = Box<dyn FnOnce() + Send>;

impl State {
    fn held(&self) -> u64 {
        self.memory.values().sum()
    }

    fn take(&mut self, name: u64, bytes: u64) {
        self.memory.insert(name, bytes);
        self.peak = self.peak.max(self.held());
    }

    fn unless_broken(&self, name: &'static str) -> Result<(), DeviceError> {
        let sticky = DeviceErrorKind::Sticky;
        let error = || DeviceError::new(name, sticky, "broken on purpose");
        if self.is_broken { Err(error()) } else { Ok(()) }
    }
}

impl Probe {
    pub(crate) fn new(device: Arc<dyn Device>) -> Self {
        Self(Arc::new(Front {
            device,
            state: Mutex::default(),
        }))
    }

    pub(crate) fn device(&self) -> Arc<dyn Device> {
        Arc::new(self.clone())
    }

    /// Returns how often a call of [`Device`] was made.
    pub(crate) fn calls(&self, name: &str) -> u64 {
        self.state().calls.get(name).copied().unwrap_or(0)
    }

    /// Returns how often a call named the stream: for an event, a wait, a copy or a fill.
    pub(crate) fn calls_on(&self, stream: RawStream) -> u64 {
        self.state().named.get(&stream).copied().unwrap_or(0)
    }

    /// Returns how many calls were made.
    pub(crate) fn all_calls(&self) -> u64 {
        self.state().calls.values().sum()
    }

    /// Returns the bytes that are taken from the device now.
    pub(crate) fn held(&self) -> u64 {
        self.state().held()
    }

    /// Returns the peak of the bytes that were taken.
    pub(crate) fn peak(&self) -> u64 {
        self.state().peak
    }

    /// Returns the number of events that exist.
    pub(crate) fn events(&self) -> u64 {
        self.calls("create_event") - self.calls("destroy_event")
    }

    /// Makes the `nth` call from now on fail, without effect; 1 is the next.
    pub(crate) fn fail(&self, name: &'static str, nth: u64, kind: DeviceErrorKind) {
        self.state().faults.insert(name, (nth - 1, kind));
    }

    /// Makes such calls succeed again.
    pub(crate) fn fail_no_more(&self, name: &str) {
        self.state().faults.remove(name);
    }

    /// Makes every such call fail, without effect, until it is [allowed](Self::allow).
    pub(crate) fn refuse(&self, name: &'static str, kind: DeviceErrorKind) {
        self.state().refused.insert(name, kind);
    }

    /// Makes every call fail from now on, as after a kernel fault. Running work still ends, but no caller learns of it.
    pub(crate) fn break_device(&self) {
        self.state().is_broken = true;
    }

    pub(crate) fn allow(&self, name: &str) {
        self.state().refused.remove(name);
    }

    /// Runs a function in the middle of the next such call (`query`, `create`, `destroy`, `allocate` or `free`): after
    /// the device returns and before the caller continues.
    pub(crate) fn amid_next(&self, name: &'static str, meanwhile: impl FnOnce() + Send + 'static) {
        self.state().meanwhile.insert(name, Box::new(meanwhile));
    }

    /// From now on reports that every event is complete (`query`), or that a stream waits although it does not
    /// (`wait`). Tests of order must detect this.
    #[allow(
        dead_code,
        reason = "used where only the contents of memory show the error"
    )]
    pub(crate) fn lie(&self, name: &'static str) {
        self.state().lies.insert(name);
    }

    fn lies(&self, name: &str) -> bool {
        self.state().lies.contains(name)
    }

    fn amid(&self, name: &'static str) {
        let meanwhile = self.state().meanwhile.remove(name);
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
    }

    /// Returns whether the requested failure has happened.
    pub(crate) fn has_failed(&self, name: &str) -> bool {
        !self.state().faults.contains_key(name)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call, and makes it fail if it is to. Otherwise returns the device behind.
    fn enter(&self, name: &'static str) -> Result<&dyn Device, DeviceError> {
        let mut state = self.state();
        *state.calls.entry(name).or_default() += 1;
        state.unless_broken(name)?;
        if let Some(kind) = state.refused.get(name) {
            return Err(DeviceError::new(name, *kind, "a scripted fault"));
        }
        match state.faults.get_mut(name) {
            Some((0, kind)) => {
                let kind = *kind;
                state.faults.remove(name);
                Err(DeviceError::new(name, kind, "a scripted fault"))
            }
            Some((passes, _)) => {
                *passes -= 1;
                Ok(&*self.0.device)
            }
            None => Ok(&*self.0.device),
        }
    }

    /// Does so for a call that names a stream.
    fn enter_on(&self, name: &'static str, stream: RawStream) -> Result<&dyn Device, DeviceError> {
        *self.state().named.entry(stream).or_default() += 1;
        self.enter(name)
    }

    fn inner(&self) -> &dyn Device {
        &*self.0.device
    }
}

// SAFETY: the device behind makes every call that returns a result, except for wrong results that tests request. They
// do so only for memory whose contents they do not need.
unsafe impl Device for Probe {
    pass_on! {
        |probe| probe.inner() =>
        id, describe, capabilities, ordinal, block_observer, now, set_alarm, cancel_alarm, host_pointer, native_stream,
        is_abandoned, watch, unwatch,
    }
    pass_on! {
        |probe, call| probe.enter(call)? =>
        memory_info, reserve, unreserve, map, unmap, create_stream, destroy_stream, create_event,
        destroy_event, run, hold,
    }

    fn driver_pools(&self) -> Option<&dyn DriverPools> {
        let pools = self.inner().driver_pools();
        pools.map(|_| self as &dyn DriverPools)
    }

    fn create(&self, bytes: u64) -> Result<Chunk, DeviceError> {
        let chunk = self.enter("create")?.create(bytes)?;
        self.state().take(chunk.0, bytes);
        self.amid("create");
        Ok(chunk)
    }

    unsafe fn destroy(&self, chunk: Chunk) -> Result<(), DeviceError> {
        // The entry is removed first, because the device may reuse the chunk's name from then on.
        let device = self.enter("destroy")?;
        self.state().memory.remove(&chunk.0);
        // SAFETY: the caller upholds the same contract for this device as for the other.
        let answer = unsafe { device.destroy(chunk) };
        self.amid("destroy");
        answer
    }

    fn allocate(&self, kind: MemoryKind, bytes: u64) -> Result<u64, DeviceError> {
        let address = self.enter("allocate")?.allocate(kind, bytes)?;
        self.state().take(address, bytes);
        self.amid("allocate");
        Ok(address)
    }

    unsafe fn free(&self, kind: MemoryKind, address: u64, bytes: u64) -> Result<(), DeviceError> {
        // The entry is removed first, because the device may reuse the address from then on.
        let device = self.enter("free")?;
        self.state().memory.remove(&address);
        // SAFETY: the caller upholds the same contract for this device as for the other.
        let answer = unsafe { device.free(kind, address, bytes) };
        self.amid("free");
        answer
    }

    unsafe fn record(&self, event: RawEvent, stream: RawStream) -> Result<(), DeviceError> {
        let device = self.enter_on("record", stream)?;
        // SAFETY: the caller upholds the same contract for this device as for the other.
        unsafe { device.record(event, stream) }
    }

    unsafe fn query(&self, event: RawEvent) -> Result<bool, DeviceError> {
        let device = self.enter("query")?;
        if self.lies("query") {
            return Ok(true);
        }
        // SAFETY: the caller upholds the same contract for this device as for the other.
        let answer = unsafe { device.query(event) };
        self.amid("query");
        // A query after the device broke must fail, whenever it was made.
        self.state().unless_broken("query")?;
        answer
    }

    unsafe fn wait(&self, stream: RawStream, event: RawEvent) -> Result<(), DeviceError> {
        let device = self.enter_on("wait", stream)?;
        if self.lies("wait") {
            return Ok(());
        }
        // SAFETY: the caller upholds the same contract for this device as for the other.
        unsafe { device.wait(stream, event) }
    }

    unsafe fn upload(
        &self,
        stream: RawStream,
        address: u64,
        bytes: &[u8],
        location: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        let device = self.enter_on("upload", stream)?;
        // SAFETY: the caller upholds the same contract for this device as for the other.
        unsafe { device.upload(stream, address, bytes, location) }
    }

    unsafe fn download(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        location: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        let device = self.enter_on("download", stream)?;
        // SAFETY: the caller upholds the same contract for this device as for the other.
        unsafe { device.download(stream, address, bytes, location) }
    }

    unsafe fn fill(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        value: u8,
        location: &'static Location<'static>,
    ) -> Result<(), DeviceError> {
        let device = self.enter_on("fill", stream)?;
        // SAFETY: the caller upholds the same contract for this device as for the other.
        unsafe { device.fill(stream, address, bytes, value, location) }
    }
}

// The driver's pools of the device behind. Memory of a pool counts as `allocate` and `free`.
// SAFETY: the device behind makes every call.
unsafe impl DriverPools for Probe {
    fn create_pool(&self, properties: &DriverPoolProperties) -> Result<RawPool, DeviceError> {
        pools(self.enter("create_pool")?).create_pool(properties)
    }

    unsafe fn destroy_pool(&self, pool: RawPool) -> Result<(), DeviceError> {
        let device = self.enter("destroy_pool")?;
        // SAFETY: the caller upholds the same contract for this device as for the other.
        unsafe { pools(device).destroy_pool(pool) }
    }

    fn default_pool(&self) -> Result<RawPool, DeviceError> {
        pools(self.enter("default_pool")?).default_pool()
    }

    unsafe fn allocate_from(
        &self,
        pool: RawPool,
        bytes: u64,
        alignment: u64,
        stream: RawStream,
    ) -> Result<u64, DeviceError> {
        let device = self.enter_on("allocate", stream)?;
        // SAFETY: the caller upholds the same contract for this device as for the other.
        let address = unsafe { pools(device).allocate_from(pool, bytes, alignment, stream) }?;
        self.state().take(address, bytes);
        self.amid("allocate");
        Ok(address)
    }

    unsafe fn free_to(
        &self,
        pool: RawPool,
        address: u64,
        stream: RawStream,
    ) -> Result<(), DeviceError> {
        let device = self.enter_on("free", stream)?;
        let bytes = self.state().memory.remove(&address);
        // SAFETY: the caller upholds the same contract for this device as for the other.
        let answer = unsafe { pools(device).free_to(pool, address, stream) };
        if let (Err(_), Some(bytes)) = (&answer, bytes) {
            self.state().memory.insert(address, bytes);
        }
        self.amid("free");
        answer
    }

    unsafe fn trim_pool(&self, pool: RawPool, keep: u64) -> Result<(), DeviceError> {
        let device = self.enter("trim_pool")?;
        // SAFETY: the caller upholds the same contract for this device as for the other.
        unsafe { pools(device).trim_pool(pool, keep) }
    }

    unsafe fn pool_attribute(
        &self,
        pool: RawPool,
        attribute: PoolAttribute,
    ) -> Result<u64, DeviceError> {
        let device = self.enter("pool_attribute")?;
        // SAFETY: the caller upholds the same contract for this device as for the other.
        unsafe { pools(device).pool_attribute(pool, attribute) }
    }

    unsafe fn set_pool_attribute(
        &self,
        pool: RawPool,
        attribute: PoolAttribute,
        value: u64,
    ) -> Result<(), DeviceError> {
        let device = self.enter("set_pool_attribute")?;
        // SAFETY: the caller upholds the same contract for this device as for the other.
        unsafe { pools(device).set_pool_attribute(pool, attribute, value) }
    }

    unsafe fn pool_access(&self, pool: RawPool, device: u32) -> Result<Access, DeviceError> {
        let behind = self.enter("pool_access")?;
        // SAFETY: the caller upholds the same contract for this device as for the other.
        unsafe { pools(behind).pool_access(pool, device) }
    }

    unsafe fn set_pool_access(
        &self,
        pool: RawPool,
        device: u32,
        access: Access,
    ) -> Result<(), DeviceError> {
        let behind = self.enter("set_pool_access")?;
        // SAFETY: the caller upholds the same contract for this device as for the other.
        unsafe { pools(behind).set_pool_access(pool, device, access) }
    }
}

fn pools(device: &dyn Device) -> &dyn DriverPools {
    device.driver_pools().expect("the device behind has pools")
}
