//! Checkpoints of memory for graphs, and blocks of it outside captures.

use super::*;
use crate::common::{Made, assert_matches};
use proptest::prelude::*;
use weirpool::Unordered;
use weirpool::device::DeviceAddress;
use weirpool::device::DeviceErrorKind::{Other, Sticky};
use weirpool::device::sim::Call;
use weirpool::{
    AllocError, BlockState, Capture, Fill, FillAt, GraphCheckpoint, GraphMemory, RestoreError,
    StreamError,
};

fn ranges(checkpoint: &GraphCheckpoint) -> Vec<(DeviceAddress, u64)> {
    checkpoint.ranges().collect()
}

fn range(block: &Block) -> (DeviceAddress, u64) {
    (block.address(), block.size())
}

#[test]
fn restored_ranges_are_those_of_the_checkpoint_and_go_to_no_other_request() {
    let site = Site::new(16 * MIB);
    let memory = site.pool.graph_memory();
    let capture = memory.capture(&site.stream).unwrap();
    let [first, second] = [site.take(MIB), site.take(4096)];
    site.work.submit(write(&second, 7));
    let root = capture.end().unwrap();
    let checkpoint = memory.checkpoint();
    let mut expected = vec![range(&first), range(&second)];
    expected.sort_unstable();
    assert_eq!(ranges(&checkpoint), expected);
    drop((first, second));
    assert_eq!(memory.checkpoint().ranges().len(), 0);

    // Another branch takes the same addresses.
    let capture = memory.capture(&site.stream).unwrap();
    let whole = site.take(2 * MIB);
    let _branch = capture.end().unwrap();
    assert_eq!(whole.address(), expected[0].0);
    drop(whole);

    root.launch(&site.stream).unwrap();
    let restored = memory.restore(&checkpoint, &site.stream).unwrap();
    let found: Vec<_> = restored.iter().map(range).collect();
    assert_eq!(found, expected);
    let capture = memory.capture(&site.stream).unwrap();
    let more: Vec<_> = (0..12).map(|_| site.take(256 * 1024)).collect();
    for block in &more {
        site.work.submit(write(block, 1));
        let (start, end) = (block.address(), block.address() + block.size());
        let overlaps = |(at, bytes): &(DeviceAddress, u64)| *at < end && start < *at + *bytes;
        assert!(!expected.iter().any(overlaps));
    }
    let other = capture.end().unwrap();
    other.launch(&site.stream).unwrap();
    site.device.advance_to_end();
    let second = restored.iter().find(|block| block.size() == 4096);
    assert_eq!(site.read(second.unwrap(), 2), [7, 7]);
}

#[test]
fn range_in_use_is_named_and_nothing_is_restored() {
    let site = Site::new(16 * MIB);
    let memory = site.pool.graph_memory();
    let blocks = [MIB, MIB, MIB].map(|bytes| memory.allocate(&site.stream, bytes).unwrap());
    let checkpoint = memory.checkpoint();
    let [first, second, kept] = blocks;
    drop((first, second));
    let before = memory.checkpoint();
    let refused = memory.restore(&checkpoint, &site.stream).unwrap_err();
    let RestoreError::Unavailable {
        address,
        bytes,
        found,
    } = &refused
    else {
        panic!("{refused:?}");
    };
    let found = found.as_ref().unwrap();
    assert_eq!((*address, *bytes), range(&kept));
    assert_eq!((found.address, found.state), (*address, BlockState::Used));
    let text = refused.to_string();
    assert!(
        text.contains("1.0 MiB at 0x") && text.contains("free that block first"),
        "{text}"
    );
    assert_eq!(ranges(&memory.checkpoint()), ranges(&before));
    drop(kept);
    let restored = memory.restore(&checkpoint, &site.stream).unwrap();
    assert_eq!(restored.len(), 3);
}

#[test]
fn checkpoint_of_other_memory_is_refused() {
    let site = Site::new(16 * MIB);
    let [memory, other] = [site.pool.graph_memory(), site.pool.graph_memory()];
    let block = memory.allocate(&site.stream, MIB).unwrap();
    let checkpoint = memory.checkpoint();
    drop(block);
    let refused = other.restore(&checkpoint, &site.stream);
    assert_matches!(refused, Err(RestoreError::ForeignCheckpoint));
    // It keeps nothing set aside.
    drop((memory, other));
    assert_eq!(site.pool.inspect().statistics().in_graphs, 0);
    let memory = site.pool.graph_memory();
    let refused = memory.restore(&checkpoint, &site.stream);
    assert_matches!(refused, Err(RestoreError::ForeignCheckpoint));
    assert_eq!(checkpoint.ranges().len(), 1);
}

#[test]
fn captured_and_foreign_streams_are_refused() {
    let site = Site::new(16 * MIB);
    let elsewhere = Site::new(16 * MIB);
    let memory = site.pool.graph_memory();
    drop(memory.allocate(&site.stream, MIB).unwrap());
    let block = memory.allocate(&site.stream, MIB).unwrap();
    let checkpoint = memory.checkpoint();
    drop(block);
    let foreign = memory.allocate(&elsewhere.stream, MIB);
    assert_matches!(foreign, Err(AllocError::ForeignStream));
    let foreign = memory.restore(&checkpoint, &elsewhere.stream).unwrap_err();
    assert_eq!(foreign, RestoreError::Refused(AllocError::ForeignStream));
    let capture = memory.capture(&site.stream).unwrap();
    let captured = memory.allocate(&site.stream, MIB);
    assert_matches!(captured, Err(AllocError::StreamCaptured));
    let captured = memory.restore(&checkpoint, &site.stream).unwrap_err();
    assert_eq!(captured, RestoreError::Refused(AllocError::StreamCaptured));
    drop(capture);
    assert_eq!(memory.checkpoint().ranges().len(), 0);
    site.pool.close();
    let closed = memory.restore(&checkpoint, &site.stream).unwrap_err();
    assert_eq!(closed, RestoreError::Refused(AllocError::Closed));
    // SAFETY: the host has access to no block of the graph while it is launched.
    let joined = unsafe { memory.join(&elsewhere.stream) };
    assert_matches!(joined, Err(StreamError::ForeignPool(_)));
}

#[test]
fn bytes_stay_as_they_are_in_a_pool_that_fills() {
    let site = Site::with(16 * MIB, |builder| {
        builder.fill(FillAt::Allocation, Fill::Zero)
    });
    let memory = site.pool.graph_memory();
    let block = memory.allocate(&site.stream, 4096).unwrap();
    let checkpoint = memory.checkpoint();
    site.work.submit(write(&block, 5));
    drop(block);
    let restored = memory.restore(&checkpoint, &site.stream).unwrap();
    site.device.advance_to_end();
    assert_eq!(site.read(&restored[0], 2), [5, 5]);
}

/// The checker finds a use that is not ordered after the block's earlier life.
#[test]
fn restored_block_comes_after_its_earlier_uses_on_other_streams() {
    let site = Site::new(16 * MIB);
    let (work, other) = site.other();
    let memory = site.pool.graph_memory();
    let block = memory.allocate(&site.stream, MIB).unwrap();
    let checkpoint = memory.checkpoint();
    other.record_use(Unordered::UntilFreed(&block)).unwrap();
    work.submit(write(&block, 1));
    drop(block);
    let restored = memory.restore(&checkpoint, &site.stream).unwrap();
    site.work.submit(write(&restored[0], 2));
    site.device.advance_to_end();
    assert_eq!(site.read(&restored[0], 1), [2]);
}

/// The device refuses the wait for the second range: the first one goes back as well.
#[test]
fn failed_restore_leaves_all_ranges_in_the_memory() {
    for kind in [Other, Sticky] {
        let site = Site::new(16 * MIB);
        let (work, other) = site.other();
        let memory = site.pool.graph_memory();
        let first = memory.allocate(&site.stream, MIB).unwrap();
        let second = memory.allocate(&other, 2 * MIB).unwrap();
        let checkpoint = memory.checkpoint();
        work.submit(write(&second, 1));
        drop((first, second));
        site.device.faults().fail_next(Call::Wait, kind);
        let failed = memory.restore(&checkpoint, &site.stream).unwrap_err();
        assert_matches!(failed, RestoreError::Refused(AllocError::Device(error)) if error.kind() == kind);
        assert_eq!(memory.checkpoint().ranges().len(), 0);
        assert_eq!(memory.left(), memory.size());
        site.pool.inspect().check().unwrap();
        if kind == Other {
            drop(memory.restore(&checkpoint, &site.stream).unwrap());
        } else {
            // The device is broken, and keeps what runs on it.
            site.pool.end_before_its_blocks();
        }
    }
}

/// Neither stream can be made to wait for the other: the memory is restored once it is complete.
#[test]
fn range_that_waits_for_another_stream_is_unavailable_where_no_wait_can_be_inserted() {
    let device = SimDevice::builder()
        .clock(weirpool::device::sim::Clock::Manual)
        .device_side_waits(false)
        .build();
    let pool = Pool::builder(device.clone()).capacity(16 * MIB);
    let pool = pool.chunk_bytes(2 * MIB).made();
    let works = [(); 2].map(|()| device.create_stream());
    let [stream, other] = [0, 1].map(|at| pool.register(&works[at]).unwrap());
    let memory = pool.graph_memory();
    let block = memory.allocate(&other, MIB).unwrap();
    let checkpoint = memory.checkpoint();
    works[1].submit(write(&block, 1));
    drop(block);
    let refused = memory.restore(&checkpoint, &stream).unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("wait for work of the streams [") && text.contains("synchronize with them"),
        "{text}"
    );
    device.advance_to_end();
    let restored = memory.restore(&checkpoint, &stream).unwrap();
    drop((restored, memory));
    device.advance_to_end();
    pool.inspect().check_conserved().unwrap();
    device.assert_ordered();
}

#[test]
fn block_outside_captures_belongs_to_the_memory_and_grows_it() {
    let site = Site::new(4 * MIB);
    let memory = site.pool.graph_memory();
    let first = memory.allocate(&site.stream, MIB).unwrap();
    assert_eq!((memory.size(), memory.left()), (2 * MIB, MIB));
    site.work.submit(write(&first, 1));
    let address = first.address();
    drop(first);
    let again = memory.allocate(&site.stream, MIB).unwrap();
    assert_eq!(again.address(), address, "in the order of its stream");
    let large = memory.allocate(&site.stream, 2 * MIB).unwrap();
    assert_eq!(memory.size(), 4 * MIB);
    let short = memory.allocate(&site.stream, 2 * MIB).unwrap_err();
    let AllocError::NotReserved {
        requested, left, ..
    } = short
    else {
        panic!("{short:?}");
    };
    assert_eq!((requested, left), (2 * MIB, MIB));
    drop((again, large));
    assert_eq!(site.pool.inspect().statistics().in_graphs, 4 * MIB);
}

/// Two gaps of half the size are not exchanged for one range, as those of a reservation are, if launches use the
/// addresses.
#[test]
fn gaps_that_a_graph_holds_stay_where_they_are() {
    let site = Site::new(8 * MIB);
    let memory = site.pool.graph_memory();
    let reserved = site.pool.reserve(4 * MIB).try_now().unwrap();
    memory.give(reserved).unwrap();
    let blocks = [MIB; 4].map(|bytes| memory.allocate(&site.stream, bytes).unwrap());
    let [first, second, third, fourth] = blocks;
    let graph = memory.capture(&site.stream).unwrap().end().unwrap();
    let gaps = [range(&second), range(&fourth)];
    drop((second, fourth));
    let large = memory.allocate(&site.stream, 2 * MIB).unwrap();
    assert_eq!(memory.size(), 6 * MIB, "from the pool");
    let filled = [MIB; 2].map(|bytes| memory.allocate(&site.stream, bytes).unwrap());
    let mut found = filled.each_ref().map(range);
    found.sort_unstable();
    assert_eq!(found, gaps);
    drop((first, third, large, filled, memory, graph));
}

#[test]
fn restored_blocks_outlive_the_memory_as_ordinary_blocks() {
    let site = Site::new(2 * MIB);
    let memory = site.pool.graph_memory();
    let block = memory.allocate(&site.stream, MIB).unwrap();
    let checkpoint = memory.checkpoint();
    drop(block);
    let restored = memory.restore(&checkpoint, &site.stream).unwrap();
    drop(memory);
    assert_eq!(site.pool.inspect().statistics().in_graphs, 0);
    let rest = site.take(MIB);
    assert!(site.pool.try_allocate(&site.stream, MIB).is_err());
    drop(rest);
    drop(restored);
    let _whole = site.take(2 * MIB);
}

#[derive(Clone, Debug)]
enum Action {
    /// In the capture if there is one.
    Allocate {
        granules: u64,
    },
    Free {
        pick: usize,
    },
    /// From memory outside the graphs, on the other stream.
    Ordinary {
        granules: u64,
    },
    Capture,
    End {
        is_kept: bool,
    },
    Checkpoint,
    Restore {
        pick: usize,
    },
    Advance,
}

fn action() -> impl Strategy<Value = Action> {
    let pick = any::<usize>;
    prop_oneof![
        6 => (1..3000u64).prop_map(|granules| Action::Allocate { granules }),
        5 => pick().prop_map(|pick| Action::Free { pick }),
        1 => (1..3000u64).prop_map(|granules| Action::Ordinary { granules }),
        2 => Just(Action::Capture),
        3 => any::<bool>().prop_map(|is_kept| Action::End { is_kept }),
        2 => Just(Action::Checkpoint),
        2 => pick().prop_map(|pick| Action::Restore { pick }),
        1 => Just(Action::Advance),
    ]
}

/// The memory of graphs, and an oracle that knows which ranges are allocated, by their owners' blocks.
struct Model {
    site: Site,
    other: (SimStream, Stream),
    memory: GraphMemory,
    capture: Option<Capture>,
    graphs: Vec<weirpool::CapturedGraph>,
    live: Vec<Block>,
    ordinary: Vec<Block>,
    checkpoints: Vec<(GraphCheckpoint, Vec<(DeviceAddress, u64)>)>,
}

impl Model {
    fn new() -> Self {
        let site = Site::new(32 * MIB);
        let (other, memory) = (site.other(), site.pool.graph_memory());
        Self {
            site,
            other,
            memory,
            capture: None,
            graphs: Vec::new(),
            live: Vec::new(),
            ordinary: Vec::new(),
            checkpoints: Vec::new(),
        }
    }

    fn expected(&self) -> Vec<(DeviceAddress, u64)> {
        let mut expected: Vec<_> = self.live.iter().map(range).collect();
        expected.sort_unstable();
        expected
    }

    fn run(&mut self, action: Action) {
        let stream = &self.site.stream;
        match action {
            Action::Allocate { granules } => {
                let bytes = granules * 512;
                let block = match self.capture {
                    Some(_) => self.site.pool.try_allocate(stream, bytes),
                    None => self.memory.allocate(stream, bytes),
                };
                if let Ok(block) = block {
                    self.site.work.submit(write(&block, 1));
                    self.live.push(block);
                }
            }
            Action::Free { pick } if !self.live.is_empty() => {
                drop(self.live.swap_remove(pick % self.live.len()));
            }
            Action::Ordinary { granules } => {
                let (work, stream) = &self.other;
                if let Ok(block) = self.site.pool.try_allocate(stream, granules * 512) {
                    work.submit(write(&block, 2));
                    self.ordinary.push(block);
                }
                self.ordinary.truncate(3);
            }
            Action::Capture if self.capture.is_none() => {
                self.capture = Some(self.memory.capture(stream).unwrap());
            }
            Action::End { is_kept } => {
                let graph = self.capture.take().map(|capture| capture.end().unwrap());
                self.graphs.extend(graph.filter(|_| is_kept));
            }
            Action::Checkpoint => {
                let checkpoint = self.memory.checkpoint();
                self.checkpoints.push((checkpoint, self.expected()));
            }
            Action::Restore { pick } if !self.checkpoints.is_empty() => {
                let (checkpoint, then) = &self.checkpoints[pick % self.checkpoints.len()];
                if self.capture.is_some() {
                    let refused = self.memory.restore(checkpoint, stream);
                    assert_matches!(
                        refused,
                        Err(RestoreError::Refused(AllocError::StreamCaptured))
                    );
                    return;
                }
                let overlaps = |(at, bytes): &(DeviceAddress, u64)| {
                    let mut live = self.live.iter().map(range);
                    live.any(|(other, size)| *at < other + size && other < *at + *bytes)
                };
                if then.iter().any(overlaps) {
                    let refused = self.memory.restore(checkpoint, stream);
                    assert_matches!(refused, Err(RestoreError::Unavailable { .. }));
                    self.live.clear();
                }
                let restored = self.memory.restore(checkpoint, stream).unwrap();
                assert!(restored.iter().map(range).eq(then.iter().copied()));
                for block in &restored {
                    self.site.work.submit(write(block, 3));
                }
                self.live.extend(restored);
            }
            Action::Advance => self.site.device.advance_to_end(),
            _ => {}
        }
    }

    fn check(&self) {
        assert_eq!(ranges(&self.memory.checkpoint()), self.expected());
        let mut all: Vec<_> = self.live.iter().chain(&self.ordinary).map(range).collect();
        all.sort_unstable();
        assert!(all.is_sorted_by(|(at, bytes), (next, _)| *at + *bytes <= *next));
        let live: u64 = self.live.iter().map(Block::size).sum();
        assert_eq!(self.memory.size() - self.memory.left(), live);
        self.site.pool.inspect().check().unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// After each step exactly the ranges of living blocks are allocated, and no two blocks overlap. After a restore
    /// they are those of the checkpoint and of the blocks that were kept. In the end all memory is back.
    #[test]
    fn allocated_ranges_are_those_of_the_oracle(actions in prop::collection::vec(action(), 1..60)) {
        let mut model = Model::new();
        for action in actions {
            model.run(action);
            model.check();
        }
        let Model { site: _, memory, capture, graphs, live, ordinary, .. } = model;
        drop((capture, live, ordinary, graphs, memory));
    }
}
