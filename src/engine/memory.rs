//! Carrying out the ledger's plans on the device: what is mapped where.

use super::{Engine, tally};
use crate::device::{Device, DeviceError, PhysicalHandle};
use crate::id::StreamId;
use crate::ledger::{Clock, GRANULE};
use crate::ledger::{Grant, Growth, Ledger, Mapping, Outcome, Plan, Release, Request, Step, View};
use crate::sync::{Guards, Mutex, assert_unlocked, plain};
use std::collections::BTreeMap;

/// How many times the capacity the reserved range of addresses is: room for remapping, which moves
/// memory to fresh addresses, before the old ones must be filled again.
const ADDRESSES_PER_CAPACITY: u64 = 8;

/// How a plan is committed, given what commits it.
type End = fn(&mut Ledger, &mut dyn FnMut(&mut Ledger) -> Option<Grant>) -> Option<Grant>;

/// What the device gave.
#[derive(Debug)]
pub(crate) struct Memory {
    device: plain::Arc<dyn Device>,
    handle_bytes: u64,
    held: Mutex<Held>,
}

/// See [`Memory`].
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Mapped handles, by address.
    pub(super) handles: BTreeMap<u64, PhysicalHandle>,
    /// Reserved ranges: address and bytes.
    pub(super) ranges: Vec<(u64, u64)>,
    /// Plain segments: address to bytes.
    pub(super) segments: BTreeMap<u64, u64>,
}

impl Memory {
    pub(super) fn new(device: plain::Arc<dyn Device>, handle_bytes: u64) -> Self {
        Self {
            device,
            handle_bytes,
            held: Mutex::new(Guards::Registry, Held::default()),
        }
    }

    /// Takes everything out, for the estate.
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
        let handle = match step.from {
            Some(from) => self.unmap(from),
            None => self.device.create(self.handle_bytes),
        };
        let handle = handle.map_err(|error| (false, error))?;
        if let Err(error) = self.device.map(step.to, handle, self.handle_bytes) {
            // Neither here nor there: let go, or leaked if even that fails.
            let _ = self.device.destroy(handle);
            return Err((is_moved, error));
        }
        self.held.lock().handles.insert(step.to, handle);
        Ok(())
    }

    fn unmap(&self, address: u64) -> Result<PhysicalHandle, DeviceError> {
        self.device.unmap(address, self.handle_bytes)?;
        let handle = self.held.lock().handles.remove(&address);
        Ok(handle.expect("what the ledger calls backed is mapped"))
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
        let address = self.device.allocate(bytes)?;
        self.held.lock().segments.insert(address, bytes);
        Ok(address)
    }

    /// # Errors
    /// With whether the span is gone all the same: unmapped, and leaked.
    fn release(&self, address: u64, bytes: u64) -> Result<(), (bool, DeviceError)> {
        assert_unlocked("release");
        // Forgotten first: once it is free, another thread may be given the same address.
        let segment = self.held.lock().segments.remove(&address);
        if let Some(segment) = segment {
            return self.device.free(address, bytes).map_err(|error| {
                self.held.lock().segments.insert(address, segment);
                (false, error)
            });
        }
        let handle = self.unmap(address).map_err(|error| (false, error))?;
        self.device.destroy(handle).map_err(|error| (true, error))
    }
}

impl Engine {
    /// Reserves a range of addresses for so much memory, where memory is virtual and no range is large
    /// enough yet.
    pub(super) fn reserve_addresses(&self, capacity: u64) -> Result<(), DeviceError> {
        let geometry = self.settings.geometry;
        if !geometry.virtual_memory {
            return Ok(());
        }
        let handle = geometry.handle_bytes;
        // A handle more, since the device aligns to its own step and handles lie at multiples of theirs.
        let bytes = capacity.saturating_mul(ADDRESSES_PER_CAPACITY) / handle * handle + handle;
        let is_there = |(_, reserved): &(u64, u64)| *reserved >= bytes;
        if self.memory.held.lock().ranges.iter().any(is_there) {
            return Ok(());
        }
        let address = self.device.reserve(bytes)?;
        let mut held = self.memory.held.lock();
        held.ranges.push((address, bytes));
        drop(held);
        let start = address.next_multiple_of(handle);
        let end = (address + bytes) / handle * handle;
        self.ledger.lock().add_range(start, end - start);
        Ok(())
    }

    /// Takes the initial memory, as one free block.
    pub(super) fn reserve_initial(&self) -> Result<(), DeviceError> {
        let bytes = self.settings.initial.next_multiple_of(GRANULE);
        if bytes == 0 {
            return Ok(());
        }
        let request = Request {
            bytes,
            alignment: GRANULE,
        };
        let view = View {
            stream: StreamId(0),
            after: &Clock::default(),
            waits: None,
        };
        let plan = self.ledger.lock().plan(request, &view, Growth::Allowed);
        plan.map_or(Ok(()), |plan| self.carry_out_for_nobody(plan))
    }

    /// Carries a plan out and commits what became of it.
    ///
    /// # Errors
    /// When the device stopped half way; the ledger knows how far it came.
    pub(super) fn carry_out(&self, plan: Plan) -> Result<Option<Grant>, DeviceError> {
        self.carry_out_then(plan, |ledger, commit| commit(ledger))
    }

    /// The same for a span that is to be free.
    ///
    /// # Errors
    /// As [`carry_out`](Self::carry_out).
    pub(super) fn carry_out_for_nobody(&self, plan: Plan) -> Result<(), DeviceError> {
        let done = self.carry_out_then(plan, |ledger, commit| {
            ledger.commit_for_nobody(commit);
            None
        });
        done.map(drop)
    }

    /// `end` commits, under the ledger's lock.
    fn carry_out_then(&self, plan: Plan, end: End) -> Result<Option<Grant>, DeviceError> {
        match plan {
            Plan::Map(mapping) => self.carry_out_mapping(mapping, end),
            Plan::Memory(bytes, request) => {
                let address = self.memory.allocate(bytes);
                let grant = {
                    let mut ledger = self.ledger.lock();
                    let address = address.as_ref().ok().copied();
                    end(&mut ledger, &mut |ledger| {
                        ledger.commit_memory(bytes, request, address)
                    })
                };
                self.noted(address)?;
                tally::add(&self.tally.growths, 1);
                Ok(grant)
            }
        }
    }

    fn carry_out_mapping(&self, mapping: Mapping, end: End) -> Result<Option<Grant>, DeviceError> {
        let (outcome, error) = self.memory.carry_out(&mapping);
        let done = &mapping.steps[..outcome.done];
        let moved = done.iter().filter(|step| step.from.is_some()).count() as u64;
        if !done.is_empty() {
            tally::add(&self.tally.growths, 1);
            tally::add(&self.tally.remaps, moved);
            tally::add(&self.tally.handles_created, done.len() as u64 - moved);
        }
        let mut mapping = Some(mapping);
        let grant = end(&mut self.ledger.lock(), &mut |ledger| {
            ledger.commit(mapping.take()?, outcome)
        });
        match error {
            None => Ok(grant),
            Some(error) => self.noted(Err(error)),
        }
    }

    /// Releases free memory until `keep` bytes are reserved, or no more can be. Returns the bytes
    /// released.
    ///
    /// # Errors
    /// When the device cannot; what it released before counts.
    pub(crate) fn trim_to(&self, keep: u64) -> Result<u64, DeviceError> {
        let release = self.ledger.lock().plan_trim(keep);
        let (done, error) = self.release_spans(&release);
        let bytes = self.ledger.lock().commit_trim(release, done);
        tally::add(&self.tally.released, bytes);
        self.ring_if_awaited();
        match error {
            None => Ok(bytes),
            Some(error) => self.noted(Err(error)),
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
