//! Copies between the host and the simulated device, and fills: ordinary operations with a body that moves bytes.

use super::SimDevice;
use super::call::Call;
use super::cost;
use super::event_calls::refuse_captured;
use super::operation::Operation;
use super::schedule::Item;
use std::panic::Location;
use weirpool_device::plain::{Arc, Mutex};
use weirpool_device::{CopyBetween, Device, DeviceError, RawEvent, RawStream, Transfer};

struct SimTransfer {
    device: SimDevice,
    event: RawEvent,
    /// The bytes that were copied from the device.
    arrived: Arc<Mutex<Vec<u8>>>,
}

impl SimDevice {
    pub(super) fn start_upload(
        &self,
        stream: RawStream,
        address: u64,
        bytes: &[u8],
        place: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        if stream == RawStream::HOST {
            self.host().write_at(address, bytes, place)?;
            return self.arrived(Vec::new());
        }
        let count = bytes.len() as u64;
        let copy = upload_operation(address, bytes, place);
        self.start(Call::Upload, stream, count, copy, Arc::default())
    }

    pub(super) fn start_download(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        place: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        if stream == RawStream::HOST {
            let mut read = vec![0; bytes as usize];
            self.host().read_at(address, &mut read, place)?;
            return self.arrived(read);
        }
        let arrived = Arc::<Mutex<Vec<u8>>>::default();
        let target = arrived.clone();
        let copy = Operation::new(cost::of_copy(bytes))
            .named("download")
            .at(place)
            .reads(address, bytes)
            .run(move |memory| {
                let mut read = vec![0; bytes as usize];
                memory.read(address, &mut read);
                *target.lock() = read;
            });
        self.start(Call::Download, stream, bytes, copy, arrived)
    }

    /// Starts a fill. A later call raises violations that the ordering checker finds in it, because drops make this
    /// call.
    pub(super) fn start_fill(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        value: u8,
        place: &'static Location<'static>,
    ) -> Result<(), DeviceError> {
        let call = Call::Fill;
        if stream == RawStream::HOST {
            self.engine.call(|state| state.enter(call, bytes))?;
            return self.host().fill_at(address, bytes, value, place);
        }
        let fill = fill_operation(address, bytes, value, place);
        self.engine.call(|state| {
            state.enter(call, bytes)?;
            self.check_stream(state, call, stream)?;
            refuse_captured(state, call, stream)?;
            state.submit(stream, Item::Operation(fill));
            Ok(())
        })
    }

    pub(super) fn start_between(
        &self,
        stream: RawStream,
        copy: &CopyBetween,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        let operation = between_operation(copy);
        self.start(Call::Copy, stream, copy.bytes, operation, Arc::default())
    }

    /// Returns a transfer that the host has already made. Its event was never recorded and therefore counts as
    /// complete.
    fn arrived(&self, bytes: Vec<u8>) -> Result<Box<dyn Transfer>, DeviceError> {
        Ok(Box::new(SimTransfer {
            event: self.create_event()?,
            device: self.clone(),
            arrived: Arc::new(Mutex::new(bytes)),
        }))
    }

    fn start(
        &self,
        call: Call,
        stream: RawStream,
        bytes: u64,
        copy: Operation,
        arrived: Arc<Mutex<Vec<u8>>>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        let transfer = SimTransfer {
            event: self.create_event()?,
            device: self.clone(),
            arrived,
        };
        self.engine.call(|state| {
            state.enter(call, bytes)?;
            self.check_stream(state, call, stream)?;
            refuse_captured(state, call, stream)?;
            state.submit(stream, Item::Operation(copy));
            Ok(())
        })?;
        self.record(transfer.event, stream)?;
        Ok(Box::new(transfer))
    }
}

/// Returns a copy of bytes of the host to the device.
pub(super) fn upload_operation(
    address: u64,
    bytes: &[u8],
    place: &'static Location<'static>,
) -> Operation {
    let count = bytes.len() as u64;
    let bytes = bytes.to_vec();
    Operation::new(cost::of_copy(count))
        .named("upload")
        .at(place)
        .writes(address, count)
        .run_each(move |memory| memory.write(address, &bytes))
}

/// Returns a copy between devices, or within one.
pub(super) fn between_operation(copy: &CopyBetween) -> Operation {
    let CopyBetween {
        from,
        to,
        bytes,
        is_direct,
        location,
    } = *copy;
    let (from, to) = (from.address, to.address);
    let mut operation = Operation::new(cost::of_copy_between(bytes, is_direct))
        .named("copy")
        .at(location)
        .reads(from, bytes)
        .writes(to, bytes)
        .run_each(move |memory| {
            if is_direct {
                memory.copy(from, to, bytes);
            } else {
                memory.copy_between(from, to, bytes);
            }
        });
    operation.is_copier = !is_direct;
    operation
}

/// Returns a fill of memory.
pub(super) fn fill_operation(
    address: u64,
    bytes: u64,
    value: u8,
    place: &'static Location<'static>,
) -> Operation {
    Operation::new(cost::of_fill(bytes))
        .named("fill")
        .at(place)
        .writes(address, bytes)
        .run_each(move |memory| memory.fill(address, bytes, value))
}

impl Transfer for SimTransfer {
    fn event(&self) -> RawEvent {
        self.event
    }

    fn bytes(&mut self) -> Result<Option<Vec<u8>>, DeviceError> {
        let is_complete = self.device.query(self.event)?;
        Ok(is_complete.then(|| std::mem::take(&mut *self.arrived.lock())))
    }
}

impl Drop for SimTransfer {
    fn drop(&mut self) {
        let _ = self.device.destroy_event(self.event);
    }
}
