//! Memory between processes.
//!
//! A process exports a block over a private Unix socket, and another process on the same device imports it: no bytes
//! are copied. Linux only; feature `ipc`.
//!
//! ```
//! use weirpool_share::ipc::{AllocateExportable, Connection, IpcError, wire};
//! # use weirpool::{Pool, device::sim::SimDevice};
//! # fn pool() -> Pool { Pool::builder(SimDevice::new()).build().unwrap() }
//! // In one process: weights that another one reads.
//! async fn export(socket: wire::Connection) -> Result<(), Box<dyn std::error::Error>> {
//!     let pool = pool();
//!     let stream = pool.create_stream()?;
//!     let mut weights = pool.allocate_exportable(&stream, 4).await?;
//!     let _copied = weights.upload(&stream, 0, b"weir")?;
//!     let connection = Connection::open(&pool, socket)?;
//!     let sent = connection.send(&weights, "weights").await?; // once the copy is complete
//!     sent.await?; // the other process has released them
//!     Ok(())
//! }
//! // In the other one:
//! async fn import(socket: wire::Connection) -> Result<(), Box<dyn std::error::Error>> {
//!     let pool = pool();
//!     let stream = pool.create_stream()?;
//!     let connection = Connection::open(&pool, socket)?;
//!     let weights = connection.receive(&stream).await?;
//!     assert_eq!(weights.label(), "weights");
//!     assert_eq!(weights.download(&stream, 0..4)?.await?, b"weir");
//!     Ok(())
//! }
//! # let (one, other) = wire::Connection::pair()?;
//! # std::thread::scope(|scope| {
//! #     scope.spawn(|| futures::executor::block_on(export(one)).unwrap());
//! #     scope.spawn(|| futures::executor::block_on(import(other)).unwrap());
//! # });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The sockets are those of [`wire`]: `wire::Listener::bind` in one process, and `wire::Connection::connect` in the
//! other. They are private to one user, and check the peer's credentials.
//!
//! # Exportable memory
//! An [`Exportable`] block has one chunk of its own, and addresses of its own. So an importer sees nothing beside it,
//! the pool never maps it elsewhere, and never grants it to another request: when the block ends, its chunk goes back
//! to the device. It is filled with zeros first, because chunks that a process gives back can come to it again with
//! their contents. It costs four device calls (about 100 µs for 64 MiB) where a block of the pool costs none, and its
//! size is rounded up to the device's granularity: 2 MiB.
//!
//! It counts against the pool's capacity until the block has ended, its work is complete, *and* every importer has
//! released it or is gone: until then the device does not have the memory back.
//!
//! # Order
//! [`Connection::send`] sends once every earlier write to the block is complete on the exporting device. An importer's
//! first use therefore comes after them. From then on the processes share the memory, and no order of streams reaches
//! from one into the other: await [`Sent`] before the exporter writes again.
//!
//! # Life
//! | event | what follows |
//! |---|---|
//! | the importer drops its block | once its work is complete, the memory is unmapped, and the exporter is told |
//! | the exporter drops its block | the importer's mapping stays valid: physical memory lives as long as a process maps it |
//! | the importer dies | the driver unmaps its memory; [`Sent`] is an error, and the charge ends |
//! | the exporter dies | the importer keeps its mapping, and the next exchange is an error |
//! | a peer hangs | blocks that were sent to it stay charged; at most [`MOST_OUTSTANDING`] blocks per connection |
//! | a peer breaks the protocol | the connection ends with an error on both sides, and nothing else is affected |
//!
//! # Threads
//! No call here blocks, and nothing polls: futures are woken by the device and by two threads per connection, of which
//! one receives and one sends. One further thread per process unmaps the memory of dropped blocks. They work on any
//! executor.
//!
//! # Pools of the driver
//! A [`DriverPool`](weirpool_driver_pool::DriverPool) is exported as a whole, and its blocks by [`PointerData`]: CUDA's and HIP's
//! calls, for programs that have their own protocol. `examples/processes.rs` has both ways.
//!
//! # Memory that outlives its process
//! With the feature `publish`, [`Publish`] gives exportable blocks a name at the broker of the pool. Its page has the rules.
//!
//! Files: `protocol` is a state machine without I/O, `connection` drives it, `memory` owns chunks, `pointer` owns blocks of
//! imported pools, `writes` has the writes of blocks that a value describes.

mod connection;
mod error;
mod memory;
#[cfg(feature = "publish")]
mod named;
mod pointer;
mod protocol;
mod writes;

pub use connection::{Connection, Imported, Sent};
pub use error::IpcError;
pub use memory::{AllocateExportable, Exportable};
#[cfg(feature = "publish")]
#[cfg_attr(docsrs, doc(cfg(feature = "publish")))]
pub use named::{Attached, Attaching, Publish, PublishError, Publishing};
pub use pointer::{Freed, PointerData};
#[doc(hidden)]
pub use protocol::{Event, Exchange, Limits, Message, Violation};
pub use protocol::{MOST_LABEL, MOST_OUTSTANDING, VERSION};
pub use weirpool_wire as wire;
