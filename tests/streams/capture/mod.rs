//! Allocation while a stream is captured into a graph, on the simulated device.
//!
//! | file | contents |
//! |---|---|
//! | `device` | graphs of the simulated device itself, and its checker |
//! | `memory` | where captured streams allocate, and for how long the memory stays with the graph |
//! | `sessions` | the beginning and the end of captures, in every state |
//! | `work` | fills and copies in captures |
//! | `checkpoints` | going back to an earlier state of the memory, and its blocks outside captures |
//! | `order` | the order of the streams of a capture: forks, joins, and reuse among them |
//! | `parts` | how the memory grows: extended, exchanged, and held by graphs |
//! | `odd` | captures beside older handles, streams and requests, and those that outlive them |
//! | `races` | captures and other threads |
//! | `uses` | blocks that captured calls name, and launches as uses |

mod checkpoints;
mod device;
mod memory;
mod odd;
mod order;
mod parts;
mod races;
mod sessions;
mod uses;
mod work;

use crate::common::{MIB, Made, TestPool, builder, manual, us};
use weirpool::device::sim::{Operation, SimDevice, SimStream, ViolationKind};
use weirpool::{Block, CapturedGraph, Pool, PoolBuilder, Stream};

/// A pool over a device on a manual clock, and one of its streams.
struct Site {
    device: SimDevice,
    pool: TestPool,
    work: SimStream,
    stream: Stream,
}

impl Site {
    fn new(capacity: u64) -> Self {
        Self::with(capacity, |builder| builder)
    }

    fn with(capacity: u64, set: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Self {
        let device = manual();
        let pool = set(builder(&device, capacity));
        Self::over(device, pool)
    }

    fn over(device: SimDevice, pool: PoolBuilder) -> Self {
        let pool = pool.made().of_ordered(&device);
        let work = device.create_stream_named("captured");
        let stream = pool.register(&work).unwrap();
        Self {
            device,
            pool,
            work,
            stream,
        }
    }

    fn take(&self, bytes: u64) -> Block {
        self.pool.try_allocate(&self.stream, bytes).unwrap()
    }

    fn other(&self) -> (SimStream, Stream) {
        let work = self.device.create_stream_named("other");
        let stream = self.pool.register(&work).unwrap();
        (work, stream)
    }

    /// Returns the bytes at the beginning of a block.
    fn read(&self, block: &Block, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.device.read(block.address(), &mut bytes).unwrap();
        bytes
    }
}

/// Work of 10 us that fills a block with a value.
fn write(block: &Block, value: u8) -> Operation {
    let (address, bytes) = (block.address(), block.size());
    let work = Operation::new(us(10)).named("write").writes(address, bytes);
    work.run_each(move |memory| memory.fill(address, bytes, value))
}

/// Work of 10 us that reads a block.
fn read(block: &Block) -> Operation {
    let work = Operation::new(us(10)).named("read");
    work.reads(block.address(), block.size())
}

fn kinds(device: &SimDevice) -> Vec<ViolationKind> {
    device
        .take_violations()
        .iter()
        .map(|found| found.kind)
        .collect()
}
