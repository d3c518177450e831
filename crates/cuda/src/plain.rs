//! Plain memory: the device's own, the host's (page-locked), or managed. It stays where it is.
//!
//! Freeing any of it waits for all work of the device.

use super::driver::check;
use cudarc::driver::sys::{self, CUmemAttach_flags};
use std::collections::{BTreeMap, BTreeSet};
use weirpool_device::plain::Mutex;
use weirpool_device::{DeviceError, DeviceErrorKind, MemoryKind};

/// The plain memory that the driver allocated.
#[derive(Debug, Default)]
struct Segments {
    /// By address.
    live: BTreeMap<u64, Segment>,
    /// Kinds that the driver aligned to less than the device's granularity: later requests ask for more, and round
    /// the address up.
    padded: BTreeSet<MemoryKind>,
    /// Memory that was not aligned and that no block uses. It is freed with the next segment, because that free
    /// waits anyway.
    unaligned: Vec<(MemoryKind, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    kind: MemoryKind,
    bytes: u64,
    /// The address that the driver returned.
    own: u64,
}

/// The plain memory of a device, and the memory of its pools that the host sees.
#[derive(Debug, Default)]
pub(super) struct PlainMemory(Mutex<Segments>);

impl Segments {
    fn take_out(&mut self, kind: MemoryKind, address: u64) -> Result<Segment, DeviceError> {
        let segment = self.live.get(&address).copied();
        let Some(segment) = segment.filter(|segment| segment.kind == kind) else {
            let reason = format!(
                "no {kind} is allocated at {address:#x}; it was freed, or is of another kind"
            );
            let invalid = DeviceErrorKind::InvalidArgument;
            return Err(DeviceError::new("free", invalid, reason));
        };
        self.live.remove(&address);
        Ok(segment)
    }
}

impl PlainMemory {
    /// Allocates memory at a multiple of `step`, the granularity. The context is current.
    pub(super) fn allocate(
        &self,
        kind: MemoryKind,
        bytes: u64,
        step: u64,
    ) -> Result<u64, DeviceError> {
        let own = self.take_padded(kind, bytes, step)?;
        let address = own.next_multiple_of(step);
        let segment = Segment { kind, bytes, own };
        self.0.lock().live.insert(address, segment);
        Ok(address)
    }

    /// Allocates memory that holds `bytes` bytes at a multiple of the granularity.
    fn take_padded(&self, kind: MemoryKind, bytes: u64, step: u64) -> Result<u64, DeviceError> {
        let padded = bytes.saturating_add(step);
        if self.0.lock().padded.contains(&kind) {
            return take(kind, padded);
        }
        let own = take(kind, bytes)?;
        if own % step == 0 {
            return Ok(own);
        }
        let mut segments = self.0.lock();
        segments.padded.insert(kind);
        segments.unaligned.push((kind, own));
        drop(segments);
        take(kind, padded).inspect_err(|_| self.give_unaligned())
    }

    /// Frees plain memory. Waits for all work of the device. The context is current.
    ///
    /// # Safety
    /// No work that touches the memory is running or submitted.
    pub(super) unsafe fn free(&self, kind: MemoryKind, address: u64) -> Result<(), DeviceError> {
        // Before the driver frees it: from then on another allocation may get the address.
        let segment = self.0.lock().take_out(kind, address)?;
        // SAFETY: `take` allocated it, and the caller guarantees that no work uses it.
        unsafe { give(kind, segment.own) }.inspect_err(|_| {
            self.0.lock().live.insert(address, segment);
        })?;
        self.give_unaligned();
        Ok(())
    }

    /// Frees the unaligned memory. Memory that the driver refuses to free is leaked.
    fn give_unaligned(&self) {
        let unaligned = std::mem::take(&mut self.0.lock().unaligned);
        for (kind, own) in unaligned {
            // SAFETY: `take` allocated it, and it was never handed out.
            let _ = unsafe { give(kind, own) };
        }
    }

    /// Returns the kind of a range, if it is plain memory in one piece.
    pub(super) fn kind_of(&self, address: u64, bytes: u64) -> Option<MemoryKind> {
        let segments = self.0.lock();
        let (start, segment) = segments.live.range(..=address).next_back()?;
        let end = address.checked_add(bytes)?;
        (end <= start + segment.bytes).then_some(segment.kind)
    }

    /// Notes a block of one of the driver's pools, in memory that the host sees.
    pub(super) fn record_pooled(&self, kind: MemoryKind, address: u64, bytes: u64) {
        let own = address;
        let segment = Segment { kind, bytes, own };
        self.0.lock().live.insert(address, segment);
    }

    /// Forgets a block of one of the driver's pools, if it was noted. Returns the kind and bytes.
    pub(super) fn forget_pooled(&self, address: u64) -> Option<(MemoryKind, u64)> {
        let segment = self.0.lock().live.remove(&address);
        segment.map(|segment| (segment.kind, segment.bytes))
    }

    /// Returns the host's pointer to a range.
    ///
    /// # Errors
    /// Returns an error if the host cannot see the whole range.
    pub(super) fn seen_by_host(
        &self,
        call: &'static str,
        address: u64,
        bytes: u64,
    ) -> Result<*mut u8, DeviceError> {
        let kind = self.kind_of(address, bytes);
        if kind.is_some_and(MemoryKind::is_seen_by_host) {
            return Ok(address as *mut u8);
        }
        let reason = format!(
            "the host does not see {bytes} bytes at {address:#x}; copy them, or use memory that the host sees"
        );
        let invalid = DeviceErrorKind::InvalidArgument;
        Err(DeviceError::new(call, invalid, reason))
    }

    /// Returns whether the range is page-locked memory of the host.
    pub(super) fn is_of_host(&self, address: u64, bytes: u64) -> bool {
        let kind = self.kind_of(address, bytes);
        kind.is_some_and(MemoryKind::is_of_host)
    }
}

/// Allocates plain memory. The context is current.
fn take(kind: MemoryKind, bytes: u64) -> Result<u64, DeviceError> {
    let (mut address, mut start) = (0, std::ptr::null_mut());
    let bytes = bytes as usize;
    let taken = match kind {
        MemoryKind::Pinned => {
            let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
            // SAFETY: the call writes to `start`.
            unsafe { sys::cuMemHostAlloc(&mut start, bytes, flags) }
        }
        MemoryKind::Managed => {
            let flags = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL as u32;
            // SAFETY: the call writes to `address`.
            unsafe { sys::cuMemAllocManaged(&mut address, bytes, flags) }
        }
        // SAFETY: the call writes to `address`.
        _ => unsafe { sys::cuMemAlloc_v2(&mut address, bytes) },
    };
    check("allocate", taken)?;
    // Page-locked memory has the same address on host and device.
    Ok(if kind == MemoryKind::Pinned {
        start as u64
    } else {
        address
    })
}

/// Frees plain memory. The context is current. Waits for all work of the device.
///
/// # Safety
/// [`take`] allocated the memory for the kind, and nothing uses it any more.
unsafe fn give(kind: MemoryKind, own: u64) -> Result<(), DeviceError> {
    let given = match kind {
        // SAFETY: the caller's guarantee.
        MemoryKind::Pinned => unsafe { sys::cuMemFreeHost(own as *mut _) },
        // SAFETY: the caller's guarantee.
        _ => unsafe { sys::cuMemFree_v2(own) },
    };
    check("free", given)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 2 << 20;

    #[test]
    fn range_has_a_kind_only_inside_one_segment() {
        let memory = PlainMemory::default();
        for (at, kind) in [(4, MemoryKind::Pinned), (5, MemoryKind::Managed)] {
            let segment = Segment {
                kind,
                bytes: STEP,
                own: at * STEP,
            };
            memory.0.lock().live.insert(at * STEP, segment);
        }
        let found = |address, bytes| memory.kind_of(address, bytes);
        assert_eq!(found(4 * STEP, STEP), Some(MemoryKind::Pinned));
        assert_eq!(found(5 * STEP - 1, 1), Some(MemoryKind::Pinned));
        assert_eq!(found(5 * STEP, 1), Some(MemoryKind::Managed));
        // Neighbouring segments are not one.
        assert_eq!(found(5 * STEP - 1, 2), None);
        assert_eq!(found(4 * STEP - 1, 1), None);
        assert_eq!(found(6 * STEP, 1), None);
        assert_eq!(found(5 * STEP, u64::MAX), None);
    }

    #[test]
    fn unknown_memory_is_not_freed() {
        let mut segments = Segments::default();
        let segment = Segment {
            kind: MemoryKind::Pinned,
            bytes: STEP,
            own: STEP + 512,
        };
        segments.live.insert(2 * STEP, segment);
        for (kind, address) in [
            (MemoryKind::Managed, 2 * STEP),
            (MemoryKind::Pinned, STEP + 512),
        ] {
            let refused = segments.take_out(kind, address).unwrap_err();
            assert_eq!(refused.kind(), DeviceErrorKind::InvalidArgument);
        }
        let found = segments.take_out(MemoryKind::Pinned, 2 * STEP).unwrap();
        assert_eq!(found.own, STEP + 512);
        assert!(segments.take_out(MemoryKind::Pinned, 2 * STEP).is_err());
    }
}
