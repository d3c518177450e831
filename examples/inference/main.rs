//! An inference service under pressure: memory for 6 requests, 64 in flight, and no failures.
//!
//! ```text
//! cargo run --release --example inference
//! cargo run --release --example inference -- --plot inference.svg --check
//! cargo run --release --example inference -- --executor smol --requests 100
//! cargo run --release --features cuda --example inference -- --device cuda
//! ```
//!
//! Requests arrive at random, faster than they can be served. Each needs the model's weights, which all share, an
//! activation for each step, and a cache that grows. A device runs their steps, 4 at once, on 8 streams. [`service`]
//! and [`lease`] show how a service should manage memory:
//!
//! - a request takes all the memory that it will need up front, and waits for it in the pool's queue in the order of
//!   arrival, so that no request holds some memory and waits for more;
//! - its later allocations never wait and never fail;
//! - memory is freed right after the last step that uses it is submitted: the pool, not the service, waits until the
//!   device has finished with it.
//!
//! The program runs three variants of the service: this one; one whose requests fail if there is no memory at once, and
//! retry with exponential back-off; and one with memory for all requests in flight. The first must have no failures and
//! no wait longer than the [bound] that follows from the queue ahead of it; otherwise the program ends with an error.
//! With `--check` it must also reach 95 % of the throughput of unlimited memory, since by construction the device's
//! places are scarcer than memory ([`theory`]).
//!
//! | module | purpose |
//! |---|---|
//! | [`options`] | the command line |
//! | [`model`], [`arrivals`] | the memory that a request needs, and the requests that arrive |
//! | [`service`], [`worker`], [`lease`], [`backoff`] | requests, streams, and how requests obtain memory |
//! | [`kind`], [`run`] | the three variants, and one run of a variant |
//! | [`executor`], [`timer`] | the executors, and the time |
//! | [`kernels`], [`simulated`], `cuda` | the kernels of each device: the only part that differs |
//! | [`gauge`], [`watch`], [`progress`] | sampling and progress during a run |
//! | [`bound`], [`theory`] | bounds of waits and of throughput |
//! | [`report`], [`table`], [`plot`], [`chart`], [`units`] | the output |

mod arrivals;
mod backoff;
mod bound;
#[path = "../../crates/cli/src/show/chart.rs"]
mod chart;
#[cfg(feature = "cuda")]
mod cuda;
mod executor;
mod gauge;
mod kernels;
mod kind;
mod lease;
mod model;
mod options;
#[path = "../../crates/cli/src/output.rs"]
mod output;
mod plot;
mod progress;
mod report;
mod run;
mod service;
mod simulated;
mod table;
mod theory;
mod timer;
#[path = "../../crates/cli/src/units.rs"]
mod units;
mod watch;
mod worker;

use clap::Parser;
use kernels::Machine;
use kind::Kind;
use options::{DeviceName, Options};
use output::ClosedPipe;
use progress::Progress;
use report::Report;
use std::process::ExitCode;
use theory::Theory;
use weirpool::device::NativeStream;

fn main() -> ExitCode {
    let options = Options::parse();
    let options = options.checked().unwrap_or_else(|error| error.exit());
    let is_good = match options.device {
        DeviceName::Sim => compare(|| simulated::machine(&options), &options),
        #[cfg(feature = "cuda")]
        DeviceName::Cuda => {
            cuda::prepare();
            cuda::Gpu::open(&options).and_then(|gpu| compare(|| gpu.machine(), &options))
        }
        #[cfg(not(feature = "cuda"))]
        DeviceName::Cuda => unreachable!("the options were checked"),
    };
    match is_good {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if error.is::<ClosedPipe>() => ExitCode::SUCCESS,
        Err(error) => {
            output::note(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs all variants and prints their figures. Returns whether all required checks hold.
fn compare<W: NativeStream>(
    machine: impl Fn() -> Machine<W>,
    options: &Options,
) -> anyhow::Result<bool> {
    let requests = arrivals::requests(options);
    let mut reports = Vec::new();
    for kind in Kind::ALL {
        let progress = Progress::new(kind.name(), options.requests, options.json);
        let outcome = run::run(machine(), options, kind, &requests, &progress)?;
        let report = Report::of(&outcome, kind.capacity(options));
        if let (Some(file), Kind::Waiting) = (&options.plot, kind) {
            plot::draw(file, &report, &outcome.samples)?;
        }
        reports.push(report);
    }
    let shared = Kind::Waiting.shared(options);
    let theory = Theory::of(&requests, options.limits.places, shared);
    let checks = report::checks(&reports, options.check);
    if options.json {
        for report in &reports {
            output::print(&format!("{}\n", serde_json::to_string(report)?))?;
        }
        // Standard output must hold JSON only.
        output::note(format_args!("{}", table::checks(&checks).trim_end()));
    } else {
        if options.device != DeviceName::Sim {
            output::print(&format!("{}\n\n", machine().device.describe()))?;
        }
        let theory = table::theory(&theory, &reports);
        let checks = table::checks(&checks);
        output::print(&format!("{}\n{theory}{checks}", table::table(&reports)))?;
    }
    Ok(checks
        .iter()
        .all(|check| check.is_met || !check.is_required))
}
