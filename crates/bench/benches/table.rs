//! All workloads in one table: `cargo bench --bench table`.
//!
//! On a GPU where there is one, beside the driver's own pool; else on the simulated device. With `--peers FILE`
//! the figures of other allocators stand beside them, which their programs printed on the same machine; with
//! `--only hot,mix` it measures those. `--help` has the rest.

mod suite;

use clap::ValueEnum;
use std::process::ExitCode;
use suite::options::Workload;

fn main() -> ExitCode {
    suite::program::main(Workload::value_variants())
}
