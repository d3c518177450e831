//! Random captures among ordinary allocations: sessions over three streams that share graph memory, blocks that are
//! dropped within and after them, launches, and everything that moves memory meanwhile. The oracles are the device's
//! ordering checker, which knows the memory of graphs, and the pool's invariants after each step.

use crate::common::*;
use weirpool::device::sim::{Checker, Clock, Operation, SimDevice, SimStream};
use weirpool::testing::Invariants;
use weirpool::{
    AllocError, Block, Capture, CapturedGraph, Evictable, GraphMemory, Pool, Stream, StreamError,
};

const CAPACITY: u64 = 48 * MIB;
const STEPS: usize = 400;

/// A stream that is captured now and then.
struct Line {
    work: SimStream,
    stream: Stream,
    capture: Option<Capture>,
    /// Blocks of its capture, or of an earlier one.
    inside: Vec<Block>,
}

struct World {
    random: fastrand::Rng,
    device: SimDevice,
    pool: Pool,
    lines: Vec<Line>,
    /// Graphs are launched here: two that share memory must not run at the same time.
    launching: Stream,
    memories: Vec<GraphMemory>,
    graphs: Vec<CapturedGraph>,
    outside: Vec<(usize, Block)>,
    evictable: Vec<Evictable>,
    launches: u64,
}

fn write(block: &Block) -> Operation {
    Operation::new(us(10)).writes(block.address(), block.size())
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let device = SimDevice::builder()
            .memory(256 * MIB)
            .clock(Clock::Manual)
            .checker(Checker::Panic)
            .virtual_memory(random.u8(..3) > 0)
            .build();
        let pool = builder(&device, CAPACITY).build().unwrap();
        let lines = (0..3).map(|_| {
            let (work, stream) = stream(&device, &pool);
            Line {
                work,
                stream,
                capture: None,
                inside: Vec::new(),
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
        }
    }

    fn bytes(&mut self) -> u64 {
        let bits = self.random.u32(9..23);
        1 + self.random.u64(..1 << bits)
    }

    fn allocate(&mut self) {
        let bytes = self.bytes();
        let at = self.random.usize(..3);
        let line = &mut self.lines[at];
        let block = match self.pool.try_allocate(&line.stream, bytes) {
            Ok(block) => block,
            Err(AllocError::Exhausted(_) | AllocError::NotReservedForCapture { .. }) => return,
            Err(error) => panic!("{error:?}"),
        };
        line.work.submit(write(&block));
        match line.capture {
            Some(_) => line.inside.push(block),
            None if self.random.u8(..8) == 0 => self.evictable.push(block.into_evictable()),
            None => self.outside.push((at, block)),
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
            let (_, block) = self.outside.swap_remove(index);
            if self.random.u8(..4) == 0 {
                // Refused where a captured stream would have to wait for one that is not.
                let stream = &self.lines[at].stream;
                drop(block.deallocate_on(stream).map(drop));
            }
        }
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
        match self.random.u8(..6) {
            0 => capture.abort(),
            1 => drop(std::thread::spawn(move || drop(capture)).join()),
            _ => self.graphs.push(capture.end().unwrap()),
        }
    }

    fn launch(&mut self) {
        if let Some(graph) = self.random.choice(&self.graphs) {
            graph.launch(&self.launching).unwrap();
            self.launches += 1;
        }
    }

    /// A launch where it would become a part of another capture, or on memory in use there, is refused or captured.
    fn launch_on_a_line(&mut self) {
        let line = &self.lines[self.random.usize(..3)];
        if line.capture.is_some()
            && let Some(graph) = self.random.choice(&self.graphs)
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
            1 => drop(pool.coalesce().unwrap()),
            2 => drop(
                pool.resize(CAPACITY + 2 * MIB * self.random.u64(..4))
                    .unwrap(),
            ),
            3 => drop(pool.reap().unwrap()),
            4 => drop((pool.statistics(), pool.snapshot(), pool.leaks())),
            5 => drop(pool.evict(self.random.u64(..CAPACITY))),
            _ => drop(pool.reserve(MIB).try_now()),
        }
    }

    fn step(&mut self) {
        match self.random.u8(..20) {
            0..7 => self.allocate(),
            7..11 => self.free(),
            11 | 12 => self.begin(),
            13 | 14 => self.end(),
            15 => self.launch(),
            16 => self.launch_on_a_line(),
            17 => self.forget_owners(),
            18 => self.manage(),
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
        let _ = self.pool.reap();
        self.pool.check_conserved().unwrap();
        let figures = self.pool.statistics();
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
            world.pool.check().unwrap();
        }
        world.finish()
    });
    assert!(launches > crate::SEEDS, "graphs are launched");
}
