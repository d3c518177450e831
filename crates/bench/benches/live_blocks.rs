//! The cost of an operation with 1,000 to 100,000 live blocks: `cargo bench --bench live_blocks`.
//!
//! Also the host memory of the pool's own records for each block. The floor is a mutex, a list and a count for each
//! stream; it misses the same caches.

mod suite;

use std::process::ExitCode;
use suite::options::Workload;

fn main() -> ExitCode {
    suite::program::main(&[Workload::LiveBlocks])
}
