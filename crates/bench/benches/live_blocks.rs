//! What an operation costs with 1,000 to 100,000 live blocks: `cargo bench --bench live_blocks`.
//!
//! And what the pool's own books take of the host's heap for each. The floor is a mutex, a list and a count for
//! each stream; it misses the same caches.

mod suite;

use std::process::ExitCode;
use suite::options::Workload;

fn main() -> ExitCode {
    suite::program::main(&[Workload::LiveBlocks])
}
