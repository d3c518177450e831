//! The benchmarks: their command line, the table, other programs' figures; and that each workload runs.

#[allow(dead_code, reason = "measuring is the benchmarks'")]
#[path = "../benches/suite/mod.rs"]
mod suite;

#[path = "benches/options.rs"]
mod options;
#[path = "benches/peers.rs"]
mod peers;
#[path = "benches/report.rs"]
mod report;
#[path = "benches/workloads.rs"]
mod workloads;
