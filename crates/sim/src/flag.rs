//! Values on the device that streams signal and wait for.
//!
//! With them two streams can wait for each other, as collectives and persistent kernels do: so
//! that a knot can be tied in a test.

use super::SimDevice;
use super::schedule::FlagId;
use std::fmt;

/// A value on the device, 0 at first. Clones are the same value.
#[derive(Clone)]
pub struct Flag {
    device: SimDevice,
    id: FlagId,
}

impl SimDevice {
    /// Makes a flag. It takes a few bytes of the host for as long as the device lives.
    pub fn flag(&self) -> Flag {
        let id = self.engine.call(|state| state.schedule.create_flag());
        let device = self.clone();
        Flag { device, id }
    }
}

impl Flag {
    /// What the flag is now. The host then knows to be complete what came before the signal that set
    /// it.
    pub fn value(&self) -> u64 {
        self.device.engine.observe(|state| {
            if let Some(judge) = state.judge() {
                judge.order.read_flag(self.id);
            }
            state.schedule.flag_value(self.id)
        })
    }

    /// Sets the flag from the host, at once.
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
    /// When the flag is another device's.
    pub(super) fn id_on(&self, device: &SimDevice) -> FlagId {
        let (own, other) = (self.device.engine.id, device.engine.id);
        assert_eq!(own, other, "the flag is another device's");
        self.id
    }
}

impl fmt::Debug for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engine = &self.device.engine;
        // To print is not to know.
        let value = engine.peek(|state| state.schedule.flag_value(self.id));
        f.debug_tuple("Flag").field(&value).finish()
    }
}
