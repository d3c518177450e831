//! Values on the device that streams signal and wait for.
//!
//! With flags, two streams can wait for each other, as collectives and persistent kernels do. So a test can create a
//! deadlock on the device.

use super::SimDevice;
use super::schedule::FlagId;
use std::borrow::Cow;
use std::fmt;
use weirpool_device::Device;

/// A value on the device, initially 0. Clones are the same value.
#[derive(Clone)]
pub struct Flag {
    device: SimDevice,
    id: FlagId,
}

impl SimDevice {
    /// Creates a flag. It takes a few bytes of host memory for as long as the device lives.
    pub fn flag(&self) -> Flag {
        Flag::new(self, None)
    }
}

impl Flag {
    /// Creates a flag of the user, or one that only a task of the host sets, by the name of that task in reports.
    pub(super) fn new(device: &SimDevice, task: Option<Cow<'static, str>>) -> Self {
        let id = (device.engine).call(|state| state.schedule.flags.create(task));
        let device = device.clone();
        Self { device, id }
    }

    /// Returns the value of the flag. From then on the host knows that the work before the signal that set it is
    /// complete.
    pub fn value(&self) -> u64 {
        self.device.engine.observe(|state| {
            if let Some(judge) = state.judge() {
                judge.order.read_flag(self.id);
            }
            state.schedule.flags.value(self.id)
        })
    }

    /// Sets the flag from the host, immediately.
    pub fn set(&self, value: u64) {
        let engine = &self.device.engine;
        engine.call(|state| {
            if let Some(judge) = state.judge() {
                judge.order.set_flag(self.id);
            }
            state.schedule.set_flag(self.id, value);
        });
    }

    /// # Panics
    /// Panics if the flag belongs to another device.
    pub(super) fn id_on(&self, device: &SimDevice) -> FlagId {
        let (own, other) = (self.device.id(), device.id());
        assert_eq!(own, other, "the flag belongs to another device");
        self.id
    }
}

impl fmt::Debug for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engine = &self.device.engine;
        // Printing must not make the host know that work is complete.
        let value = engine.peek(|state| state.schedule.flags.value(self.id));
        f.debug_tuple("Flag").field(&value).finish()
    }
}
