//! Blocks of a driver's pool, by pointer data within a pool that the other process has imported.
#![allow(unsafe_code, reason = "calls pools by their handles")]

use super::error::IpcError;
use super::quietly;
use crate::block::{Block, Outside};
use crate::device::{Device, DeviceError, DeviceErrorKind, RawStream};
use crate::engine::DriverPool;
use crate::error::StreamError;
use crate::id::Ticket;
use crate::pool::Pool;
use crate::queue::Passages;
use crate::stream::Stream;
use crate::sync::plain;
use crate::worker::release_later;
use futures::channel::oneshot;
use serde::{Deserialize, Serialize};
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The description of a block of a [`DriverPool`], for a process that has [imported](DriverPool::import) the pool:
/// CUDA's `cudaMemPoolPtrExportData`, with the size of the block. It is plain data.
///
/// The exporting pool passes its allocations on to the driver's pool
/// ([`DriverPoolUse::PassedThrough`](crate::DriverPoolUse::PassedThrough)). Nothing is counted and nothing orders the
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
    /// [pass its allocations on](crate::DriverPoolUse::PassedThrough): the driver knows no parts of what it allocated.
    #[doc(alias = "cudaMemPoolExportPointer")]
    #[doc(alias = "hipMemPoolExportPointer")]
    pub fn export(block: &Block) -> Result<Self, IpcError> {
        let engine = &block.registration().service.engine;
        let pool = engine.supply.driver_pool().ok_or_else(|| {
            let reason = "the block is not of a pool of the driver; use an exportable block";
            DeviceError::new("export_block", DeviceErrorKind::Unsupported, reason)
        })?;
        if !engine.shared.settings.passes_through() {
            let reason = "the block is a part of what the driver allocated, which cannot be named; build the pool with \
                          `DriverPoolUse::PassedThrough`, or use an exportable block";
            let kind = DeviceErrorKind::Unsupported;
            return Err(DeviceError::new("export_block", kind, reason).into());
        }
        let data = pool.export_block(block.address().to_bits())?;
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
        if !stream.is_of(pool.presence()) {
            return Err(StreamError::ForeignPool.into());
        }
        if !imported.is_of(&*pool.service().engine.shared.device) {
            return Err(StreamError::ForeignDevice.into());
        }
        let mut data = [0; 64];
        data[..32].copy_from_slice(&self.data[0]);
        data[32..].copy_from_slice(&self.data[1]);
        let address = imported.import_block(&data, self.bytes)?;
        let (done, freed) = oneshot::channel();
        let memory = Pooled {
            done,
            pool: imported.clone(),
            device: pool.service().engine.shared.device.clone(),
            address,
        };
        let block = Block::of_outside(
            stream.registration(),
            (address, self.bytes),
            (self.bytes, Ticket::ZERO),
            Box::new(memory),
            Location::caller(),
        );
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
    device: plain::Arc<dyn Device>,
    address: u64,
    done: oneshot::Sender<()>,
}

impl Outside for Pooled {
    fn ended(self: Box<Self>, passages: Passages) {
        let device = self.device.clone();
        release_later(device, Some(passages), move || {
            // SAFETY: the block was imported, and all of its work is complete. What the driver refuses is leaked.
            let _ = unsafe { self.pool.free(self.address, RawStream::HOST) };
            quietly(|| _ = self.done.send(()));
        });
    }
}
