//! A pool at one moment, as the page draws it.
//!
//! The size of a frame is bounded, whatever the pool holds: of blocks, requests, tags, streams and events it has the first
//! or largest ones, and counts the rest.

use crate::alerts::{Alert, Watch};
use crate::{Latency, clip};
use serde::Serialize;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::time::Duration;
use weirpool::device::DeviceAddress;
use weirpool::{
    BlockInfo, BlockState, Histogram, Pool, SegmentInfo, Snapshot, Statistics, StreamId,
    StreamStatistics, TagStatistics, WaitingRequest,
};
use weirpool_observe::{History, Recorded as _, Recorder};

/// The most blocks: the largest ones.
const BLOCKS: usize = 500;
/// The most requests, streams and tags each, and the most events.
const ROWS: usize = 50;

/// A pool at one moment, as the page draws it: its figures, the largest 500 blocks, and 50 each of its waiting requests,
/// tags, streams and latest events. It serializes to JSON for the page, whose form may change in any version.
///
/// Tags of blocks and events are known if the pool has a [recorder](weirpool_observe::Recorder).
#[derive(Clone, PartialEq, Serialize)]
pub struct Frame {
    time_ns: u64,
    /// In milliseconds since 1970, where the page is live.
    unix_ms: Option<u64>,
    alerts: Vec<Alert>,
    pool: Option<String>,
    health: String,
    is_serving: bool,
    has_history: bool,
    levels: Levels,
    counts: Counts,
    segments: Vec<Segment>,
    /// Number of blocks that are left out, and their bytes.
    small_blocks: usize,
    small_bytes: u64,
    waiting: Vec<Waiting>,
    tags: Vec<Tagged>,
    streams: Vec<Streamed>,
    times: Vec<Times>,
    /// Times on the device's clock, in nanoseconds, and texts.
    events: Vec<(u64, String)>,
}

/// In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Levels {
    capacity: u64,
    leased: u64,
    reserved: u64,
    used: u64,
    evictable: u64,
    set_aside: u64,
    pending: u64,
    free: u64,
    /// Requested by the users of live blocks.
    requested: u64,
}

/// Numbers: `waiting` and `live_blocks` now, the others so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Counts {
    waiting: usize,
    live_blocks: u64,
    allocations: u64,
    waited: u64,
    /// Before they waited.
    refused: u64,
    /// After they waited.
    unserved: u64,
    growths: u64,
    remaps: u64,
    device_waits: u64,
    evictions: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Segment {
    /// In hexadecimal: JavaScript's numbers have 53 bits.
    address: String,
    blocks: Vec<Block>,
}

/// The offset in its segment, the size in bytes, the state, the stream and the tag.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Block(
    u64,
    u64,
    &'static str,
    Option<StreamId>,
    Option<Cow<'static, str>>,
);

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Waiting {
    requested: u64,
    stream: String,
    tag: Option<Cow<'static, str>>,
    is_over_limit: bool,
    waited_ns: u64,
    expected_ns: Option<u64>,
    site: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Tagged {
    name: Cow<'static, str>,
    used: u64,
    high: u64,
    limit: Option<u64>,
    weight: u32,
    waiting: usize,
    granted: u64,
    served: u64,
    waited_us: u64,
    /// Before they waited, or after.
    refused: u64,
    p99_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Streamed {
    name: String,
    used: u64,
    pending: u64,
    cached: u64,
    latency_ns: u64,
}

/// A histogram, with the number of times for each power of two of nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Times {
    name: String,
    count: u64,
    p50_ns: u64,
    p99_ns: u64,
    longest_ns: u64,
    octaves: Vec<(u32, u64)>,
}

impl Frame {
    /// Returns the state of a pool now. Neither seals nor polls events. Takes time in proportion to the number of blocks,
    /// and holds the pool's lock while it reads them.
    pub fn of(pool: &Pool) -> Self {
        Self::with(pool, &[])
    }

    /// Returns the state of a pool now, and these latencies.
    pub(super) fn with(pool: &Pool, latencies: &[Latency]) -> Self {
        let statistics = pool.inspect().statistics();
        let (snapshot, history) = pool.recorded();
        let health = pool.inspect().health();
        let label = |stream: StreamId| match snapshot.streams.get(&stream) {
            Some(name) => format!("{} ({stream})", clip(name)),
            None => stream.to_string(),
        };
        let (segments, small) = segments(&snapshot);
        let waiting = pool.inspect().waiting_requests(ROWS);
        let (tags, streams) = (
            pool.inspect().statistics_by_tag(),
            pool.inspect().statistics_by_stream(),
        );
        let tags = largest(
            tags,
            |tag| (tag.used.current, Reverse(tag.tag)),
            |tag| tag.tag.name(),
        );
        let streams = largest(
            streams,
            |stream| (stream.used.current, Reverse(stream.stream)),
            |stream| stream.stream,
        );
        let own = [
            Times::of("waits for memory", &statistics.waits.times),
            Times::of("age of pending frees", &statistics.pending_ages),
        ];
        let given = latencies.iter().map(Latency::times);
        Self {
            time_ns: nanoseconds(snapshot.time),
            unix_ms: None,
            alerts: Watch::default().alerts(&health),
            pool: snapshot.name.as_deref().map(|name| clip(name).into_owned()),
            health: clip(&health.to_string()).into_owned(),
            is_serving: health.is_serving(),
            has_history: Recorder::of(pool).is_some(),
            levels: Levels::of(&statistics),
            counts: Counts::of(&statistics),
            segments,
            small_blocks: small.len(),
            small_bytes: small.iter().map(|block| block.size).sum(),
            waiting: waiting
                .iter()
                .map(|request| Waiting::of(request, label(request.stream)))
                .collect(),
            tags: tags.map(|tag| Tagged::of(&tag)).collect(),
            streams: streams
                .map(|stream| Streamed::of(&stream, label(stream.stream)))
                .collect(),
            times: given.chain(own).collect(),
            events: events(history),
        }
    }

    /// Sets the time of day and the alerts of a live page.
    pub(super) fn note(&mut self, unix_ms: u64, alerts: Vec<Alert>) {
        self.unix_ms = Some(unix_ms);
        self.alerts = alerts;
    }

    /// Returns the time of the frame, on the device's clock.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.time_ns)
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("time", &self.time())
            .field("levels", &self.levels)
            .finish_non_exhaustive()
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the rows with the largest figures, in the order of their names: so they stay where they are.
fn largest<T, F: Ord, K: Ord>(
    mut rows: Vec<T>,
    figure: impl Fn(&T) -> F,
    name: impl Fn(&T) -> K,
) -> impl Iterator<Item = T> {
    split_largest(&mut rows, ROWS, figure);
    rows.sort_by_key(name);
    rows.into_iter()
}

/// Leaves the `most` largest of `all` by a key, in any order. Returns the others. Takes linear time.
fn split_largest<T, K: Ord>(all: &mut Vec<T>, most: usize, key: impl Fn(&T) -> K) -> Vec<T> {
    if all.len() <= most {
        return Vec::new();
    }
    all.select_nth_unstable_by(most, |a, b| key(b).cmp(&key(a)));
    all.split_off(most)
}

/// Returns the segments with the largest blocks, and the blocks that are left out.
fn segments(snapshot: &Snapshot) -> (Vec<Segment>, Vec<&BlockInfo>) {
    let mut shown: Vec<_> = snapshot.blocks().collect();
    let small = split_largest(&mut shown, BLOCKS, |block| {
        (block.size, Reverse(block.address))
    });
    let shown: HashSet<_> = shown.iter().map(|block| block.address).collect();
    let segments = snapshot.segments.iter();
    let segments = segments
        .map(|segment| Segment::of(segment, &shown))
        .filter(|segment| !segment.blocks.is_empty());
    (segments.collect(), small)
}

/// Returns the latest events with their times, the latest first.
fn events(mut history: History) -> Vec<(u64, String)> {
    history
        .entries
        .drain(..history.entries.len().saturating_sub(ROWS));
    history.forgotten = 0;
    // A line for each event, which begins with its time in another form.
    let text = history.to_string();
    let lines = text.lines().map(|line| {
        let line = line.trim_start();
        let text = line.as_bytes().windows(2).position(|pair| pair == b"  ");
        clip(text.map_or(line, |at| &line[at + 2..])).into_owned()
    });
    let times = history.entries.iter().map(|entry| nanoseconds(entry.time));
    let mut events: Vec<_> = times.zip(lines).collect();
    events.reverse();
    events
}

impl Levels {
    fn of(statistics: &Statistics) -> Self {
        let used = statistics.used.current;
        let spare = statistics.set_aside + statistics.lost_to_rounding;
        Self {
            capacity: statistics.capacity,
            leased: statistics.leased,
            reserved: statistics.reserved.current,
            used,
            evictable: statistics.evictable,
            set_aside: statistics.set_aside,
            pending: statistics.pending.current,
            free: statistics.free,
            requested: used.saturating_sub(spare),
        }
    }
}

impl Counts {
    fn of(statistics: &Statistics) -> Self {
        let waits = &statistics.waits;
        Self {
            waiting: waits.waiting,
            live_blocks: statistics.live_blocks,
            allocations: statistics.allocations,
            waited: waits.served,
            refused: waits.refused + waits.shed,
            unserved: waits.unserved(),
            growths: statistics.growths,
            remaps: statistics.remaps,
            device_waits: statistics.device_waits,
            evictions: statistics.evictions,
        }
    }
}

impl Segment {
    fn of(segment: &SegmentInfo, shown: &HashSet<DeviceAddress>) -> Self {
        let blocks = segment.blocks.iter();
        let blocks = blocks.filter(|block| shown.contains(&block.address));
        Self {
            address: segment.address.to_string(),
            blocks: blocks
                .map(|block| Block::of(block, segment.address))
                .collect(),
        }
    }
}

impl Block {
    fn of(block: &BlockInfo, base: DeviceAddress) -> Self {
        let state = match block.state {
            BlockState::Used if block.is_evictable => "evictable",
            BlockState::Used => "used",
            BlockState::Pending => "pending",
            BlockState::Free => "free",
            // Memory that is not available: reserved, or a state of a later version.
            _ => "set_aside",
        };
        let of_block = block.origin.as_ref().and_then(|origin| origin.tag);
        let of_reservation = block.reservation.as_ref().and_then(|origin| origin.tag);
        let tag = of_block.or(of_reservation);
        Self(
            block.address.offset_from(base).unwrap_or_default(),
            block.size,
            state,
            block.stream,
            tag.map(|tag| clip(tag.name())),
        )
    }
}

impl Waiting {
    fn of(request: &WaitingRequest, stream: String) -> Self {
        Self {
            requested: request.requested,
            stream,
            tag: request.tag.map(|tag| clip(tag.name())),
            is_over_limit: request.is_over_limit,
            waited_ns: nanoseconds(request.waited),
            expected_ns: request.expected_wait.map(nanoseconds),
            site: request.site.to_string(),
        }
    }
}

impl Tagged {
    fn of(tag: &TagStatistics) -> Self {
        let waits = &tag.waits;
        Self {
            name: clip(tag.tag.name()),
            used: tag.used.current,
            high: tag.used.high,
            limit: tag.limit,
            weight: tag.weight,
            waiting: waits.waiting,
            granted: tag.allocations,
            served: waits.served,
            waited_us: nanoseconds(waits.times.total()) / 1000,
            refused: waits.refused + waits.shed + waits.unserved(),
            p99_ns: nanoseconds(waits.times.percentile(99.0)),
        }
    }
}

impl Streamed {
    fn of(stream: &StreamStatistics, name: String) -> Self {
        Self {
            name,
            used: stream.used.current,
            pending: stream.pending,
            cached: stream.cached_in_lane,
            latency_ns: nanoseconds(stream.latency),
        }
    }
}

impl Latency {
    fn times(&self) -> Times {
        Times::of(self.name(), &self.histogram())
    }
}

impl Times {
    fn of(name: &str, histogram: &Histogram) -> Self {
        let mut octaves = BTreeMap::new();
        for bucket in histogram.buckets() {
            let octave = nanoseconds(bucket.from).max(1).ilog2();
            *octaves.entry(octave).or_default() += bucket.count;
        }
        Self {
            name: clip(name).into_owned(),
            count: histogram.count(),
            p50_ns: nanoseconds(histogram.percentile(50.0)),
            p99_ns: nanoseconds(histogram.percentile(99.0)),
            longest_ns: nanoseconds(histogram.longest()),
            octaves: octaves.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use weirpool::Tag;
    use weirpool::device::sim::SimDevice;
    use weirpool_observe::Record as _;

    fn json(frame: &Frame) -> serde_json::Value {
        serde_json::to_value(frame).unwrap()
    }

    #[test]
    fn frame_has_the_largest_blocks_and_counts_the_others() {
        let device = SimDevice::new();
        let pool = Pool::builder(device).build().unwrap();
        let stream = pool.create_stream().unwrap();
        let size = |number| if number % 2 == 0 { 1 << 20 } else { 4096 };
        let held: Vec<_> = (0..BLOCKS + 100)
            .map(|number| pool.try_allocate(&stream, size(number)).unwrap())
            .collect();
        let frame = Frame::of(&pool);
        let blocks: Vec<_> = frame.segments.iter().flat_map(|s| &s.blocks).collect();
        assert_eq!(blocks.len(), BLOCKS);
        let large = blocks.iter().filter(|block| block.1 >= 1 << 20).count();
        assert!(large >= held.len() / 2, "{large}");
        let bytes: u64 = blocks.iter().map(|block| block.1).sum();
        assert_eq!(bytes + frame.small_bytes, frame.levels.reserved);
        assert!(frame.small_blocks >= 100);
    }

    #[test]
    fn frame_shows_states_tags_and_waiting_requests() {
        let device = SimDevice::new();
        let builder = Pool::builder(device.clone()).capacity(32 << 20);
        let pool = builder.history(100).build().unwrap();
        let stream = pool.create_stream().unwrap().named("decode");
        let [kept, cached] = ["weights", "prefixes"].map(|name| {
            let request = pool.allocate(&stream, 8 << 20).tag(Tag::new(name));
            request.try_now().unwrap()
        });
        let cached = cached.into_evictable();
        pool.tag(Tag::new("weights")).set_limit(Some(9 << 20));
        let over = pool.allocate(&stream, 4 << 20).tag(Tag::new("weights"));
        let mut over = Box::pin(over.into_future());
        assert!((&mut over).now_or_never().is_none());
        let frame = json(&Frame::of(&pool));
        let blocks = frame["segments"].as_array().unwrap().iter();
        let blocks = blocks.flat_map(|segment| segment["blocks"].as_array().unwrap());
        let mut states: Vec<_> = blocks
            .filter(|block| block[2] != "free")
            .map(|block| (block[2].as_str().unwrap(), block[4].as_str().unwrap()))
            .collect();
        states.sort_unstable();
        assert_eq!(states, [("evictable", "prefixes"), ("used", "weights")]);
        let waiting = &frame["waiting"][0];
        assert_eq!(waiting["is_over_limit"], true);
        assert_eq!(waiting["tag"], "weights");
        assert_eq!(waiting["requested"], 4 << 20);
        assert_eq!(frame["levels"]["evictable"], 8 << 20);
        let tags = frame["tags"].as_array().unwrap();
        let weights = tags.iter().find(|tag| tag["name"] == "weights").unwrap();
        assert_eq!(weights["limit"], 9 << 20);
        assert!(frame["events"].as_array().unwrap().len() >= 2);
        drop((over, kept, cached));
        let frame = json(&Frame::of(&pool));
        assert_eq!(frame["levels"]["used"], 0);
        assert_eq!(frame["waiting"].as_array().unwrap().len(), 0);
    }

    #[test]
    fn rows_of_a_frame_are_bounded() {
        let device = SimDevice::new();
        let pool = Pool::builder(device).history(1000).build().unwrap();
        let streams: Vec<_> = (0..ROWS + 10)
            .map(|_| pool.create_stream().unwrap())
            .collect();
        let held = streams.iter().enumerate().map(|(number, stream)| {
            let tag = Tag::new(&format!("tag of a frame {number}"));
            let request = pool.allocate(stream, 512 * (number as u64 + 1)).tag(tag);
            request.try_now().unwrap()
        });
        let held: Vec<_> = held.collect();
        let frame = Frame::of(&pool);
        assert_eq!((frame.tags.len(), frame.streams.len()), (ROWS, ROWS));
        assert_eq!(frame.events.len(), ROWS);
        // The largest ones.
        let (smallest, largest) = (held[10].size(), held.last().unwrap().size());
        let used: Vec<_> = frame.tags.iter().map(|tag| tag.used).collect();
        assert_eq!(used.iter().min(), Some(&smallest));
        assert_eq!(used.iter().max(), Some(&largest));
        let bytes = serde_json::to_string(&frame).unwrap().len();
        assert!(bytes < 64 << 10, "{bytes}");
    }
}
