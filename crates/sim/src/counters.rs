//! What the device counted: calls, their cost, operations, stalls.
//!
//! Only adds up; knows nothing of what is counted.

use super::call::Call;
use super::cost;
use std::time::Duration;
use weirpool_device::MemoryKind;

/// A copy of the device's counters; all run from the device's making.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Counters {
    /// Device calls of every kind, failed ones too. Watches and alarms are not device calls: a
    /// real backend waits by querying.
    pub device_calls: u64,
    /// What those calls would have cost their threads on an H200, in sum.
    pub device_time: Duration,
    /// The part of it that memory calls cost.
    pub memory_time: Duration,
    /// Operations that completed.
    pub operations: u64,
    /// Waits for an event that were put on a stream.
    pub device_waits: u64,
    /// By how much waits on the device, for events or values, made operations start later, in sum
    /// over all streams. Lateness for lack of a place is not part of it.
    pub stall: Duration,
    /// Watches that were set.
    pub watches: u64,
    /// Alarms that were set.
    pub alarms: u64,
    /// Physical memory of the device taken now, in bytes.
    pub physical_in_use: u64,
    /// The most that was taken at any time, in bytes.
    pub physical_peak: u64,
    by_call: [u64; Call::ALL.len()],
}

impl Counters {
    /// How often `call` was made, failures included.
    pub fn calls(&self, call: Call) -> u64 {
        self.by_call[call as usize]
    }

    pub(super) fn charge(&mut self, call: Call, bytes: u64) {
        let cost = cost::of(call, bytes);
        self.by_call[call as usize] += 1;
        self.device_calls += 1;
        self.device_time += cost;
        if call.is_memory_call() {
            self.memory_time += cost;
        }
    }

    /// What plain memory of a kind costs beside the call that takes or gives it.
    pub(super) fn charge_for_locking(&mut self, kind: MemoryKind, bytes: u64) {
        let cost = cost::of_locking(kind, bytes);
        self.device_time += cost;
        self.memory_time += cost;
    }
}
