//! The command line: the number of requests, the pressure, and the output.

use crate::executor::ExecutorName;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Compares three inference services under pressure: in one, requests wait for memory; in one, they fail and
/// retry; and one has memory for all.
#[derive(Clone, Debug, Parser)]
#[command(name = "inference")]
pub(crate) struct Options {
    /// The number of requests to serve, up to a million
    #[arg(long, value_name = "N", default_value_t = 480, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) requests: u64,

    #[command(flatten)]
    pub(crate) load: Load,

    #[command(flatten)]
    pub(crate) limits: Limits,

    /// The device that runs the steps
    #[arg(long, value_name = "DEVICE", value_enum, default_value_t = DeviceName::Sim)]
    pub(crate) device: DeviceName,

    /// The executor that polls the service
    #[arg(long, value_name = "EXECUTOR", value_enum, default_value_t = ExecutorName::Tokio)]
    pub(crate) executor: ExecutorName,

    /// Writes a plot of memory and queue over time
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,

    /// Prints a line with a JSON object for each service
    #[arg(long)]
    pub(crate) json: bool,

    /// Also fails below 95 % of the throughput of unlimited memory; by default that check is only printed
    #[arg(long)]
    pub(crate) check: bool,
}

/// The load of the service.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Load {
    /// The ratio of the arriving work to the device's capacity for work, from 0.01 to 1000
    #[arg(long = "load", value_name = "RATIO", default_value_t = 1.5, value_parser = ratio)]
    pub(crate) offered: f64,

    /// The average time of a step on the device, from 1us to 1s
    #[arg(long, value_name = "DURATION", default_value = "4ms", value_parser = step)]
    pub(crate) step: Duration,

    /// The seed of arrivals, lengths, back-off and device
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// The limits of the service.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Limits {
    /// The number of operations that the device runs at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = count)]
    pub(crate) places: usize,

    /// The number of streams that requests are spread over
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = count)]
    pub(crate) streams: usize,

    /// The most steps that a stream submits as one batch
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = count)]
    pub(crate) batch: usize,

    /// The number of average requests that the memory holds
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = room)]
    pub(crate) room: usize,

    /// The most requests in flight; further ones wait to be admitted
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count)]
    pub(crate) in_flight: usize,

    /// The number of tries before the retrying service gives up a request, up to 1000000
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) tries: u32,
}

/// A device that runs the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceName {
    /// The simulated device, in real time
    Sim,
    /// The first GPU (of CUDA_VISIBLE_DEVICES); needs a build with `--features cuda`
    Cuda,
}

impl Options {
    /// Returns these options, if they are valid together.
    pub(crate) fn checked(self) -> Result<Self, clap::Error> {
        if self.device == DeviceName::Cuda && self.executor == ExecutorName::Virtual {
            let reason = "--executor virtual needs --device sim: a GPU has no virtual time";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, reason));
        }
        if self.device == DeviceName::Cuda && !cfg!(feature = "cuda") {
            let reason = "this program was built without CUDA; build it with: \
                          cargo run --release --features cuda --example inference -- --device cuda";
            return Err(Self::command().error(ErrorKind::InvalidValue, reason));
        }
        Ok(self)
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse::<f64>();
    let ratio = ratio.ok().filter(|ratio| (0.01..=1000.0).contains(ratio));
    ratio.ok_or_else(|| "expected a number from 0.01 to 1000, such as 1.5".to_owned())
}

fn step(text: &str) -> Result<Duration, String> {
    let step = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    Some(step)
        .filter(|step| (Duration::from_micros(1)..=Duration::from_secs(1)).contains(step))
        .ok_or_else(|| "expected 1us to 1s".to_owned())
}

fn count(text: &str) -> Result<usize, String> {
    within(text, 1)
}

/// Parses the room: at least 2, since two average requests have room for the largest one.
fn room(text: &str) -> Result<usize, String> {
    within(text, 2)
}

fn within(text: &str, least: usize) -> Result<usize, String> {
    let count = text.parse::<usize>();
    let count = count.ok().filter(|count| (least..=4096).contains(count));
    count.ok_or_else(|| format!("expected a number from {least} to 4096"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, clap::Error> {
        let options = Options::try_parse_from([&["inference"], arguments].concat());
        options.and_then(Options::checked)
    }

    #[test]
    fn defaults_put_pressure_on_memory() {
        let Options { limits, load, .. } = parse(&[]).unwrap();
        assert!(limits.places < limits.room && limits.room < limits.in_flight);
        assert!(limits.places <= limits.streams && load.offered > 1.0);
    }

    #[test]
    fn invalid_and_extreme_options_are_refused() {
        for invalid in [
            &["--requests=0"][..],
            &["--requests=18446744073709551615"],
            &["--requests=1000000000"],
            &["--load=1e-300"],
            &["--load=1e300"],
            &["--load=nan"],
            &["--tries=4294967295"],
            &["--load=0"],
            &["--load=inf"],
            &["--step=0ms"],
            &["--places=0"],
            &["--room=1"],
            &["--tries=0"],
            &["--executor=rayon"],
            &["--device=cuda", "--executor=virtual"],
        ] {
            assert!(parse(invalid).is_err(), "{invalid:?}");
        }
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn refusal_of_a_gpu_names_the_build_command() {
        let refused = parse(&["--device=cuda"]).unwrap_err();
        assert!(refused.to_string().contains("--features cuda"), "{refused}");
    }

    #[test]
    fn options_are_parsed() {
        let options = parse(&[
            "--requests=7",
            "--load=0.5",
            "--step=1500us",
            "--room=9",
            "--executor=tokio-current",
            "--check",
        ]);
        let options = options.unwrap();
        assert_eq!((options.requests, options.limits.room), (7, 9));
        assert_eq!(options.load.step, Duration::from_micros(1500));
        assert_eq!(options.executor, ExecutorName::TokioCurrent);
        assert!(options.check && !options.json);
    }
}
