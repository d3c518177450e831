//! The tables of address ranges, physical memory and mappings.
//!
//! Every argument is checked here. This module does not know the costs of calls, locks, or the access to bytes.

use super::budget::Budget;
use super::bytes::Bytes;
use crate::builder::{Backing, GRANULARITY, Settings};
use std::collections::{BTreeMap, HashMap};
use weirpool_device::{DeviceErrorKind, MemoryKind};

/// The size of a device's address space. It is far larger than its memory, so that released ranges are not reused soon
/// and the use of an old address is detected.
const ADDRESSES: u64 = 1 << 47;
/// How many devices have disjoint address spaces before the addresses repeat.
const DEVICES: u64 = 1 << 15;

/// The reason why a memory call was refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) kind: DeviceErrorKind,
    pub(crate) reason: String,
}

pub(super) type Refusable<T> = Result<T, Refusal>;

pub(super) fn invalid<T>(reason: String) -> Refusable<T> {
    let kind = DeviceErrorKind::InvalidArgument;
    Err(Refusal { kind, reason })
}

pub(super) fn exhausted<T>(reason: String) -> Refusable<T> {
    let kind = DeviceErrorKind::OutOfMemory;
    Err(Refusal { kind, reason })
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Reservation {
    /// The requested size. For plain memory it may not be a multiple of the granularity.
    pub(super) bytes: u64,
    /// The physical memory, if it was taken together with the range.
    pub(super) plain: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    pub(super) bytes: u64,
    pub(super) handle: u64,
}

#[derive(Debug)]
pub(super) struct Physical {
    bytes: u64,
    pub(super) kind: MemoryKind,
    pub(super) mapped_at: Option<u64>,
    pub(super) store: Bytes,
    /// Another process took the memory: it counts there.
    pub(super) is_imported: bool,
}

#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) device: Budget,
    pub(crate) host: Budget,
    pub(super) backing: Backing,
    base: u64,
    /// The address at which the search for free addresses continues.
    cursor: u64,
    pub(super) reservations: BTreeMap<u64, Reservation>,
    pub(super) mappings: BTreeMap<u64, Mapping>,
    pub(super) physical: HashMap<u64, Physical>,
    handles: u64,
}

impl Space {
    pub(crate) fn new(device: u64, settings: &Settings) -> Self {
        let base = (device % DEVICES + 1) * ADDRESSES;
        Self {
            device: Budget::new(settings.memory),
            host: Budget::new(settings.host_memory),
            backing: settings.backing,
            base,
            cursor: base,
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            physical: HashMap::new(),
            handles: 0,
        }
    }

    /// Returns the budget from which memory of a kind is taken.
    pub(crate) fn budget(&mut self, kind: MemoryKind) -> &mut Budget {
        if kind.is_of_host() {
            &mut self.host
        } else {
            &mut self.device
        }
    }

    // ---- address ranges --------------------------------------------------------------------

    pub(crate) fn reserve(&mut self, bytes: u64) -> Refusable<u64> {
        check_size(bytes)?;
        let address = self.find_addresses(bytes)?;
        let plain = None;
        self.reservations
            .insert(address, Reservation { bytes, plain });
        Ok(address)
    }

    pub(crate) fn unreserve(&mut self, address: u64, bytes: u64) -> Refusable<()> {
        match self.reservations.get(&address) {
            Some(range) if range.bytes == bytes && range.plain.is_none() => {}
            _ => return invalid(format!("{} is not a reserved range", span(address, bytes))),
        }
        if let Some((at, _)) = self.mappings.range(address..address + bytes).next() {
            return invalid(format!("memory is still mapped at {at:#x}; unmap it first"));
        }
        self.reservations.remove(&address);
        Ok(())
    }

    /// Searches behind the last range that was handed out, and wraps around at the end, so that released addresses stay
    /// unused as long as possible. Leaves a granule between ranges, so that an access beyond the end of one is
    /// detected.
    pub(super) fn find_addresses(&mut self, bytes: u64) -> Refusable<u64> {
        let found = self
            .gap_from(self.cursor, bytes)
            .or_else(|| self.gap_from(self.base, bytes));
        let Some(address) = found else {
            return exhausted(format!(
                "no free address range of {bytes} bytes; free addresses, or reserve fewer"
            ));
        };
        self.cursor = address + bytes + GRANULARITY;
        Ok(address)
    }

    fn gap_from(&self, from: u64, bytes: u64) -> Option<u64> {
        let mut candidate = from;
        // The range that `from` lies in may begin before it; the cursor never lies in one.
        for (&start, range) in self.reservations.range(from..) {
            if candidate.checked_add(bytes)? < start {
                break;
            }
            candidate = start + range.bytes.next_multiple_of(GRANULARITY) + GRANULARITY;
        }
        (candidate.checked_add(bytes)? <= self.base + ADDRESSES).then_some(candidate)
    }

    // ---- physical memory -------------------------------------------------------------------

    pub(crate) fn create(&mut self, kind: MemoryKind, bytes: u64) -> Refusable<u64> {
        check_size(bytes)?;
        let budget = self.budget(kind);
        let (free, total) = (budget.available(), budget.total());
        if bytes > free {
            return exhausted(format!(
                "{bytes} bytes of {kind} requested, but {free} of {total} are free"
            ));
        }
        budget.take(bytes);
        Ok(self.add_physical(kind, bytes, Bytes::default(), false))
    }

    pub(super) fn add_physical(
        &mut self,
        kind: MemoryKind,
        bytes: u64,
        store: Bytes,
        is_imported: bool,
    ) -> u64 {
        self.handles += 1;
        let physical = Physical {
            bytes,
            kind,
            mapped_at: None,
            store,
            is_imported,
        };
        self.physical.insert(self.handles, physical);
        self.handles
    }

    pub(crate) fn destroy(&mut self, handle: u64) -> Refusable<()> {
        let physical = self.known(handle)?;
        if let Some(address) = physical.mapped_at {
            return invalid(format!(
                "chunk {handle} is still mapped at {address:#x}; unmap it first"
            ));
        }
        let (kind, bytes, is_imported) = (physical.kind, physical.bytes, physical.is_imported);
        self.physical.remove(&handle);
        if !is_imported {
            self.budget(kind).give_back(bytes);
        }
        Ok(())
    }

    /// Returns the size of a chunk in bytes, or 0 if it is unknown.
    pub(crate) fn size_of(&self, handle: u64) -> u64 {
        self.physical
            .get(&handle)
            .map_or(0, |physical| physical.bytes)
    }

    pub(super) fn known(&mut self, handle: u64) -> Refusable<&mut Physical> {
        match self.physical.get_mut(&handle) {
            Some(physical) => Ok(physical),
            None => invalid(format!("there is no chunk {handle}")),
        }
    }

    // ---- mappings --------------------------------------------------------------------------

    pub(crate) fn map(&mut self, address: u64, handle: u64, bytes: u64) -> Refusable<()> {
        check_size(bytes)?;
        self.check_target(address, bytes)?;
        let physical = self.known(handle)?;
        let size = physical.bytes;
        if size != bytes {
            return invalid(format!("chunk {handle} has {size} bytes, not {bytes}"));
        }
        if let Some(other) = physical.mapped_at {
            return invalid(format!(
                "chunk {handle} is already mapped at {other:#x}; unmap it first"
            ));
        }
        physical.mapped_at = Some(address);
        self.mappings.insert(address, Mapping { bytes, handle });
        Ok(())
    }

    /// Checks that something of `bytes` can be mapped at `address`.
    fn check_target(&self, address: u64, bytes: u64) -> Refusable<()> {
        let Some(end) = address.checked_add(bytes) else {
            return invalid(format!(
                "{} exceeds the address space",
                span(address, bytes)
            ));
        };
        let below = self.reservations.range(..=address).next_back();
        match below {
            _ if !address.is_multiple_of(GRANULARITY) => {
                return invalid(format!(
                    "{address:#x} is not a multiple of the granularity of {GRANULARITY} bytes"
                ));
            }
            Some((start, range)) if range.plain.is_none() && end <= start + range.bytes => {}
            _ => return invalid(format!("{} is not reserved", span(address, bytes))),
        }
        match self.mappings.range(..end).next_back() {
            Some((start, mapping)) if start + mapping.bytes > address => invalid(format!(
                "memory is already mapped at {start:#x}; unmap it first"
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) -> Refusable<()> {
        let range = span(address, bytes);
        let Some(mapping) = self.mappings.get(&address).copied() else {
            return invalid(format!("{range} is not mapped"));
        };
        if mapping.bytes != bytes {
            return invalid(format!("{range} was mapped with {} bytes", mapping.bytes));
        }
        if self.is_plain(mapping.handle, address) {
            return invalid(format!("{range} is plain memory; free it instead"));
        }
        self.forget_mapping(address, mapping.handle);
        Ok(())
    }

    fn is_plain(&self, handle: u64, address: u64) -> bool {
        let range = self.reservations.get(&address);
        range.is_some_and(|range| range.plain == Some(handle))
    }

    pub(super) fn forget_mapping(&mut self, address: u64, handle: u64) {
        self.mappings.remove(&address);
        if let Some(physical) = self.physical.get_mut(&handle) {
            physical.mapped_at = None;
        }
    }

    // ---- plain memory: with its addresses, in one piece, of any kind ---------------------------

    pub(crate) fn allocate(&mut self, kind: MemoryKind, bytes: u64) -> Refusable<u64> {
        let Some(rounded) = bytes
            .checked_next_multiple_of(GRANULARITY)
            .filter(|&all| all > 0)
        else {
            return invalid(format!("invalid size of {bytes} bytes"));
        };
        let handle = self.create(kind, rounded)?;
        let address = match self.find_addresses(rounded) {
            Ok(address) => address,
            Err(refusal) => {
                self.destroy(handle)?;
                return Err(refusal);
            }
        };
        let plain = Some(handle);
        self.reservations
            .insert(address, Reservation { bytes, plain });
        let mapping = Mapping {
            bytes: rounded,
            handle,
        };
        self.mappings.insert(address, mapping);
        self.known(handle)?.mapped_at = Some(address);
        Ok(address)
    }

    pub(crate) fn free(&mut self, kind: MemoryKind, address: u64, bytes: u64) -> Refusable<()> {
        let range = self.reservations.get(&address).copied();
        let handle = match range {
            Some(Reservation {
                bytes: size,
                plain: Some(handle),
            }) if size == bytes => handle,
            _ => return invalid(format!("{} is not plain memory", span(address, bytes))),
        };
        let taken = self.known(handle)?.kind;
        if taken != kind {
            return invalid(format!("{} is {taken}, not {kind}", span(address, bytes)));
        }
        self.forget_mapping(address, handle);
        self.reservations.remove(&address);
        self.destroy(handle)
    }
}

pub(super) fn check_size(bytes: u64) -> Refusable<()> {
    if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
        return invalid(format!(
            "{bytes} bytes are not a multiple of the granularity of {GRANULARITY} bytes"
        ));
    }
    Ok(())
}

pub(super) fn span(address: u64, bytes: u64) -> String {
    format!("{address:#x} with {bytes} bytes")
}
