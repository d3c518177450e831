//! All workloads in one table: `cargo bench --bench table`.
//!
//! It runs on a GPU if there is one, beside the driver's own pool, and otherwise on the simulated device. With `--peers
//! FILE` the table includes the figures of other allocators, which their programs printed on the same machine. With
//! `--only hot,mix` only those workloads are measured. `--help` lists the other options. `crates/bench/figures` has figures of
//! earlier runs, with their commands and hardware.

mod suite;

use clap::ValueEnum;
use std::process::ExitCode;
use suite::options::Workload;

fn main() -> ExitCode {
    suite::program::main(Workload::value_variants())
}
