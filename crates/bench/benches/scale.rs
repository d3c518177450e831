//! Pairs of allocating and freeing on 1 to 16 threads: `cargo bench --bench scale`.
//!
//! With a stream for each thread, and all on one stream; 12 sizes from 1 KiB to 2 MiB. The floor is a mutex, a
//! list and a count for each stream: one for all, where they share it.

mod suite;

use std::process::ExitCode;
use suite::options::Workload;

fn main() -> ExitCode {
    suite::program::main(&[Workload::Scale])
}
