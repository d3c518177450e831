//! Memory of a device that the host sees, as a slice of the host's.

use super::{Device, DeviceError, RawStream};
use crate::sync::plain::Arc;
use bytemuck::{AnyBitPattern, NoUninit};
use std::panic::Location;
use std::ptr::NonNull;
use std::slice;

/// Elements of memory that the host sees and that nobody else uses; where it does not lie in the host's own
/// memory, as a simulated device's, a copy that is written back at the end.
#[derive(Debug)]
pub(crate) struct HostView<T: NoUninit> {
    device: Arc<dyn Device>,
    address: u64,
    place: &'static Location<'static>,
    elements: Elements<T>,
}

#[derive(Debug)]
enum Elements<T> {
    InPlace { start: NonNull<T>, count: usize },
    Copied { elements: Vec<T>, is_changed: bool },
}

// SAFETY: it is as a slice that is borrowed mutably: nobody else uses the memory, see `new`.
unsafe impl<T: NoUninit + Send> Send for HostView<T> {}
// SAFETY: a shared view is not written through.
unsafe impl<T: NoUninit + Sync> Sync for HostView<T> {}

impl<T: AnyBitPattern + NoUninit> HostView<T> {
    /// A view of `count` elements at an address that is aligned for them. Until it is dropped the memory is
    /// the caller's, mapped, and used by nobody else, neither by the host nor by work of the device: a block's
    /// guard sees to that, which borrows the block mutably, after all uses of it are complete.
    ///
    /// # Errors
    /// When the host does not see all of it, or the device is broken.
    pub(crate) fn new(
        device: &Arc<dyn Device>,
        address: u64,
        count: usize,
        place: &'static Location<'static>,
    ) -> Result<Self, DeviceError> {
        let bytes = (count * size_of::<T>()) as u64;
        let elements = match device.host_pointer(address, bytes) {
            Some(start) => Elements::InPlace {
                start: aligned(start),
                count,
            },
            None => Elements::Copied {
                elements: read(&**device, address, bytes, place)?,
                is_changed: false,
            },
        };
        Ok(Self {
            device: device.clone(),
            address,
            place,
            elements,
        })
    }
}

/// # Panics
/// When it is not aligned, which blocks are.
fn aligned<T>(start: NonNull<u8>) -> NonNull<T> {
    let start = start.cast::<T>();
    assert!(start.is_aligned(), "a block is aligned for its elements");
    start
}

fn read<T: AnyBitPattern>(
    device: &dyn Device,
    address: u64,
    bytes: u64,
    place: &'static Location<'static>,
) -> Result<Vec<T>, DeviceError> {
    let mut transfer = device.download(RawStream::HOST, address, bytes, place)?;
    let bytes = transfer.bytes()?;
    let bytes = bytes.expect("what the host does itself is over when it goes on");
    let each = bytes.chunks_exact(size_of::<T>().max(1));
    Ok(each.map(bytemuck::pod_read_unaligned).collect())
}

impl<T: NoUninit> HostView<T> {
    pub(crate) fn elements(&self) -> &[T] {
        match &self.elements {
            // SAFETY: so many elements lie there, any bytes are elements, and nobody writes them: see `new`.
            Elements::InPlace { start, count } => unsafe {
                slice::from_raw_parts(start.as_ptr(), *count)
            },
            Elements::Copied { elements, .. } => elements,
        }
    }

    pub(crate) fn elements_mut(&mut self) -> &mut [T] {
        match &mut self.elements {
            // SAFETY: as above, and nobody reads them either.
            Elements::InPlace { start, count } => unsafe {
                slice::from_raw_parts_mut(start.as_ptr(), *count)
            },
            Elements::Copied {
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
        if let Elements::Copied {
            elements,
            is_changed: true,
        } = &self.elements
        {
            let bytes = bytemuck::cast_slice(elements);
            // It could be read; what cannot be written breaks the device, and is told by a later call.
            let _ = (self.device).upload(RawStream::HOST, self.address, bytes, self.place);
        }
    }
}
