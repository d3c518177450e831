//! The memory behind a region's addresses.
#![allow(unsafe_code, reason = "maps memory at addresses of its own")]

use crate::copies::Copies;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use weirpool::Tag;
use weirpool::device::{Chunk, Device, DeviceError};
use weirpool::extend::Charge;

/// How often a device that is not broken is asked.
pub(crate) const ASKED_AT_MOST: usize = 10;

/// Makes a call of the device, for the end of something: a device that refuses, and is not broken, is asked again.
fn asked_again(call: impl Fn() -> Result<(), DeviceError>) -> Result<(), DeviceError> {
    let mut result = call();
    for _ in 1..ASKED_AT_MOST {
        match &result {
            Err(error) if !error.is_sticky() => result = call(),
            _ => break,
        }
    }
    result
}

/// A range of addresses, with or without memory.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Dropped before the addresses.
    pub(crate) memory: Option<Mapped>,
    /// The contents, while there is no memory.
    pub(crate) copies: Arc<Copies>,
    /// What the first memory was charged to.
    pub(crate) tag: Option<Tag>,
    addresses: Addresses,
}

impl Segment {
    /// Reserves addresses for memory, and maps it there.
    ///
    /// # Errors
    /// Returns the device's error. The memory is given back then.
    pub(crate) fn new(memory: Taken, tag: Option<Tag>) -> Result<Self, DeviceError> {
        let addresses = Addresses::reserve(&memory.device, memory.bytes())?;
        Ok(Self {
            memory: Some(memory.map(addresses.start)?),
            copies: Arc::default(),
            tag,
            addresses,
        })
    }

    pub(crate) fn address(&self) -> u64 {
        self.addresses.start
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.addresses.bytes
    }
}

/// A reserved range. Its owner unmaps what it mapped there before it drops this.
#[derive(Debug)]
struct Addresses {
    device: Arc<dyn Device>,
    start: u64,
    bytes: u64,
}

impl Addresses {
    fn reserve(device: &Arc<dyn Device>, bytes: u64) -> Result<Self, DeviceError> {
        Ok(Self {
            start: device.reserve(bytes)?,
            bytes,
            device: device.clone(),
        })
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: the range was reserved as a whole. If something is mapped in it still, because the device refused to unmap
        // it, then the device refuses this as well.
        let _ = asked_again(|| unsafe { self.device.unreserve(self.start, self.bytes) });
    }
}

/// An allocation of the device that is mapped nowhere, and the bytes of the pool's capacity that it takes up. Dropping it gives
/// both back.
#[derive(Debug)]
pub(crate) struct Taken {
    device: Arc<dyn Device>,
    chunk: Chunk,
    /// Leaked if the device keeps the memory.
    charge: ManuallyDrop<Charge>,
}

impl Taken {
    /// Takes as much memory of the device as was charged.
    ///
    /// # Errors
    /// Returns the device's error, and the charge.
    pub(crate) fn from_device(
        device: &Arc<dyn Device>,
        charge: Charge,
    ) -> Result<Self, (DeviceError, Charge)> {
        match device.create(charge.bytes()) {
            Err(error) => Err((error, charge)),
            Ok(chunk) => Ok(Self {
                device: device.clone(),
                chunk,
                charge: ManuallyDrop::new(charge),
            }),
        }
    }

    fn bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// Maps the memory at an address, where a range of its size is reserved and nothing is mapped.
    ///
    /// # Errors
    /// Returns the device's error. The memory is given back then.
    pub(crate) fn map(self, address: u64) -> Result<Mapped, DeviceError> {
        // SAFETY: the caller has the range; the chunk is of this size, and mapped nowhere.
        unsafe { self.device.map(address, self.chunk, self.bytes()) }?;
        Ok(Mapped {
            address,
            memory: Some(self),
        })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: the device made the chunk, which is mapped nowhere, and nobody else knows it.
        if asked_again(|| unsafe { self.device.destroy(self.chunk) }).is_ok() {
            // SAFETY: this is the only place where it is dropped.
            unsafe { ManuallyDrop::drop(&mut self.charge) };
        }
    }
}

/// Memory at an address. Dropping it gives it back, if the device does not refuse; no work uses it then.
#[derive(Debug)]
pub(crate) struct Mapped {
    address: u64,
    /// Until it is unmapped.
    memory: Option<Taken>,
}

impl Mapped {
    /// Gives the memory back, which no work uses any more.
    ///
    /// # Errors
    /// Returns the device's error, and the memory, which is mapped still.
    pub(crate) fn unmap(mut self) -> Result<(), (DeviceError, Self)> {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        // SAFETY: the memory was mapped here as a whole, and the caller knows that no work uses it.
        match unsafe { memory.device.unmap(self.address, memory.bytes()) } {
            Ok(()) => {
                self.memory = None;
                Ok(())
            }
            Err(error) => Err((error, self)),
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take()
            // SAFETY: as in `unmap`.
            && asked_again(|| unsafe { memory.device.unmap(self.address, memory.bytes()) }).is_err()
        {
            std::mem::forget(memory);
        }
    }
}
