//! Blocks of 512 B to 64 MiB with overlapping lifetimes: `cargo bench --bench mix`.
//!
//! On one thread, the time per operation, and the held memory in relation to the live memory. Then on up to 16 threads,
//! with a stream and a sixteenth of the live blocks each. The floor is a mutex, a list and a count for each stream.

mod suite;

use std::process::ExitCode;
use suite::options::Workload;

fn main() -> ExitCode {
    suite::program::main(&[Workload::Mix])
}
