//! An export of allocations and frees as CSV, for the example `replay`.

use super::super::History;
use crate::driver::HistoryEvent;
use crate::id::StreamId;
use std::collections::BTreeSet;
use std::io::{self, Write};

/// A line of the file; its names are the columns.
#[derive(serde::Serialize)]
struct Row {
    time_us: u64,
    op: &'static str,
    id: u64,
    bytes: u64,
    stream: StreamId,
}

impl History {
    /// Writes the allocations and frees as CSV with the columns `time_us,op,id,bytes,stream`. The example `replay`
    /// reads this format, so the load of a service can be replayed with other settings.
    ///
    /// A free is on the stream that used the block last. A free whose allocation is no longer in the history is left out.
    /// A block that is not freed has no free. A request of zero bytes counts as one byte.
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::SimDevice};
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).history(100).build()?;
    /// # let stream = pool.register(&device.create_stream())?;
    /// drop(pool.try_allocate(&stream, 1000)?);
    /// let mut file = Vec::new(); // or a `File`, behind a `BufWriter`
    /// pool.history().write_trace(&mut file)?;
    /// let text = String::from_utf8(file)?;
    /// assert!(text.starts_with("time_us,op,id,bytes,stream\n") && text.contains(",a,1,1000,1\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the writer's error.
    #[cfg_attr(docsrs, doc(cfg(feature = "export")))]
    pub fn write_trace(&self, writer: impl Write) -> io::Result<()> {
        let mut rows = csv::WriterBuilder::new()
            .has_headers(false)
            .from_writer(writer);
        // The header is written separately, so that an empty history has one.
        rows.write_record(["time_us", "op", "id", "bytes", "stream"])?;
        let mut known = BTreeSet::new();
        for entry in &self.entries {
            let time = entry.time.as_micros() as u64;
            match &entry.event {
                HistoryEvent::Allocated { stream, origin, .. } => {
                    known.insert(origin.number);
                    rows.serialize(Row {
                        time_us: time,
                        op: "a",
                        id: origin.number,
                        bytes: origin.requested.max(1),
                        stream: *stream,
                    })?;
                }
                HistoryEvent::Freed {
                    number,
                    stream,
                    further,
                    ..
                } if known.contains(number) => rows.serialize(Row {
                    time_us: time,
                    op: "f",
                    id: *number,
                    // The bytes are those of the allocation.
                    bytes: 0,
                    stream: *further.last().unwrap_or(stream),
                })?,
                _ => {}
            }
        }
        rows.flush()
    }
}
