//! An export for PyTorch's viewer of memory snapshots: a pickle with the contents of `torch.cuda.memory._snapshot()`.
//!
//! The keys and their types are those of PyTorch 2 (`torch/csrc/cuda/memory_snapshot.cpp`). The viewer has its own
//! unpickler, which reads a number as a JavaScript number only if it is written as a signed 64-bit integer. The viewer
//! starts from the snapshot and undoes the history: a block whose free it undoes must be in the snapshot, and mapped
//! ranges must be inside segments.

use super::pieces::{LastFrees, Piece};
use crate::{History, HistoryEntry, HistoryEvent};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::ops::Range;
use weirpool::device::DeviceAddress;
use weirpool::extend::{BlockOrigin, Site};
use weirpool::{BlockInfo, BlockState, SegmentInfo, Snapshot, StreamId};

/// A pool has one device, which becomes device 0.
const DEVICE: i64 = 0;
/// A segment belongs to no stream.
const NO_STREAM: i64 = 0;

#[derive(Serialize)]
struct Picture<'a> {
    segments: Vec<Segment<'a>>,
    device_traces: Vec<Vec<Trace<'a>>>,
    allocator_settings: Settings,
    external_annotations: Vec<()>,
}

#[derive(Serialize)]
struct Segment<'a> {
    device: i64,
    address: i64,
    total_size: i64,
    allocated_size: i64,
    active_size: i64,
    requested_size: i64,
    stream: i64,
    segment_type: &'static str,
    segment_pool_id: (i64, i64),
    is_expandable: bool,
    frames: Vec<Frame<'a>>,
    blocks: Vec<Block<'a>>,
}

#[derive(Serialize)]
struct Block<'a> {
    address: i64,
    size: i64,
    requested_size: i64,
    state: &'static str,
    frames: Vec<Frame<'a>>,
}

/// A location in the source. The only frame of a stack, since no other is recorded.
#[derive(Clone, Serialize)]
struct Frame<'a> {
    name: &'static str,
    filename: &'a str,
    line: i64,
}

#[derive(Serialize)]
struct Trace<'a> {
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    addr: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_free: Option<i64>,
    size: i64,
    stream: i64,
    time_us: i64,
    frames: Vec<Frame<'a>>,
}

/// The settings of PyTorch's allocator.
#[derive(Serialize)]
struct Settings {
    #[serde(rename = "PYTORCH_CUDA_ALLOC_CONF")]
    configuration: &'static str,
    max_split_size: i64,
    garbage_collection_threshold: f64,
    expandable_segments: bool,
    pinned_num_register_threads: i64,
    release_lock_on_cudamalloc: bool,
    pinned_use_cuda_host_register: bool,
    roundup_power2_divisions: BTreeMap<String, i64>,
}

/// Writes the snapshot with its history as a pickle with the contents of `torch.cuda.memory._snapshot()`. PyTorch's
/// memory viewer, <https://pytorch.org/memory_viz>, and `torch/cuda/_memory_viz.py` read it.
///
/// - Each mapped range of virtual memory is an expandable segment. It is on stream 0, since it belongs to no
///   stream.
/// - A stack has one frame: the location of the allocation, with the tag as its name.
/// - Pending memory is `active_pending_free`. A free that no pending block stems from is `free_requested` and
///   `free_completed` at the same time, because the time of completion is not recorded.
/// - Reserved memory that is not allocated is shown as allocated last, at the location of its reservation.
/// - The history of an idle pool leads exactly to the snapshot. If threads allocate meanwhile, a block may be
///   missing at its end.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// # use weirpool_observe::{Record as _, Recorded as _};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).history(100).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// let block = pool.try_allocate(&stream, 1000)?;
/// let mut file = Vec::new(); // or a `File`, behind a `BufWriter`
/// let (snapshot, history) = pool.recorded();
/// weirpool_observe::write_memory_viz(&snapshot, &history, &mut file)?; // `snapshot.pickle`, to be dropped on the page
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns the writer's error.
pub fn write_memory_viz(
    snapshot: &Snapshot,
    history: &History,
    mut writer: impl Write,
) -> io::Result<()> {
    let frees = LastFrees::of(&history.entries);
    let mut drawer = Drawer {
        snapshot,
        history,
        frees,
        pending: BTreeSet::new(),
    };
    let segments = drawer.segments();
    let traces = drawer.traces();
    let picture = Picture {
        segments,
        device_traces: vec![traces],
        allocator_settings: torch_settings(snapshot),
        external_annotations: Vec::new(),
    };
    let options = serde_pickle::SerOptions::new();
    match serde_pickle::to_writer(&mut writer, &picture, options) {
        Err(serde_pickle::Error::Io(error)) => Err(error),
        other => other.map_err(io::Error::other),
    }
}

fn torch_settings(snapshot: &Snapshot) -> Settings {
    Settings {
        configuration: "",
        max_split_size: -1,
        garbage_collection_threshold: 0.0,
        expandable_segments: snapshot.virtual_memory,
        pinned_num_register_threads: 1,
        release_lock_on_cudamalloc: false,
        pinned_use_cuda_host_register: false,
        roundup_power2_divisions: BTreeMap::new(),
    }
}

struct Drawer<'a> {
    snapshot: &'a Snapshot,
    history: &'a History,
    frees: LastFrees,
    /// The allocations that pending blocks stem from.
    pending: BTreeSet<u64>,
}

impl<'a> Drawer<'a> {
    fn segments(&mut self) -> Vec<Segment<'a>> {
        let snapshot = self.snapshot;
        let mut segments = Vec::new();
        for segment in &snapshot.segments {
            for span in mapped(segment) {
                let blocks = segment.blocks.iter();
                let inside = blocks.filter(|block| span.contains(&block.address));
                let blocks = inside.flat_map(|block| self.blocks(block)).collect();
                segments.push(self.segment(span, blocks));
            }
        }
        segments
    }

    fn segment(&self, span: Range<DeviceAddress>, blocks: Vec<Block<'a>>) -> Segment<'a> {
        let sum = |is_in: fn(&Block<'_>) -> bool, bytes: fn(&Block<'_>) -> i64| {
            let blocks = blocks.iter().filter(|block| is_in(block));
            blocks.map(bytes).sum()
        };
        Segment {
            device: DEVICE,
            address: place(span.start),
            total_size: number(span.end.offset_from(span.start).unwrap_or(0)),
            allocated_size: sum(|block| block.state == ALLOCATED, |block| block.size),
            active_size: sum(|block| block.state != INACTIVE, |block| block.size),
            requested_size: sum(
                |block| block.state != INACTIVE,
                |block| block.requested_size,
            ),
            stream: NO_STREAM,
            segment_type: "large",
            segment_pool_id: (0, 0),
            is_expandable: self.snapshot.virtual_memory,
            frames: Vec::new(),
            blocks,
        }
    }

    /// Returns a block in parts, and notes which frees its pending parts stem from.
    fn blocks(&mut self, block: &'a BlockInfo) -> Vec<Block<'a>> {
        let pieces = self.frees.cut(block).into_iter();
        let drawn = pieces.map(
            |Piece {
                 address,
                 size,
                 number: freed,
             }| {
                self.pending.extend(freed);
                let origin = block.origin.as_ref();
                Block {
                    address: place(address),
                    size: number(size),
                    requested_size: number(origin.map_or(size, |origin| origin.requested)),
                    state: match block.state {
                        BlockState::Pending => PENDING,
                        BlockState::Free => INACTIVE,
                        _ => ALLOCATED,
                    },
                    frames: match origin {
                        Some(origin) => vec![of_origin(origin)],
                        None => of_reservation(block),
                    },
                }
            },
        );
        drawn.collect()
    }

    fn traces(&self) -> Vec<Trace<'a>> {
        let entries = self.history.entries.iter();
        let entries = entries.flat_map(|entry| self.trace(entry));
        entries.chain(self.traces_of_reserved()).collect()
    }

    /// Returns the allocations of reserved memory. They come last, because the memory was part of other blocks before.
    fn traces_of_reserved(&self) -> impl Iterator<Item = Trace<'a>> {
        let snapshot = self.snapshot;
        let reserved = snapshot.blocks_in(BlockState::Reserved);
        let reserved = reserved.filter(|_| !self.history.entries.is_empty());
        reserved.map(|block| Trace {
            action: "alloc",
            addr: Some(place(block.address)),
            device_free: None,
            size: number(block.size),
            stream: NO_STREAM,
            time_us: snapshot.time.as_micros() as i64,
            frames: of_reservation(block),
        })
    }

    fn trace(&self, entry: &'a HistoryEntry) -> Vec<Trace<'a>> {
        let trace = |action, addr, size, stream: Option<StreamId>, frames| Trace {
            action,
            addr: Some(place(addr)),
            device_free: None,
            size: number(size),
            stream: stream.map_or(NO_STREAM, |stream| stream.0 as i64),
            time_us: entry.time.as_micros() as i64,
            frames,
        };
        let memory = |action, addr, size| trace(action, addr, size, None, Vec::new());
        let (map, unmap) = if self.snapshot.virtual_memory {
            ("segment_map", "segment_unmap")
        } else {
            ("segment_alloc", "segment_free")
        };
        match &entry.event {
            HistoryEvent::Allocated {
                address,
                stream,
                origin,
                ..
            } => {
                let frames = vec![of_origin(origin)];
                vec![trace(
                    "alloc",
                    *address,
                    origin.requested,
                    Some(*stream),
                    frames,
                )]
            }
            HistoryEvent::Freed {
                number,
                address,
                size,
                stream,
                site,
                ..
            } => {
                let frames: Vec<_> = site.iter().map(|site| frame(site, "deallocate")).collect();
                let freed = |action| trace(action, *address, *size, Some(*stream), frames.clone());
                let mut traces = vec![freed("free_requested")];
                if !self.pending.contains(number) {
                    traces.push(freed("free_completed"));
                }
                traces
            }
            HistoryEvent::Grown { address, bytes } => vec![memory(map, *address, *bytes)],
            HistoryEvent::Released { address, bytes } => vec![memory(unmap, *address, *bytes)],
            HistoryEvent::Remapped { from, to, bytes } => {
                vec![memory(unmap, *from, *bytes), memory(map, *to, *bytes)]
            }
            HistoryEvent::OutOfMemory { stream, shortfall } => {
                let allowed = shortfall.capacity.saturating_sub(shortfall.reserved);
                let left = shortfall.device.map_or(allowed, |device| device.free);
                vec![Trace {
                    addr: None,
                    device_free: Some(number(left)),
                    ..trace("oom", NOWHERE, shortfall.requested, *stream, Vec::new())
                }]
            }
            _ => Vec::new(),
        }
    }
}

const ALLOCATED: &str = "active_allocated";
const PENDING: &str = "active_pending_free";
const INACTIVE: &str = "inactive";

/// Returns the ranges of a segment that have memory.
fn mapped(segment: &SegmentInfo) -> Vec<Range<DeviceAddress>> {
    let mut stretches = Vec::<Range<DeviceAddress>>::new();
    for block in &segment.blocks {
        let end = block.address + block.size;
        match stretches.last_mut() {
            Some(last) if last.end == block.address => last.end = end,
            _ => stretches.push(block.address..end),
        }
    }
    stretches
}

const NOWHERE: DeviceAddress = DeviceAddress::from_bits(0);

fn place(address: DeviceAddress) -> i64 {
    number(address.to_bits())
}

/// Converts a number to the type that the viewer reads as a number.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn of_origin(origin: &BlockOrigin) -> Frame<'_> {
    frame(
        &origin.site,
        origin.tag.map_or("allocate", |tag| tag.name()),
    )
}

fn of_reservation(block: &BlockInfo) -> Vec<Frame<'_>> {
    let reservation = block.reservation.iter();
    let frames = reservation
        .map(|origin| frame(&origin.site, origin.tag.map_or("reserve", |tag| tag.name())));
    frames.collect()
}

fn frame<'a>(site: &'a Site, name: &'static str) -> Frame<'a> {
    Frame {
        name,
        filename: &site.file,
        line: site.line.into(),
    }
}
