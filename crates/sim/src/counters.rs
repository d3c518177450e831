//! The counters of the device: calls, their cost, operations and stalls.
//!
//! This module only adds up.

use super::call::Call;
use super::cost;
use std::time::Duration;
use weirpool_device::MemoryKind;

/// The calls in a row of the table.
const ROW: usize = 16;

/// A copy of the device's counters. All of them count from the creation of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Counters {
    /// Device calls of every kind, failed ones too. Watches and alarms are not device calls: a
    /// real backend waits by querying.
    pub device_calls: u64,
    /// The total cost of those calls to their threads on an H200.
    pub device_time: Duration,
    /// The part of [`device_time`](Self::device_time) that memory calls cost.
    pub memory_time: Duration,
    /// Operations that completed.
    pub operations: u64,
    /// Waits for an event that were put on a stream.
    pub device_waits: u64,
    /// How much later operations started because of waits on the device, for events or values, as a sum over all
    /// streams. A delay by the lack of a free place is not included.
    pub stall: Duration,
    /// Watches that were set.
    pub watches: u64,
    /// Alarms that were set.
    pub alarms: u64,
    /// Physical memory of the device that is taken now, in bytes.
    pub physical_in_use: u64,
    /// The most physical memory that was taken at any time, in bytes.
    pub physical_peak: u64,
    /// In rows, because the traits above are implemented for short arrays only.
    by_call: [[u64; ROW]; Call::ALL.len().div_ceil(ROW)],
}

impl Counters {
    /// Returns how often `call` was made, including failures.
    pub fn calls(&self, call: Call) -> u64 {
        self.by_call[call as usize / ROW][call as usize % ROW]
    }

    pub(super) fn charge(&mut self, call: Call, bytes: u64) {
        let cost = cost::of(call, bytes);
        self.by_call[call as usize / ROW][call as usize % ROW] += 1;
        self.device_calls += 1;
        self.device_time += cost;
        if call.is_memory_call() {
            self.memory_time += cost;
        }
    }

    /// Adds the cost of memory that the driver takes for one of its pools.
    pub(super) fn charge_for_growth(&mut self, bytes: u64) {
        let cost = cost::of(Call::Create, bytes) + cost::of(Call::Map, bytes);
        self.device_time += cost;
        self.memory_time += cost;
    }

    /// Adds the additional cost of plain memory of a kind to that of the call which takes or releases it.
    pub(super) fn charge_for_locking(&mut self, kind: MemoryKind, bytes: u64) {
        let cost = cost::of_locking(kind, bytes);
        self.device_time += cost;
        self.memory_time += cost;
    }
}
