//! Random operations, under oracles.
//!
//! | module | about |
//! |---|---|
//! | `foreign` | memory that others own, as blocks |
//! | `full_device` | three pools on one device, beside another program |
//! | `fuzz` | the sequences of operations that are fuzzed |
//! | `graphs` | captures and launches among allocations |
//! | `oracle` | what comes before what, from the calls of the device |
//! | `property` | against a naive model |
//! | `seams` | all seams at once, under an oracle |
//! | `segments` | a source of segments that records each take and each give |
//! | `stress` | many tasks, with an order oracle and a progress oracle |
//! | `tasks` | submitted work, and host tasks that hold their streams |

#[path = "../common/mod.rs"]
mod common;

/// Seeds that each random test runs.
const SEEDS: u64 = 60;

/// Runs a test for each seed, and names the one that fails. Returns the sum of what the runs count, such as served
/// requests: a test shows with it that it tested something.
fn over_seeds(run: impl Fn(u64) -> u64) -> u64 {
    let run = std::panic::AssertUnwindSafe(run);
    let count = |seed| {
        let ended = std::panic::catch_unwind(|| run(seed));
        ended.unwrap_or_else(|_| panic!("seed {seed}"))
    };
    (0..SEEDS).map(count).sum()
}

mod foreign;
mod full_device;
mod fuzz;
mod graphs;
mod oracle;
mod property;
mod seams;
mod segments;
mod stress;
mod tasks;
