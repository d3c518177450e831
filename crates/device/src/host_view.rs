//! Memory of a device that the host sees, as a slice.
#![allow(unsafe_code, reason = "memory that the host sees, as a slice")]

use crate::plain::Arc;
use crate::{Device, DeviceError, RawStream};
use bytemuck::{AnyBitPattern, NoUninit};
use std::panic::Location;
use std::ptr::NonNull;
use std::slice;

/// Elements of memory that the host sees and that nothing else uses. Where the memory does not lie in the host's own
/// memory (as a simulated device's), the view is a copy that is written back when it is dropped.
#[derive(Debug)]
pub struct HostView<T: NoUninit> {
    device: Arc<dyn Device>,
    address: u64,
    location: &'static Location<'static>,
    elements: ViewedElements<T>,
}

#[derive(Debug)]
enum ViewedElements<T> {
    InPlace { start: NonNull<T>, count: usize },
    Copied { elements: Vec<T>, is_changed: bool },
}

// SAFETY: the view is like a mutable borrow of a slice: nothing else uses the memory, see `new`.
unsafe impl<T: NoUninit + Send> Send for HostView<T> {}
// SAFETY: a shared view is only read.
unsafe impl<T: NoUninit + Sync> Sync for HostView<T> {}

impl<T: AnyBitPattern + NoUninit> HostView<T> {
    /// Makes a view of `count` elements at an address that is aligned for them.
    ///
    /// # Errors
    /// Returns an error if the host cannot see the whole range, or if the device is broken.
    ///
    /// # Safety
    /// Until the view is dropped the memory stays mapped, and nothing else uses it, neither the host nor work of the
    /// device. (A block's guard borrows the block mutably, after all uses of it are complete.)
    pub unsafe fn new(
        device: &Arc<dyn Device>,
        address: u64,
        count: usize,
        location: &'static Location<'static>,
    ) -> Result<Self, DeviceError> {
        let bytes = (count * size_of::<T>()) as u64;
        let elements = match device.host_pointer(address, bytes) {
            Some(start) => ViewedElements::InPlace {
                start: aligned(start),
                count,
            },
            None => ViewedElements::Copied {
                // SAFETY: the caller guarantees that nothing else uses the range.
                elements: unsafe { read(&**device, address, bytes, location) }?,
                is_changed: false,
            },
        };
        Ok(Self {
            device: device.clone(),
            address,
            location,
            elements,
        })
    }
}

/// Casts the pointer.
///
/// # Panics
/// Panics if the address is not aligned. Blocks always are.
fn aligned<T>(start: NonNull<u8>) -> NonNull<T> {
    let start = start.cast::<T>();
    assert!(start.is_aligned(), "a block is aligned for its elements");
    start
}

/// Copies elements of memory that the host sees.
///
/// # Safety
/// As [`HostView::new`].
unsafe fn read<T: AnyBitPattern>(
    device: &dyn Device,
    address: u64,
    bytes: u64,
    location: &'static Location<'static>,
) -> Result<Vec<T>, DeviceError> {
    // SAFETY: the host is always usable; the caller guarantees the range.
    let mut transfer = unsafe { device.download(RawStream::HOST, address, bytes, location) }?;
    let bytes = transfer.bytes()?;
    let bytes = bytes.expect("a copy by the host is complete when the call returns");
    let each = bytes.chunks_exact(size_of::<T>().max(1));
    Ok(each.map(bytemuck::pod_read_unaligned).collect())
}

impl<T: NoUninit> HostView<T> {
    /// Returns the elements.
    pub fn elements(&self) -> &[T] {
        match &self.elements {
            // SAFETY: these elements lie there, any bytes are valid elements, and nothing writes them: see `new`.
            ViewedElements::InPlace { start, count } => unsafe {
                slice::from_raw_parts(start.as_ptr(), *count)
            },
            ViewedElements::Copied { elements, .. } => elements,
        }
    }

    /// Returns the elements, for writing.
    pub fn elements_mut(&mut self) -> &mut [T] {
        match &mut self.elements {
            // SAFETY: as in `elements`; nothing reads them either, and `self` is borrowed mutably.
            ViewedElements::InPlace { start, count } => unsafe {
                slice::from_raw_parts_mut(start.as_ptr(), *count)
            },
            ViewedElements::Copied {
                elements,
                is_changed,
            } => {
                *is_changed = true;
                elements
            }
        }
    }
}

impl<T: NoUninit> Drop for HostView<T> {
    fn drop(&mut self) {
        if let ViewedElements::Copied {
            elements,
            is_changed: true,
        } = &self.elements
        {
            let bytes = bytemuck::cast_slice(elements);
            // The range could be read. A device that cannot write it is broken, which later calls report.
            // SAFETY: the host is always usable, and nothing else uses the range: see `new`.
            let _ = unsafe {
                (self.device).upload(RawStream::HOST, self.address, bytes, self.location)
            };
        }
    }
}
