//! Tensors of other libraries, and blocks as such tensors, without a copy:
//! [DLPack](https://dmlc.github.io/dlpack/latest/), through the crate [`dlpark`]. Feature `dlpack`.
//!
//! A DLPack tensor names memory, and a function that its consumer calls once it has no more use for it: at any time, on
//! any thread, with work still running on the device. It names no stream. So the stream on which a tensor is used is
//! named here when the tensor is exported or imported, as Python's `__dlpack__(stream=…)` does.
//!
//! | | the data | the memory |
//! |---|---|---|
//! | [export](ExportBlock::to_dlpack) | the consumer's stream is made to wait for all earlier uses of the block | the block counts as used on that stream until the consumer drops the tensor: it is not reused before all work that was submitted there by then is complete |
//! | [import](ImportTensor::import_dlpack) | is ready in the order of the stream, as the producer has promised | the tensor is kept until all work that uses the block is complete; then it is dropped on a thread of the crate's own |
//!
//! Work of the consumer on other streams must come before its own stream's work at the time at which it drops the
//! tensor. Libraries that keep memory until all their uses are ordered do that by themselves; in PyTorch, it is
//! `wait_stream`.
//!
//! ```
//! # use weirpool::{Buffer, Pool, device::sim::SimDevice};
//! use weirpool_share::Share;
//! use weirpool_share::dlpack::dlpark::versioned::Dlpack;
//! use weirpool_share::dlpack::{ExportBuffer, ImportTensor};
//!
//! # let device = SimDevice::new();
//! # let pool = Pool::builder(device.clone()).build()?;
//! # let (work, other_work) = (device.create_stream(), device.create_stream());
//! # let (stream, consumer) = (pool.register(&work)?, pool.register(&other_work)?);
//! let weights = pool.buffer::<f32>(&stream, 1024).try_now()?.share();
//! let tensor: Dlpack = weights.to_dlpack(&[32, 32], &consumer)?;
//! drop(weights); // the tensor keeps the memory
//! // SAFETY: the data is ready on `consumer`, and nothing else writes it.
//! let matrix = unsafe { consumer.import_dlpack(tensor) }?;
//! assert_eq!((matrix.shape(), matrix.block().size()), (&[32, 32][..], 4096));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! - The stream must be one that the pool keeps, or the legacy default stream. With an
//!   [external](weirpool::guide::interoperability#external-streams) one, its owner promises that it is alive when the
//!   tensor is dropped, as for every block that was used on it.
//! - There is no stream for the values -1 (the consumer orders the streams itself) and 2 (the default stream of the
//!   calling thread) of Python's protocol, so such requests have to be refused: the memory could not be reused in the
//!   order of work that is not known. To wait for all work of the device instead is not possible while any stream is
//!   captured.
//! - Tensors are exported in row-major order, and imported if they are in row-major order.

mod error;
mod export;
mod import;

pub use dlpark;
pub use error::{DlpackError, ImportError};
pub use export::{ExportBlock, ExportBuffer};
pub use import::{Foreign, ImportTensor};
