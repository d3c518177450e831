//! Memory that is filled when it is allocated or freed.
//!
//! | file | about |
//! |---|---|
//! | `filling` | the values of fills, and their order |
//! | `refused` | what becomes of it where the device cannot fill |
//! | `requested` | fills that a request or the owner of a block asks for |

mod filling;
mod refused;
mod requested;

use crate::common::*;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use weirpool::device::DeviceAddress;
use weirpool::device::sim::{Call, Clock, Operation, SimDevice, SimStream};
use weirpool::*;

const POISON: u8 = 0xff;

/// A device with a pool that fills, and a stream of it.
struct Setup {
    device: SimDevice,
    pool: TestPool,
    work: SimStream,
    stream: Stream,
}

impl Setup {
    fn new(set: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Self {
        Self::on(manual(), set)
    }

    fn on(device: SimDevice, set: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Self {
        let pool = set(builder(&device, 64 * MIB)).made().of_ordered(&device);
        let (work, stream) = stream(&device, &pool);
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

    fn fills(&self) -> u64 {
        self.device.counters().calls(Call::Fill)
    }

    /// The output of a future that waits for work, once all work is done.
    fn finish<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        if let Poll::Ready(output) = poll(&mut future) {
            return output;
        }
        self.device.advance_to_end();
        now(future)
    }

    /// The bytes at the address once all work is done, as a debugger sees them.
    fn bytes_at(&self, address: DeviceAddress, bytes: u64) -> Vec<u8> {
        self.device.advance_to_end();
        let mut seen = vec![0x77; bytes as usize];
        self.device.read(address, &mut seen).unwrap();
        seen
    }

    /// The memory is full of one value, which is returned.
    fn byte_at(&self, address: DeviceAddress, bytes: u64) -> u8 {
        let seen = self.bytes_at(address, bytes);
        assert!(seen.iter().all(|byte| *byte == seen[0]), "not of one value");
        seen[0]
    }
}

fn zero_on_allocate(builder: PoolBuilder) -> PoolBuilder {
    builder.fill(FillAt::Allocation, Fill::Zero)
}

fn poison_on_free(builder: PoolBuilder) -> PoolBuilder {
    builder.fill(FillAt::Free, Fill::Poison)
}

/// Work that takes so long, and writes at its end.
#[track_caller]
fn write_after(work: &SimStream, block: &Block, time: u64, value: u8) {
    let (address, bytes) = (block.address(), block.size());
    let write = Operation::new(us(time)).writes(address, bytes);
    work.submit(write.run(move |memory| memory.fill(address, bytes, value)));
}

/// What the block holds, in the order of the stream.
fn contents(setup: &Setup, stream: &Stream, block: &Block) -> Vec<u8> {
    let download = block.download(stream, 0..block.size()).unwrap();
    setup.finish(download).unwrap()
}
