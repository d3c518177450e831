//! The ordering checker: each mistake is found and named, and nothing that is right is reported.
//!
//! | file | about |
//! |---|---|
//! | `mistakes` | each kind, with the places that it names |
//! | `order` | what orders, and what does not |
//! | `raised` | which call panics, and when |
//! | `service` | a service that forgets something |

mod mistakes;
mod order;
mod raised;
mod service;

use crate::common::*;
use weirpool::device::sim::{
    Call, Checker, Clock, Operation, SimBuilder, SimDevice, SimStream, Violation, ViolationKind,
};
use weirpool::device::{Device, DeviceErrorKind};
use weirpool::*;

fn device() -> SimBuilder {
    SimDevice::builder().memory(1 << 30).clock(Clock::Manual)
}

/// A device that collects, a pool of 16 MiB over it, and two streams.
struct World {
    device: SimDevice,
    pool: TestPool,
    work: [SimStream; 2],
    stream: [Stream; 2],
}

impl World {
    fn new() -> Self {
        Self::over(device().checker(Checker::Collect).build())
    }

    fn panicking() -> Self {
        Self::over(device().build())
    }

    fn over(device: SimDevice) -> Self {
        let pool = pool(&device, 16 * MIB);
        let [(work_a, a), (work_b, b)] = streams(&device, &pool);
        Self {
            device,
            pool,
            work: [work_a, work_b],
            stream: [a, b],
        }
    }

    #[track_caller]
    fn allocate(&self, stream: usize, bytes: u64) -> Block {
        self.pool.try_allocate(&self.stream[stream], bytes).unwrap()
    }

    /// Allocates a block that its own stream writes.
    #[track_caller]
    fn written(&self, stream: usize, bytes: u64) -> Block {
        let block = self.allocate(stream, bytes);
        self.write(stream, &block);
        block
    }

    #[track_caller]
    fn write(&self, stream: usize, block: &Block) {
        let write = Operation::new(us(100)).named("write");
        self.work[stream].submit(write.writes(block.address(), block.size()));
    }

    #[track_caller]
    fn read(&self, stream: usize, block: &Block) {
        let read = Operation::new(us(100)).named("read");
        self.work[stream].submit(read.reads(block.address(), block.size()));
    }

    fn order(&self, before: usize, after: usize) {
        let event = self.stream[before].event().unwrap();
        self.stream[after].wait(&event).unwrap();
    }

    #[track_caller]
    fn only(&self) -> Violation {
        let mut found = self.device.take_violations();
        assert_eq!(found.len(), 1, "{found:#?}");
        found.remove(0)
    }

    #[track_caller]
    fn assert_silent(&self) {
        self.device.assert_ordered();
        self.device.advance(us(10_000));
        self.device.assert_ordered();
    }
}
