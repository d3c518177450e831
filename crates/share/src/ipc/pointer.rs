//! Blocks of a driver's pool, by pointer data within a pool that the other process has imported.
#![allow(unsafe_code, reason = "calls pools by their handles")]

use super::error::IpcError;
use super::memory::expect_own;
use futures::channel::oneshot;
use serde::{Deserialize, Serialize};
use std::pin::Pin;
use std::task::{Context, Poll};
use weirpool::device::{DeviceAddress, DeviceError, DeviceErrorKind, DriverPools, RawStream};
use weirpool::extend::{ForeignMemory, Passages};
use weirpool::{Block, Pool, Stream, StreamError};
use weirpool_device::plain::catch;
use weirpool_driver_pool::{DriverPool, DriverPoolUse, driver_pool_of};

/// The description of a block of a [`DriverPool`], for a process that has [imported](DriverPool::import) the pool:
/// CUDA's `cudaMemPoolPtrExportData`, with the size of the block. It is plain data.
///
/// The exporting pool passes its allocations on to the driver's pool
/// ([`DriverPoolUse::PassedThrough`](weirpool_driver_pool::DriverPoolUse::PassedThrough)). Nothing is charged and nothing orders the
/// processes: the exporter keeps the block until the importer has dropped its own, and the importer's first use comes
/// after the exporter's writes, both by what the processes tell each other. An [`Exportable`](super::Exportable) block
/// over a [`Connection`](super::Connection) does that by itself. The checker of the simulated device reports a block that
/// is freed before importers of the same process have freed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PointerData {
    /// The driver's description.
    data: [[u8; 32]; 2],
    bytes: u64,
}

impl PointerData {
    /// Describes a block.
    ///
    /// # Errors
    /// Returns an error if the block is not one of a driver's pool that can be shared, or if its pool does not
    /// [pass its allocations on](weirpool_driver_pool::DriverPoolUse::PassedThrough): the driver knows no parts of what it allocated.
    #[doc(alias = "cudaMemPoolExportPointer")]
    #[doc(alias = "hipMemPoolExportPointer")]
    pub fn export(block: &Block) -> Result<Self, IpcError> {
        let (pool, how) = driver_pool_of(&block.stream().pool()).ok_or_else(|| {
            let reason = "the block is not of a pool of the driver; use an exportable block";
            DeviceError::new("export_block", DeviceErrorKind::Unsupported, reason)
        })?;
        if how != DriverPoolUse::PassedThrough {
            let reason = "the block is a part of what the driver allocated, which cannot be named; build the pool with \
                          `DriverPoolUse::PassedThrough`, or use an exportable block";
            let kind = DeviceErrorKind::Unsupported;
            return Err(DeviceError::new("export_block", kind, reason).into());
        }
        // SAFETY: the handle keeps the pool, and the block is live.
        let data = unsafe { calls(&pool).export_block(pool.raw(), block.address().to_bits()) }?;
        let (first, second) = data.split_at(32);
        let half = |half: &[u8]| half.try_into().expect("32 bytes");
        Ok(Self {
            data: [half(first), half(second)],
            bytes: block.size(),
        })
    }

    /// Maps the block here, for use in the order of `stream` and of all others of `pool`. Also returns the future of
    /// its end: the exporter frees the block after that.
    ///
    /// # Errors
    /// Returns an error if the stream belongs to another pool, or the device's error if this is no block of the
    /// imported pool. The data may come from a hostile process.
    #[doc(alias = "cudaMemPoolImportPointer")]
    #[doc(alias = "hipMemPoolImportPointer")]
    #[track_caller]
    pub fn import(
        &self,
        pool: &Pool,
        stream: &Stream,
        imported: &DriverPool,
    ) -> Result<(Block, Freed), IpcError> {
        expect_own(pool, stream)?;
        if imported.device().id() != pool.device().id() {
            return Err(StreamError::ForeignDevice.into());
        }
        let mut data = [0; 64];
        data[..32].copy_from_slice(&self.data[0]);
        data[32..].copy_from_slice(&self.data[1]);
        // SAFETY: the handle keeps the pool. A pool that was not imported refuses.
        let address = unsafe { calls(imported).import_block(imported.raw(), &data, self.bytes) }?;
        let (done, freed) = oneshot::channel();
        let memory = Box::new(Pooled {
            done,
            pool: imported.clone(),
            address,
            bytes: self.bytes,
        });
        // SAFETY: the imported pool is one of the same device.
        let block = unsafe { stream.adopt(memory) };
        Ok((block, Freed(freed)))
    }
}

/// The end of a block that was imported by pointer: ready when the block was dropped, its work is complete, and the
/// driver has it back; or when that can never be, because the device is broken.
///
/// # Cancel safety
/// Dropping it stops waiting and has no other effect.
#[derive(Debug)]
#[must_use = "the exporter must free the block after this is ready"]
pub struct Freed(oneshot::Receiver<()>);

impl Future for Freed {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context).map(drop)
    }
}

/// A block of an imported pool.
#[derive(Debug)]
struct Pooled {
    pool: DriverPool,
    address: u64,
    bytes: u64,
    done: oneshot::Sender<()>,
}

// SAFETY: the driver keeps the block mapped until it is freed, after the passages.
unsafe impl ForeignMemory for Pooled {
    fn range(&self) -> (DeviceAddress, u64) {
        (DeviceAddress::from_bits(self.address), self.bytes)
    }

    /// The exporter told of it once its writes were complete.
    fn is_ready(&self) -> bool {
        true
    }

    fn release(self: Box<Self>, after: Passages) {
        after.then(move || {
            let Self {
                pool,
                address,
                done,
                ..
            } = *self;
            // SAFETY: the block was imported, and all of its work is complete. What the driver refuses is leaked.
            let _ = unsafe { calls(&pool).free_to(pool.raw(), address, RawStream::HOST) };
            catch(|| _ = done.send(()));
        });
    }
}

/// Returns the calls on a pool of the driver.
fn calls(pool: &DriverPool) -> &dyn DriverPools {
    let calls = pool.device().driver_pools();
    calls.expect("the device made the pool")
}
