//! Copies between the host and the simulated device, and fills: ordinary operations with a body that moves bytes.

use super::SimDevice;
use super::call::Call;
use super::cost;
use super::event_calls::OnStream;
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

impl OnStream<'_> {
    pub(super) fn upload(
        self,
        address: u64,
        bytes: &[u8],
        place: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        if self.stream == RawStream::HOST {
            self.device.host().write_at(address, bytes, place)?;
            return Ok(Box::new(SimTransfer::new(self.device, Arc::default())?));
        }
        let count = bytes.len() as u64;
        let copy = upload_operation(address, bytes, place);
        self.transfer(Call::Upload, count, copy, Arc::default())
    }

    pub(super) fn download(
        self,
        address: u64,
        bytes: u64,
        place: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        if self.stream == RawStream::HOST {
            let mut read = vec![0; bytes as usize];
            self.device.host().read_at(address, &mut read, place)?;
            let arrived = Arc::new(Mutex::new(read));
            return Ok(Box::new(SimTransfer::new(self.device, arrived)?));
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
        self.transfer(Call::Download, bytes, copy, arrived)
    }

    /// Starts a fill. A later call raises violations that the ordering checker finds in it, because drops make this
    /// call.
    pub(super) fn fill(
        self,
        address: u64,
        bytes: u64,
        value: u8,
        place: &'static Location<'static>,
    ) -> Result<(), DeviceError> {
        let call = Call::Fill;
        if self.stream == RawStream::HOST {
            self.device.engine.call(|state| state.enter(call, bytes))?;
            return self.device.host().fill_at(address, bytes, value, place);
        }
        let fill = fill_operation(address, bytes, value, place);
        self.submit(call, bytes, Item::Operation(fill))
    }

    pub(super) fn copy(self, copy: &CopyBetween) -> Result<Box<dyn Transfer>, DeviceError> {
        let operation = between_operation(copy);
        self.transfer(Call::Copy, copy.bytes, operation, Arc::default())
    }

    fn transfer(
        self,
        call: Call,
        bytes: u64,
        copy: Operation,
        arrived: Arc<Mutex<Vec<u8>>>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        let transfer = SimTransfer::new(self.device, arrived)?;
        self.submit(call, bytes, Item::Operation(copy))?;
        self.record(transfer.event, true)?;
        Ok(Box::new(transfer))
    }
}

impl SimTransfer {
    /// Creates a transfer whose event is not recorded yet. One that the host has made already needs no record: the event
    /// counts as complete.
    fn new(device: &SimDevice, arrived: Arc<Mutex<Vec<u8>>>) -> Result<Self, DeviceError> {
        Ok(Self {
            event: device.create_event()?,
            device: device.clone(),
            arrived,
        })
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
