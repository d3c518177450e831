//! Pools of one process with one broker, each on a thread that does anything a pool can do, while the broker restarts.
//! They never hold more together than the broker leases, and leave nothing behind.

use crate::common::*;
use crate::joint::Joint;
use crate::processes::until;
use crate::{Folder, broker};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use weirpool::*;
use weirpool_broker::{BrokerOptions, lease_capacity};

const CAPACITY: u64 = 48 * MIB;
const ROUNDS: usize = 6;
const STEPS: usize = 60;

struct Site {
    pool: Pool,
    work: device::sim::SimStream,
    stream: Stream,
    random: fastrand::Rng,
    blocks: Vec<Block>,
    reserved: Vec<Reservation>,
    evictable: Vec<Evictable>,
    graphs: Vec<GraphMemory>,
}

impl Site {
    fn new(folder: &Folder, seed: u64) -> Option<Self> {
        let mut random = fastrand::Rng::with_seed(seed);
        let joint = Joint::new(&folder.file("joint"), CAPACITY);
        let sim = joint.sim().clone();
        let options = BrokerOptions::new(folder.socket())
            .guaranteed(random.u64(0..4) * 2 * MIB)
            .weight(random.u32(1..4))
            .headroom(random.u64(0..3) * 3 * MIB);
        let builder = lease_capacity(Pool::builder(joint).chunk_bytes(CHUNK), options);
        // The broker may be between two runs.
        let pool = builder.build().ok()?;
        let work = sim.create_stream();
        let stream = pool.register(&work).unwrap();
        Some(Self {
            pool,
            work,
            stream,
            random,
            blocks: Vec::new(),
            reserved: Vec::new(),
            evictable: Vec::new(),
            graphs: Vec::new(),
        })
    }

    fn bytes(&mut self) -> u64 {
        self.random.u64(1..CAPACITY / 3)
    }

    fn note(&mut self, block: Block) {
        use_block(&self.work, &block, us(self.random.u64(1..50)));
        self.blocks.push(block);
    }

    fn step(&mut self) {
        let bytes = self.bytes();
        let patience = us(self.random.u64(1..3000));
        let (pool, stream) = (&self.pool.clone(), &self.stream.clone());
        match self.random.u32(..16) {
            0..3 => {
                if let Ok(block) = pool.try_allocate(stream, bytes) {
                    self.note(block);
                }
            }
            3..6 => {
                let block = pool.allocate(stream, bytes).timeout(patience).blocking();
                if let Ok(block) = block {
                    self.note(block);
                }
            }
            6 => {
                let request = pool.reserve(bytes).timeout(patience).blocking();
                self.reserved.extend(request.ok());
            }
            7 => {
                let at = self.random.usize(..=self.blocks.len());
                if at < self.blocks.len() {
                    let block = self.blocks.swap_remove(at);
                    self.evictable.push(block.into_evictable());
                }
            }
            8 => {
                let _ = pool.resize(self.random.u64(1..=CAPACITY));
            }
            9 => {
                let _ = pool.trim_to(bytes);
            }
            10 => {
                let memory = pool.graph_memory();
                if memory.allocate(stream, bytes / 8).is_ok() {
                    self.graphs.push(memory);
                }
            }
            11 => {
                // It asks, and is dropped.
                let mut request = pool.allocate(stream, bytes);
                let _ = poll(&mut request);
            }
            12 => self.evictable.clear(),
            13 => {
                self.reserved.clear();
                self.graphs.clear();
            }
            14 => {
                if let Some(reservation) = self.reserved.last()
                    && let Ok(block) = reservation.allocate(stream, bytes / 2)
                {
                    self.note(block);
                }
            }
            _ => {
                let keep = self.random.usize(..=self.blocks.len());
                self.blocks.truncate(keep);
            }
        }
    }

    fn end(self) {
        let Self { pool, stream, .. } = self;
        drop((self.blocks, self.reserved, self.evictable, self.graphs));
        futures::executor::block_on(stream.synchronize()).unwrap();
        pool.inspect().check_conserved().unwrap();
    }
}

/// Counts a thread that ends.
struct Ends<'a>(&'a AtomicUsize);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn pools_that_do_anything_stay_within_the_capacity() {
    let folder = Folder::new("mixed");
    let mut running = Some(broker(&folder.socket(), CAPACITY));
    let threads = AtomicUsize::new(3);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (folder, threads) = (&folder, &threads);
            scope.spawn(move || {
                // Also if it panics.
                let _ends = Ends(threads);
                for round in 0..ROUNDS as u64 {
                    let site = (0..20_000).find_map(|_| {
                        let site = Site::new(folder, thread * 100 + round);
                        if site.is_none() {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        site
                    });
                    let mut site = site.expect("the broker comes back");
                    for _ in 0..STEPS {
                        site.step();
                    }
                    // Some end while memory is in use, asked for and recalled.
                    if round % 2 == 0 {
                        site.end();
                    }
                }
            });
        }
        while threads.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(Duration::from_millis(20));
            drop(running.take());
            running = Some(broker(&folder.socket(), CAPACITY));
        }
    });
    until(&folder, |figures| {
        figures.clients.iter().all(|client| client.lease == 0)
    });
    Joint::assert_never_exceeded(&folder.file("joint"));
}
