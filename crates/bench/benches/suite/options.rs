//! What the command line says.

use super::effort::{Amount, Effort};
use clap::{Parser, ValueEnum};
use std::path::PathBuf;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Allocate and free the same size
    Hot,
    /// 512 B to 64 MiB, at most 256 live; on several threads, too
    Mix,
    /// From stream to stream; with memory for 4 blocks, too
    Handoff,
    /// 1 to 16 threads, with a stream each and all on one
    Scale,
    /// With up to 100,000 live blocks
    LiveBlocks,
    /// An inference service with memory for a tenth of its requests
    Pressure,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceName {
    /// The simulated device
    Sim,
    /// The first GPU (of CUDA_VISIBLE_DEVICES); for programs built with `--features cuda`
    Cuda,
}

/// Measures the pool beside its floors and the driver's own pool.
#[derive(Clone, Debug, Parser)]
#[command(name = "cargo bench --bench <NAME> --")]
pub(crate) struct Options {
    /// What to measure; what the benchmark is named after, if not said
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    pub(crate) only: Vec<Workload>,

    /// Where; on a GPU where there is one, and on the simulated device if not said
    #[arg(long, value_enum)]
    pub(crate) device: Option<DeviceName>,

    /// What other allocators' programs printed, to stand beside it
    #[arg(long, value_name = "FILE")]
    pub(crate) peers: Option<PathBuf>,

    /// Turns of each contender; the figures are their medians
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: Option<u16>,

    /// The least and the most of the turns beside each median
    #[arg(long)]
    pub(crate) spread: bool,

    /// Tries each workload once, and as little of it as can be: the figures mean nothing
    #[arg(long)]
    pub(crate) test: bool,

    /// Of cargo: measure, rather than try
    #[arg(long, hide = true)]
    bench: bool,

    /// Of cargo's tests
    #[arg(long, hide = true)]
    nocapture: bool,

    /// Of cargo's, for other benchmarks
    #[arg(hide = true)]
    filters: Vec<String>,
}

impl Options {
    /// How much is done, where `usual` is if nothing is said. Without cargo's `--bench` it is only tried, as
    /// criterion has it: so `cargo test --benches` takes no time.
    pub(crate) fn effort(&self, usual: Amount) -> Effort {
        let is_trial = self.test || !self.bench;
        let amount = if is_trial { Amount::Smoke } else { usual };
        Effort::new(amount, self.rounds.map(usize::from))
    }
}
