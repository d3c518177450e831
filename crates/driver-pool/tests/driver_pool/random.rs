//! Random use of one memory pool of the driver by two pools at once: passed through and sub-allocated, with waiters that
//! give up, captured streams, and attributes that change meanwhile. The oracles are the device's ordering checker, the
//! pools' invariants, and the driver's own figures.

use crate::common::*;
use std::panic::catch_unwind;
use std::pin::Pin;
use std::task::Poll;
use weirpool::device::sim::{Checker, Clock, Operation, SimDevice, SimStream};
use weirpool::{AllocError, AllocateOwned, Block, Capture, Pool, ReleaseThreshold, Reuse, Stream};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

const MOST: u64 = 24 * MIB;
const STEPS: usize = 300;
const SEEDS: u64 = 60;

/// A stream of one of the pools.
struct Line {
    pool: usize,
    work: SimStream,
    stream: Stream,
    capture: Option<Capture>,
}

struct World {
    random: fastrand::Rng,
    device: SimDevice,
    driver_pool: DriverPool,
    most: u64,
    pools: [Pool; 2],
    lines: Vec<Line>,
    blocks: Vec<(usize, Block)>,
    waiting: Vec<(usize, Pin<Box<AllocateOwned>>)>,
    served: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let device = SimDevice::builder()
            .memory(32 * MIB)
            .clock(Clock::Manual)
            .checker(Checker::Panic)
            .build();
        let (driver_pool, most) = match random.bool() {
            true => (DriverPool::default_of(&device).unwrap(), u64::MAX),
            false => {
                let builder = DriverPool::builder(&device).max_size(MOST);
                (builder.build().unwrap(), MOST)
            }
        };
        let uses = [
            DriverPoolUse::PassedThrough,
            match random.bool() {
                true => DriverPoolUse::PassedThrough,
                false => DriverPoolUse::SubAllocated,
            },
        ];
        let pools = uses.map(|how| {
            let builder = Pool::builder(device.clone()).segment_source(driver_pool.segments(how));
            let builder = builder.capacity(16 * MIB);
            builder.build().unwrap()
        });
        let lines = (0..4).map(|at| {
            let pool = at % 2;
            let (work, stream) = stream(&device, &pools[pool]);
            Line {
                pool,
                work,
                stream,
                capture: None,
            }
        });
        let lines = lines.collect();
        Self {
            random,
            device,
            driver_pool,
            most,
            pools,
            lines,
            blocks: Vec::new(),
            waiting: Vec::new(),
            served: 0,
        }
    }

    fn use_on(&self, line: usize, block: &Block) {
        let work = Operation::new(us(10)).writes(block.address(), block.size());
        self.lines[line].work.submit(work);
    }

    fn granted(&mut self, line: usize, answer: Result<Block, AllocError>) {
        match answer {
            Ok(block) => {
                // In a capture, the graph is never launched: its memory may be of any kind.
                self.use_on(line, &block);
                self.blocks.push((line, block));
            }
            Err(AllocError::Exhausted(_) | AllocError::NotReservedForCapture { .. }) => {}
            Err(AllocError::NotReservable) => assert!(self.lines[line].capture.is_some()),
            Err(error) => panic!("{error:?}"),
        }
    }

    fn allocate(&mut self) {
        let line = self.random.usize(..4);
        let bytes = 1 + self.random.u64(..6 * MIB);
        let Line { pool, stream, .. } = &self.lines[line];
        let pool = &self.pools[*pool];
        if self.random.u8(..3) > 0 {
            let answer = pool.try_allocate(stream, bytes);
            return self.granted(line, answer);
        }
        let mut request = Box::pin(pool.allocate_owned(stream, bytes));
        match poll(&mut request) {
            Poll::Ready(answer) => self.granted(line, answer),
            Poll::Pending => self.waiting.push((line, request)),
        }
    }

    /// Polls a request that waits, or drops it.
    fn answer(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let at = self.random.usize(..self.waiting.len());
        if self.random.u8(..4) == 0 {
            return drop(self.waiting.swap_remove(at));
        }
        if let Poll::Ready(answer) = poll(&mut self.waiting[at].1) {
            let (line, _request) = self.waiting.swap_remove(at);
            self.served += u64::from(answer.is_ok());
            self.granted(line, answer);
        }
    }

    fn free(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        let at = self.random.usize(..self.blocks.len());
        let (line, mut block) = self.blocks.swap_remove(at);
        let further = (line + 2) % 4;
        match self.random.u8(..3) {
            // Refused where a captured stream would have to wait.
            0 if self.lines[further].stream.record_use(&mut block).is_ok() => {
                self.use_on(further, &block);
                drop(block);
            }
            1 => drop(block.deallocate()),
            _ => drop(block),
        }
    }

    fn capture(&mut self) {
        let line = &mut self.lines[self.random.usize(..4)];
        match line.capture.take() {
            Some(capture) if self.random.bool() => drop(capture),
            Some(capture) => drop(capture.end().unwrap()),
            None => line.capture = Some(self.pools[line.pool].capture(&line.stream).unwrap()),
        }
    }

    fn manage(&mut self) {
        let (driver_pool, random) = (&self.driver_pool, &mut self.random);
        let bytes = random.u64(..MOST);
        let pool = &self.pools[random.usize(..2)];
        match random.u8(..8) {
            0 => {
                let threshold = ReleaseThreshold::Bytes(bytes);
                driver_pool.set_release_threshold(threshold).unwrap();
            }
            1 => {
                let reuse = Reuse {
                    follow_event_dependencies: random.bool(),
                    opportunistic: random.bool(),
                    internal_dependencies: random.bool(),
                };
                driver_pool.set_reuse(reuse).unwrap();
            }
            2 => driver_pool.reset_high_water_marks().unwrap(),
            3 => driver_pool.trim_to(bytes).unwrap(),
            4 => drop(pool.trim_to(bytes).unwrap()),
            5 => drop(pool.maintain().reap().unwrap()),
            6 => drop((pool.inspect().statistics(), pool.inspect().snapshot())),
            _ => {
                // Refused while the stream is captured.
                let line = &self.lines[random.usize(..4)];
                drop(line.stream.event());
            }
        }
    }

    fn step(&mut self) {
        match self.random.u8(..16) {
            0..5 => self.allocate(),
            5..9 => self.free(),
            9..11 => self.answer(),
            11 => self.capture(),
            12 | 13 => self.manage(),
            _ => self.device.advance(us(self.random.u64(..60))),
        }
        self.assert_sound();
    }

    fn assert_sound(&self) {
        self.pools
            .iter()
            .for_each(|pool| pool.inspect().check().unwrap());
        let (used, reserved) = (self.driver_pool.used(), self.driver_pool.reserved());
        let (used, reserved) = (used.unwrap(), reserved.unwrap());
        assert!(used.current <= used.high && reserved.current <= reserved.high);
        assert!(used.current <= reserved.current && reserved.current <= self.most);
        let held = self.pools.each_ref().map(|pool| {
            let figures = pool.inspect().statistics();
            assert!(figures.reserved.current <= pool.capacity());
            figures.reserved.current
        });
        assert!(
            held.iter().sum::<u64>() <= used.current,
            "{held:?} {used:?}"
        );
    }

    fn finish(mut self) -> u64 {
        self.waiting.clear();
        self.lines.iter_mut().for_each(|line| {
            drop(line.capture.take().map(Capture::end));
        });
        self.blocks.clear();
        // Memory freed in a capture goes back at the maintenance after it.
        (0..20).for_each(|_| self.device.advance(us(100)));
        self.assert_sound();
        for pool in &self.pools {
            pool.maintain().reap().unwrap();
            pool.inspect().check_conserved().unwrap();
            let _ = pool.trim_to(0).unwrap();
        }
        assert_eq!(self.driver_pool.used().unwrap().current, 0);
        self.driver_pool.trim_to(0).unwrap();
        assert_eq!(self.device.counters().physical_in_use, 0);
        self.device.assert_ordered();
        self.served
    }
}

#[test]
fn pools_share_a_pool_of_the_driver() {
    let served = (0..SEEDS).map(|seed| {
        let run = || {
            let mut world = World::new(seed);
            (0..STEPS).for_each(|_| world.step());
            world.finish()
        };
        catch_unwind(run).unwrap_or_else(|_| panic!("seed {seed}"))
    });
    assert!(served.sum::<u64>() > SEEDS, "requests wait and are served");
}
