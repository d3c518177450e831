//! A replay written as a trace that [`read`](crate::read) reads: the requests that its pool served.
//!
//! Times are those of the replay, waits included; blocks that are live at its end are not freed.

use crate::units;
use anyhow::Context;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use weirpool::{Pool, PoolBuilder};
use weirpool_observe::{Record as _, Recorded as _, write_trace};

/// Makes the pool remember all that it will do.
pub(crate) fn prepare(builder: PoolBuilder) -> PoolBuilder {
    builder.history(usize::MAX)
}

/// Writes what a [prepared](prepare) pool did; compressed, if the file's name ends in `.gz`.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub(crate) fn write(pool: &Pool, file: &Path) -> anyhow::Result<()> {
    let unwritable = || format!("{}: cannot be written", units::path(file));
    let target = BufWriter::new(File::create(file).with_context(unwritable)?);
    let history = pool.history();
    let written = if file.extension() == Some(OsStr::new("gz")) {
        let mut target = GzEncoder::new(target, Compression::default());
        let written = write_trace(&history, &mut target);
        written.and_then(|()| target.finish()?.flush())
    } else {
        write_trace(&history, target)
    };
    written.with_context(unwritable)
}

#[cfg(test)]
mod tests {
    use crate::device::simulated::Simulator;
    use crate::options::Replay;
    use crate::replay::progress::Progress;
    use crate::trace::generate;
    use crate::trace::{Kind, Trace};
    use crate::{read, replay};
    use clap::Parser;
    use std::collections::HashMap;

    /// Returns the bytes and the stream of each allocation, and the stream that frees it, if one does; sorted, since
    /// events of several streams at one moment come in any order.
    fn lives(trace: &Trace) -> Vec<(u64, usize, Option<usize>)> {
        let mut lives = HashMap::new();
        for event in &trace.events {
            match event.kind {
                Kind::Allocate { id, bytes } => {
                    lives.insert(id, (bytes, event.stream, None));
                }
                Kind::Free { id } => lives.get_mut(&id).unwrap().2 = Some(event.stream),
            }
        }
        let mut lives: Vec<_> = lives.into_values().collect();
        lives.sort_unstable();
        lives
    }

    #[test]
    fn recorded_replay_is_read_back_as_its_trace() {
        let trace = generate::cross_stream(2000, 7).unwrap();
        for name in ["replay.csv", "replay.csv.gz"] {
            let name = format!("weirpool-{}-{name}", std::process::id());
            let file = std::env::temp_dir().join(name);
            let record = format!("--record={}", file.display());
            // Too little memory to run without waits. The first run is recorded, and not the one without limits.
            let arguments = [
                "replay",
                "--generate=cross-stream",
                "--lag=1ms",
                "--capacity=600MB",
            ];
            let arguments = arguments.into_iter().chain([record.as_str()]);
            let options = Replay::try_parse_from(arguments)
                .unwrap()
                .checked()
                .unwrap();
            let progress = Progress::new(&trace.name, trace.events.len(), true);
            let (report, _) = replay::replay(
                &Simulator,
                &trace,
                &options.target,
                &options.policy,
                &progress,
            )
            .unwrap();
            assert!(report.waits > 0 && report.failures == 0);
            let back = read::read(&file, read::Request::default()).unwrap().trace;
            std::fs::remove_file(&file).unwrap();
            assert_eq!(
                (back.streams, back.allocations),
                (trace.streams, trace.allocations)
            );
            assert_eq!(lives(&back), lives(&trace));
            assert!(back.duration >= trace.duration, "it waited");
        }
    }
}
