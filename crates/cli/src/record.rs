//! A replay as a trace: what its pool was asked for, when, as [`read`](crate::read) takes it.
//!
//! Times are those of the replay, with what it waited; blocks that are alive at its end are not freed.

use anyhow::Context;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use weirpool::{Pool, PoolBuilder};

/// Whether replays can be recorded, or how to build a program that can.
pub(crate) fn check() -> Result<(), &'static str> {
    Ok(())
}

/// All that the pool will do is remembered.
pub(crate) fn prepare(builder: PoolBuilder) -> PoolBuilder {
    builder.history(usize::MAX)
}

/// Writes what a pool did that was prepared for it; compressed, if the file's name ends in `.gz`.
pub(crate) fn write(pool: &Pool, file: &Path) -> anyhow::Result<()> {
    let unwritable = || format!("{}: cannot be written", file.display());
    let target = BufWriter::new(File::create(file).with_context(unwritable)?);
    let history = pool.history();
    let written = if file.extension() == Some(OsStr::new("gz")) {
        let mut target = GzEncoder::new(target, Compression::default());
        let written = history.write_trace(&mut target);
        written.and_then(|()| target.finish()?.flush())
    } else {
        history.write_trace(target)
    };
    written.with_context(unwritable)
}

#[cfg(test)]
mod tests {
    use crate::options::Options;
    use crate::progress::Progress;
    use crate::simulated::Simulator;
    use crate::trace::{Kind, Trace};
    use crate::{generate, read, run};
    use clap::Parser;
    use std::collections::HashMap;

    /// Each allocation: its bytes, its stream, and which stream frees it, if one does. In order, since
    /// events of several streams at one moment come in any.
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
    fn a_replay_is_read_back_as_the_trace_that_it_replayed() {
        let trace = generate::cross_stream(2000, 7).unwrap();
        for name in ["replay.csv", "replay.csv.gz"] {
            let name = format!("weirpool-{}-{name}", std::process::id());
            let file = std::env::temp_dir().join(name);
            let record = format!("--record={}", file.display());
            // With too little memory for no waits, and again without bounds: what is recorded is the first.
            let arguments = [
                "replay",
                "--generate=cross-stream",
                "--lag=1ms",
                "--capacity=600MB",
            ];
            let arguments = arguments.into_iter().chain([record.as_str()]);
            let options = Options::try_parse_from(arguments)
                .unwrap()
                .checked()
                .unwrap();
            let progress = Progress::new(&trace.name, trace.events.len(), true);
            let (report, _) = run::replay(&Simulator, &trace, &options, &progress).unwrap();
            assert!(report.waits > 0 && report.failures == 0);
            let back = read::read(&file, None).unwrap().trace;
            std::fs::remove_file(&file).unwrap();
            assert_eq!(
                (back.streams, back.allocations),
                (trace.streams, trace.allocations)
            );
            assert_eq!(lives(&back), lives(&trace));
            assert!(back.duration >= trace.duration, "it waited");
        }
    }

    #[test]
    fn one_replay_is_recorded_and_not_several() {
        let parse = |arguments: &[&str]| {
            let arguments = [&["replay", "--record=x.csv"], arguments].concat();
            Options::try_parse_from(arguments).unwrap().checked()
        };
        assert!(parse(&["a.csv"]).is_ok() && parse(&["--generate=cross-stream"]).is_ok());
        assert!(parse(&["a.csv", "b.csv"]).is_err() && parse(&[]).is_err());
    }
}
