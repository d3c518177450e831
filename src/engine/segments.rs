//! Where plain segments come from: memory of a kind, or a memory pool of the driver.

#![allow(unsafe_code, reason = "device calls on ranges")]

use super::{DriverPool, Settings};
use crate::device::{Device, DeviceError, MemoryKind, RawStream};
use crate::sync::plain;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct SegmentSource {
    device: plain::Arc<dyn Device>,
    kind: MemoryKind,
    driver_pool: Option<DriverPool>,
    /// The pool's memory is mapped chunk by chunk.
    is_virtual: bool,
    /// The alignment of segments that all streams may use.
    step: u64,
}

impl SegmentSource {
    pub(super) fn new(device: plain::Arc<dyn Device>, settings: &Settings) -> Self {
        Self {
            kind: settings.kind,
            is_virtual: settings.geometry.virtual_memory,
            driver_pool: settings.driver_pool.as_ref().map(|(pool, _)| pool.clone()),
            step: settings.geometry.granularity,
            device,
        }
    }

    /// Returns how a peer is given access to the memory.
    pub(super) fn accessibility(&self) -> Accessibility<'_> {
        Accessibility::of(self.kind, self.is_virtual, self.driver_pool.as_ref())
    }

    pub(super) fn driver_pool(&self) -> Option<&DriverPool> {
        self.driver_pool.as_ref()
    }

    /// Allocates a segment, for use in the order of a stream; with [`RawStream::HOST`], for any use from now on.
    ///
    /// # Errors
    /// Returns an error if the device call fails.
    ///
    /// # Safety
    /// The stream is one of the device, and usable during the call.
    pub(super) unsafe fn allocate(
        &self,
        bytes: u64,
        alignment: u64,
        stream: RawStream,
    ) -> Result<u64, DeviceError> {
        match &self.driver_pool {
            // SAFETY: the caller guarantees the stream.
            Some(pool) => unsafe { pool.allocate(bytes, alignment.max(self.step), stream) },
            None => self.device.allocate(self.kind, bytes),
        }
    }

    /// Frees a whole segment whose uses are all complete.
    ///
    /// # Errors
    /// Returns an error if the device call fails; the segment stays allocated.
    ///
    /// # Safety
    /// [`allocate`](Self::allocate) returned the segment, it was not freed, and no work that touches it is running or
    /// submitted.
    pub(super) unsafe fn free(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        match &self.driver_pool {
            // SAFETY: the caller's guarantee; the host is always usable.
            Some(pool) => unsafe { pool.free(address, RawStream::HOST) },
            // SAFETY: the caller's guarantee.
            None => unsafe { self.device.free(self.kind, address, bytes) },
        }
    }

    /// Returns how many bytes there are to take, if the device tells.
    pub(super) fn left(&self) -> Option<u64> {
        let left = self.device.memory_info(self.kind).ok()?.free;
        Some(match &self.driver_pool {
            Some(pool) => pool.left(left),
            None => left,
        })
    }
}

/// How a peer is given access to memory of a source.
pub(super) enum Accessibility<'a> {
    /// Every device has access.
    Everywhere,
    /// Chunk by chunk.
    Chunks,
    /// To all plain memory of the device at once.
    Plain,
    /// To the pool of the driver.
    DriverPool(&'a super::DriverPool),
}

impl<'a> Accessibility<'a> {
    pub(super) fn of(
        kind: MemoryKind,
        is_virtual: bool,
        driver_pool: Option<&'a super::DriverPool>,
    ) -> Self {
        match driver_pool {
            _ if kind != MemoryKind::Device => Self::Everywhere,
            Some(pool) => Self::DriverPool(pool),
            None if is_virtual => Self::Chunks,
            None => Self::Plain,
        }
    }
}
