//! A whole benchmark.

use super::backend::Backend;
use super::effort::{Amount, Effort};
use super::options::{DeviceName, Options, Workload};
use super::peers::{self, Figure};
use super::report::{Shown, table};
use super::row::Row;
use super::simulated::Simulated;
use super::{cuda, growing, handoff, hot, live_blocks, mix, pressure, scale, scarce, spills};
use anyhow::Context;
use clap::Parser;
use std::process::ExitCode;
use std::time::Instant;
use weirpool::device::sim::Clock;

/// Measures the given workloads, unless the command line names others. A single workload is measured as precisely as
/// possible, on the simulated device and on a GPU if there is one. Several are measured within a minute or two, on the
/// GPU or else on the simulated device.
pub(crate) fn main(own: &[Workload]) -> ExitCode {
    match run(own) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(own: &[Workload]) -> anyhow::Result<()> {
    let options = Options::parse();
    let usual = match own {
        [_] => Amount::Full,
        _ => Amount::Modest,
    };
    let effort = options.effort(usual);
    if effort.amount == Amount::Smoke {
        println!("a trial, whose figures mean nothing: `--bench` measures\n");
    }
    let peers = read_peers(&options)?;
    let shown = Shown {
        peers: &peers,
        spread: options.spread,
    };
    let workloads = match &options.only[..] {
        [] => own,
        only => only,
    };
    let gpu = open(options.device)?;
    let is_simulated = match options.device {
        Some(device) => device == DeviceName::Sim,
        None => gpu.is_none() || effort.amount != Amount::Modest,
    };
    if is_simulated {
        let name = Simulated::new(Clock::Manual).name();
        print(&name, workloads, shown, |workload| {
            simulated(workload, effort)
        });
    }
    if let Some(gpu) = gpu {
        print(&gpu.name(), workloads, shown, |workload| {
            on(&gpu, workload, effort)
        });
    }
    Ok(())
}

/// Opens the GPU if it is requested, or if there is one and no device is requested. Must be called before any other
/// thread is started.
fn open(device: Option<DeviceName>) -> anyhow::Result<Option<impl Backend>> {
    match device {
        Some(DeviceName::Sim) => Ok(None),
        Some(DeviceName::Cuda) => cuda::open().map(Some),
        None => {
            let gpu = cuda::open();
            let gpu = gpu.inspect_err(|error| println!("skipped on CUDA: {error:#}\n"));
            Ok(gpu.ok())
        }
    }
}

fn read_peers(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let Some(path) = &options.peers else {
        return Ok(Vec::new());
    };
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("{} cannot be read", path.display()))?;
    let figures = peers::parse(&text);
    anyhow::ensure!(
        !figures.is_empty(),
        "{} has no line of a peer's program",
        path.display()
    );
    Ok(figures)
}

fn print(
    name: &str,
    workloads: &[Workload],
    shown: Shown<'_>,
    measure: impl Fn(Workload) -> Vec<Row>,
) {
    println!("{name}\n");
    let mut rows = Vec::new();
    for workload in workloads {
        let start = Instant::now();
        rows.extend(measure(*workload));
        eprintln!("{workload:?}: {:.1?}", start.elapsed());
    }
    println!("{}", table(&rows, shown));
}

/// Measures one workload on one backend.
fn on(backend: &impl Backend, workload: Workload, effort: Effort) -> Vec<Row> {
    match workload {
        Workload::Hot => hot::rows(backend, effort),
        Workload::Mix => mix::rows(backend, effort),
        Workload::Handoff => handoff::rows(backend, effort),
        Workload::Scale => scale::rows(backend, effort),
        Workload::Growing => growing::rows(backend, effort),
        Workload::LiveBlocks => live_blocks::rows(backend, effort),
        Workload::Pressure => pressure::rows(backend, effort),
        Workload::Spills => spills::rows(backend, effort),
    }
}

/// Runs a workload on the simulated device: in real time if its device work takes time, and in virtual time if it waits
/// for memory. In virtual time the host takes no time, so that only the order of the grants matters.
fn simulated(workload: Workload, effort: Effort) -> Vec<Row> {
    let on_clock = |clock| on(&Simulated::new(clock), workload, effort);
    match workload {
        Workload::Growing => on_clock(Clock::Wall),
        Workload::Handoff => {
            let mut rows = on_clock(Clock::Wall);
            rows.extend(scarce::rows(&Simulated::new(Clock::Virtual), effort));
            rows
        }
        Workload::Pressure | Workload::Spills => on_clock(Clock::Virtual),
        _ => on_clock(Clock::Manual),
    }
}
