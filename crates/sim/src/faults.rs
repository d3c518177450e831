//! Faults that a test injects into a device.

use super::SimDevice;
use super::call::Call;
use super::fault::Fault;
use super::memory::Space;
use std::fmt;
use weirpool_device::{DeviceErrorKind, MemoryKind};

/// The faults that a test injects into a device. Clones of the device have the same ones.
#[derive(Clone, Copy, Debug)]
pub struct Faults<'a>(&'a SimDevice);

impl SimDevice {
    /// Returns the faults of this device, to inject some.
    pub fn faults(&self) -> Faults<'_> {
        Faults(self)
    }
}

impl Faults<'_> {
    /// Injects a fault into the `nth` such `call` from now on (the next one is the first). Faults other than
    /// [`Fault::Fails`] apply to [`Call::Record`] and have no effect on other calls.
    ///
    /// ```
    /// use weirpool::{AllocError, Pool};
    /// use weirpool::device::DeviceErrorKind::OutOfMemory;
    /// use weirpool::device::sim::{Call, Fault, SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let pool = Pool::builder(device.clone()).build()?;
    /// let stream = pool.register(&device.create_stream())?;
    /// device.faults().script(Call::Create, 2, Fault::Fails(OutOfMemory)); // in the middle of growing
    /// let refused = pool.try_allocate(&stream, 64 << 20);
    /// assert!(matches!(refused, Err(AllocError::Exhausted(_))));
    /// assert!(pool.try_allocate(&stream, 64 << 20).is_ok()); // nothing was lost
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn script(&self, call: Call, nth: u64, fault: Fault) {
        self.0.engine.call(|state| state.script(call, nth, fault));
    }

    /// Makes the next `call` fail with `kind`, without effect. This is [`script`](Self::script) for the most common
    /// fault.
    pub fn fail_next(&self, call: Call, kind: DeviceErrorKind) {
        self.script(call, 1, Fault::Fails(kind));
    }

    /// Takes up to `bytes` of the device's free memory, as another process would, until the returned value is dropped.
    pub fn occupy(&self, bytes: u64) -> Occupied {
        Occupied::new(self.0.clone(), bytes)
    }

    /// Breaks the device permanently. Nothing that was submitted runs any more, every watch is woken, and every call
    /// fails with [`DeviceErrorKind::Sticky`] and this reason (or an earlier one). Time, alarms and counters continue.
    pub fn break_device(&self, reason: &str) {
        self.0
            .engine
            .call(|state| state.break_device(reason.into()));
    }
}

/// Device memory that is taken by another program, as far as the pool can tell. Dropping this releases it.
#[must_use = "dropping this releases the memory at once"]
pub struct Occupied {
    device: SimDevice,
    bytes: u64,
}

impl Occupied {
    fn new(device: SimDevice, bytes: u64) -> Self {
        let of = device.number;
        let occupy = |space: &mut Space| space.budget(of, MemoryKind::Device).occupy(bytes);
        let bytes = device.engine.call(|state| occupy(&mut state.space));
        Self { device, bytes }
    }

    /// Returns how many bytes were taken: the requested ones, or all that were left.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        let (of, bytes) = (self.device.number, self.bytes);
        let vacate = |space: &mut Space| space.budget(of, MemoryKind::Device).vacate(bytes);
        self.device.engine.call(|state| vacate(&mut state.space));
    }
}

impl fmt::Debug for Occupied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Occupied").field(&self.bytes).finish()
    }
}
