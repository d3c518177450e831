//! Carrying out the heap's plans on the device: what is mapped where.

#![allow(unsafe_code)]

use super::{Change, Driver, HistoryEvent, Settings, counters};
use crate::device::{Chunk, Device, DeviceError, DeviceErrorKind, MemoryKind};
use crate::heap::policy::Order;
use crate::heap::{Exchange, Grant, Growth, Heap, Mapping, Outcome, Plan, Release, Request, Step};
use crate::id::StreamId;
use crate::sync::{Guards, Mutex, assert_unlocked, plain};
use crate::trace;
use std::collections::BTreeMap;

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

/// Whom a plan is carried out for.
#[derive(Debug)]
pub(super) enum For {
    /// What comes of it is free.
    Nobody,
    Stream(StreamId),
    /// A stream, with memory that is set aside.
    HeapReservation(StreamId, Exchange),
}

/// What the device gave.
#[derive(Debug)]
pub(crate) struct Memory {
    device: plain::Arc<dyn Device>,
    chunk_bytes: u64,
    /// Of what kind plain segments are.
    kind: MemoryKind,
    held: Mutex<Held>,
}

/// See [`Memory`].
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Mapped handles, by address.
    pub(super) chunks: BTreeMap<u64, Chunk>,
    /// Reserved ranges: address and bytes.
    pub(super) ranges: Vec<(u64, u64)>,
    /// Plain segments: address to bytes.
    pub(super) segments: BTreeMap<u64, u64>,
    /// Chunks that are mapped nowhere, because the device failed to destroy them. They serve the next growth, or are
    /// destroyed with the next release.
    pub(super) unmapped: Vec<Chunk>,
}

impl Memory {
    pub(super) fn new(device: plain::Arc<dyn Device>, settings: &Settings) -> Self {
        Self {
            device,
            chunk_bytes: settings.geometry.chunk_bytes,
            kind: settings.kind,
            held: Mutex::new(Guards::Registry, Held::default()),
        }
    }

    /// Takes everything out, for the deferred release.
    pub(super) fn take_held(&self) -> Held {
        std::mem::take(&mut self.held.lock())
    }

    /// One step: the handle at `from`, or a new one, comes to be at `to`.
    ///
    /// # Errors
    /// With whether the handle was lost on the way.
    fn step(&self, step: Step) -> Result<(), (bool, DeviceError)> {
        assert_unlocked("a memory call");
        let is_moved = step.from.is_some();
        let chunk = match step.from {
            Some(from) => self.unmap(from),
            None => self.create(),
        };
        let chunk = chunk.map_err(|error| (false, error))?;
        // SAFETY: the heap plans a step to a free place of a reserved range. The chunk is one of this size that was just
        // created, or unmapped.
        let mapped = unsafe { self.device.map(step.to, chunk, self.chunk_bytes) };
        if let Err(error) = mapped {
            let _ = self.destroy(chunk);
            return Err((is_moved, error));
        }
        self.held.lock().chunks.insert(step.to, chunk);
        Ok(())
    }

    fn create(&self) -> Result<Chunk, DeviceError> {
        let unmapped = self.held.lock().unmapped.pop();
        match unmapped {
            Some(chunk) => Ok(chunk),
            None => self.device.create(self.chunk_bytes),
        }
    }

    /// Destroys a chunk that is mapped nowhere, and those that could not be destroyed before. A chunk that the device
    /// fails to destroy is kept for the next growth.
    fn destroy(&self, chunk: Chunk) -> Result<(), DeviceError> {
        let mut unmapped = std::mem::take(&mut self.held.lock().unmapped);
        unmapped.push(chunk);
        while let Some(chunk) = unmapped.pop() {
            // SAFETY: the chunk is mapped nowhere, and no other code knows it.
            if let Err(error) = unsafe { self.device.destroy(chunk) } {
                unmapped.push(chunk);
                self.held.lock().unmapped.append(&mut unmapped);
                return Err(error);
            }
        }
        Ok(())
    }

    fn unmap(&self, address: u64) -> Result<Chunk, DeviceError> {
        // SAFETY: the heap unmaps free memory only, whose fences are complete (invariant `order`), and whole chunks.
        unsafe { self.device.unmap(address, self.chunk_bytes) }?;
        let chunk = self.held.lock().chunks.remove(&address);
        Ok(chunk.expect("what the ledger calls backed is mapped"))
    }

    fn carry_out(&self, mapping: &Mapping) -> (Outcome, Option<DeviceError>) {
        for (done, step) in mapping.steps.iter().enumerate() {
            if let Err((lost, error)) = self.step(*step) {
                return (Outcome { done, lost }, Some(error));
            }
        }
        let done = mapping.steps.len();
        (Outcome { done, lost: false }, None)
    }

    fn allocate(&self, bytes: u64) -> Result<u64, DeviceError> {
        assert_unlocked("allocate");
        let address = self.device.allocate(self.kind, bytes)?;
        self.held.lock().segments.insert(address, bytes);
        Ok(address)
    }

    /// # Errors
    /// With whether the span is gone all the same: unmapped, and leaked.
    fn release(&self, address: u64, bytes: u64) -> Result<(), (bool, DeviceError)> {
        assert_unlocked("release");
        // Before the device has it: from then on the address may be given to another, and noted here anew.
        let segment = self.held.lock().segments.remove(&address);
        if segment.is_some() {
            // SAFETY: the device allocated the segment, and the heap releases free memory only, whose fences are complete
            // (invariant `order`).
            let freed = unsafe { self.device.free(self.kind, address, bytes) };
            return freed.map_err(|error| {
                self.held.lock().segments.insert(address, bytes);
                (false, error)
            });
        }
        let chunk = self.unmap(address).map_err(|error| (false, error))?;
        self.destroy(chunk).map_err(|error| (true, error))
    }
}

/// What came of releasing.
#[derive(Debug)]
pub(super) struct Trimmed {
    /// Released.
    pub(super) bytes: u64,
    /// Something was held for it meanwhile.
    was_claimed: bool,
    /// Why no more.
    pub(super) error: Option<DeviceError>,
}

impl Driver {
    /// Reserves a range of addresses for this capacity, where memory is virtual and no reserved range is large enough.
    ///
    /// # Errors
    /// When the device has no free range as large as the capacity.
    pub(super) fn reserve_addresses(&self, capacity: u64) -> Result<(), DeviceError> {
        let geometry = self.settings.geometry;
        if !geometry.virtual_memory {
            return Ok(());
        }
        let chunk = geometry.chunk_bytes;
        let reason = format!("no range of addresses holds the capacity of {capacity} bytes");
        let mut refused = DeviceError::new("reserve", DeviceErrorKind::OutOfMemory, reason);
        let sizes = ADDRESSES_PER_CAPACITY.map(|times| range_bytes(capacity, times, chunk));
        for bytes in sizes.into_iter().flatten() {
            let is_there = |(_, reserved): &(u64, u64)| *reserved >= bytes;
            if self.memory.held.lock().ranges.iter().any(is_there) {
                return Ok(());
            }
            match self.device.reserve(bytes) {
                Ok(address) => {
                    self.add_range(address, bytes);
                    return Ok(());
                }
                Err(error) if error.kind() == DeviceErrorKind::OutOfMemory => refused = error,
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    }

    fn add_range(&self, address: u64, bytes: u64) {
        let chunk = self.settings.geometry.chunk_bytes;
        let mut held = self.memory.held.lock();
        held.ranges.push((address, bytes));
        drop(held);
        let start = address.next_multiple_of(chunk);
        let end = (address + bytes) / chunk * chunk;
        self.heap.lock().add_range(start, end - start);
    }

    /// Takes the initial memory, as one free block.
    pub(super) fn reserve_initial(&self) -> Result<(), DeviceError> {
        let plan = self.heap.lock().plan_new(self.settings.initial);
        self.carry_out_free(plan)
    }

    /// After a request was served by growing: the rest of what is taken at a time. It is a wish: what the
    /// device refuses is done without.
    fn grow_ahead(&self, grown: u64) {
        let plan = self.heap.lock().plan_ahead(grown);
        let _ = self.carry_out_free(plan);
    }

    /// Takes the memory that a request needed and had otherwise before a thread came to take it, for the next one: where
    /// growing comes first, it does so however fast others give back. It is a wish, too.
    pub(crate) fn grow_after_all(&self, request: Request) {
        if self.settings.order == Order::GrowFirst && self.is_pooling() {
            let plan = self.heap.lock().plan_one_more(request);
            let _ = self.carry_out_free(plan);
            self.publish(Change::Memory);
        }
    }

    /// Returns how a request may grow, as far as the budget for remapping goes.
    pub(super) fn growth(&self) -> Growth {
        if !self.settings.geometry.virtual_memory {
            return Growth::Allowed;
        }
        let now = self.device.now();
        self.budget.lock().growth(now)
    }

    /// Charges the budget for remapped chunks, and credits it for new ones.
    fn note_moves(&self, moved: u64, new: u64) {
        if moved + new > 0 {
            self.budget.lock().note(moved, new);
        }
    }

    fn is_pooling(&self) -> bool {
        self.settings.is_pooled && !self.is_closed()
    }

    /// Carries a plan out for nobody: what comes of it is free.
    ///
    /// # Errors
    /// When the device stopped half way; what it gave is free.
    pub(super) fn carry_out_free(&self, plan: Option<Plan>) -> Result<(), DeviceError> {
        match plan {
            Some(Plan::Map(mapping)) => self.carry_out_mapping(mapping, For::Nobody).map(drop),
            Some(plan) => self.carry_out(plan, For::Nobody).map(drop),
            None => Ok(()),
        }
    }

    /// Carries a plan out, and commits what became of it.
    ///
    /// # Errors
    /// When the device stopped half way; the heap knows how far it came.
    pub(super) fn carry_out(&self, plan: Plan, whom: For) -> Result<Option<Grant>, DeviceError> {
        match plan {
            Plan::Map(mapping) => {
                let grown = mapping.new_bytes();
                let grant = self.carry_out_mapping(mapping, whom)?;
                if grown > 0 {
                    self.grow_ahead(grown);
                }
                Ok(grant)
            }
            Plan::Memory(bytes, request) => {
                let address = self.memory.allocate(bytes);
                let entry = self.entry();
                let grant = self.commit(whom, |heap| {
                    let given = address.as_ref().ok().copied();
                    let grant = heap.commit_memory(bytes, request, given);
                    if let (Some(entry), Some(address)) = (entry, given) {
                        entry.write(
                            heap.totals(),
                            HistoryEvent::Grown {
                                address: address.into(),
                                bytes,
                            },
                        );
                    }
                    grant
                });
                self.noted(address)?;
                self.pressure.note(false);
                counters::add(&self.counters.growths, 1);
                trace::grown(bytes, 1);
                Ok(grant)
            }
        }
    }

    /// Commits under the heap's lock; what is for nobody is free at once.
    fn commit(&self, whom: For, commit: impl FnOnce(&mut Heap) -> Option<Grant>) -> Option<Grant> {
        let mut heap = self.heap.lock();
        let (stream, grant) = match whom {
            For::Nobody => {
                heap.commit_for_nobody(commit);
                return None;
            }
            For::Stream(stream) => (stream, commit(&mut heap)?),
            For::HeapReservation(stream, exchange) => {
                (stream, heap.commit_exchange(&exchange, commit)?)
            }
        };
        heap.note_borrower(grant.id, stream);
        Some(grant)
    }

    fn carry_out_mapping(&self, mapping: Mapping, whom: For) -> Result<Option<Grant>, DeviceError> {
        let is_wish = matches!(whom, For::Nobody);
        let (outcome, error) = match self.refusal_foreseen(&mapping) {
            Some(error) => (
                Outcome {
                    done: 0,
                    lost: false,
                },
                Some(error),
            ),
            None => self.memory.carry_out(&mapping),
        };
        let done = &mapping.steps[..outcome.done];
        let moved = done.iter().filter(|step| step.from.is_some()).count() as u64;
        if !done.is_empty() {
            counters::add(&self.counters.growths, 1);
            counters::add(&self.counters.remaps, moved);
            counters::add(&self.counters.chunks_created, done.len() as u64 - moved);
        }
        let created = done.len() as u64 - moved;
        self.note_moves(if is_wish { 0 } else { moved }, created);
        let bytes = |chunks| chunks * self.settings.geometry.chunk_bytes;
        let entry = self.entry();
        let grant = self.commit(whom, |heap| {
            let steps = entry.map(|_| mapping.steps.clone());
            let grant = heap.commit(mapping, outcome);
            if let (Some(entry), Some(steps)) = (entry, steps) {
                entry.write_mapped(heap.totals(), &steps, outcome, bytes(1));
            }
            grant
        });
        if created > 0 && error.is_none() {
            self.pressure.note(false);
        }
        if created > 0 {
            trace::grown(bytes(created), created);
        }
        if moved > 0 {
            trace::remapped(bytes(moved), moved);
        }
        match error {
            None => Ok(grant),
            Some(error) => {
                if created > 0 && !is_wish && error.kind() == DeviceErrorKind::OutOfMemory {
                    self.give_refused_back(bytes(created));
                }
                self.noted(Err(error))
            }
        }
    }

    /// A device that refused is asked what it has left before it is asked for more than that again: who waits
    /// would take all of it, time and again, and give it back.
    fn refusal_foreseen(&self, mapping: &Mapping) -> Option<DeviceError> {
        let bytes = mapping.new_bytes();
        if bytes == 0 || !self.pressure.is_felt() {
            return None;
        }
        let left = self.device.memory_info(self.settings.kind).ok()?.free;
        let reason = "the device has less left, and refused before";
        let error = DeviceError::new("create", DeviceErrorKind::OutOfMemory, reason);
        (left < bytes).then_some(error)
    }

    /// What the device gave before it refused the rest is of no use to who asked, and may be to others. Quietly:
    /// who waits would wake itself at each look.
    fn give_refused_back(&self, bytes: u64) {
        let release = self.heap.lock().plan_release(bytes);
        let Trimmed { error, .. } = self.carry_out_release(release);
        let _ = error.map_or(Ok(()), |error| self.noted(Err(error)));
    }

    /// Releases free memory until `keep` bytes are reserved, or no more can be. Returns the bytes
    /// released.
    ///
    /// # Errors
    /// When the device cannot; what it released before counts.
    pub(crate) fn trim_to(&self, keep: u64) -> Result<u64, DeviceError> {
        let Trimmed {
            bytes,
            was_claimed,
            error,
        } = self.trim_quietly_to(keep);
        self.tell_trimmed(bytes, was_claimed);
        match error {
            None => Ok(bytes),
            Some(error) => self.noted(Err(error)),
        }
    }

    /// Releases so many bytes of free memory, or where memory is plain as few more as can be. Returns how many.
    ///
    /// # Errors
    /// When the device cannot; what it released before counts.
    pub(super) fn release_free(&self, bytes: u64) -> Result<u64, DeviceError> {
        let release = self.heap.lock().plan_release(bytes);
        let Trimmed {
            bytes,
            was_claimed,
            error,
        } = self.carry_out_release(release);
        self.tell_trimmed(bytes, was_claimed);
        match error {
            None => Ok(bytes),
            Some(error) => self.noted(Err(error)),
        }
    }

    fn tell_trimmed(&self, bytes: u64, was_claimed: bool) {
        // Only if something was held meanwhile: who waits for memory asks for this at every look, and would
        // wake itself. Where nothing is pooled, who is source tries again what failed.
        if bytes > 0 || was_claimed && self.settings.is_pooled {
            self.publish(Change::Memory);
        }
    }

    /// The same without ringing.
    pub(super) fn trim_quietly_to(&self, keep: u64) -> Trimmed {
        let release = self.heap.lock().plan_trim(keep);
        self.carry_out_release(release)
    }

    fn carry_out_release(&self, release: Release) -> Trimmed {
        let was_claimed = !release.spans.is_empty();
        let (done, error) = self.release_spans(&release);
        let gone = release.spans[..done].to_vec();
        let entry = self.entry();
        let bytes = {
            let mut heap = self.heap.lock();
            let bytes = heap.commit_trim(release, done);
            if let Some(entry) = entry {
                entry.write_released(heap.totals(), &gone);
            }
            bytes
        };
        counters::add(&self.counters.released, bytes);
        if bytes > 0 {
            trace::trimmed(bytes);
        }
        Trimmed {
            bytes,
            was_claimed,
            error,
        }
    }

    /// How many of the spans are gone, and why not all.
    fn release_spans(&self, release: &Release) -> (usize, Option<DeviceError>) {
        for (done, (address, bytes)) in release.spans.iter().enumerate() {
            if let Err((is_gone, error)) = self.memory.release(*address, *bytes) {
                return (done + usize::from(is_gone), Some(error));
            }
        }
        (release.spans.len(), None)
    }
}
