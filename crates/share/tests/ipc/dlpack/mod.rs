//! Blocks as tensors of other libraries, whose consumers are written here, and tensors of other producers as blocks.
//!
//! | file | about |
//! |---|---|
//! | `exports` | blocks as tensors |
//! | `imports` | tensors as blocks |
//! | `random` | both at random, on several threads |

mod exports;
mod imports;
mod random;

use crate::common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use weirpool::device::sim::{Call, Fault, Operation, SimDevice, SimStream};
use weirpool::device::{DeviceErrorKind, DeviceStream};
use weirpool::*;
use weirpool_share::dlpack::dlpark::ffi::{
    DLDataType, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned,
};
use weirpool_share::dlpack::dlpark::metadata::Dynamic;
use weirpool_share::dlpack::dlpark::{DlpackFlags, Managed, ManagedTensorBase};
use weirpool_share::dlpack::{DlpackError, ExportBlock, ExportBuffer, Foreign, ImportTensor};
use weirpool_share::{Share, SharedBlock};

static_assertions::assert_impl_all!(Foreign: Send, Sync);

type Versioned = Managed<DLManagedTensorVersioned>;

struct Site {
    device: SimDevice,
    pool: Pool,
    /// The producer's stream, the consumer's, and another one.
    streams: [(SimStream, Stream); 3],
}

impl Site {
    fn new() -> Self {
        let device = manual();
        let pool = builder(&device, 8 * MIB).build().unwrap();
        let streams = streams(&device, &pool);
        Self {
            device,
            pool,
            streams,
        }
    }

    /// A block of all memory, written by work of the producer's stream that takes a while.
    fn written(&self) -> SharedBlock {
        let (work, stream) = &self.streams[0];
        let block = self.pool.try_allocate(stream, 8 * MIB).unwrap();
        use_block(work, &block, us(500));
        block.share()
    }

    fn exported(&self) -> Versioned {
        let block = self.written();
        let consumer = &self.streams[1].1;
        block
            .to_dlpack(DLDataType::U8, &[8 * MIB as i64], consumer)
            .unwrap()
    }

    /// All memory is free again, once all work is complete.
    fn settle(&self) {
        eventually(|| {
            self.device.advance(us(1000));
            self.pool.inspect().statistics().used.current == 0
        });
        drop(self.pool.try_allocate(&self.streams[2].1, 8 * MIB).unwrap());
        self.device.advance_to_end();
        self.device.assert_ordered();
        self.pool.inspect().check_conserved().unwrap();
    }
}

/// Submits a read of a tensor, as a library does that knows only the tensor.
fn read<M: ManagedTensorBase>(work: &SimStream, tensor: &Managed<M>, took: u64) {
    let tensor = tensor.validate().unwrap();
    let address = tensor.data_ptr().addr() as u64;
    let read = Operation::new(us(took)).named("read");
    work.submit(read.reads(address, tensor.num_bytes() as u64));
}

/// Allocates as soon as the memory is complete.
fn wait_for(device: &SimDevice, pool: &Pool, stream: &Stream, bytes: u64) -> Block {
    let mut granted = None;
    eventually(|| {
        granted = pool.try_allocate(stream, bytes).ok();
        if granted.is_none() {
            device.advance(us(100));
        }
        granted.is_some()
    });
    granted.unwrap()
}
