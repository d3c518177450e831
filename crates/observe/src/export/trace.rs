//! An export of allocations and frees as CSV, for the example `replay`.

use crate::{History, HistoryEvent};
use std::collections::BTreeSet;
use std::io::{self, Write};
use weirpool::StreamId;

/// A line of the file; its names are the columns.
#[derive(serde::Serialize)]
struct Row {
    time_us: u64,
    op: &'static str,
    id: u64,
    bytes: u64,
    stream: StreamId,
}

/// See [`History::write_trace`].
pub(super) fn write(history: &History, writer: impl Write) -> io::Result<()> {
    let mut rows = csv::WriterBuilder::new()
        .has_headers(false)
        .from_writer(writer);
    // The header is written separately, so that an empty history has one.
    rows.write_record(["time_us", "op", "id", "bytes", "stream"])?;
    let mut known = BTreeSet::new();
    for entry in &history.entries {
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
