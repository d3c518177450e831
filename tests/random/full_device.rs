//! Random use of a device by three pools that may each take all of it, beside another program. Requests wait or do not,
//! blocks are evictable, and reservations set memory aside.
//!
//! The oracle is a count of bytes. Virtual memory that no pool uses and no other program holds serves any request that it
//! is enough for, in whichever pool it lies, since all blocks are whole chunks; and so does a pool's own evictable
//! memory. A request that does not wait fails only if they are too little together, and then evicts nothing. The oldest
//! request that waits is served within a quiet time, also by evictable memory of other pools. Plain memory cannot be
//! moved: it has to serve requests once no block lives.

use crate::common::*;
use std::time::Duration;
use weirpool::device::sim::{Clock, Occupied, Operation, SimDevice, SimStream};
use weirpool::{AllocError, Block, Evictable, Remapping, Reservation, Stream, WhenShort};

const USABLE: u64 = 64 * MIB;
const STEPS: usize = 400;
const INTERVAL: Duration = us(10_000);

struct Line {
    pool: usize,
    work: SimStream,
    stream: Stream,
}

/// A request that waits.
struct Waiting {
    /// When it came. Among requests that came at the same time, that of the pool built first is the oldest.
    at: Duration,
    line: usize,
    bytes: u64,
    task: Woken<'static, Result<Block, AllocError>>,
}

/// A reservation, and the blocks that were drawn from it.
struct SetAside {
    pool: usize,
    reservation: Reservation,
    drawn: Vec<(usize, Block)>,
}

struct World {
    random: fastrand::Rng,
    device: SimDevice,
    is_virtual: bool,
    /// The device reports memory that it does not give.
    withholds: bool,
    pools: [TestPool; 3],
    lines: Vec<Line>,
    blocks: Vec<(usize, Block)>,
    evictable: Vec<(usize, u64, Evictable)>,
    reservations: Vec<SetAside>,
    waiting: Vec<Waiting>,
    others: Vec<Occupied>,
    served: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let withheld = random.u64(..4) * MIB;
        let is_virtual = random.u8(..4) > 0;
        let device = SimDevice::builder()
            .memory(USABLE + withheld)
            .withheld_memory(withheld)
            .virtual_memory(is_virtual)
            .clock(Clock::Manual)
            .build();
        let pools = [(); 3].map(|()| {
            let order = [WhenShort::GrowFirst, WhenShort::WaitBriefly][random.usize(..2)];
            let remapping = [Remapping::Always, Remapping::default(), Remapping::Never];
            let pool = builder(&device, USABLE).tuning(|tuning| {
                tuning.when_short = order;
                tuning.remapping = remapping[random.usize(..3)];
            });
            pool.made()
        });
        let lines = (0..6).map(|at| {
            let pool = at % 3;
            let (work, stream) = stream(&device, &pools[pool]);
            Line { pool, work, stream }
        });
        let lines = lines.collect();
        Self {
            random,
            device,
            is_virtual,
            withholds: withheld > 0,
            pools,
            lines,
            blocks: Vec::new(),
            evictable: Vec::new(),
            reservations: Vec::new(),
            waiting: Vec::new(),
            others: Vec::new(),
            served: 0,
        }
    }

    fn step(&mut self) {
        match self.random.u8(..27) {
            0..6 => self.allocate(),
            6..8 => self.wait(),
            8..14 => self.free(),
            14 => {
                let bytes = self.random.u64(..24) * MIB;
                self.others.push(self.device.faults().occupy(bytes));
            }
            15 | 16 if !self.others.is_empty() => {
                let at = self.random.usize(..self.others.len());
                drop(self.others.swap_remove(at));
            }
            17 => self.assert_served_after_a_quiet_time(),
            18 if !self.waiting.is_empty() => {
                let at = self.random.usize(..self.waiting.len());
                drop(self.waiting.remove(at));
            }
            19 if !self.blocks.is_empty() => {
                let at = self.random.usize(..self.blocks.len());
                let (line, block) = self.blocks.swap_remove(at);
                let (pool, bytes) = (self.lines[line].pool, block.size());
                self.evictable.push((pool, bytes, block.into_evictable()));
            }
            20 if !self.evictable.is_empty() => {
                let at = self.random.usize(..self.evictable.len());
                drop(self.evictable.swap_remove(at));
            }
            21 => self.reserve(),
            22..25 => self.draw(),
            25 => self.end_reservation(),
            _ => self.device.advance(us(self.random.u64(..60))),
        }
        self.take_answers();
        self.pools
            .iter()
            .for_each(|pool| pool.inspect().check().unwrap());
    }

    fn some_chunks(&mut self) -> u64 {
        (1 + self.random.u64(..16)) * CHUNK
    }

    fn evictable_bytes(&self) -> u64 {
        let pools = self.pools.iter();
        pools
            .map(|pool| pool.inspect().statistics().evictable)
            .sum()
    }

    /// Returns the bytes that no block and no other program holds. The evictable memory of a pool is available to its
    /// requests, and that of all pools to a request that waits (`None`).
    fn unused(&self, pool: Option<usize>) -> u64 {
        let others: u64 = self.others.iter().map(Occupied::bytes).sum();
        let live: u64 = self.blocks.iter().map(|(_, block)| block.size()).sum();
        let evictable = self.evictable.iter();
        let kept = evictable.filter(|(home, _, memory)| {
            pool.is_some_and(|pool| *home != pool) && memory.is_present()
        });
        let kept: u64 = kept.map(|(_, bytes, _)| bytes).sum();
        let reservations = self.reservations.iter();
        let reserved: u64 = reservations.map(|aside| aside.reservation.size()).sum();
        USABLE - others - live - kept - reserved
    }

    /// Returns whether a request for this many bytes has to be served when no work is under way.
    fn is_enough(&self, pool: Option<usize>, bytes: u64) -> bool {
        let live = self
            .evictable
            .iter()
            .filter(|(.., memory)| memory.is_present());
        let is_movable = self.is_virtual
            || self.blocks.is_empty() && self.reservations.is_empty() && live.count() == 0;
        is_movable && bytes <= self.unused(pool)
    }

    fn keep(&mut self, line: usize, block: Block) {
        if self.random.bool() {
            let work = Operation::new(us(10)).writes(block.address(), block.size());
            self.lines[line].work.submit(work);
        }
        self.blocks.push((line, block));
    }

    fn allocate(&mut self) {
        let (line, bytes) = (self.random.usize(..6), self.some_chunks());
        let pool = self.lines[line].pool;
        let answer = self.at_once(pool, bytes, |world| {
            world.pools[pool].try_allocate(&world.lines[line].stream, bytes)
        });
        if let Some(block) = answer {
            self.keep(line, block);
        }
    }

    /// Makes a request that does not wait, for which the memory has to be enough if it fails.
    fn at_once<T>(
        &mut self,
        pool: usize,
        bytes: u64,
        request: impl FnOnce(&Self) -> Result<T, AllocError>,
    ) -> Option<T> {
        let is_quiet = self.waiting.is_empty() && self.random.bool();
        if is_quiet {
            self.device.advance(us(1000));
        }
        let evictable = self.evictable_bytes();
        match request(self) {
            Ok(memory) => {
                self.served += u64::from(is_quiet);
                return Some(memory);
            }
            Err(error @ AllocError::Exhausted(_))
                if is_quiet && self.is_enough(Some(pool), bytes) =>
            {
                panic!(
                    "pool {pool}, {bytes} of {} unused bytes: {error}",
                    self.unused(Some(pool))
                )
            }
            Err(AllocError::Exhausted(_)) if is_quiet && self.is_virtual && !self.withholds => {
                assert_eq!(self.evictable_bytes(), evictable, "evicted in vain");
            }
            Err(AllocError::Exhausted(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
        None
    }

    fn reserve(&mut self) {
        let (pool, bytes) = (self.random.usize(..3), self.some_chunks());
        let answer = self.at_once(pool, bytes, |world| {
            world.pools[pool].reserve(bytes).try_now()
        });
        if let Some(reservation) = answer {
            let drawn = Vec::new();
            self.reservations.push(SetAside {
                pool,
                reservation,
                drawn,
            });
        }
    }

    /// Draws from a reservation, or frees a drawn block. A draw of chunks that are left does not fail once the work on them
    /// is complete.
    fn draw(&mut self) {
        let random = &mut self.random;
        let Some(aside) = random.choice(&mut self.reservations) else {
            return;
        };
        let SetAside {
            pool,
            reservation,
            drawn,
        } = aside;
        let left = reservation.left() / CHUNK;
        if left == 0 || random.u8(..3) == 0 {
            if !drawn.is_empty() {
                drop(drawn.swap_remove(random.usize(..drawn.len())));
            }
            return;
        }
        // The lines of a pool are its number and three more.
        let at = *pool + 3 * random.usize(..2);
        let line = &self.lines[at];
        let bytes = (1 + random.u64(..left)) * CHUNK;
        let mut answer = reservation.allocate(&line.stream, bytes);
        if answer.is_err() {
            self.device.advance(us(1000));
            answer = reservation.allocate(&line.stream, bytes);
        }
        match answer {
            Ok(block) => {
                let work = Operation::new(us(10)).writes(block.address(), block.size());
                line.work.submit(work);
                drawn.push((at, block));
            }
            Err(error) => assert!(!self.is_virtual, "{bytes} of {left} chunks: {error}"),
        }
    }

    fn end_reservation(&mut self) {
        if !self.reservations.is_empty() {
            let at = self.random.usize(..self.reservations.len());
            let SetAside {
                reservation, drawn, ..
            } = self.reservations.swap_remove(at);
            drop(reservation);
            self.blocks.extend(drawn);
        }
    }

    fn wait(&mut self) {
        let (line, bytes) = (self.random.usize(..6), self.some_chunks());
        let Line { pool, stream, .. } = &self.lines[line];
        let task = Woken::new(self.pools[*pool].allocate_owned(stream, bytes));
        let at = self.device.now();
        self.waiting.push(Waiting {
            at,
            line,
            bytes,
            task,
        });
    }

    fn free(&mut self) {
        if !self.blocks.is_empty() {
            let at = self.random.usize(..self.blocks.len());
            drop(self.blocks.swap_remove(at));
        }
    }

    /// Polls the requests that were woken, and keeps the blocks of those that were served.
    fn take_answers(&mut self) {
        loop {
            let woken = self.waiting.iter_mut();
            let polls = woken.filter_map(|waiting| waiting.task.poll_if_woken().then_some(()));
            let has_polled = polls.count() > 0;
            let mut at = 0;
            while at < self.waiting.len() {
                match self.waiting[at].task.output.take() {
                    Some(answer) => {
                        let Waiting { line, .. } = self.waiting.remove(at);
                        self.keep(line, answer.unwrap());
                    }
                    None => at += 1,
                }
            }
            if !has_polled {
                return;
            }
        }
    }

    fn assert_served_after_a_quiet_time(&mut self) {
        for _ in 0..20 {
            self.take_answers();
            self.device.advance(INTERVAL);
        }
        self.take_answers();
        let came = |waiting: &&Waiting| (waiting.at, self.lines[waiting.line].pool);
        let oldest = self.waiting.iter().min_by_key(came);
        if let Some(Waiting { line, bytes, .. }) = oldest
            && self.is_enough(None, *bytes)
        {
            let pool = self.lines[*line].pool;
            let unused = self.unused(None);
            let reserved = self.pools.each_ref().map(|pool| reserved(pool));
            panic!("pool {pool} waits for {bytes} of {unused} unused bytes: {reserved:?} reserved");
        }
    }

    fn finish(mut self) -> u64 {
        self.others.clear();
        self.blocks.clear();
        self.evictable.clear();
        self.reservations.clear();
        while !self.waiting.is_empty() {
            let before = self.waiting.len();
            self.assert_served_after_a_quiet_time();
            assert!(self.waiting.len() < before, "no request was served");
            self.served += 1;
            self.blocks.clear();
            self.evictable.clear();
            self.reservations.clear();
        }
        self.device.advance(INTERVAL);
        for pool in &self.pools {
            pool.maintain().reap().unwrap();
            pool.inspect().check_conserved().unwrap();
            let _ = pool.trim_to(0).unwrap();
        }
        assert_eq!(self.device.counters().physical_in_use, 0);
        self.served
    }
}

#[test]
fn pools_share_a_full_device() {
    let served = crate::over_seeds(|seed| {
        let mut world = World::new(seed);
        (0..STEPS).for_each(|_| world.step());
        world.finish()
    });
    assert!(served > 10 * crate::SEEDS, "requests are served: {served}");
}
