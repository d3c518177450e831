//! Random captures among ordinary allocations: sessions over three streams that share graph memory, blocks that are
//! dropped within and after them, blocks of other memory that captured calls name, launches, and everything that moves
//! memory meanwhile. The oracles are the device's ordering checker, which knows the memory of graphs, the bytes of each
//! live block, and the pool's invariants after each step.

use crate::common::*;
use std::task::Poll;
use std::time::Duration;
use weirpool::device::sim::{Checker, Operation, SimDevice, SimStream};
use weirpool::{
    AllocError, Block, Capture, CapturedGraph, Evictable, GraphMemory, Stream, StreamError,
    Unordered, Upstream,
};
use weirpool_observe::Recorded as _;

const CAPACITY: u64 = 48 * MIB;
const STEPS: usize = 400;
/// Longer than all work that is submitted at any time.
const LONG: Duration = us(10_000);

/// A stream that is captured now and then.
struct Line {
    work: SimStream,
    stream: Stream,
    capture: Option<Capture>,
    /// Blocks of its capture, or of an earlier one.
    inside: Vec<Block>,
    /// The blocks of other memory that calls of its capture named.
    named: Vec<Named>,
}

/// A fill of a block by a graph, which does not own its memory.
struct Named {
    address: u64,
    value: u8,
}

/// A block of memory that is no graph's, and the byte that it is full of.
struct Outside {
    block: Block,
    value: u8,
}

struct World {
    random: fastrand::Rng,
    device: SimDevice,
    pool: TestPool,
    lines: Vec<Line>,
    /// Graphs are launched here: two that share memory must not run at the same time.
    launching: Stream,
    memories: Vec<GraphMemory>,
    graphs: Vec<(CapturedGraph, Vec<Named>)>,
    outside: Vec<Outside>,
    evictable: Vec<Evictable>,
    launches: u64,
    /// The last byte that a block was filled with.
    value: u8,
}

fn fill(block: &Block, value: u8) -> Operation {
    let (address, bytes) = (block.address(), block.size());
    write(block).run_each(move |memory| memory.fill(address, bytes, value))
}

fn write(block: &Block) -> Operation {
    Operation::new(us(10)).writes(block.address(), block.size())
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let device = manual_builder()
            .memory(256 * MIB)
            .checker(Checker::Panic)
            .virtual_memory(random.u8(..3) > 0)
            .build();
        let builder = builder(&device, CAPACITY);
        let builder = match random.u8(..3) {
            0 => builder.upstream(Upstream::Pinned),
            _ => builder,
        };
        let pool = builder.made();
        let lines = (0..3).map(|_| {
            let (work, stream) = stream(&device, &pool);
            Line {
                work,
                stream,
                capture: None,
                inside: Vec::new(),
                named: Vec::new(),
            }
        });
        let lines = lines.collect();
        let launching = pool.create_stream().unwrap();
        Self {
            random,
            device,
            pool,
            lines,
            launching,
            memories: Vec::new(),
            graphs: Vec::new(),
            outside: Vec::new(),
            evictable: Vec::new(),
            launches: 0,
            value: 0,
        }
    }

    fn next_value(&mut self) -> u8 {
        self.value = self.value.wrapping_add(1);
        self.value
    }

    fn bytes(&mut self) -> u64 {
        let bits = self.random.u32(9..23);
        1 + self.random.u64(..1 << bits)
    }

    fn allocate(&mut self) {
        let bytes = self.bytes();
        let (at, value) = (self.random.usize(..3), self.next_value());
        let line = &mut self.lines[at];
        let block = match self.pool.try_allocate(&line.stream, bytes) {
            Ok(block) => block,
            Err(AllocError::Exhausted(_) | AllocError::NotReservedForCapture { .. }) => return,
            Err(error) => panic!("{error:?}"),
        };
        match line.capture {
            Some(_) => line.work.submit(write(&block)),
            None => line.work.submit(fill(&block, value)),
        }
        match line.capture {
            Some(_) => line.inside.push(block),
            None if self.random.u8(..8) == 0 => self.evictable.push(block.into_evictable()),
            None => self.outside.push(Outside { block, value }),
        }
    }

    /// Frees a block, perhaps on a stream that is being captured.
    fn free(&mut self) {
        let at = self.random.usize(..3);
        let line = &mut self.lines[at];
        if self.random.bool() && !line.inside.is_empty() {
            let index = self.random.usize(..line.inside.len());
            drop(line.inside.swap_remove(index));
        } else if !self.outside.is_empty() {
            let index = self.random.usize(..self.outside.len());
            let Outside { block, .. } = self.outside.swap_remove(index);
            if self.random.u8(..4) == 0 {
                // Refused where a captured stream would have to wait for one that is not.
                let stream = &self.lines[at].stream;
                drop(block.deallocate_on(stream).map(drop));
            }
        }
    }

    /// A captured call names a block of other memory: the graph keeps it, whatever becomes of its owner.
    fn name(&mut self) {
        let value = self.next_value();
        let line = &mut self.lines[self.random.usize(..3)];
        if line.capture.is_none() {
            return;
        }
        if self.random.u8(..4) == 0 {
            let pinned = self.random.choice(&self.evictable);
            // Refused where the captured stream would have to wait.
            drop(
                pinned
                    .and_then(Evictable::pin)
                    .map(|pinned| line.stream.record_use(Unordered::Once(&pinned)).map(drop)),
            );
        } else if !self.outside.is_empty() {
            let index = self.random.usize(..self.outside.len());
            let block = &mut self.outside[index].block;
            if block.fill(&line.stream, value).is_ok() {
                let address = block.address().to_bits();
                line.named.push(Named { address, value });
            }
        }
    }

    /// Every live block has the bytes of its own last use, or of the last launch that names it.
    fn compare(&mut self) {
        self.device.advance(LONG);
        for Outside { block, value } in &self.outside {
            for at in [0, block.size() - 64] {
                let mut bytes = [0; 64];
                self.device.read(block.address() + at, &mut bytes).unwrap();
                assert_eq!(bytes, [*value; 64], "{block:?}");
            }
        }
    }

    /// The host gets a block, where it sees it, after all launches so far.
    fn let_the_host_in(&mut self) {
        if self.outside.is_empty() {
            return;
        }
        let index = self.random.usize(..self.outside.len());
        let Outside { block, value } = &mut self.outside[index];
        let mut host = Box::pin(block.host());
        for _ in 0..4 {
            match poll(&mut host) {
                Poll::Pending => self.device.advance(LONG),
                Poll::Ready(Ok(guard)) => {
                    return assert!(guard.iter().all(|byte| byte == value));
                }
                // The host does not see it, or its stream is being captured.
                Poll::Ready(Err(_)) => return,
            }
        }
        panic!("the host waits for nothing");
    }

    fn begin(&mut self) {
        let at = self.random.usize(..3);
        if self.memories.is_empty() || self.random.u8(..3) == 0 {
            let memory = self.pool.graph_memory();
            if let Ok(reservation) = self.pool.reserve(self.random.u64(1..4) * MIB).try_now() {
                memory.give(reservation).unwrap();
            }
            self.memories.push(memory);
        }
        let memory = self.random.choice(&self.memories).unwrap();
        match memory.capture(&self.lines[at].stream) {
            Ok(capture) => assert!(self.lines[at].capture.replace(capture).is_none()),
            Err(_) => assert!(
                self.lines.iter().any(|line| line.capture.is_some()),
                "only what is captured already is refused"
            ),
        }
    }

    fn end(&mut self) {
        let line = &mut self.lines[self.random.usize(..3)];
        let Some(capture) = line.capture.take() else {
            return;
        };
        let named = std::mem::take(&mut line.named);
        match self.random.u8(..6) {
            0 => drop(capture),
            1 => drop(std::thread::spawn(move || drop(capture)).join()),
            _ => self.graphs.push((capture.end().unwrap(), named)),
        }
    }

    fn launch(&mut self) {
        let Some((graph, named)) = self.random.choice(&self.graphs) else {
            return;
        };
        if !named.is_empty() {
            // A launch does not come after earlier writes on other streams by itself.
            if self.lines.iter().any(|line| line.capture.is_some()) {
                return;
            }
            for line in &self.lines {
                self.launching.wait(&line.stream.event().unwrap()).unwrap();
            }
        }
        graph.launch(&self.launching).unwrap();
        self.launches += 1;
        for Named { address, value } in named {
            let mut live = self.outside.iter_mut();
            let is_it = |outside: &&mut Outside| outside.block.address().to_bits() == *address;
            if let Some(outside) = live.find(is_it) {
                outside.value = *value;
            }
        }
    }

    /// A launch where it would become a part of another capture, or on memory in use there, is refused or captured.
    fn launch_on_a_line(&mut self) {
        let line = &self.lines[self.random.usize(..3)];
        if line.capture.is_some()
            && let Some((graph, _)) = self.random.choice(&self.graphs)
        {
            match graph.launch(&line.stream) {
                Ok(()) | Err(StreamError::Device(_)) => {}
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    }

    fn forget_owners(&mut self) {
        match self.random.u8(..3) {
            0 if !self.graphs.is_empty() => {
                let index = self.random.usize(..self.graphs.len());
                drop(self.graphs.swap_remove(index));
            }
            1 if !self.memories.is_empty() => {
                let index = self.random.usize(..self.memories.len());
                drop(self.memories.swap_remove(index));
            }
            _ => drop(self.evictable.pop()),
        }
    }

    fn manage(&mut self) {
        let pool = &self.pool;
        match self.random.u8(..7) {
            0 => drop(pool.trim_to(self.random.u64(..CAPACITY)).unwrap()),
            1 => drop(pool.maintain().coalesce().unwrap()),
            2 => drop(
                pool.resize(CAPACITY + 2 * MIB * self.random.u64(..4))
                    .unwrap(),
            ),
            3 => drop(pool.maintain().reap().unwrap()),
            4 => drop((
                pool.inspect().statistics(),
                pool.inspect().snapshot(),
                pool.leaks(),
            )),
            5 => drop(pool.maintain().evict(self.random.u64(..CAPACITY))),
            _ => drop(pool.reserve(MIB).try_now()),
        }
    }

    fn step(&mut self) {
        match self.random.u8(..25) {
            0..7 => self.allocate(),
            7..11 => self.free(),
            11 | 12 => self.begin(),
            13 | 14 => self.end(),
            15 => self.launch(),
            16 => self.launch_on_a_line(),
            17 => self.forget_owners(),
            18 => self.manage(),
            19..22 => self.name(),
            22 => self.compare(),
            23 => self.let_the_host_in(),
            _ => self.device.advance(us(self.random.u64(..100))),
        }
    }

    fn finish(mut self) -> u64 {
        for line in &mut self.lines {
            if let Some(capture) = line.capture.take() {
                drop(capture.end());
            }
            line.inside.clear();
        }
        self.outside.clear();
        self.evictable.clear();
        self.graphs.clear();
        self.memories.clear();
        self.device.advance_to_end();
        self.device.assert_ordered();
        let _ = self.pool.maintain().reap();
        self.pool.inspect().check_conserved().unwrap();
        let figures = self.pool.inspect().statistics();
        assert_eq!((figures.used.current, figures.in_graphs), (0, 0));
        self.launches
    }
}

#[test]
fn random_captures_keep_order_and_memory() {
    let launches = crate::over_seeds(|seed| {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
            world.pool.inspect().check().unwrap();
        }
        world.finish()
    });
    assert!(launches > crate::SEEDS, "graphs are launched");
}
