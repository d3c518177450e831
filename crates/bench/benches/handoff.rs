//! Memory that passes from stream to stream: `cargo bench --bench handoff`.
//!
//! Allocate, run a kernel of 20 or 200 us, free, and continue on the next of 8 streams: the time of the host and of the
//! device. The floor is kernels without memory. A second measurement has memory for 4 blocks, which is awaited, also
//! with a producer and a consumer for each block. Its floor is the same order made with events, without a pool.

mod suite;

use std::process::ExitCode;
use suite::options::Workload;

fn main() -> ExitCode {
    suite::program::main(&[Workload::Handoff])
}
