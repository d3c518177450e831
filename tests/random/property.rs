//! Random operations on a pool, against a naive model and over real bytes.
//!
//! The model knows of each live block the tag that its owner writes. Every use is two operations on the device: one
//! writes the tag, a later one checks that it is still there. Memory that is reused before its earlier use has passed
//! shows as a tag overwritten, whatever the pool believes of it. The device's ordering checker watches as well: its
//! findings panic, even where the schedule of this run happened to keep the tags whole.
//!
//! Pools that fill their memory write over all of it: over nothing that is in use, and before it is used.
//!
//! Where host and device share the pool's memory, the host takes part as one more stream. What the device
//! may still touch it awaits, as it must; its own uses are over at once.

use crate::common::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weirpool::device::DeviceAddress;
use weirpool::device::sim::{Operation, SimDevice, SimStream};
use weirpool::*;

const STREAMS: usize = 3;
/// The host takes part as one more stream, where it sees the memory.
const HOST: usize = STREAMS;

#[derive(Clone, Debug)]
enum Action {
    Allocate { stream: usize, granules: u64 },
    Use { pick: usize, micros: u64 },
    Share { pick: usize, stream: usize },
    Move { pick: usize, stream: usize },
    Free { pick: usize },
    FreeOn { pick: usize, stream: usize },
    Order { before: usize, after: usize },
    Seal { stream: usize },
    Advance { micros: u64 },
    Reap,
    Trim { mib: u64 },
}

fn action() -> impl Strategy<Value = Action> {
    let stream = || 0..=HOST;
    let pick = any::<usize>;
    prop_oneof![
        6 => (stream(), 1..9000u64).prop_map(|(stream, granules)| Action::Allocate { stream, granules }),
        3 => (pick(), 1..50u64).prop_map(|(pick, micros)| Action::Use { pick, micros }),
        1 => (pick(), stream()).prop_map(|(pick, stream)| Action::Share { pick, stream }),
        1 => (pick(), stream()).prop_map(|(pick, stream)| Action::Move { pick, stream }),
        4 => pick().prop_map(|pick| Action::Free { pick }),
        1 => (pick(), stream()).prop_map(|(pick, stream)| Action::FreeOn { pick, stream }),
        1 => (stream(), stream()).prop_map(|(before, after)| Action::Order { before, after }),
        1 => stream().prop_map(|stream| Action::Seal { stream }),
        2 => (1..80u64).prop_map(|micros| Action::Advance { micros }),
        1 => Just(Action::Reap),
        1 => (0..16u64).prop_map(|mib| Action::Trim { mib }),
    ]
}

struct Live {
    block: Block,
    /// The stream on which it was used last; the next use is ordered after it.
    last: usize,
    tag: u8,
}

/// What no owner writes.
const FILLED: [u8; 2] = [0xa5, 0xff];

/// When a pool fills its memory: on allocation, on a free.
type Fills = [bool; 2];

/// What a pool is made of.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Virtual,
    Plain,
    Shared,
    Unpooled,
}

struct World {
    device: SimDevice,
    pool: TestPool,
    streams: Vec<(SimStream, Stream)>,
    host: Option<Stream>,
    live: Vec<Live>,
    corruptions: Arc<AtomicU64>,
    next_tag: u8,
    fills: Fills,
}

impl World {
    fn new(
        shape: Shape,
        when_short: WhenShort,
        remapping: Remapping,
        sealing: Sealing,
        growth: GrowBy,
        alignment: u64,
        fills: Fills,
    ) -> Self {
        let device = SimDevice::builder()
            .memory(64 * MIB)
            .clock(weirpool::device::sim::Clock::Manual)
            .virtual_memory(matches!(shape, Shape::Virtual))
            .build();
        let pooled = || builder(&device, 16 * MIB).tuning(|tuning| tuning.growth = growth);
        let pool = match shape {
            Shape::Virtual | Shape::Plain => pooled(),
            Shape::Shared => pooled().upstream(Upstream::Managed),
            Shape::Unpooled => Pool::builder(device.clone())
                .capacity(16 * MIB)
                .upstream(Upstream::Unpooled),
        };
        let pool = match fills {
            [false, false] => pool,
            [true, false] => pool.fill(FillAt::Allocation, Fill::Byte(FILLED[0])),
            [false, true] => pool.fill(FillAt::Free, Fill::Byte(FILLED[1])),
            [true, true] => pool
                .fill(FillAt::Allocation, Fill::Byte(FILLED[0]))
                .fill(FillAt::Free, Fill::Byte(FILLED[1])),
        };
        let pool = pool
            .sealing(sealing)
            .tuning(|tuning| {
                tuning.when_short = when_short;
                tuning.remapping = remapping;
                tuning.lane_bytes = MIB;
                tuning.alignment = alignment;
            })
            .made();
        let streams = (0..STREAMS).map(|_| stream(&device, &pool)).collect();
        Self {
            host: pool.host_stream().ok(),
            device,
            pool,
            streams,
            live: Vec::new(),
            corruptions: Arc::default(),
            next_tag: 0,
            fills,
        }
    }

    /// Writes a tag over both ends of the block now, and checks it after some time.
    fn use_block(&mut self, at: usize, micros: u64) {
        self.next_tag = self.next_tag % 100 + 1;
        let tag = self.next_tag;
        let live = &mut self.live[at];
        live.tag = tag;
        let (address, size, last) = (live.block.address(), live.block.size(), live.last);
        if last == HOST {
            return self.use_as_host(address, size, tag);
        }
        let work = &self.streams[last].0;
        let write = Operation::new(us(1)).named("write").writes(address, size);
        work.submit(write.run(move |memory| {
            memory.fill(address, 512, tag);
            memory.fill(address + (size - 512), 512, tag);
        }));
        self.check_ends(last, address, size, tag, micros);
    }

    /// Counts the ends of the block that have lost the tag, after some time.
    fn check_ends(&self, stream: usize, address: DeviceAddress, size: u64, tag: u8, micros: u64) {
        let work = &self.streams[stream].0;
        let corruptions = self.corruptions.clone();
        let check = Operation::new(us(micros))
            .named("check")
            .reads(address, size);
        work.submit(check.run(move |memory| {
            for end in [address, address + (size - 1)] {
                let mut byte = [0];
                memory.read(end, &mut byte);
                if byte[0] != tag {
                    corruptions.fetch_add(1, Ordering::SeqCst);
                }
            }
        }));
    }

    /// A block that was just granted is full of what the pool fills it with.
    fn expect_filled(&self, stream: usize, block: &Block) {
        let (address, size) = (block.address(), block.size());
        match self.fills {
            [false, _] => {}
            _ if stream == HOST => {
                let mut byte = [0];
                self.device
                    .host()
                    .read(address + size / 2, &mut byte)
                    .unwrap();
                assert_eq!(byte, [FILLED[0]]);
            }
            _ => self.check_ends(stream, address, size, FILLED[0], 1),
        }
    }

    fn use_as_host(&self, address: DeviceAddress, size: u64, tag: u8) {
        for end in [address, address + (size - 1)] {
            let mut byte = [0];
            self.device.host().fill(end, 1, tag).unwrap();
            self.device.host().read(end, &mut byte).unwrap();
            assert_eq!(byte, [tag]);
        }
    }

    /// A stream by its number, and the number; the first one's instead of a host that is not there.
    fn stream(&self, at: usize) -> (usize, Stream) {
        match &self.host {
            Some(host) if at == HOST => (HOST, host.clone()),
            _ => (at % STREAMS, self.streams[at % STREAMS].1.clone()),
        }
    }

    /// The host cannot be made to wait: it awaits everything.
    fn await_all(&self) {
        self.device.advance_to_end();
        for (_, stream) in &self.streams {
            assert!(stream.event().unwrap().is_complete().unwrap());
        }
    }

    fn take(&mut self, pick: usize) -> Option<Live> {
        (!self.live.is_empty()).then(|| self.live.swap_remove(pick % self.live.len()))
    }

    /// Moves the use of a block to another stream, as a careful user does.
    fn share(&mut self, at: usize, to: usize) {
        let event = self.stream(self.live[at].last).1.event().unwrap();
        let (to, to_stream) = self.stream(to);
        if to == HOST {
            self.await_all();
        }
        to_stream.wait(&event).unwrap();
        to_stream
            .record_use(Unordered::UntilFreed(&self.live[at].block))
            .unwrap();
        self.live[at].last = to;
    }

    /// Moves a block to another stream.
    fn move_on(&mut self, at: usize, to: usize) {
        let (to, to_stream) = self.stream(to);
        if to == HOST {
            self.await_all();
        }
        self.live[at].block.move_to(&to_stream).unwrap();
        self.live[at].last = to;
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Allocate { stream, granules } => {
                let (last, stream) = self.stream(stream);
                if let Ok(block) = self.pool.try_allocate(&stream, granules * 512) {
                    self.expect_filled(last, &block);
                    let tag = 0;
                    self.live.push(Live { block, last, tag });
                    self.use_block(self.live.len() - 1, 5);
                }
            }
            Action::Use { pick, micros } if !self.live.is_empty() => {
                self.use_block(pick % self.live.len(), micros);
            }
            Action::Share { pick, stream } if !self.live.is_empty() => {
                let at = pick % self.live.len();
                self.share(at, stream);
                self.use_block(at, 10);
            }
            Action::Move { pick, stream } if !self.live.is_empty() => {
                let at = pick % self.live.len();
                self.move_on(at, stream);
                self.use_block(at, 10);
            }
            Action::Free { pick } => drop(self.take(pick)),
            Action::FreeOn { pick, stream } => {
                if let Some(live) = self.take(pick) {
                    let (to, stream) = self.stream(stream);
                    if to == HOST {
                        self.await_all();
                    }
                    drop(live.block.deallocate_on(&stream).unwrap());
                }
            }
            Action::Order { before, after } => {
                let event = self.stream(before).1.event().unwrap();
                let (after, stream) = self.stream(after);
                let ordered = stream.wait(&event);
                assert!(ordered.is_ok() || after == HOST);
            }
            Action::Seal { stream } => self.stream(stream).1.seal().unwrap(),
            Action::Advance { micros } => self.device.advance(us(micros)),
            Action::Reap => drop(self.pool.maintain().reap().unwrap()),
            Action::Trim { mib } => drop(self.pool.trim_to(mib * MIB).unwrap()),
            Action::Use { .. } | Action::Share { .. } | Action::Move { .. } => {}
        }
    }

    /// Checks *tiling* and *conservation* from outside, and the pool's own invariants.
    fn check(&self) {
        self.pool.inspect().check().unwrap();
        let spans: BTreeMap<DeviceAddress, u64> = self
            .live
            .iter()
            .map(|live| (live.block.address(), live.block.size()))
            .collect();
        assert_eq!(spans.len(), self.live.len());
        let ends = spans.iter().map(|(address, size)| *address + *size);
        for (end, next) in ends.zip(spans.keys().skip(1)) {
            assert!(end <= *next, "tiling");
        }
        let s = self.pool.inspect().statistics();
        assert_eq!(s.used.current, spans.values().sum::<u64>());
        assert_eq!(
            s.free + s.used.current + s.pending.current,
            s.reserved.current,
            "conservation"
        );
        assert_eq!(s.reserved.current, self.device.counters().physical_in_use);
    }

    fn end(mut self) {
        self.live.clear();
        self.device.advance(us(1_000_000));
        self.pool.inspect().check_conserved().unwrap();
        assert_eq!(self.corruptions.load(Ordering::SeqCst), 0, "order");
        self.device.assert_ordered();
        let _ = self.pool.trim_to(0).unwrap();
        assert_eq!(
            figures(&self.pool).reserved.current,
            0,
            "all of it came back"
        );
    }
}

fn sealing() -> impl Strategy<Value = Sealing> {
    prop_oneof![
        Just(Sealing::EveryFree),
        Just(Sealing::Spaced(MIB)),
        Just(Sealing::OnDemand),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![
        Just(Shape::Virtual),
        Just(Shape::Plain),
        Just(Shape::Shared),
        Just(Shape::Unpooled),
    ]
}

fn growth() -> impl Strategy<Value = GrowBy> {
    prop_oneof![
        Just(GrowBy::Chunks),
        Just(GrowBy::AtLeast(5 * MIB)),
        Just(GrowBy::Factor(1.7)),
    ]
}

fn when_short() -> impl Strategy<Value = WhenShort> {
    prop_oneof![
        Just(WhenShort::GrowFirst),
        Just(WhenShort::GrowThenWait),
        Just(WhenShort::WaitBriefly),
        Just(WhenShort::WaitFirst),
    ]
}

fn remapping() -> impl Strategy<Value = Remapping> {
    prop_oneof![
        Just(Remapping::Always),
        Just(Remapping::default()),
        Just(Remapping::Never),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_keep_every_invariant(
        shape in shape(),
        when_short in when_short(),
        remapping in remapping(),
        sealing in sealing(),
        growth in growth(),
        alignment in prop_oneof![Just(1), Just(4096)],
        fills in any::<Fills>(),
        actions in proptest::collection::vec(action(), 1..150),
    ) {
        let mut world = World::new(shape, when_short, remapping, sealing, growth, alignment, fills);
        for action in actions {
            world.act(action);
            world.check();
        }
        world.end();
    }
}
