//! The counters of the device: calls, their cost, operations and stalls.
//!
//! This module only adds up.

use super::call::Call;
use super::cost;
use std::time::Duration;
use weirpool_device::MemoryKind;

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
    by_call: ByCall,
}

/// A number for each call, in the order of [`Call::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "Vec<u64>", into = "Vec<u64>"))]
struct ByCall([u64; Call::ALL.len()]);

impl Default for ByCall {
    fn default() -> Self {
        Self([0; Call::ALL.len()])
    }
}

/// Numbers of calls that are missing, from an earlier version, are 0.
impl From<Vec<u64>> for ByCall {
    fn from(numbers: Vec<u64>) -> Self {
        let mut all = Self::default();
        all.0
            .iter_mut()
            .zip(numbers)
            .for_each(|(all, number)| *all = number);
        all
    }
}

impl From<ByCall> for Vec<u64> {
    fn from(all: ByCall) -> Self {
        all.0.to_vec()
    }
}

impl Counters {
    /// Returns how often `call` was made, including failures.
    pub fn calls(&self, call: Call) -> u64 {
        self.by_call.0[call as usize]
    }

    pub(super) fn charge(&mut self, call: Call, bytes: u64) {
        let cost = cost::of(call, bytes);
        self.by_call.0[call as usize] += 1;
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
