//! The options of the command line.

use super::effort::{Amount, Effort};
use clap::{Parser, ValueEnum};
use std::path::PathBuf;

/// A workload to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Allocating and freeing one size
    Hot,
    /// Sizes from 512 B to 64 MiB, at most 256 live blocks; also on several threads
    Mix,
    /// Blocks handed from stream to stream; also with memory for only 4 blocks
    Handoff,
    /// 1 to 16 threads, with a stream each and all on one stream
    Scale,
    /// Allocations that make the pool grow
    Growing,
    /// Up to 100,000 live blocks
    LiveBlocks,
    /// An inference service with memory for a tenth of its requests
    Pressure,
    /// Blocks whose contents go to the host and come back
    Spills,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceName {
    /// The simulated device
    Sim,
    /// The first GPU of CUDA_VISIBLE_DEVICES; requires `--features cuda`
    Cuda,
}

/// Measures the pool beside its lower bounds and the driver's own pool.
#[derive(Clone, Debug, Parser)]
#[command(name = "cargo bench --bench <NAME> --")]
pub(crate) struct Options {
    /// Workloads to measure; by default those that the benchmark is named after
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    pub(crate) only: Vec<Workload>,

    /// Device to measure on; by default a GPU if there is one, and otherwise the simulated device
    #[arg(long, value_enum)]
    pub(crate) device: Option<DeviceName>,

    /// Output of other allocators' programs, to show beside the results
    #[arg(long, value_name = "FILE")]
    pub(crate) peers: Option<PathBuf>,

    /// Number of turns of each contender; the figures are their medians
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: Option<u16>,

    /// Show the minimum and maximum of the turns beside each median
    #[arg(long)]
    pub(crate) spread: bool,

    /// Run each workload once, as small as possible, to check that it works; the figures mean nothing
    #[arg(long)]
    pub(crate) test: bool,

    /// Passed by cargo: measure rather than check
    #[arg(long, hide = true)]
    bench: bool,

    /// Passed by cargo to tests
    #[arg(long, hide = true)]
    nocapture: bool,

    /// Passed by cargo for other benchmarks
    #[arg(hide = true)]
    filters: Vec<String>,
}

impl Options {
    /// Returns how much to measure: `usual` unless the command line says otherwise. Without cargo's `--bench`, as in
    /// `cargo test --benches`, the workloads are only checked, as with criterion.
    pub(crate) fn effort(&self, usual: Amount) -> Effort {
        let is_trial = self.test || !self.bench;
        let amount = if is_trial { Amount::Smoke } else { usual };
        Effort::new(amount, self.rounds.map(usize::from))
    }
}
