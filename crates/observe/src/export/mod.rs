//! Snapshots and histories as files that other tools read.
//!
//! | file | about |
//! |---|---|
//! | `memory_viz` | PyTorch's viewer of memory snapshots |
//! | `pieces` | what pending blocks were when they were freed, as that viewer shows them |
//! | `chrome` | Perfetto, and the tracing page of Chromium |
//! | `trace` | the example `replay` |

mod chrome;
mod memory_viz;
mod pieces;
mod trace;

pub use memory_viz::write_memory_viz;

use crate::History;
use std::io::{self, Write};

/// Writes the history for [Perfetto](https://ui.perfetto.dev) and `chrome://tracing`: JSON in the Trace
/// Event Format.
///
/// Reserved, used, pending, free and cached memory are counters. Each block is a slice of its stream's track, from
/// its allocation to its free. So is each request that waited; requests for reservations are on the pool's track.
/// Growth, remapping, releases and running out of memory are instants. The slice of a live block has no end. A
/// block whose allocation is no longer in the history is left out.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// # use weirpool_observe::{Record as _, Recorded as _};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).history(100).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// drop(pool.try_allocate(&stream, 1000)?);
/// let mut file = Vec::new(); // or a `File`, behind a `BufWriter`
/// weirpool_observe::write_chrome_trace(&pool.history(), &mut file)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns the writer's error.
#[doc(alias = "perfetto")]
pub fn write_chrome_trace(history: &History, writer: impl Write) -> io::Result<()> {
    chrome::write(history, writer)
}

/// Writes the allocations and frees as CSV with the columns `time_us,op,id,bytes,stream`. The example `replay`
/// reads this format, so the load of a service can be replayed with other settings.
///
/// A free is on the stream that used the block last. A free whose allocation is no longer in the history is left
/// out. A block that is not freed has no free. A request of zero bytes counts as one byte.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// # use weirpool_observe::{Record as _, Recorded as _};
/// # let device = SimDevice::new();
/// # let pool = Pool::builder(device.clone()).history(100).build()?;
/// # let stream = pool.register(&device.create_stream())?;
/// drop(pool.try_allocate(&stream, 1000)?);
/// let mut file = Vec::new(); // or a `File`, behind a `BufWriter`
/// weirpool_observe::write_trace(&pool.history(), &mut file)?;
/// let text = String::from_utf8(file)?;
/// assert!(text.starts_with("time_us,op,id,bytes,stream\n") && text.contains(",a,1,1000,1\n"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns the writer's error.
pub fn write_trace(history: &History, writer: impl Write) -> io::Result<()> {
    trace::write(history, writer)
}
