//! The tables of address ranges, physical memory and mappings.
//!
//! Every argument is checked here. This module does not know the costs of calls, locks, or the access to bytes.

use super::budget::Budget;
use super::bytes::Bytes;
use crate::builder::{Backing, GRANULARITY, Settings};
use std::collections::{BTreeMap, HashMap};
use weirpool_device::{DeviceAddress, DeviceErrorKind, MemoryKind, Peers};

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

/// The devices that may use memory, besides its own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Accessors {
    /// Those of this set.
    Only(Peers),
    /// Those that may use all plain memory of its device.
    OfPlain,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    pub(super) bytes: u64,
    pub(super) handle: u64,
    pub(super) accessors: Accessors,
    pub(super) is_read_only: bool,
}

#[derive(Debug)]
pub(super) struct Physical {
    bytes: u64,
    /// The device that it was taken from, by its number.
    pub(super) device: u32,
    pub(super) kind: MemoryKind,
    pub(super) mapped_at: Option<u64>,
    pub(super) store: Bytes,
    /// Another process took the memory: it counts there.
    pub(super) is_imported: bool,
}

/// What each device has of its own.
#[derive(Debug)]
struct Part {
    budget: Budget,
    base: u64,
    /// The address at which the search for free addresses continues.
    cursor: u64,
    /// The peers that may use its plain memory, as often as they were allowed to.
    plain_users: BTreeMap<u32, u64>,
}

/// The memory of all devices of a host, in one address space.
#[derive(Debug)]
pub(crate) struct Space {
    parts: Vec<Part>,
    pub(crate) host: Budget,
    pub(super) backing: Backing,
    pub(super) reservations: BTreeMap<u64, Reservation>,
    pub(super) mappings: BTreeMap<u64, Mapping>,
    pub(super) physical: HashMap<u64, Physical>,
    handles: u64,
}

impl Space {
    /// Creates the memory of `devices` devices, of which the first has the id `first`.
    pub(crate) fn new(first: u64, devices: u32, settings: &Settings) -> Self {
        let part = |number: u32| {
            let base = ((first + u64::from(number)) % DEVICES + 1) * ADDRESSES;
            Part {
                budget: Budget::new(settings.memory, settings.withheld, settings.unreported),
                base,
                cursor: base,
                plain_users: BTreeMap::new(),
            }
        };
        Self {
            parts: (0..devices).map(part).collect(),
            host: Budget::new(settings.host_memory, 0, 0),
            backing: settings.backing,
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            physical: HashMap::new(),
            handles: 0,
        }
    }

    fn part(&mut self, device: u32) -> &mut Part {
        &mut self.parts[device as usize]
    }

    /// Returns the budget from which memory of a kind is taken for a device.
    pub(crate) fn budget(&mut self, device: u32, kind: MemoryKind) -> &mut Budget {
        if kind.is_of_host() {
            &mut self.host
        } else {
            &mut self.part(device).budget
        }
    }

    /// Returns the device memory that is taken, now and at the peak.
    pub(crate) fn usage(&self, device: u32) -> (u64, u64) {
        self.parts[device as usize].budget.usage()
    }

    /// Returns the device memory that is taken of all devices, now and at the peaks.
    pub(crate) fn usage_of_all(&self) -> (u64, u64) {
        let all = self.parts.iter().map(|part| part.budget.usage());
        all.fold((0, 0), |sum, (now, peak)| (sum.0 + now, sum.1 + peak))
    }

    // ---- access of peers -------------------------------------------------------------------

    /// Returns whether a device may use memory behind a mapping, as far as that depends on whose it is.
    pub(super) fn may_use(&self, device: u32, mapping: &Mapping) -> bool {
        let physical = &self.physical[&mapping.handle];
        if physical.device == device || physical.kind != MemoryKind::Device {
            return true;
        }
        match mapping.accessors {
            Accessors::Only(peers) => peers.contains(device),
            Accessors::OfPlain => self.parts[physical.device as usize]
                .plain_users
                .contains_key(&device),
        }
    }

    /// Returns the device whose memory lies in a range and that another device may not use, if there is any.
    pub(crate) fn owner_without_access(&self, device: u32, start: u64, end: u64) -> Option<u32> {
        let below = self.mappings.range(..start).next_back();
        let below = below.filter(|(address, mapping)| *address + mapping.bytes > start);
        let inside = self.mappings.range(start..end.max(start));
        let mut all = below.into_iter().chain(inside);
        let foreign = all.find(|(_, mapping)| !self.may_use(device, mapping));
        foreign.map(|(_, mapping)| self.physical[&mapping.handle].device)
    }

    /// Returns whether plain memory lies at an address.
    pub(crate) fn is_plain_at(&self, address: u64) -> bool {
        let below = self.reservations.range(..=address).next_back();
        below.is_some_and(|(start, range)| range.plain.is_some() && address - start < range.bytes)
    }

    /// Returns each mapping of a device's memory, and whether a peer may use it.
    pub(crate) fn mapped_for(&self, device: u32, peer: u32) -> Vec<(DeviceAddress, bool)> {
        let mappings = self.mappings.iter();
        let own = mappings.filter(|(_, mapping)| self.physical[&mapping.handle].device == device);
        own.map(|(address, mapping)| ((*address).into(), self.may_use(peer, mapping)))
            .collect()
    }

    /// Sets whether a peer may use the memory that is mapped at exactly this range.
    pub(crate) fn set_access(
        &mut self,
        (address, bytes): (u64, u64),
        peer: u32,
        is_allowed: bool,
    ) -> Refusable<()> {
        match self.mappings.get_mut(&address) {
            Some(mapping) if mapping.bytes == bytes => {
                let others = match mapping.accessors {
                    Accessors::Only(peers) => peers.iter().filter(|other| *other != peer),
                    Accessors::OfPlain => {
                        return invalid(format!("{} is plain memory", span(address, bytes)));
                    }
                };
                let others = others.fold(Peers::NONE, Peers::with);
                mapping.accessors = Accessors::Only(if is_allowed {
                    others.with(peer)
                } else {
                    others
                });
                Ok(())
            }
            _ => invalid(format!("{} is not mapped", span(address, bytes))),
        }
    }

    /// Gives a block of one of the driver's pools the access that the pool's memory has.
    pub(crate) fn share_extent(&mut self, address: u64, peers: Peers) {
        if let Some(mapping) = self.mappings.get_mut(&address) {
            mapping.accessors = Accessors::Only(peers);
        }
    }

    pub(crate) fn allow_plain(&mut self, device: u32, peer: u32) {
        *self.part(device).plain_users.entry(peer).or_default() += 1;
    }

    pub(crate) fn forbid_plain(&mut self, device: u32, peer: u32) {
        let users = &mut self.part(device).plain_users;
        if let Some(times) = users.get_mut(&peer) {
            *times -= 1;
            if *times == 0 {
                users.remove(&peer);
            }
        }
    }

    // ---- address ranges --------------------------------------------------------------------

    pub(crate) fn reserve(&mut self, device: u32, bytes: u64) -> Refusable<u64> {
        check_size(bytes)?;
        let address = self.find_addresses(device, bytes)?;
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
    fn find_addresses(&mut self, device: u32, bytes: u64) -> Refusable<u64> {
        let Part { base, cursor, .. } = self.parts[device as usize];
        let end = base + ADDRESSES;
        let found = self
            .gap_from(cursor, end, bytes)
            .or_else(|| self.gap_from(base, end, bytes));
        let Some(address) = found else {
            return exhausted(format!(
                "no free address range of {bytes} bytes; free addresses, or reserve fewer"
            ));
        };
        self.part(device).cursor = address + bytes + GRANULARITY;
        Ok(address)
    }

    fn gap_from(&self, from: u64, end: u64, bytes: u64) -> Option<u64> {
        let mut candidate = from;
        // The range that `from` lies in may begin before it; the cursor never lies in one.
        for (&start, range) in self.reservations.range(from..end) {
            if candidate.checked_add(bytes)? < start {
                break;
            }
            candidate = start + range.bytes.next_multiple_of(GRANULARITY) + GRANULARITY;
        }
        (candidate.checked_add(bytes)? <= end).then_some(candidate)
    }

    // ---- physical memory -------------------------------------------------------------------

    pub(crate) fn create(&mut self, device: u32, kind: MemoryKind, bytes: u64) -> Refusable<u64> {
        check_size(bytes)?;
        let budget = self.budget(device, kind);
        let (free, total) = (budget.available(), budget.total());
        if bytes > free {
            return exhausted(format!(
                "{bytes} bytes of {kind} requested, but {free} of {total} are available"
            ));
        }
        budget.take(bytes);
        Ok(self.add_physical(device, kind, bytes, Bytes::default(), false))
    }

    pub(super) fn add_physical(
        &mut self,
        device: u32,
        kind: MemoryKind,
        bytes: u64,
        store: Bytes,
        is_imported: bool,
    ) -> u64 {
        self.handles += 1;
        let physical = Physical {
            bytes,
            device,
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
        let Physical {
            device,
            kind,
            bytes,
            is_imported,
            ..
        } = *physical;
        self.physical.remove(&handle);
        if !is_imported {
            self.budget(device, kind).give_back(bytes);
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
        let accessors = Accessors::Only(Peers::NONE);
        let mapping = Mapping {
            bytes,
            handle,
            accessors,
            is_read_only: false,
        };
        self.mappings.insert(address, mapping);
        Ok(())
    }

    pub(crate) fn map_read_only(&mut self, address: u64, handle: u64, bytes: u64) -> Refusable<()> {
        self.map(address, handle, bytes)?;
        let mapping = self.mappings.get_mut(&address);
        mapping.expect("it was just mapped").is_read_only = true;
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

    pub(crate) fn allocate(&mut self, device: u32, kind: MemoryKind, bytes: u64) -> Refusable<u64> {
        let Some(rounded) = bytes
            .checked_next_multiple_of(GRANULARITY)
            .filter(|&all| all > 0)
        else {
            return invalid(format!("invalid size of {bytes} bytes"));
        };
        let handle = self.create(device, kind, rounded)?;
        self.place_plain(device, handle, (bytes, rounded))
    }

    /// Gives plain memory its addresses; without them, it is given back.
    pub(super) fn place_plain(
        &mut self,
        device: u32,
        handle: u64,
        (bytes, rounded): (u64, u64),
    ) -> Refusable<u64> {
        let address = match self.find_addresses(device, rounded) {
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
            accessors: Accessors::OfPlain,
            is_read_only: false,
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
