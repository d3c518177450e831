//! The memory that the device gave to the pool, and its mappings.

use crate::accessors;
use crate::chunks::{Chunks, Mapped};
use crate::device::{
    Access, Chunk, Device, DeviceError, DeviceErrorKind, MemoryKind, Peer, RawStream,
};
use crate::heap::{Mapping, Outcome, Step};
use crate::held_memory::HeldMemory;
use crate::segment_source::SegmentSource;
use crate::sync::{Guards, Mutex, assert_unlocked, plain};
use std::ops::Range;

/// How many times the capacity the reserved range of addresses is. Remapping moves memory to fresh addresses, so a
/// wider range keeps more of the old ones unused. The first size that the device has addresses for is taken.
const ADDRESSES_PER_CAPACITY: [u64; 4] = [8, 4, 2, 1];

/// Returns the bytes of a range of `times` the capacity, in whole chunks; `None` if that is no 64-bit number.
///
/// It has one chunk more, because the device aligns the range to its own granularity and chunks lie at multiples of
/// their size.
fn range_bytes(capacity: u64, times: u64, chunk: u64) -> Option<u64> {
    (capacity.checked_mul(times)? / chunk * chunk).checked_add(chunk)
}

/// See the [module](self).
#[derive(Debug)]
pub struct DeviceMemory {
    mapped: Mapped,
    kind: MemoryKind,
    /// The memory is mapped chunk by chunk.
    is_virtual: bool,
    segments: plain::Arc<dyn SegmentSource>,
    /// The smallest alignment of segments.
    step: u64,
}

impl DeviceMemory {
    /// Has no memory yet. Virtual memory is mapped in chunks of `chunk_bytes`; other memory is taken from the
    /// source, in segments that are aligned to `step` at least.
    pub fn new(
        device: plain::Arc<dyn Device>,
        segments: plain::Arc<dyn SegmentSource>,
        kind: MemoryKind,
        is_virtual: bool,
        chunk_bytes: u64,
        step: u64,
    ) -> Self {
        let mapped = Mapped {
            device,
            chunk_bytes,
            held: Mutex::new(Guards::Registry, Chunks::default()),
        };
        Self {
            mapped,
            kind,
            is_virtual,
            segments,
            step,
        }
    }

    /// Returns the source of segments.
    pub fn segments(&self) -> &plain::Arc<dyn SegmentSource> {
        &self.segments
    }

    /// Returns the bytes of chunks that are mapped nowhere.
    pub fn unmapped_bytes(&self) -> u64 {
        self.mapped.held.lock().unmapped.len() as u64 * self.mapped.chunk_bytes
    }

    /// Takes everything out, at the end of the pool.
    pub fn take_held(&self) -> HeldMemory {
        HeldMemory {
            device: self.mapped.device.clone(),
            segments: self.segments.clone(),
            chunk_bytes: self.mapped.chunk_bytes,
            chunks: std::mem::take(&mut self.mapped.held.lock()),
        }
    }

    /// Lets a peer use the memory, now and from now on.
    ///
    /// # Errors
    /// Returns an error if a device call fails. Nothing has changed then.
    pub fn allow(&self, peer: Peer) -> Result<(), DeviceError> {
        if self.kind != MemoryKind::Device {
            return Ok(()); // accessible to all
        }
        if self.is_virtual {
            return accessors::allow(&self.mapped, peer);
        }
        // SAFETY: no work loses its access.
        unsafe { self.segments.set_access(peer, Access::ReadWrite) }?;
        self.mapped.held.lock().accessors.add(peer);
        Ok(())
    }

    /// Takes the access of a peer back. No stream of the peer is registered, nor has work left that uses the memory.
    ///
    /// # Errors
    /// Returns an error if a device call fails. The peer keeps its access then, to all memory.
    pub fn forbid(&self, peer: Peer) -> Result<(), DeviceError> {
        if self.kind != MemoryKind::Device {
            return Ok(());
        }
        if self.is_virtual {
            return accessors::forbid(&self.mapped, peer);
        }
        // SAFETY: no work of the peer is left.
        unsafe { self.segments.set_access(peer, Access::None) }?;
        self.mapped.held.lock().accessors.remove(peer);
        Ok(())
    }

    /// Maps the chunk at `from`, or a new one, at `to`.
    ///
    /// # Errors
    /// Returns whether a moved chunk is mapped nowhere now.
    fn step(&self, step: Step) -> Result<(), (bool, DeviceError)> {
        assert_unlocked("a memory call");
        let is_moved = step.from.is_some();
        let chunk = match step.from {
            Some(from) => self.unmap(from),
            None => self.create(),
        };
        let chunk = chunk.map_err(|error| (false, error))?;
        // SAFETY: the heap plans a step to a free place of a reserved range. The chunk is one of this size that was
        // just created, or unmapped.
        let mapped = unsafe {
            self.mapped
                .device
                .map(step.to, chunk, self.mapped.chunk_bytes)
        };
        if let Err(error) = mapped {
            let _ = self.destroy(chunk);
            return Err((is_moved, error));
        }
        if let Err(error) = accessors::record_mapped(&self.mapped, step.to, chunk) {
            // SAFETY: it was just mapped, and no other code knows of it.
            if unsafe { self.mapped.device.unmap(step.to, self.mapped.chunk_bytes) }.is_ok() {
                let _ = self.destroy(chunk);
            }
            return Err((is_moved, error));
        }
        Ok(())
    }

    fn create(&self) -> Result<Chunk, DeviceError> {
        let unmapped = self.mapped.held.lock().unmapped.pop();
        match unmapped {
            Some(chunk) => Ok(chunk),
            None => self.mapped.device.create(self.mapped.chunk_bytes),
        }
    }

    /// Destroys a chunk that is mapped nowhere, and those that could not be destroyed before. A chunk that the device
    /// fails to destroy is kept for the next growth.
    fn destroy(&self, chunk: Chunk) -> Result<(), DeviceError> {
        let mut unmapped = std::mem::take(&mut self.mapped.held.lock().unmapped);
        unmapped.push(chunk);
        while let Some(chunk) = unmapped.pop() {
            // SAFETY: the chunk is mapped nowhere, and no other code knows it.
            if let Err(error) = unsafe { self.mapped.device.destroy(chunk) } {
                unmapped.push(chunk);
                self.mapped.held.lock().unmapped.append(&mut unmapped);
                return Err(error);
            }
        }
        Ok(())
    }

    fn unmap(&self, address: u64) -> Result<Chunk, DeviceError> {
        // Before the device has it: from then on no thread sets the access to it.
        let (chunk, accessors) = {
            let mut held = self.mapped.held.lock();
            let chunk = held.mapped.remove(&address);
            (chunk, held.accessors.clone())
        };
        let chunk = chunk.expect("memory that the heap calls backed is mapped");
        // SAFETY: the heap unmaps free memory only, whose fences are complete (invariant `order`), and whole chunks.
        let unmapped = unsafe { self.mapped.device.unmap(address, self.mapped.chunk_bytes) };
        unmapped.inspect_err(|_| {
            accessors::record_still_mapped(&self.mapped, address, chunk, &accessors)
        })?;
        Ok(chunk)
    }

    /// Reserves a range of addresses for this capacity, unless one is large enough. Returns the whole chunks of a new
    /// range.
    ///
    /// # Errors
    /// Returns an error if the device has no free range as large as the capacity.
    pub fn reserve_addresses(&self, capacity: u64) -> Result<Option<Range<u64>>, DeviceError> {
        let chunk = self.mapped.chunk_bytes;
        let reason = format!("no range of addresses holds the capacity of {capacity} bytes");
        let mut refused = DeviceError::new("reserve", DeviceErrorKind::OutOfMemory, reason);
        let sizes = ADDRESSES_PER_CAPACITY.map(|times| range_bytes(capacity, times, chunk));
        for bytes in sizes.into_iter().flatten() {
            let is_there = |(_, reserved): &(u64, u64)| *reserved >= bytes;
            if self.mapped.held.lock().ranges.iter().any(is_there) {
                return Ok(None);
            }
            match self.mapped.device.reserve(bytes) {
                Ok(address) => {
                    self.mapped.held.lock().ranges.push((address, bytes));
                    let start = address.next_multiple_of(chunk);
                    return Ok(Some(start..(address + bytes) / chunk * chunk));
                }
                Err(error) if error.kind() == DeviceErrorKind::OutOfMemory => refused = error,
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    }

    /// Carries a mapping out, step by step, until one fails. Returns how far it came, and the device's error.
    pub fn carry_out(&self, mapping: &Mapping) -> (Outcome, Option<DeviceError>) {
        for (done, step) in mapping.steps.iter().enumerate() {
            if let Err((lost, error)) = self.step(*step) {
                return (Outcome { done, lost }, Some(error));
            }
        }
        let done = mapping.steps.len();
        (Outcome { done, lost: false }, None)
    }

    /// # Errors
    /// Returns an error if the device call fails.
    ///
    /// # Safety
    /// The stream is one of the device, and usable during the call.
    pub unsafe fn allocate(
        &self,
        bytes: u64,
        alignment: u64,
        stream: RawStream,
    ) -> Result<u64, DeviceError> {
        assert_unlocked("allocate");
        // SAFETY: the caller guarantees the stream.
        unsafe { self.segments.take(bytes, alignment.max(self.step), stream) }
    }

    /// Gives a segment back in the order of a stream; with [`RawStream::HOST`], one whose uses are all complete.
    ///
    /// # Errors
    /// Returns an error if the source does not take it; the segment stays.
    ///
    /// # Safety
    /// [`allocate`](Self::allocate) returned the segment, and this call owns it. All uses of it come before the present
    /// point of the stream, which is one of the device, and usable during the call.
    pub unsafe fn give(
        &self,
        address: u64,
        bytes: u64,
        stream: RawStream,
    ) -> Result<(), DeviceError> {
        assert_unlocked("free");
        // SAFETY: the caller's guarantee.
        unsafe { self.segments.give(address, bytes, stream) }
    }

    /// # Errors
    /// Returns whether the range is gone all the same: unmapped, and its chunk kept.
    pub fn release(&self, address: u64, bytes: u64) -> Result<(), (bool, DeviceError)> {
        assert_unlocked("release");
        if !self.is_virtual {
            // SAFETY: the heap releases free memory only, whose fences are complete (invariant `order`), and whole
            // segments.
            let given = unsafe { self.give(address, bytes, RawStream::HOST) };
            return given.map_err(|error| (false, error));
        }
        let chunk = self.unmap(address).map_err(|error| (false, error))?;
        self.destroy(chunk).map_err(|error| (true, error))
    }
}
