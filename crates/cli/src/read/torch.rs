//! Snapshots of PyTorch's caching allocator: what `torch.cuda.memory._dump_snapshot` writes, a pickle.
//!
//! Of `device_traces` the events `alloc` and `free_requested` are replayed, since that is when the
//! program asks for memory and when it gives it back. `free_completed` is when PyTorch's allocator has
//! seen its streams pass the free: here that is the pool's business, as segments are. `segments` tell
//! what was allocated before the recording began; that has no event, so it is counted and left out.

use super::addresses::Addresses;
use super::clock::{Clock, Reading};
use super::lines::{broken, shortened};
use super::note::Note;
use super::{AtPlace, Recording};
use crate::fault::{Fault, Place};
use crate::trace::{Builder, LARGEST_SIZE, Op, Row};
use serde::Deserialize;
use serde_pickle::DeOptions;
use std::io::Read;

/// With what a pickle of protocol 2 or later begins; those before cannot be told from text, and are
/// not what Python 3 writes.
pub(super) const MAGIC: u8 = 0x80;
/// Between events of old snapshots, which have no times.
const APART_US: u64 = 10;

/// The trace of device `device` in a snapshot, or of the first one on which anything is allocated.
pub(super) fn parse(
    source: impl Read,
    name: &str,
    device: Option<usize>,
) -> Result<Recording, AtPlace> {
    let whole = |fault| (Place::File, fault);
    let snapshot = unpickled(source).map_err(whole)?;
    let recorded = snapshot.recorded_devices();
    let device = chosen(&recorded, device).map_err(whole)?;
    let mut replayed = Replayed::new(&snapshot.device_traces[device]);
    for (index, event) in snapshot.device_traces[device].iter().enumerate() {
        let place = Place::Event { device, index };
        let taken = replayed.take(event, place);
        taken.map_err(|fault| (place, fault))?;
    }
    let notes = replayed.notes(&snapshot.segments, device, &recorded);
    let trace = replayed.builder.finish(name).map_err(whole)?;
    Ok(Recording { trace, notes })
}

/// What is read of a snapshot. Newer versions add keys, and stacks are of no use here.
#[derive(Deserialize)]
struct Snapshot {
    #[serde(default)]
    segments: Vec<Segment>,
    device_traces: Vec<Vec<Event>>,
}

#[derive(Deserialize)]
struct Segment {
    #[serde(default)]
    device: usize,
    address: i64,
    blocks: Vec<BlockOfSegment>,
}

/// Blocks tile their segment.
#[derive(Deserialize)]
struct BlockOfSegment {
    size: u64,
    state: String,
}

/// An `oom` has no `addr`, and in old snapshots nothing has a time.
#[derive(Deserialize)]
struct Event {
    action: String,
    addr: Option<i64>,
    size: Option<i64>,
    stream: Option<i64>,
    time_us: Option<u64>,
}

impl Event {
    fn op(&self) -> Option<Op> {
        match self.action.as_str() {
            "alloc" => Some(Op::Allocate),
            "free_requested" => Some(Op::Free),
            _ => None,
        }
    }
}

impl Snapshot {
    fn recorded_devices(&self) -> Vec<usize> {
        let has_any = |events: &[Event]| events.iter().any(|event| event.action == "alloc");
        let devices = self.device_traces.iter().enumerate();
        let recorded = devices.filter(|(_, events)| has_any(events));
        recorded.map(|(device, _)| device).collect()
    }
}

fn unpickled(source: impl Read) -> Result<Snapshot, Fault> {
    // PyTorch shares stacks between events. What is shared within something shared is given once
    // only, and is taken for a recursion after that; stacks are not looked at, so anything will do.
    let options = DeOptions::new().replace_recursive_structures();
    serde_pickle::from_reader(source, options).map_err(|error| match error {
        serde_pickle::Error::Io(error) => broken(&error),
        serde_pickle::Error::Eval(..) => Fault::Pickle {
            reason: shortened(&error.to_string()),
        },
        serde_pickle::Error::Syntax(code) => Fault::Snapshot {
            reason: shortened(&code.to_string()),
        },
    })
}

fn chosen(recorded: &[usize], wish: Option<usize>) -> Result<usize, Fault> {
    let first = recorded.first().ok_or(Fault::NoRecording)?;
    let device = wish.unwrap_or(*first);
    if recorded.contains(&device) {
        return Ok(device);
    }
    let recorded = listed(recorded);
    Err(Fault::OtherDevice { device, recorded })
}

fn listed(devices: &[usize]) -> String {
    let devices: Vec<_> = devices.iter().map(usize::to_string).collect();
    devices.join(", ")
}

/// The events of a device as far as they were taken.
#[derive(Default)]
struct Replayed {
    builder: Builder,
    addresses: Addresses,
    clock: Clock,
    has_times: bool,
    taken: u64,
    unknown_frees: u64,
    empty: u64,
}

impl Replayed {
    fn new(events: &[Event]) -> Self {
        let mut replayed = events.iter().filter(|event| event.op().is_some());
        Self {
            has_times: replayed.all(|event| event.time_us.is_some()),
            ..Self::default()
        }
    }

    fn take(&mut self, event: &Event, place: Place) -> Result<(), Fault> {
        let Some(op) = event.op() else {
            return Ok(());
        };
        let time_us = self.time(event)?;
        let address = present("addr", event.addr)? as u64;
        let stream = present("stream", event.stream)? as u64;
        let bytes = size(present("size", event.size)?)?;
        let id = match op {
            _ if bytes == 0 => {
                self.empty += 1;
                return Ok(());
            }
            Op::Allocate => self.addresses.allocate(address, bytes, place)?,
            Op::Free => match self.addresses.free(address) {
                Some(live) => live.id,
                None => {
                    self.unknown_frees += 1;
                    return Ok(());
                }
            },
        };
        self.push(op, id, bytes, stream, time_us)
    }

    fn push(
        &mut self,
        op: Op,
        id: u64,
        bytes: u64,
        stream: u64,
        time_us: u64,
    ) -> Result<(), Fault> {
        self.taken += 1;
        self.builder.push(Row {
            line: self.taken,
            time_us,
            op,
            id,
            // Some versions have the size that was asked for at the one, and the rounded one at the
            // other.
            bytes: if op == Op::Free { 0 } else { bytes },
            stream,
        })
    }

    fn time(&mut self, event: &Event) -> Result<u64, Fault> {
        match event.time_us {
            Some(time_us) if self.has_times => self.clock.advance(Reading::Since(time_us)),
            _ => Ok(self.taken * APART_US),
        }
    }

    fn notes(&self, segments: &[Segment], device: usize, recorded: &[usize]) -> Vec<Note> {
        let (blocks, bytes) = self.earlier(segments, device);
        let others: Vec<_> = recorded
            .iter()
            .copied()
            .filter(|at| *at != device)
            .collect();
        let others = listed(&others);
        let (frees, empty) = (self.unknown_frees, self.empty);
        let notes = [
            (recorded.len() > 1, Note::OneDevice { device, others }),
            (!self.has_times, Note::NoTimes { apart_us: APART_US }),
            (frees > 0, Note::UnknownFrees(frees)),
            (blocks > 0, Note::EarlierBlocks { blocks, bytes }),
            (empty > 0, Note::Empty(empty)),
        ];
        let said = notes.into_iter().filter(|(is_so, _)| *is_so);
        said.map(|(_, note)| note).collect()
    }

    /// How many blocks of `segments` are used that no event allocated, and their bytes.
    fn earlier(&self, segments: &[Segment], device: usize) -> (u64, u64) {
        let (mut blocks, mut bytes) = (0, 0_u64);
        for segment in segments.iter().filter(|segment| segment.device == device) {
            let mut address = segment.address as u64;
            for block in &segment.blocks {
                let is_used = block.state == "active_allocated";
                if is_used && !self.addresses.is_live(address) {
                    blocks += 1;
                    bytes = bytes.saturating_add(block.size);
                }
                address = address.wrapping_add(block.size);
            }
        }
        (blocks, bytes)
    }
}

fn present(key: &'static str, value: Option<i64>) -> Result<i64, Fault> {
    value.ok_or_else(|| Fault::Value {
        key,
        found: "missing".to_owned(),
        expected: "it in each `alloc` and `free_requested`",
    })
}

fn size(value: i64) -> Result<u64, Fault> {
    let size = u64::try_from(value).ok();
    size.filter(|size| *size <= LARGEST_SIZE)
        .ok_or_else(|| Fault::Value {
            key: "size",
            found: value.to_string(),
            expected: "bytes, of 2^48 at most",
        })
}

#[cfg(test)]
mod tests;
