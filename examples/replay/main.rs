//! Replays recorded allocations through the pool, on the simulated device.
//!
//! ```text
//! cargo run --release --example replay
//! cargo run --release --example replay -- --lag 1ms --order wait-first --plot replay.svg
//! cargo run --release --example replay -- --generate cross-stream --capacity 500MB --json
//! ```
//!
//! | module | what it is for |
//! |---|---|
//! | [`options`] | the command line |
//! | [`trace`], [`fault`], [`read`], [`generate`] | traces: what they are, what can be wrong, where they come from |
//! | [`run`], [`session`], [`task`], [`backlog`] | the replay: one task a stream, awaiting its allocations |
//! | [`shelf`], [`patience`], [`timing`], [`samples`] | what tasks need: blocks handed over, waits, CPU time, levels |
//! | [`verify`] | contents that are written and checked |
//! | [`report`], [`table`], [`units`], [`plot`], [`progress`] | what is shown |

mod backlog;
mod fault;
mod generate;
mod options;
mod patience;
mod plot;
mod progress;
mod read;
mod report;
mod run;
mod samples;
mod session;
mod shelf;
mod table;
mod task;
mod timing;
mod trace;
mod units;
mod verify;

use clap::Parser;
use options::{Generated, Options};
use progress::Progress;
use report::Report;
use samples::Sample;
use std::io::{Write, stdout};
use std::process::ExitCode;
use trace::Trace;

fn main() -> ExitCode {
    match replay_all(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn replay_all(options: &Options) -> anyhow::Result<()> {
    // All are read before the first one runs: what is malformed is said at once.
    let traces = traces(options)?;
    let mut reports = Vec::new();
    for trace in &traces {
        let (report, samples) = replay(trace, options)?;
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
            .map(|file| read::read(file))
            .collect(),
    }
}

fn replay(trace: &Trace, options: &Options) -> anyhow::Result<(Report, Vec<Sample>)> {
    let progress = Progress::new(&trace.name, trace.events.len(), options.json);
    run::replay(trace, &options.policy, &progress)
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
