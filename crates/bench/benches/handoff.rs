//! Memory that goes from stream to stream: `cargo bench --bench handoff`.
//!
//! Allocate, a kernel of 20 or 200 us, free, and on to the next of 8 streams: what that takes the host, and the
//! device. The floor is kernels without memory. Then with memory for 4 blocks, which is awaited, and with a
//! producer and a consumer for each block; there the floor is the same order by events, without a pool.

mod suite;

use std::process::ExitCode;
use suite::options::Workload;

fn main() -> ExitCode {
    suite::program::main(&[Workload::Handoff])
}
