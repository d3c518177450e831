//! Contents on the GPU: each block gets a pattern of its own when it is allocated, and the pattern is checked before
//! the free.

use super::kernels::{Kernels, Pattern};
use crate::device::machine::{Purpose, Use};
use crate::options::Extent;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use std::sync::Arc;
use weirpool::device::Argument;
use weirpool::device::cuda::CudaDevice;

/// Words of 8 bytes to a page of 4 KiB.
const WORDS_OF_A_PAGE: u64 = 512;

/// See the [module](self).
pub(super) struct Contents {
    kernels: Kernels,
    step: u64,
    stream: Arc<CudaStream>,
    /// A word for each allocation: not zero if its contents differ from the written ones.
    damaged: CudaSlice<u32>,
    address: u64,
}

impl Contents {
    pub(super) fn new(
        device: &CudaDevice,
        kernels: &Kernels,
        allocations: usize,
        extent: Extent,
    ) -> anyhow::Result<Self> {
        let stream = device.create_stream()?;
        let damaged = stream.alloc_zeros::<u32>(allocations.max(1))?;
        // Other streams write to it from here on.
        stream.synchronize()?;
        let (address, access) = damaged.device_ptr(&stream);
        drop(access);
        Ok(Self {
            kernels: kernels.clone(),
            step: match extent {
                Extent::Pages => WORDS_OF_A_PAGE,
                Extent::Full => 1,
            },
            stream,
            damaged,
            address,
        })
    }

    /// Submits the writing or checking of the block's pattern to the stream.
    pub(super) fn submit(
        &self,
        work: &CudaStream,
        block: &Argument<'_>,
        what: &Use<'_>,
    ) -> anyhow::Result<()> {
        let pattern = Pattern {
            id: what.id as u64,
            step: self.step,
        };
        match what.purpose {
            Purpose::Write => self.kernels.fill_block(work, block, what.bytes, pattern),
            Purpose::Check => {
                let damaged = self.address;
                self.kernels
                    .check_block(work, block, what.bytes, pattern, damaged)
            }
        }
    }

    /// Returns the number of damaged blocks, once all work is complete.
    pub(super) fn corruptions(&self) -> anyhow::Result<u64> {
        let damaged = self.stream.clone_dtoh(&self.damaged)?;
        self.stream.synchronize()?;
        Ok(damaged.iter().filter(|mark| **mark != 0).count() as u64)
    }
}
