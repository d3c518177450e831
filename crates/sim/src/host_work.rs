//! Functions of the host in the order of a stream, and holds that the host releases.
//!
//! A function is an operation of no duration with a body. A hold is a wait for a flag that only the host sets.

use super::call::Call;
use super::event_calls::OnStream;
use super::flag::Flag;
use super::operation::Operation;
use super::schedule::Item;
use std::borrow::Cow;
use std::time::Duration;
use weirpool_device::{DeviceError, Hold, HostFunction};

impl OnStream<'_> {
    pub(super) fn run(self, function: HostFunction) -> Result<(), DeviceError> {
        let HostFunction {
            name,
            uses,
            location,
            body,
        } = function;
        let operation = Operation::new(Duration::ZERO)
            .named(name.unwrap_or(Cow::Borrowed("host function")))
            .at(location)
            .run(|_| body());
        let operation = uses.into_iter().fold(operation, |operation, used| {
            if used.is_write {
                operation.writes(used.address, used.bytes)
            } else {
                operation.reads(used.address, used.bytes)
            }
        });
        self.submit(Call::Run, 0, Item::Operation(operation))
    }

    pub(super) fn hold(
        self,
        name: Option<Cow<'static, str>>,
    ) -> Result<Box<dyn Hold>, DeviceError> {
        let holder = name.unwrap_or(Cow::Borrowed("unnamed"));
        let flag = Flag::new(self.device, Some(holder));
        let wait = Item::WaitUntil(flag.id_on(self.device), 1);
        self.submit(Call::Hold, 0, wait)?;
        Ok(Box::new(FlagHold(flag)))
    }
}

/// A stream that waits for a flag. Dropping it sets the flag.
#[derive(Debug)]
struct FlagHold(Flag);

impl Hold for FlagHold {
    fn release(&self) {
        self.0.set(1);
    }
}

impl Drop for FlagHold {
    fn drop(&mut self) {
        self.release();
    }
}
