//! The `weirpool` command: replays recorded allocations through the pool, on the simulated device or on a GPU.
//!
//! ```text
//! weirpool                                                     # replays the three recorded traces
//! weirpool replay --lag 1ms --order wait-first --plot replay.svg
//! weirpool replay memory_log.csv snapshot.pickle
//! weirpool replay --generate cross-stream --capacity 500MB --json
//! weirpool replay --device cuda --kernels --lag 1ms            # built with --features cuda
//! weirpool frontier --plot frontier.svg
//! ```
//!
//! At the root of the repository, `cargo run --release --` stands for `weirpool`, and
//! `cargo run --release --features cuda --` for one with GPUs.
//!
//! | module | what it is for |
//! |---|---|
//! | [`options`], [`target`], [`upstream`] | the command line |
//! | [`trace`], [`fault`], [`read`], [`generate`] | traces: what they are, what can be wrong, where they come from |
//! | [`run`], [`session`], [`task`], [`backlog`] | the replay: one task a stream, awaiting its allocations |
//! | [`shelf`], [`patience`], [`timing`], [`samples`] | what tasks need: blocks handed over, waits, CPU time, levels |
//! | [`machine`] | what a replay asks of a device |
//! | [`simulated`], [`verify`] | the simulated device; contents that are written and checked |
//! | `cuda`, `timetable`, `meter` | a GPU; operations in real time; device calls, timed |
//! | [`record`] | a replay, written as a trace |
//! | [`report`], [`table`], [`units`], [`plot`], [`chart`], [`progress`] | what is shown |
//! | [`frontier`] | memory against device time, by handle size and policy |

mod backlog;
mod chart;
#[cfg_attr(not(feature = "cuda"), path = "no_cuda.rs")]
mod cuda;
mod fault;
mod frontier;
mod generate;
mod machine;
#[cfg(any(test, feature = "cuda"))]
mod meter;
mod options;
mod patience;
mod plot;
mod progress;
mod read;
mod record;
mod report;
mod run;
mod samples;
mod session;
mod shelf;
mod simulated;
mod table;
mod target;
mod task;
#[cfg(any(test, feature = "cuda"))]
mod timetable;
mod timing;
mod trace;
mod units;
mod upstream;
mod verify;

use clap::Parser;
use machine::Site;
use options::{Cli, Generated, Options};
use progress::Progress;
use report::Report;
use samples::Sample;
use simulated::Simulator;
use std::io::{Write, stdout};
use std::path::Path;
use std::process::ExitCode;
use target::DeviceName;
use trace::Trace;

/// Runs the command that the arguments of this process name.
pub fn main() -> ExitCode {
    let options = Cli::parse().options();
    let options = options.checked().unwrap_or_else(|error| error.exit());
    let replayed = match options.target.device {
        DeviceName::Sim => replay_all(&Simulator, &options),
        DeviceName::Cuda => cuda::open(&options.target).and_then(|gpu| replay_all(&gpu, &options)),
    };
    match replayed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn replay_all(site: &impl Site, options: &Options) -> anyhow::Result<()> {
    // All are read before the first one runs: what is malformed is said at once.
    let traces = traces(options)?;
    if let Some(file) = &options.frontier {
        return frontier::show(site, &traces, options, file);
    }
    let mut reports = Vec::new();
    for trace in &traces {
        let (report, samples) = replay(site, trace, options)?;
        draw(options, &report, &samples, traces.len() > 1)?;
        if options.json {
            writeln!(stdout(), "{}", serde_json::to_string(&report)?)?;
        }
        reports.push(report);
    }
    if !options.json {
        write!(stdout(), "{}", table::table(&reports))?;
    }
    Ok(())
}

fn traces(options: &Options) -> anyhow::Result<Vec<Trace>> {
    match options.generate {
        Some(Generated::CrossStream) => {
            let trace = generate::cross_stream(options.operations, options.policy.seed)?;
            Ok(vec![trace])
        }
        None => options
            .files()
            .iter()
            .map(|file| recorded(file, options))
            .collect(),
    }
}

/// The trace in a file. What its recording lacks is said on standard error.
fn recorded(file: &Path, options: &Options) -> anyhow::Result<Trace> {
    let recording = read::read(file, options.trace_device)?;
    for note in &recording.notes {
        eprintln!("{}: {note}", file.display());
    }
    Ok(recording.trace)
}

fn replay(
    site: &impl Site,
    trace: &Trace,
    options: &Options,
) -> anyhow::Result<(Report, Vec<Sample>)> {
    let progress = Progress::new(&trace.name, trace.events.len(), options.json);
    run::replay(site, trace, options, &progress)
}

fn draw(
    options: &Options,
    report: &Report,
    samples: &[Sample],
    several: bool,
) -> anyhow::Result<()> {
    match &options.plot {
        Some(plot) => plot::draw(
            &plot::file_for(plot, &report.trace, several),
            report,
            samples,
        ),
        None => Ok(()),
    }
}
