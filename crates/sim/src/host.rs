//! The host's own access to memory that it can see: loads and stores, without a copy.
//!
//! The host is one more stream of execution. Its item runs in the call and is complete when the call returns. The
//! ordering checker applies the same rules to it: a use of the same bytes on the device must come before, so that the
//! host has seen it complete, or after, so that it is submitted later.

use super::SimDevice;
use super::memory::{Illegal, Space, Viewer};
use super::operation::Operation;
use std::panic::Location;
use std::time::Duration;
use weirpool_device::{DeviceAddress, DeviceError, DeviceErrorKind};

/// The host's own loads and stores, in memory of kinds that it [sees](weirpool_device::MemoryKind::is_seen_by_host).
///
/// ```
/// use std::time::Duration;
/// use weirpool::device::sim::{Checker, Operation, SimDevice, ViolationKind};
/// use weirpool::device::{Device, MemoryKind};
///
/// let device = SimDevice::builder().checker(Checker::Collect).build();
/// let address = device.allocate(MemoryKind::Managed, 2 << 20)?;
/// device.host().write(address, b"weir")?;
/// let work = device.create_stream();
/// let reverse = Operation::new(Duration::from_micros(5)).writes(address, 4);
/// work.submit(reverse.run(move |memory| memory.write(address, b"riew")));
///
/// let mut seen = [0; 4];
/// device.host().read(address, &mut seen)?; // too early: nothing says that the work is over
/// assert_eq!(device.take_violations()[0].kind, ViolationKind::Race);
/// device.advance_to_end();
/// assert_eq!(work.backlog(), 0); // this does
/// device.host().read(address, &mut seen)?;
/// assert_eq!(&seen, b"riew");
/// assert!(device.take_violations().is_empty());
/// # Ok::<(), weirpool::device::DeviceError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Host<'a>(&'a SimDevice);

impl SimDevice {
    /// Returns the host's own access to memory that it sees.
    pub fn host(&self) -> Host<'_> {
        Host(self)
    }
}

impl Host<'_> {
    /// Fills `into` with the bytes that begin at `address`.
    ///
    /// # Errors
    /// Returns an error if the host cannot see the whole range, or if the device is broken.
    ///
    /// # Panics
    /// Panics with a violation that the [ordering checker](https://docs.rs/weirpool/latest/weirpool/guide/testing/)
    /// found.
    #[track_caller]
    pub fn read(
        &self,
        address: impl Into<DeviceAddress>,
        into: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.read_at(address.into().to_bits(), into, Location::caller())
    }

    /// Writes `from` to the bytes that begin at `address`.
    ///
    /// # Errors
    /// Returns an error, and writes nothing, if the host cannot see the whole range, or if the device is broken.
    ///
    /// # Panics
    /// Panics with a violation that the [ordering checker](https://docs.rs/weirpool/latest/weirpool/guide/testing/)
    /// found.
    #[track_caller]
    pub fn write(&self, address: impl Into<DeviceAddress>, from: &[u8]) -> Result<(), DeviceError> {
        self.write_at(address.into().to_bits(), from, Location::caller())
    }

    /// Writes `value` to `bytes` bytes that begin at `address`.
    ///
    /// # Errors
    /// Returns an error, and writes nothing, if the host cannot see the whole range, or if the device is broken.
    ///
    /// # Panics
    /// Panics with a violation that the [ordering checker](https://docs.rs/weirpool/latest/weirpool/guide/testing/)
    /// found.
    #[track_caller]
    pub fn fill(
        &self,
        address: impl Into<DeviceAddress>,
        bytes: u64,
        value: u8,
    ) -> Result<(), DeviceError> {
        let address = address.into().to_bits();
        let filled = self.fill_at(address, bytes, value, Location::caller());
        self.0.engine.raise(Location::caller());
        filled
    }

    /// Fills memory. A later call raises violations that the checker finds.
    pub(super) fn fill_at(
        &self,
        address: u64,
        bytes: u64,
        value: u8,
        place: &'static Location<'static>,
    ) -> Result<(), DeviceError> {
        let fill = a_use("host_fill", place).writes(address, bytes);
        self.use_quietly(&fill, |space| {
            space.fill(Viewer::Host, address, bytes, value)
        })
    }

    #[track_caller]
    pub(super) fn read_at(
        &self,
        address: u64,
        into: &mut [u8],
        place: &'static Location<'static>,
    ) -> Result<(), DeviceError> {
        let read = a_use("host_read", place).reads(address, into.len() as u64);
        self.use_as_host(&read, |space| space.read(Viewer::Host, address, into))
    }

    #[track_caller]
    pub(super) fn write_at(
        &self,
        address: u64,
        from: &[u8],
        place: &'static Location<'static>,
    ) -> Result<(), DeviceError> {
        let write = a_use("host_write", place).writes(address, from.len() as u64);
        self.use_as_host(&write, |space| space.write(Viewer::Host, address, from))
    }

    #[track_caller]
    fn use_as_host(
        &self,
        operation: &Operation,
        access: impl FnOnce(&mut Space) -> Result<(), Illegal>,
    ) -> Result<(), DeviceError> {
        let used = self.use_quietly(operation, access);
        self.0.engine.raise(Location::caller());
        used
    }

    /// Makes an access. An address that the host cannot see is the caller's mistake, and does not break the device.
    fn use_quietly(
        &self,
        operation: &Operation,
        access: impl FnOnce(&mut Space) -> Result<(), Illegal>,
    ) -> Result<(), DeviceError> {
        const CALL: &str = "host access";
        self.0.engine.call(|state| {
            state.check(CALL)?;
            if let Err(illegal) = access(&mut state.space) {
                let kind = DeviceErrorKind::InvalidArgument;
                return Err(DeviceError::new(CALL, kind, illegal.to_string()));
            }
            if let Some(judge) = state.judge() {
                judge.used_by_host(operation);
            }
            Ok(())
        })
    }
}

fn a_use(name: &'static str, place: &'static Location<'static>) -> Operation {
    Operation::new(Duration::ZERO).named(name).at(place)
}
