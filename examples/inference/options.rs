//! What the command line says: how many requests, under what pressure, and what to print.

use crate::executor::ExecutorName;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// An inference service under pressure: requests wait for memory, beside the same service that fails and
/// retries, and the same with memory for all.
#[derive(Clone, Debug, Parser)]
#[command(name = "inference")]
pub(crate) struct Options {
    /// Requests to serve
    #[arg(long, value_name = "N", default_value_t = 480, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: u64,

    #[command(flatten)]
    pub(crate) load: Load,

    #[command(flatten)]
    pub(crate) limits: Limits,

    /// The device that runs the steps
    #[arg(long, value_name = "DEVICE", value_enum, default_value_t = DeviceName::Sim)]
    pub(crate) device: DeviceName,

    /// What polls the service
    #[arg(long, value_name = "EXECUTOR", value_enum, default_value_t = ExecutorName::Tokio)]
    pub(crate) executor: ExecutorName,

    /// Draws memory and queue over time
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,

    /// Prints one JSON object a service, each on one line
    #[arg(long)]
    pub(crate) json: bool,

    /// Fails below 95 % of the throughput of unlimited memory, too; without, that is only printed
    #[arg(long)]
    pub(crate) check: bool,
}

/// What comes.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Load {
    /// How much work arrives, over what the device can do
    #[arg(long = "load", value_name = "RATIO", default_value_t = 1.5, value_parser = ratio)]
    pub(crate) offered: f64,

    /// What a step takes the device, on average
    #[arg(long, value_name = "DURATION", default_value = "4ms", value_parser = step)]
    pub(crate) step: Duration,

    /// Seeds arrivals, lengths, back-off and device
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// What there is for it.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Limits {
    /// Operations that the device runs at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = count)]
    pub(crate) places: usize,

    /// Streams that requests are spread over
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = count)]
    pub(crate) streams: usize,

    /// Steps that a stream takes together, at most
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = count)]
    pub(crate) batch: usize,

    /// Average requests that there is memory for
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = room)]
    pub(crate) room: usize,

    /// Requests in flight, at most; more wait at the quota queue
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count)]
    pub(crate) in_flight: usize,

    /// How often the service that fails and retries tries, before it gives a request up
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tries: u32,
}

/// Who runs the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceName {
    /// The simulated device, in real time
    Sim,
    /// The first GPU (of CUDA_VISIBLE_DEVICES); for programs built with `--features cuda`
    Cuda,
}

impl Options {
    /// These options, if they make sense together.
    pub(crate) fn checked(self) -> Result<Self, clap::Error> {
        if self.device == DeviceName::Cuda && self.executor == ExecutorName::Virtual {
            let reason = "--executor virtual goes with --device sim: a GPU has no virtual time";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, reason));
        }
        Ok(self)
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse::<f64>();
    let ratio = ratio.ok().filter(|ratio| ratio.is_finite() && *ratio > 0.0);
    ratio.ok_or_else(|| "expected a number above 0, as 1.5".to_owned())
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

/// Room for two average requests is room for the largest one.
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
    fn without_arguments_there_is_pressure_on_memory() {
        let Options { limits, load, .. } = parse(&[]).unwrap();
        assert!(limits.places < limits.room && limits.room < limits.in_flight);
        assert!(limits.places <= limits.streams && load.offered > 1.0);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for unsound in [
            &["--requests=0"][..],
            &["--load=0"],
            &["--load=inf"],
            &["--step=0ms"],
            &["--places=0"],
            &["--room=1"],
            &["--tries=0"],
            &["--executor=rayon"],
            &["--device=cuda", "--executor=virtual"],
        ] {
            assert!(parse(unsound).is_err(), "{unsound:?}");
        }
    }

    #[test]
    fn what_is_said_is_taken() {
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
