//! A spy around the device that keeps vector clocks of its own, from the calls that it sees. It shares no code with the
//! pool or with the checker of the simulator.

use crate::common::pass_on;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use weirpool::device::sim::SimDevice;
use weirpool::device::*;

/// Work of each stream that is known to come before, by number.
type Clock = HashMap<RawStream, u64>;

fn join(into: &mut Clock, other: &Clock) {
    for (stream, number) in other {
        let known = into.entry(*stream).or_default();
        *known = (*known).max(*number);
    }
}

/// One use of a range of memory by one owner.
struct Use {
    start: u64,
    end: u64,
    owner: u64,
    stream: RawStream,
    number: u64,
}

/// What happened before what, from the calls of the device alone.
#[derive(Default)]
pub(super) struct Oracle {
    streams: HashMap<RawStream, Clock>,
    events: HashMap<RawEvent, Clock>,
    /// Work that the host has seen complete.
    host: Clock,
    uses: Vec<Use>,
    pub(super) checked: u64,
    pub(super) violations: Vec<String>,
}

impl Oracle {
    fn record(&mut self, event: RawEvent, stream: RawStream) {
        let clock = self.streams.get(&stream).cloned().unwrap_or_default();
        self.events.insert(event, clock);
    }

    fn complete(&mut self, event: RawEvent) {
        if let Some(clock) = self.events.get(&event) {
            join(&mut self.host, clock);
        }
    }

    fn wait(&mut self, stream: RawStream, event: RawEvent) {
        if let Some(clock) = self.events.get(&event) {
            join(self.streams.entry(stream).or_default(), clock);
        }
    }

    /// The owner uses a range with new work of the stream.
    pub(super) fn use_range(&mut self, owner: u64, stream: RawStream, start: u64, end: u64) {
        let clock = self.streams.entry(stream).or_default();
        join(clock, &self.host);
        let number = clock.get(&stream).copied().unwrap_or_default() + 1;
        clock.insert(stream, number);
        let clock = clock.clone();
        let earlier = |known: &Use| known.owner != owner && known.start < end && start < known.end;
        for other in self.uses.iter().filter(|known| earlier(known)) {
            self.checked += 1;
            let is_known = clock
                .get(&other.stream)
                .is_some_and(|seen| *seen >= other.number);
            if !is_known {
                self.violations.push(format!(
                    "owner {owner} uses {start:#x}..{end:#x} on {stream}, not ordered after work {} of owner {} on {}",
                    other.number, other.owner, other.stream
                ));
            }
        }
        // What the host has seen complete comes before everything.
        let host = &self.host;
        self.uses.retain(|known| {
            host.get(&known.stream)
                .is_none_or(|seen| *seen < known.number)
        });
        self.uses.push(Use {
            start,
            end,
            owner,
            stream,
            number,
        });
    }
}

/// The simulated device, and the oracle that sees its calls.
#[derive(Clone)]
pub(super) struct Spy {
    pub(super) device: SimDevice,
    pub(super) oracle: Arc<Mutex<Oracle>>,
    /// Waits are accepted and not made: what an oracle must notice.
    pub(super) leaves_out_waits: bool,
}

impl std::fmt::Debug for Spy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Spy")
    }
}

// SAFETY: every call is passed on to the simulated device.
unsafe impl Device for Spy {
    pass_on! {
        |spy| &spy.device =>
        id, describe, capabilities, block_observer, memory_info, now, set_alarm, cancel_alarm, reserve, unreserve, create,
        destroy, map, unmap, allocate, free, host_pointer, create_stream, destroy_stream, is_abandoned, create_event,
        destroy_event, watch, unwatch, upload, download, fill,
    }

    unsafe fn record(&self, event: RawEvent, stream: RawStream) -> Result<(), DeviceError> {
        let mut oracle = self.oracle.lock().unwrap();
        self.device.record(event, stream)?;
        oracle.record(event, stream);
        Ok(())
    }

    unsafe fn query(&self, event: RawEvent) -> Result<bool, DeviceError> {
        let mut oracle = self.oracle.lock().unwrap();
        let is_complete = self.device.query(event)?;
        if is_complete {
            oracle.complete(event);
        }
        Ok(is_complete)
    }

    unsafe fn wait(&self, stream: RawStream, event: RawEvent) -> Result<(), DeviceError> {
        if self.leaves_out_waits {
            return Ok(());
        }
        let mut oracle = self.oracle.lock().unwrap();
        self.device.wait(stream, event)?;
        oracle.wait(stream, event);
        Ok(())
    }
}
