//! Functions of the host in the order of a stream, and holds that the host releases.
//!
//! A function is an operation of no duration with a body. A hold is a wait for a flag that only the host sets.

use super::SimDevice;
use super::call::Call;
use super::event_calls::refuse_captured;
use super::flag::Flag;
use super::operation::Operation;
use super::schedule::Item;
use std::borrow::Cow;
use std::time::Duration;
use weirpool_device::{DeviceError, Hold, HostFunction, RawStream};

impl SimDevice {
    pub(super) fn start_function(
        &self,
        stream: RawStream,
        function: HostFunction,
    ) -> Result<(), DeviceError> {
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
        self.push_for_host(Call::Run, stream, Item::Operation(operation))
    }

    pub(super) fn start_hold(
        &self,
        stream: RawStream,
        name: Option<Cow<'static, str>>,
    ) -> Result<Box<dyn Hold>, DeviceError> {
        let flag = self.flag_held_by(name.unwrap_or(Cow::Borrowed("unnamed")));
        let wait = Item::WaitUntil(flag.id_on(self), 1);
        self.push_for_host(Call::Hold, stream, wait)?;
        Ok(Box::new(FlagHold(flag)))
    }

    fn push_for_host(&self, call: Call, stream: RawStream, item: Item) -> Result<(), DeviceError> {
        // Dropping an item that was refused may call the device, so that is left to this function's end.
        let mut item = Some(item);
        self.engine.call(|state| {
            state.enter(call, 0)?;
            self.check_stream(state, call, stream)?;
            refuse_captured(state, call, stream)?;
            state.submit(stream, item.take().expect("submitted once"));
            Ok(())
        })
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
