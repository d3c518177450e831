//! The memory pools of the simulated driver: which memory each holds, and which devices may use it.
//!
//! A small model of CUDA's pools. A block is a whole *extent*: plain memory of whole steps of the device, which the
//! pool keeps when the block is freed. This module knows no streams: its caller tells it whether a stream may take an
//! extent.

use super::names::Names;
use super::schedule::Point;
use std::collections::BTreeMap;
use weirpool_device::{
    Access, DriverPoolProperties, Peers, PoolAttribute, RawEvent, RawPool, RawStream,
};

/// The point at which an extent was freed, and an event recorded there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Freed {
    pub(super) stream: RawStream,
    pub(super) point: Point,
    pub(super) event: RawEvent,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Extent {
    /// A live block has it.
    Used,
    /// A block was freed, and its stream may not have passed the free.
    Pending(Freed),
    /// Complete, and known to be.
    Free,
}

/// A number and the highest that it was.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    current: u64,
    high: u64,
}

impl Level {
    fn add(&mut self, bytes: u64) {
        self.current += bytes;
        self.high = self.high.max(self.current);
    }
}

#[derive(Debug)]
pub(super) struct SimPool {
    /// The number of its device.
    pub(super) device: u32,
    pub(super) properties: DriverPoolProperties,
    pub(super) is_default: bool,
    /// Its blocks lie here, if it can be shared.
    #[cfg(target_os = "linux")]
    pub(super) file: Option<super::memory::PoolFile>,
    /// Its blocks by address, if it is imported, until their frees are known to be complete.
    #[cfg(target_os = "linux")]
    pub(super) imported: BTreeMap<u64, super::memory::Imported>,
    /// Another process created it: nothing is allocated from it.
    pub(super) is_imported: bool,
    /// It goes with its last block.
    pub(super) is_destroyed: bool,
    /// Extents by address, with their bytes.
    pub(super) extents: BTreeMap<u64, (u64, Extent)>,
    pub(super) follows_events: bool,
    pub(super) is_opportunistic: bool,
    pub(super) adds_dependencies: bool,
    pub(super) threshold: u64,
    access: BTreeMap<u32, Access>,
    reserved: Level,
    used: Level,
}

impl SimPool {
    pub(super) fn new(properties: DriverPoolProperties, is_default: bool, device: u32) -> Self {
        Self {
            device,
            properties,
            is_default,
            #[cfg(target_os = "linux")]
            file: None,
            #[cfg(target_os = "linux")]
            imported: BTreeMap::new(),
            is_imported: false,
            is_destroyed: false,
            extents: BTreeMap::new(),
            follows_events: true,
            is_opportunistic: true,
            adds_dependencies: true,
            threshold: 0,
            access: [(device, Access::ReadWrite)].into(),
            reserved: Level::default(),
            used: Level::default(),
        }
    }

    /// Returns the smallest extent of at least this many bytes that `may_take` accepts.
    pub(super) fn best(&self, bytes: u64, may_take: impl Fn(Extent) -> bool) -> Option<u64> {
        let fitting = self.extents.iter().filter(|(_, (size, extent))| {
            let is_used = matches!(extent, Extent::Used);
            *size >= bytes && !is_used && may_take(*extent)
        });
        let best = fitting.min_by_key(|(_, (size, _))| *size);
        best.map(|(address, _)| *address)
    }

    /// Returns how many bytes the pool may still reserve.
    pub(super) fn left(&self) -> u64 {
        match self.properties.max_size {
            0 => u64::MAX,
            most => most.saturating_sub(self.reserved.current),
        }
    }

    /// Adds memory of the device.
    pub(super) fn grow(&mut self, address: u64, bytes: u64) {
        self.extents.insert(address, (bytes, Extent::Free));
        self.reserved.add(bytes);
    }

    /// Makes an extent a block, and returns its earlier state.
    pub(super) fn take(&mut self, address: u64) -> Extent {
        let (bytes, extent) = self.extents.get_mut(&address).expect("an extent");
        self.used.add(*bytes);
        std::mem::replace(extent, Extent::Used)
    }

    /// Ends a block. Returns whether there was one.
    pub(super) fn free(&mut self, address: u64, becomes: Extent) -> bool {
        match self.extents.get_mut(&address) {
            Some((bytes, extent @ Extent::Used)) => {
                *extent = becomes;
                self.used.current -= *bytes;
                #[cfg(target_os = "linux")]
                if matches!(becomes, Extent::Free) {
                    self.imported.remove(&address);
                }
                true
            }
            _ => false,
        }
    }

    pub(super) fn has_block(&self, address: u64) -> bool {
        matches!(self.extents.get(&address), Some((_, Extent::Used)))
    }

    /// Returns whether no block lives.
    pub(super) fn is_unused(&self) -> bool {
        self.used.current == 0
    }

    /// Frees the pending extents that are complete. Returns their events.
    pub(super) fn settle(&mut self, is_complete: impl Fn(Point) -> bool) -> Vec<RawEvent> {
        let extents = self.extents.iter_mut();
        let complete = extents.filter_map(|(_address, (_, extent))| match *extent {
            Extent::Pending(freed) if is_complete(freed.point) => {
                *extent = Extent::Free;
                #[cfg(target_os = "linux")]
                self.imported.remove(_address);
                Some(freed.event)
            }
            _ => None,
        });
        complete.collect()
    }

    /// Takes free extents out, the highest first, until `keep` bytes are reserved. Returns their addresses and bytes.
    pub(super) fn release(&mut self, keep: u64) -> Vec<(u64, u64)> {
        let free = self.extents.iter().rev();
        let free = free.filter(|(_, (_, extent))| matches!(extent, Extent::Free));
        let mut released = Vec::new();
        for (address, (bytes, _)) in free {
            if self.reserved.current < keep.saturating_add(*bytes) {
                continue;
            }
            self.reserved.current -= bytes;
            released.push((*address, *bytes));
        }
        for (address, _) in &released {
            self.extents.remove(address);
        }
        released
    }

    pub(super) fn attribute(&self, attribute: PoolAttribute) -> u64 {
        match attribute {
            PoolAttribute::ReuseFollowEventDependencies => self.follows_events.into(),
            PoolAttribute::ReuseAllowOpportunistic => self.is_opportunistic.into(),
            PoolAttribute::ReuseAllowInternalDependencies => self.adds_dependencies.into(),
            PoolAttribute::ReleaseThreshold => self.threshold,
            PoolAttribute::ReservedMemCurrent => self.reserved.current,
            PoolAttribute::ReservedMemHigh => self.reserved.high,
            PoolAttribute::UsedMemCurrent => self.used.current,
            PoolAttribute::UsedMemHigh => self.used.high,
        }
    }

    /// Sets an attribute. Returns whether it can be set to the value.
    pub(super) fn set_attribute(&mut self, attribute: PoolAttribute, value: u64) -> bool {
        match attribute {
            PoolAttribute::ReuseFollowEventDependencies => self.follows_events = value != 0,
            PoolAttribute::ReuseAllowOpportunistic => self.is_opportunistic = value != 0,
            PoolAttribute::ReuseAllowInternalDependencies => self.adds_dependencies = value != 0,
            PoolAttribute::ReleaseThreshold => self.threshold = value,
            PoolAttribute::ReservedMemHigh if value == 0 => {
                self.reserved.high = self.reserved.current;
            }
            PoolAttribute::UsedMemHigh if value == 0 => self.used.high = self.used.current,
            _ => return false,
        }
        true
    }

    pub(super) fn access(&self, device: u32) -> Access {
        self.access.get(&device).copied().unwrap_or_default()
    }

    /// Returns the devices that may use the memory, besides the pool's own.
    pub(super) fn peers(&self) -> Peers {
        let allowed = self
            .access
            .iter()
            .filter(|(_, access)| **access != Access::None);
        allowed.fold(Peers::NONE, |peers, (device, _)| peers.with(*device))
    }

    pub(super) fn set_access(&mut self, device: u32, access: Access) {
        self.access.insert(device, access);
    }
}

/// The pools of all devices of a host.
#[derive(Debug)]
pub(super) struct SimPools {
    pub(super) names: Names<SimPool>,
    /// The default pool of each device, created when it is first requested.
    pub(super) default: BTreeMap<u32, RawPool>,
}

impl SimPools {
    pub(super) fn new(device: weirpool_device::DeviceId) -> Self {
        Self {
            names: Names::new(device),
            default: BTreeMap::new(),
        }
    }
}
