//! Plain memory: the device's own, the host's (page-locked), or managed. It stays where it is.
//!
//! To give any of it back waits for all work of the device.

use super::CudaDevice;
use super::driver::check;
use cudarc::driver::sys::{self, CUmemAttach_flags};
use std::collections::{BTreeMap, BTreeSet};
use weirpool_device::{DeviceError, DeviceErrorKind, MemoryKind};

/// What the driver gave.
#[derive(Debug, Default)]
pub(super) struct Segments {
    /// By address.
    live: BTreeMap<u64, Segment>,
    /// Kinds that the driver was seen to align to less than the device's step: more is asked for, and the
    /// address is rounded up.
    padded: BTreeSet<MemoryKind>,
    /// What was not aligned, and is nobody's. It goes back with what somebody gives back: that waits anyway.
    unaligned: Vec<(MemoryKind, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    kind: MemoryKind,
    bytes: u64,
    /// The driver's own address of it.
    own: u64,
}

impl Segments {
    fn take_out(&mut self, kind: MemoryKind, address: u64) -> Result<Segment, DeviceError> {
        let segment = self.live.get(&address).copied();
        let Some(segment) = segment.filter(|segment| segment.kind == kind) else {
            let reason = format!("no {kind} was taken at {address:#x}");
            let invalid = DeviceErrorKind::InvalidArgument;
            return Err(DeviceError::new("free", invalid, reason));
        };
        self.live.remove(&address);
        Ok(segment)
    }

    /// Of what kind all of the bytes are, if they are of one segment.
    fn kind_of(&self, address: u64, bytes: u64) -> Option<MemoryKind> {
        let (start, segment) = self.live.range(..=address).next_back()?;
        let end = address.checked_add(bytes)?;
        (end <= start + segment.bytes).then_some(segment.kind)
    }
}

impl CudaDevice {
    pub(super) fn allocate_plain(&self, kind: MemoryKind, bytes: u64) -> Result<u64, DeviceError> {
        self.inner.facts.check_kind("allocate", kind)?;
        let _visit = self.memory_call("allocate")?;
        let own = self.take_padded(kind, bytes)?;
        let address = own.next_multiple_of(self.inner.facts.step());
        let segment = Segment { kind, bytes, own };
        self.inner.segments.lock().live.insert(address, segment);
        Ok(address)
    }

    /// Memory in which so many bytes lie at a multiple of the step.
    fn take_padded(&self, kind: MemoryKind, bytes: u64) -> Result<u64, DeviceError> {
        let step = self.inner.facts.step();
        let padded = bytes.saturating_add(step);
        if self.inner.segments.lock().padded.contains(&kind) {
            return take(kind, padded);
        }
        let own = take(kind, bytes)?;
        if own % step == 0 {
            return Ok(own);
        }
        let mut segments = self.inner.segments.lock();
        segments.padded.insert(kind);
        segments.unaligned.push((kind, own));
        drop(segments);
        take(kind, padded).inspect_err(|_| self.give_unaligned())
    }

    /// Waits for all work of the device.
    pub(super) fn free_plain(&self, kind: MemoryKind, address: u64) -> Result<(), DeviceError> {
        let _visit = self.memory_call("free")?;
        // Before the driver has it: from then on it may give the address to another.
        let segment = self.inner.segments.lock().take_out(kind, address)?;
        give(kind, segment.own).inspect_err(|_| {
            self.inner.segments.lock().live.insert(address, segment);
        })?;
        self.give_unaligned();
        Ok(())
    }

    /// What the driver refuses is leaked: nobody can do more with it.
    fn give_unaligned(&self) {
        let unaligned = std::mem::take(&mut self.inner.segments.lock().unaligned);
        for (kind, own) in unaligned {
            let _ = give(kind, own);
        }
    }

    /// Of what kind all of the bytes are, if they are plain memory in one piece.
    pub(super) fn kind_of(&self, address: u64, bytes: u64) -> Option<MemoryKind> {
        self.inner.segments.lock().kind_of(address, bytes)
    }
}

/// The context is current.
fn take(kind: MemoryKind, bytes: u64) -> Result<u64, DeviceError> {
    let (mut address, mut start) = (0, std::ptr::null_mut());
    let bytes = bytes as usize;
    let taken = match kind {
        MemoryKind::Pinned => {
            let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
            // SAFETY: writes the address to the place given.
            unsafe { sys::cuMemHostAlloc(&mut start, bytes, flags) }
        }
        MemoryKind::Managed => {
            let flags = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL as u32;
            // SAFETY: as above.
            unsafe { sys::cuMemAllocManaged(&mut address, bytes, flags) }
        }
        // SAFETY: as above.
        _ => unsafe { sys::cuMemAlloc_v2(&mut address, bytes) },
    };
    check("allocate", taken)?;
    // Page-locked memory has one address, the host's and the device's.
    Ok(if kind == MemoryKind::Pinned {
        start as u64
    } else {
        address
    })
}

/// The context is current. Waits for all work of the device.
fn give(kind: MemoryKind, own: u64) -> Result<(), DeviceError> {
    let given = match kind {
        // SAFETY: the memory is one of `take`'s, and by the contract nobody uses it any more.
        MemoryKind::Pinned => unsafe { sys::cuMemFreeHost(own as *mut _) },
        // SAFETY: as above.
        _ => unsafe { sys::cuMemFree_v2(own) },
    };
    check("free", given)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 2 << 20;

    #[test]
    fn a_range_is_found_in_the_segment_that_has_all_of_it() {
        let mut segments = Segments::default();
        for (at, kind) in [(4, MemoryKind::Pinned), (5, MemoryKind::Managed)] {
            let segment = Segment {
                kind,
                bytes: STEP,
                own: at * STEP,
            };
            segments.live.insert(at * STEP, segment);
        }
        let found = |address, bytes| segments.kind_of(address, bytes);
        assert_eq!(found(4 * STEP, STEP), Some(MemoryKind::Pinned));
        assert_eq!(found(5 * STEP - 1, 1), Some(MemoryKind::Pinned));
        assert_eq!(found(5 * STEP, 1), Some(MemoryKind::Managed));
        // Two that happen to be neighbours are not one.
        assert_eq!(found(5 * STEP - 1, 2), None);
        assert_eq!(found(4 * STEP - 1, 1), None);
        assert_eq!(found(6 * STEP, 1), None);
        assert_eq!(found(5 * STEP, u64::MAX), None);
    }

    #[test]
    fn what_was_not_taken_is_not_given_back() {
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
