//! The `weirpool` command: replays recorded allocations through the pool, on the simulated device or on a GPU.
//!
//! ```text
//! weirpool                                                     # replays the three recorded traces
//! weirpool replay --lag 1ms --when-short wait-briefly --plot replay.svg
//! weirpool replay memory_log.csv snapshot.pickle
//! weirpool replay --lag 1ms --html replay.html trace.csv
//! weirpool replay --generate cross-stream --capacity 500MB --json
//! weirpool replay --device cuda --kernels --lag 1ms            # built with --features cuda
//! weirpool frontier --plot frontier.svg
//! weirpool devices                                             # built with --features cuda
//! weirpool broker --capacity 70GiB --socket /run/user/1000/gpu0.sock
//! weirpool top --socket /run/user/1000/gpu0.sock
//! weirpool run --limit 8GiB -- ./program
//! weirpool broker drop llama --socket /run/user/1000/gpu0.sock
//! weirpool load http://127.0.0.1:8080 --rate 100 --duration 30s
//! ```
//!
//! At the root of the repository, `cargo run --release --` stands for `weirpool`, and
//! `cargo run --release --features cuda --` for a `weirpool` with GPUs: cargo passes the feature to every member of the
//! workspace that has it. `cargo install --path crates/cli` installs the command.
//!
//! | module | purpose |
//! |---|---|
//! | `options` | the command line |
//! | `trace`, `read` | traces, their limits, and the files that they are read from |
//! | `replay`, `device` | the replay, with one task for each stream, and the devices it runs on |
//! | `broker` | the broker of one GPU, and a view of it |
//! | `run` | an unmodified program on the pool |
//! | `frontier` | memory against device time, by chunk size and policy |
//! | `load` | requests to an inference server, and their outcomes |
//! | `show`, `units`, `output` | tables and pictures, formatted numbers, standard output |
//! | `overwrite` | outputs that are inputs as well |
//! | [`fuzzing`] | the entry points of the fuzz targets in `fuzz/` |

#[cfg(target_os = "linux")]
mod broker;
mod device;
mod frontier;
pub mod fuzzing;
mod load;
mod options;
mod output;
mod overwrite;
mod read;
mod replay;
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
mod run;
mod show;
mod trace;
mod units;

use anyhow::Context;
use device::cuda;
use device::machine::Site;
use device::simulated::Simulator;
use options::{Command, DeviceName, Frontier, Generated, Replay, Source};
use output::ClosedPipe;
use replay::progress::Progress;
use show::{page, plot, table};
use std::collections::HashSet;
use std::path::Path;
use std::process::ExitCode;
use trace::Trace;
use trace::generate::cross_stream;

/// Runs the command that the arguments of this process name.
pub fn main() -> ExitCode {
    let done = match options::Cli::command_or_exit() {
        Command::Replay(options) => replay(*options),
        Command::Frontier(options) => frontier(&options),
        Command::Load(options) => load::run(&options),
        Command::Devices => devices(),
        #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
        Command::Run(options) => run::run(&options),
        #[cfg(target_os = "linux")]
        Command::Broker(options) => broker::broker(&options),
        #[cfg(target_os = "linux")]
        Command::Top(options) => broker::top(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<ClosedPipe>() => ExitCode::SUCCESS,
        Err(error) => {
            output::note(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a line for each device of the driver.
fn devices() -> anyhow::Result<()> {
    #[cfg(feature = "cuda")]
    for device in weirpool::device::cuda::CudaDevice::all()? {
        output::print(&format!("{device}\n"))?;
    }
    #[cfg(not(feature = "cuda"))]
    output::note(format_args!("build with --features cuda to list GPUs"));
    Ok(())
}

fn replay(mut options: Replay) -> anyhow::Result<()> {
    if let Some(plot) = options.frontier.take() {
        return frontier(&Frontier {
            source: options.source,
            conditions: options.policy.conditions,
            json: options.json,
            plot: Some(plot),
        });
    }
    match options.target.device {
        DeviceName::Sim => replay_all(&Simulator, &options),
        DeviceName::Cuda => replay_all(&cuda::open(&options.target)?, &options),
    }
}

fn replay_all(site: &impl Site, options: &Replay) -> anyhow::Result<()> {
    let traces = traces(&options.source, options.policy.conditions.seed)?;
    let named = |file: &Path| {
        let several = traces.len() > 1;
        let name = |trace: &Trace| plot::file_for(file, &trace.name, several);
        traces.iter().map(name).collect::<Vec<_>>()
    };
    let outputs = [&options.plot, &options.policy.html, &options.policy.record];
    let outputs: Vec<_> = outputs
        .into_iter()
        .flatten()
        .flat_map(|file| named(file))
        .collect();
    overwrite::check_files(&options.source.inputs(), &outputs)?;
    let mut reports = Vec::new();
    for trace in &traces {
        let progress = Progress::new(&trace.name, trace.events.len(), options.json);
        let (target, policy) = (&options.target, &options.policy);
        let (report, drawable) = replay::replay(site, trace, target, policy, &progress)?;
        drop(progress);
        if let Some(file) = &options.plot {
            let file = plot::file_for(file, &trace.name, traces.len() > 1);
            plot::draw(&file, &report, &drawable.samples)?;
        }
        if let (Some(file), Some(frames)) = (&policy.html, drawable.frames) {
            let file = plot::file_for(file, &trace.name, traces.len() > 1);
            page::write(&file, &report, frames)?;
        }
        if options.json {
            output::print(&format!("{}\n", serde_json::to_string(&report)?))?;
        }
        reports.push(report);
    }
    if !options.json {
        output::print(&table::table(&reports))?;
    }
    Ok(())
}

fn frontier(options: &Frontier) -> anyhow::Result<()> {
    let traces = traces(&options.source, options.conditions.seed)?;
    overwrite::check_files(&options.source.inputs(), options.plot.as_slice())?;
    let setting = frontier::Setting {
        conditions: &options.conditions,
        json: options.json,
        plot: options.plot.clone(),
    };
    frontier::show(&Simulator, &traces, &setting)
}

/// Reads or generates all traces, before the first one is replayed: so a fault of any file is reported at once.
fn traces(source: &Source, seed: u64) -> anyhow::Result<Vec<Trace>> {
    if let Some(Generated::CrossStream) = source.generate {
        let generated = cross_stream(source.operations, seed)?;
        return Ok(vec![generated.scaled(source.scale)?]);
    }
    let request = read::Request {
        device: source.trace_device,
        ..read::Request::default()
    };
    let files = source.files();
    let traces = files
        .iter()
        .map(|file| recorded(file, request, source.scale));
    let mut traces = traces.collect::<anyhow::Result<Vec<_>>>()?;
    make_names_unique(&mut traces);
    Ok(traces)
}

/// Reads the trace in a file, and prints what its recording lacks on standard error.
fn recorded(file: &Path, request: read::Request, scale: u64) -> anyhow::Result<Trace> {
    let recording = read::read(file, request)?;
    for note in &recording.notes {
        output::note(format_args!("{}: {note}", units::path(file)));
    }
    let too_large = || format!("{}: --scale {scale} is too large", units::path(file));
    recording.trace.scaled(scale).with_context(too_large)
}

/// Numbers traces of one name, whose pictures and columns could not be told apart.
fn make_names_unique(traces: &mut [Trace]) {
    let mut names = HashSet::new();
    for trace in traces {
        let base = trace.name.clone();
        let mut number = 1;
        while !names.insert(trace.name.clone()) {
            number += 1;
            trace.name = format!("{base}-{number}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_of_one_name_are_numbered() {
        let trace = |name: &str| Trace {
            name: name.to_owned(),
            ..cross_stream(2, 1).unwrap()
        };
        let mut traces = ["a", "a", "a-2", "b", "a"].map(trace);
        make_names_unique(&mut traces);
        let names = traces.each_ref().map(|trace| trace.name.as_str());
        assert_eq!(names, ["a", "a-2", "a-2-2", "b", "a-3"]);
    }
}
