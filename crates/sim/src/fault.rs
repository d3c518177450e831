//! Scripted faults: which call fails, and how.
//!
//! This module does not know what a call does. Every call asks it before it takes effect.

use super::call::Call;
use std::time::Duration;
use weirpool_device::DeviceErrorKind;

/// The way in which a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The call fails without effect. [`DeviceErrorKind::Sticky`] also breaks the device.
    Fails(DeviceErrorKind),
    /// For a record: the event completes no earlier than this time after the record, whatever the stream does. Later
    /// events of the stream may complete before it.
    Late(Duration),
    /// For a record: the event never completes. Later events of the stream do.
    Never,
    /// For a record: every query of the event fails, and a watch of it is called at once. The event is recorded all the
    /// same: a stream that waits for it comes after its point.
    Reports(DeviceErrorKind),
}

/// Scripted faults that have not happened yet.
#[derive(Debug, Default)]
pub(super) struct Script(Vec<Scripted>);

#[derive(Debug)]
struct Scripted {
    call: Call,
    /// How many such calls remain, including the one that fails.
    left: u64,
    fault: Fault,
}

impl Script {
    /// Adds a fault of the `nth` such call from now on, beginning with 1.
    pub(super) fn add(&mut self, call: Call, nth: u64, fault: Fault) {
        let left = nth.max(1);
        self.0.push(Scripted { call, left, fault });
    }

    /// Counts a call, and returns its fault if it has one. If several faults are due, the first one happens now, and
    /// the others happen at the next calls.
    pub(super) fn next(&mut self, call: Call) -> Option<Fault> {
        for scripted in self.0.iter_mut().filter(|scripted| scripted.call == call) {
            scripted.left = scripted.left.saturating_sub(1);
        }
        let is_due = |scripted: &Scripted| scripted.call == call && scripted.left == 0;
        let at = self.0.iter().position(is_due)?;
        Some(self.0.remove(at).fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILS: Fault = Fault::Fails(DeviceErrorKind::OutOfMemory);

    #[test]
    fn nth_call_of_a_kind_fails() {
        let mut script = Script::default();
        script.add(Call::Create, 2, FAILS);
        script.add(Call::Map, 1, Fault::Never);
        assert_eq!(script.next(Call::Create), None);
        assert_eq!(script.next(Call::Map), Some(Fault::Never));
        assert_eq!(script.next(Call::Create), Some(FAILS));
        assert_eq!(script.next(Call::Create), None);
    }

    #[test]
    fn faults_of_one_call_happen_in_turn() {
        let mut script = Script::default();
        script.add(Call::Record, 1, Fault::Never);
        script.add(Call::Record, 1, FAILS);
        assert_eq!(script.next(Call::Record), Some(Fault::Never));
        assert_eq!(script.next(Call::Record), Some(FAILS));
    }
}
