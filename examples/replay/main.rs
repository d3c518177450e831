//! Replays recorded allocations through the pool, on the simulated device.
//!
//! ```text
//! cargo run --release --example replay
//! cargo run --release --example replay -- --lag 1ms --order wait-first --plot replay.svg
//! cargo run --release --example replay -- --generate cross-stream --capacity 500MB --json
//! ```
//!
//! | module | what it is for |
//! |---|---|
//! | [`options`] | the command line |
//! | [`trace`], [`fault`], [`read`], [`generate`] | traces: what they are, what can be wrong, and where they come from |
//! | [`run`], [`session`], [`task`] | the replay: one task a stream, awaiting its allocations |
//! | [`shelf`], [`patience`], [`timing`], [`samples`] | what the tasks share: blocks handed over, waits, clocks, levels |
//! | [`report`], [`table`], [`units`], [`plot`], [`progress`] | what is shown |

mod fault;
mod generate;
mod options;
mod patience;
mod plot;
mod progress;
mod read;
mod report;
mod samples;
mod shelf;
mod table;
mod timing;
mod trace;
mod units;

fn main() {}
