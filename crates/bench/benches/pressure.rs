//! A service with memory for 6 requests, and 64 in flight: `cargo bench --bench pressure`.
//!
//! Its throughput in relation to the floor, which has memory for all; and the requests that fail. The whole service,
//! with its other checks, is `examples/inference`.

mod suite;

use std::process::ExitCode;
use suite::options::Workload;

fn main() -> ExitCode {
    suite::program::main(&[Workload::Pressure])
}
