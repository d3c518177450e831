//! Scripted faults: which call goes wrong, and how.
//!
//! Knows nothing of what a call does: every call asks here before it does anything.

use super::call::Call;
use super::engine::Engine;
use std::fmt;
use std::time::Duration;
use weirpool_device::DeviceErrorKind;
use weirpool_device::plain::Arc;

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The call fails, without effect. [`DeviceErrorKind::Sticky`] breaks the device as well.
    Fails(DeviceErrorKind),
    /// Of a record: the event is not complete before so much time has passed since the record,
    /// whatever the stream does; later events of the stream may be complete before it.
    Late(Duration),
    /// Of a record: the event never completes. Later events of the stream do.
    Never,
    /// For a record: every query of the event fails, and a watch of it is called at once. The event is recorded all the
    /// same: a stream that waits for it comes after its point.
    Reports(DeviceErrorKind),
}

/// Faults that were asked for and have not happened.
#[derive(Debug, Default)]
pub(super) struct Script(Vec<Scripted>);

#[derive(Debug)]
struct Scripted {
    call: Call,
    /// Calls until it happens.
    left: u64,
    fault: Fault,
}

impl Script {
    /// The `nth` such call from now on, beginning with 1.
    pub(super) fn add(&mut self, call: Call, nth: u64, fault: Fault) {
        let left = nth.max(1);
        self.0.push(Scripted { call, left, fault });
    }

    /// Counts a call, and hands out what goes wrong with it. Of several faults of one call the first
    /// happens, and the others with the next.
    pub(super) fn next(&mut self, call: Call) -> Option<Fault> {
        for scripted in self.0.iter_mut().filter(|scripted| scripted.call == call) {
            scripted.left = scripted.left.saturating_sub(1);
        }
        let is_due = |scripted: &Scripted| scripted.call == call && scripted.left == 0;
        let at = self.0.iter().position(is_due)?;
        Some(self.0.remove(at).fault)
    }
}

/// Memory that somebody else has taken from the device; dropped, it is given back.
#[must_use = "dropped, the memory is given back at once"]
pub struct Occupied {
    engine: Arc<Engine>,
    bytes: u64,
}

impl Occupied {
    pub(super) fn new(engine: Arc<Engine>, bytes: u64) -> Self {
        let bytes = engine.call(|state| state.space.device.occupy(bytes));
        Self { engine, bytes }
    }

    /// How much was taken: what was asked for, or all there was.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        self.engine
            .call(|state| state.space.device.vacate(self.bytes));
    }
}

impl fmt::Debug for Occupied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Occupied").field(&self.bytes).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILS: Fault = Fault::Fails(DeviceErrorKind::OutOfMemory);

    #[test]
    fn the_nth_call_of_a_kind_goes_wrong() {
        let mut script = Script::default();
        script.add(Call::Create, 2, FAILS);
        script.add(Call::Map, 1, Fault::Never);
        assert_eq!(script.next(Call::Create), None);
        assert_eq!(script.next(Call::Map), Some(Fault::Never));
        assert_eq!(script.next(Call::Create), Some(FAILS));
        assert_eq!(script.next(Call::Create), None);
    }

    #[test]
    fn several_faults_of_one_call_happen_one_after_the_other() {
        let mut script = Script::default();
        script.add(Call::Record, 1, Fault::Never);
        script.add(Call::Record, 1, FAILS);
        assert_eq!(script.next(Call::Record), Some(Fault::Never));
        assert_eq!(script.next(Call::Record), Some(FAILS));
    }
}
