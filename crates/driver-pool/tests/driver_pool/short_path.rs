//! The short path of blocks that are passed through, beside the search that it leaves out. A pool with an observer has no
//! short path: after each step of a random use, both have the same figures.

use crate::common::{MIB, manual_builder, poll, streams, us};
use std::task::Poll;
use weirpool::device::sim::{Checker, Operation, SimDevice, SimStream};
use weirpool::extend::{Event, Observer};
use weirpool::{AllocError, Block, Histogram, Pool, Stream};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

const STEPS: usize = 200;
const SEEDS: u64 = 40;

#[derive(Debug)]
struct Silent;

impl Observer for Silent {
    fn event(&self, _: &Event<'_>) {}
}

struct Side {
    device: SimDevice,
    driver_pool: DriverPool,
    pool: Pool,
    lines: [(SimStream, Stream); 2],
    blocks: Vec<Block>,
}

impl Side {
    fn new(is_observed: bool) -> Self {
        // A checker is an observer, too.
        let device = manual_builder().checker(Checker::Off).build();
        let driver_pool = DriverPool::builder(&device).build().unwrap();
        let segments = driver_pool.segments(DriverPoolUse::PassedThrough);
        let mut builder = Pool::builder(device.clone()).segment_source(segments);
        if is_observed {
            builder = builder.observer(std::sync::Arc::new(Silent));
        }
        let pool = builder.capacity(16 * MIB).build().unwrap();
        let lines = streams(&device, &pool);
        Self {
            device,
            driver_pool,
            pool,
            lines,
            blocks: Vec::new(),
        }
    }

    /// Makes the step that these numbers choose.
    fn step(&mut self, [what, at, size]: [usize; 3]) -> String {
        let (work, stream) = &self.lines[at % 2];
        let answer = match what {
            0..6 => {
                let bytes = [size % 2000, size % (3 * MIB as usize)][what % 2] as u64;
                let answer = match what {
                    0..4 => Poll::Ready(self.pool.try_allocate(stream, bytes)),
                    _ => poll(&mut Box::pin(self.pool.allocate(stream, bytes))),
                };
                // A request that would wait is dropped.
                let Poll::Ready(answer) = answer else {
                    return "waits".to_owned();
                };
                answer.map(|block| {
                    work.submit(Operation::new(us(3)).writes(block.address(), block.size()));
                    self.blocks.push(block);
                })
            }
            6..10 if !self.blocks.is_empty() => {
                let mut block = self.blocks.swap_remove(size % self.blocks.len());
                if what == 6 {
                    let _ = stream.record_use(&mut block).unwrap();
                }
                match what {
                    7 => drop(block.deallocate()),
                    _ => drop(block),
                }
                Ok(())
            }
            _ => {
                self.device.advance(us(size as u64 % 9));
                Ok(())
            }
        };
        self.pool.inspect().check().unwrap();
        match answer {
            Ok(()) | Err(AllocError::Exhausted(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
        let blocks = self.blocks.iter();
        let blocks: Vec<_> = blocks.map(|block| (block.size(), block.source())).collect();
        // A search records events, by which it sees how long frees were pending. So the driver's own figures differ,
        // which follow the time.
        let mut figures = self.pool.inspect().statistics();
        figures.events_created = 0;
        figures.pending_ages = Histogram::default();
        format!("{figures:?} {blocks:?}")
    }
}

#[test]
fn short_path_leaves_the_figures_of_a_search() {
    for seed in 0..SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut sides = [true, false].map(Side::new);
        for step in 0..STEPS {
            let choice = [12, 64, 1 << 40].map(|below| random.usize(..below));
            let [searched, short] = sides.each_mut().map(|side| side.step(choice));
            assert_eq!(short, searched, "seed {seed}, step {step}: {choice:?}");
        }
        for mut side in sides {
            side.blocks.clear();
            side.device.advance_to_end();
            side.pool.inspect().check_conserved().unwrap();
            assert_eq!(side.driver_pool.used().unwrap().current, 0);
        }
    }
}
