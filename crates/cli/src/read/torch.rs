//! Snapshots of PyTorch's caching allocator: the pickle that `torch.cuda.memory._dump_snapshot` writes.
//!
//! The events `alloc` and `free_requested` of `device_traces` are replayed: at these moments the program requests and
//! frees memory. PyTorch's allocator adds `free_completed` once its streams have passed the free; in a replay the pool
//! does that, and it maps segments. `segments` lists the blocks that were allocated before the recording began. They
//! have no event, so they are counted and left out.

use super::addresses::Addresses;
use super::clock::{Clock, Reading};
use super::note::Note;
use super::pickle::{self, Pickle, Value, Word};
use super::{AtLocation, Recording, Request};
use crate::trace::fault::{Fault, Location};
use crate::trace::limits::{ALLOCATION_BYTES, Limits};
use crate::trace::{Builder, Op, Row, steps};
use std::io::BufRead;

/// The time between events of old snapshots, which have no times.
const APART_US: u64 = 10;

/// Parses the trace of the requested device in a snapshot, or of the first one with an allocation.
pub(super) fn parse(
    source: impl BufRead,
    name: &str,
    request: Request,
) -> Result<Recording, AtLocation> {
    let whole = |fault| (Location::File, fault);
    let snapshot = Snapshot {
        pickle: pickle::decode(source, request.limits.pickle_bytes)?,
    };
    let traces = snapshot.device_traces().map_err(whole)?;
    let recorded = snapshot.recorded_devices(&traces).map_err(whole)?;
    let device = chosen(&recorded, request.device).map_err(whole)?;
    let events = traces[device];
    let mut replayed = Replayed::new(request.limits, snapshot.has_times(events));
    for (index, event) in events.iter().enumerate() {
        let location = Location::Event { device, index };
        let event = snapshot.event(*event);
        let taken =
            event.and_then(|event| event.map_or(Ok(()), |event| replayed.take(event, location)));
        taken.map_err(|fault| (location, fault))?;
    }
    let earlier = snapshot.earlier(device, &replayed.addresses);
    let notes = replayed.notes(earlier.map_err(whole)?, device, &recorded);
    let trace = replayed.builder.finish(name).map_err(whole)?;
    Ok(Recording { trace, notes })
}

/// The items that one pass over a snapshot may look at: as many as the snapshot has bytes, since an item takes a byte at
/// least where it is not shared. Lists that refer to one list many times have items without end.
struct Pass {
    left: u64,
}

impl Pass {
    fn take(&mut self) -> Result<(), Fault> {
        steps::take(1);
        let left = self.left.checked_sub(1);
        self.left = left.ok_or_else(|| {
            unlike("it repeats one list so often that it has more items than bytes")
        })?;
        Ok(())
    }
}

/// A decoded snapshot. Newer versions of PyTorch add keys, and stacks are not read.
struct Snapshot {
    pickle: Pickle,
}

/// An allocation, or a request to free one.
#[derive(Clone, Copy, Debug)]
struct Event {
    op: Op,
    address: u64,
    bytes: u64,
    stream: u64,
    time_us: Option<u64>,
}

impl Snapshot {
    fn pass(&self) -> Pass {
        Pass {
            left: self.pickle.bytes(),
        }
    }

    /// Returns the events of each device.
    fn device_traces(&self) -> Result<Vec<&[Value]>, Fault> {
        let traces = self.pickle.get(self.pickle.root(), Word::DeviceTraces);
        let traces = traces.and_then(|traces| self.pickle.items(traces));
        let traces = traces.ok_or_else(|| unlike("it has no list `device_traces`"))?;
        let events = traces.iter().map(|events| self.pickle.items(*events));
        let events: Option<Vec<_>> = events.collect();
        events.ok_or_else(|| unlike("an item of `device_traces` is not a list"))
    }

    fn op(&self, event: Value) -> Option<Op> {
        match self.pickle.get(event, Word::Action)? {
            Value::Word(Word::Alloc) => Some(Op::Allocate),
            Value::Word(Word::FreeRequested) => Some(Op::Free),
            _ => None,
        }
    }

    fn recorded_devices(&self, traces: &[&[Value]]) -> Result<Vec<usize>, Fault> {
        let mut recorded = Vec::new();
        let mut pass = self.pass();
        for (device, events) in traces.iter().enumerate() {
            for event in *events {
                pass.take()?;
                if self.op(*event) == Some(Op::Allocate) {
                    recorded.push(device);
                    break;
                }
            }
        }
        Ok(recorded)
    }

    /// Returns whether each event that is replayed has a time.
    fn has_times(&self, events: &[Value]) -> bool {
        let mut replayed = events.iter().filter(|event| self.op(**event).is_some());
        replayed.all(|event| self.pickle.get(*event, Word::TimeUs).is_some())
    }

    /// Returns an event; `None` for one that is not replayed.
    fn event(&self, event: Value) -> Result<Option<Event>, Fault> {
        if self.pickle.get(event, Word::Action).is_none() {
            return Err(unlike("an event has no `action`"));
        }
        let Some(op) = self.op(event) else {
            return Ok(None);
        };
        let time = self.pickle.get(event, Word::TimeUs);
        let time_us = time.map(|_| self.number(event, "time_us", Word::TimeUs));
        Ok(Some(Event {
            op,
            time_us: time_us.transpose()?.map(|time_us| time_us as u64),
            address: self.number(event, "addr", Word::Addr)? as u64,
            stream: self.number(event, "stream", Word::Stream)? as u64,
            bytes: size(self.number(event, "size", Word::Size)?)?,
        }))
    }

    fn number(&self, event: Value, key: &'static str, word: Word) -> Result<i64, Fault> {
        let found = match self.pickle.get(event, word) {
            Some(Value::Int(number)) => return Ok(number),
            Some(_) => "of another type",
            None => "missing",
        };
        Err(Fault::Value {
            key,
            found: found.to_owned(),
            expected: "a whole number in each `alloc` and `free_requested`",
        })
    }

    /// Returns the number and the bytes of the blocks of a device that are used but have no event.
    fn earlier(&self, device: usize, addresses: &Addresses) -> Result<(u64, u64), Fault> {
        let (mut count, mut bytes) = (0, 0_u64);
        let Some(segments) = self.pickle.get(self.pickle.root(), Word::Segments) else {
            return Ok((0, 0));
        };
        let segments = self.pickle.items(segments);
        let mut pass = self.pass();
        for segment in segments.ok_or_else(|| unlike("`segments` is not a list"))? {
            let number = |value, word| match self.pickle.get(value, word) {
                Some(Value::Int(number)) => Some(number as u64),
                _ => None,
            };
            if number(*segment, Word::Device).unwrap_or(0) != device as u64 {
                continue;
            }
            let blocks = self.pickle.get(*segment, Word::Blocks);
            let blocks = blocks.and_then(|blocks| self.pickle.items(blocks));
            let (Some(mut address), Some(blocks)) = (number(*segment, Word::Address), blocks)
            else {
                return Err(unlike("a segment has no `address` or no list `blocks`"));
            };
            for block in blocks {
                pass.take()?;
                let size = number(*block, Word::Size);
                let size = size.ok_or_else(|| unlike("a block has no `size`"))?;
                let used = Some(Value::Word(Word::ActiveAllocated));
                if self.pickle.get(*block, Word::State) == used && !addresses.is_live(address) {
                    count += 1;
                    bytes = bytes.saturating_add(size);
                }
                address = address.wrapping_add(size);
            }
        }
        Ok((count, bytes))
    }
}

fn unlike(reason: &str) -> Fault {
    let reason = reason.to_owned();
    Fault::Snapshot { reason }
}

fn size(value: i64) -> Result<u64, Fault> {
    let size = u64::try_from(value).ok();
    size.filter(|size| *size <= ALLOCATION_BYTES)
        .ok_or_else(|| Fault::Value {
            key: "size",
            found: value.to_string(),
            expected: "at most 2^48 bytes",
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

/// The events of a device that were taken so far.
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
    fn new(limits: Limits, has_times: bool) -> Self {
        Self {
            builder: Builder::new(limits),
            addresses: Addresses::default(),
            clock: Clock::default(),
            has_times,
            taken: 0,
            unknown_frees: 0,
            empty: 0,
        }
    }

    fn take(&mut self, event: Event, location: Location) -> Result<(), Fault> {
        let time_us = match event.time_us {
            Some(time_us) if self.has_times => self.clock.advance(Reading::Since(time_us))?,
            _ => self.taken * APART_US,
        };
        let Event {
            op,
            address,
            bytes,
            stream,
            ..
        } = event;
        if bytes == 0 {
            self.empty += 1;
            return Ok(());
        }
        let id = match op {
            Op::Allocate => self.addresses.allocate(address, bytes, location)?,
            Op::Free => match self.addresses.free(address) {
                Some(live) => live.id,
                None => {
                    self.unknown_frees += 1;
                    return Ok(());
                }
            },
        };
        self.taken += 1;
        self.builder.push(Row {
            line: self.taken,
            time_us,
            op,
            id,
            // Some versions repeat the requested size here, and others the rounded one.
            bytes: if op == Op::Free { 0 } else { bytes },
            stream,
        })
    }

    fn notes(&self, earlier: (u64, u64), device: usize, recorded: &[usize]) -> Vec<Note> {
        let (blocks, bytes) = earlier;
        let others = recorded.iter().copied().filter(|at| *at != device);
        let others = listed(&others.collect::<Vec<_>>());
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
}

#[cfg(test)]
mod tests;
