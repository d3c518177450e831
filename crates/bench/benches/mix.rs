//! Blocks of 512 B to 64 MiB, that live for a while: `cargo bench --bench mix`.
//!
//! Time for an operation and memory held over what lives, on one thread; then up to 16 threads, with a stream
//! and a sixteenth of the live blocks each. The floor is a mutex, a list and a count for each stream.

mod suite;

use std::process::ExitCode;
use suite::options::Workload;

fn main() -> ExitCode {
    suite::program::main(&[Workload::Mix])
}
