//! A service with memory for 6 requests, and 64 in flight: `cargo bench --bench pressure`.
//!
//! Its throughput beside that with memory for all, which is the floor; and who fails. The whole service, and what
//! else is asked of it, is `examples/inference`.

mod suite;

use std::process::ExitCode;
use suite::options::Workload;

fn main() -> ExitCode {
    suite::program::main(&[Workload::Pressure])
}
