//! Pairs of allocation and free on 1 to 16 threads: `cargo bench --bench scale`.
//!
//! With a stream per thread, and with one stream for all; 12 sizes from 1 KiB to 2 MiB. The floor is a mutex, a list
//! and a count for each stream: one for all threads if they share it.

mod suite;

use std::process::ExitCode;
use suite::options::Workload;

fn main() -> ExitCode {
    suite::program::main(&[Workload::Scale])
}
