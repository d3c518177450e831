//! What the command line says: which traces, under which policy, and what to print.
//!
//! The names of policies are the example's own here; `run` gives them to the pool.

use crate::record;
use crate::target::Target;
use crate::upstream::UpstreamName;
use crate::verify::Extent;
use bytesize::ByteSize;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The traces that the repository holds.
const RECORDED: [&str; 3] = ["llama_serve", "bert_train", "resnet_serve"];

/// The file of a trace that the repository holds.
pub(crate) fn recorded(name: &str) -> PathBuf {
    let traces = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/traces");
    PathBuf::from(traces).join(format!("{name}.csv.gz"))
}

/// Tools for the weirpool memory pool. Without a command, `weirpool` replays the recorded traces of the repository.
#[derive(Clone, Debug, Parser)]
#[command(name = "weirpool", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    Replay(Box<Options>),
}

impl Cli {
    /// The options of the replay.
    pub(crate) fn options(self) -> Options {
        match self.command {
            Some(Command::Replay(options)) => *options,
            None => Options::parse_from(["replay"]),
        }
    }
}

/// Replays recorded allocations through the pool, on the simulated device or on a GPU.
#[derive(Clone, Debug, Parser)]
#[command(name = "replay")]
pub(crate) struct Options {
    /// Traces, plain or gzip: CSV as the recorded ones, logs of RMM's logging_resource_adaptor, or
    /// snapshots of PyTorch (torch.cuda.memory._dump_snapshot); with none, the three recorded ones of
    /// the repository
    pub(crate) paths: Vec<PathBuf>,

    /// The device whose events are replayed, of a PyTorch snapshot [default: the first that has any]
    #[arg(long, value_name = "N")]
    pub(crate) trace_device: Option<usize>,

    /// Replays a generated trace instead of files
    #[arg(long, value_name = "TRACE", conflicts_with = "paths")]
    pub(crate) generate: Option<Generated>,

    /// Allocations and frees to generate
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u64).range(2..),
        requires = "generate"
    )]
    pub(crate) operations: u64,

    #[command(flatten)]
    pub(crate) target: Target,

    #[command(flatten)]
    pub(crate) policy: Policy,

    /// Prints one JSON object a trace, each on one line
    #[arg(long)]
    pub(crate) json: bool,

    /// Draws reserved, used, pending and requested bytes over time; with several traces, one
    /// picture each, named after it (FILE.TRACE.svg)
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,

    /// Replays each trace with handles of 2 to 64 MiB, growing first (and remapping always, or
    /// never), waiting first and in plain memory, prints all of it and draws memory against device
    /// time; on the simulated device
    #[arg(
        long,
        value_name = "FILE.svg",
        conflicts_with_all = ["plot", "record", "handle", "order", "remapping", "upstream"]
    )]
    pub(crate) frontier: Option<PathBuf>,
}

impl Options {
    /// These options, if they make sense together.
    pub(crate) fn checked(self) -> Result<Self, clap::Error> {
        let (has_lag, verifies) = (!self.policy.lag.is_zero(), self.policy.verify.is_some());
        let checked = self.target.check(has_lag, verifies);
        let checked = checked.and_then(|()| self.check_record());
        let checked = checked.and_then(|()| self.check_frontier());
        let refusal = |reason| Self::command().error(ErrorKind::ArgumentConflict, reason);
        checked.map(|()| self).map_err(refusal)
    }

    fn check_record(&self) -> Result<(), &'static str> {
        let is_one = self.generate.is_some() || self.paths.len() == 1;
        match &self.policy.record {
            None => Ok(()),
            Some(_) if !is_one => {
                Err("--record takes one trace, or --generate: each has a file of its own")
            }
            Some(_) => record::check(),
        }
    }

    fn check_frontier(&self) -> Result<(), &'static str> {
        match &self.frontier {
            Some(_) if self.target.is_cuda() => Err(
                "--frontier goes with --device sim: there the same trace costs the same each time",
            ),
            _ => Ok(()),
        }
    }

    /// The files to replay, when nothing is generated.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        if self.paths.is_empty() {
            RECORDED.map(recorded).to_vec()
        } else {
            self.paths.clone()
        }
    }
}

/// A trace that can be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Generated {
    /// Producers and consumers on different streams
    CrossStream,
}

/// Under what a trace is replayed.
#[derive(Clone, Debug, Args)]
pub(crate) struct Policy {
    /// How far each stream runs behind the host, on average: 500us, 1ms
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = humantime::parse_duration)]
    pub(crate) lag: Duration,

    /// The most the pool may take from the device: 6GiB, 1500MB [default: no bound]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) capacity: Option<u64>,

    /// What comes first when nothing free fits
    #[arg(long, value_enum, default_value_t = OrderName::GrowFirst)]
    pub(crate) order: OrderName,

    /// How far a wait on the device may set a stream back
    #[arg(long, value_name = "LIMIT", value_enum, default_value_t = WaitLimitName::Tail)]
    pub(crate) wait_limit: WaitLimitName,

    /// How much of the time goes into mapping free memory elsewhere, rather than taking more: always (however much),
    /// never (while there is more), or a share as 0.125 [default: the pool's]
    #[arg(long, value_name = "POLICY")]
    pub(crate) remapping: Option<RemappingName>,

    /// How pending memory may be reused: follow-event-dependencies, opportunistic,
    /// internal-dependencies (with commas between), all or none
    #[arg(long, value_name = "POLICIES", default_value = "all")]
    pub(crate) reuse: ReuseNames,

    /// When the event of a free is recorded: every-free, on-demand, after so many bytes as 4MiB, or
    /// spaced:4MiB for up to eight times as many where frees come close to each other
    /// [default: the pool's]
    #[arg(long, value_name = "POLICY")]
    pub(crate) sealing: Option<SealingName>,

    /// Write a pattern to each block and check it before the free: pages, or full for every byte
    #[arg(long, value_name = "EXTENT", value_enum, num_args = 0..=1, require_equals = true,
          default_missing_value = "pages")]
    pub(crate) verify: Option<Extent>,

    /// The size of physical handles [default: the pool's]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) handle: Option<u64>,

    /// Where the memory comes from
    #[arg(long, value_enum, default_value_t = UpstreamName::Virtual)]
    pub(crate) upstream: UpstreamName,

    /// The most bytes that a stream keeps for itself [default: the pool's]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) lane: Option<u64>,

    /// Writes the replay as a trace (.csv or .csv.gz), at its own times; for programs built with
    /// `--features export`
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// Seeds the backlogs, the device and the generator
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

impl Policy {
    /// What a run is compared with: memory without bound, and nobody waits for any.
    pub(crate) fn unlimited(&self) -> Self {
        Self {
            capacity: None,
            record: None,
            order: OrderName::GrowFirst,
            reuse: ReuseNames {
                internal_dependencies: false,
                ..self.reuse
            },
            ..self.clone()
        }
    }
}

/// Whether the pool grows or waits on the device first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderName {
    /// Take more from the device
    GrowFirst,
    /// Let the stream wait, on the device, for pending memory
    WaitFirst,
}

impl fmt::Display for OrderName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::GrowFirst => "grow-first",
            Self::WaitFirst => "wait-first",
        })
    }
}

/// How far a wait on the device may set a stream back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WaitLimitName {
    /// No further than its own work takes
    Tail,
    /// For whatever is pending
    Unlimited,
}

impl fmt::Display for WaitLimitName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tail => "tail",
            Self::Unlimited => "unlimited",
        })
    }
}

/// Which reuse policies are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReuseNames {
    pub(crate) follow_event_dependencies: bool,
    pub(crate) opportunistic: bool,
    pub(crate) internal_dependencies: bool,
}

impl ReuseNames {
    const ALL: Self = Self {
        follow_event_dependencies: true,
        opportunistic: true,
        internal_dependencies: true,
    };

    fn switch(&mut self, name: &str) -> Option<&mut bool> {
        match name {
            "follow-event-dependencies" => Some(&mut self.follow_event_dependencies),
            "opportunistic" => Some(&mut self.opportunistic),
            "internal-dependencies" => Some(&mut self.internal_dependencies),
            _ => None,
        }
    }
}

impl FromStr for ReuseNames {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut names = Self::default();
        match text {
            "all" => return Ok(Self::ALL),
            "none" => return Ok(names),
            _ => {}
        }
        for name in text.split(',') {
            let unknown = || {
                format!(
                    "unknown reuse policy `{name}`, expected follow-event-dependencies, \
                     opportunistic or internal-dependencies, or all or none alone"
                )
            };
            *names.switch(name.trim()).ok_or_else(unknown)? = true;
        }
        Ok(names)
    }
}

impl fmt::Display for ReuseNames {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (self.follow_event_dependencies, "follow-event-dependencies"),
            (self.opportunistic, "opportunistic"),
            (self.internal_dependencies, "internal-dependencies"),
        ];
        let on: Vec<_> = names.iter().filter(|(on, _)| *on).collect();
        match on.len() {
            0 => formatter.write_str("none"),
            3 => formatter.write_str("all"),
            _ => formatter.write_str(
                &on.iter()
                    .map(|(_, name)| *name)
                    .collect::<Vec<_>>()
                    .join(","),
            ),
        }
    }
}

/// How much of the time goes into mapping free memory elsewhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RemappingName {
    Always,
    Never,
    Share(f64),
}

impl FromStr for RemappingName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => text.parse().map(Self::Share).map_err(|_| {
                format!("`{text}` is no remapping, expected always, never or a share as 0.125")
            }),
        }
    }
}

impl fmt::Display for RemappingName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => formatter.write_str("always"),
            Self::Never => formatter.write_str("never"),
            Self::Share(share) => write!(formatter, "{share}"),
        }
    }
}

/// When the event of a free is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SealingName {
    EveryFree,
    OnDemand,
    Bytes(u64),
    Spaced(u64),
}

impl FromStr for SealingName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "every-free" => Ok(Self::EveryFree),
            "on-demand" => Ok(Self::OnDemand),
            _ => {
                let sealed = match text.strip_prefix("spaced:") {
                    Some(text) => bytes(text).map(Self::Spaced),
                    None => bytes(text).map(Self::Bytes),
                };
                sealed.map_err(|_| {
                    format!(
                        "`{text}` is no sealing, expected every-free, on-demand, bytes as 4MiB, or spaced:4MiB"
                    )
                })
            }
        }
    }
}

impl fmt::Display for SealingName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EveryFree => formatter.write_str("every-free"),
            Self::OnDemand => formatter.write_str("on-demand"),
            Self::Bytes(bytes) => write!(formatter, "{bytes}"),
            Self::Spaced(bytes) => write!(formatter, "spaced:{bytes}"),
        }
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    let size = text.parse::<ByteSize>();
    let size = size.map_err(|_| "expected bytes, as 6GiB, 1500MB or 4096".to_owned())?;
    Some(size.as_u64())
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "expected more than 0 bytes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, clap::Error> {
        Options::try_parse_from([&["replay"], arguments].concat())
    }

    #[test]
    fn without_arguments_the_recorded_traces_run_without_bounds() {
        let options = parse(&[]).unwrap();
        assert_eq!(options.files().len(), 3);
        assert!(options.files().iter().all(|file| file.is_file()));
        assert_eq!(options.policy.lag, Duration::ZERO);
        assert_eq!(options.policy.capacity, None);
        assert_eq!(options.policy.order, OrderName::GrowFirst);
        assert_eq!(options.policy.reuse, ReuseNames::ALL);
        assert_eq!(options.policy.sealing, None);
        assert_eq!(options.policy.remapping, None);
        assert!(!options.json);
    }

    #[test]
    fn every_option_is_understood() {
        let options = parse(&[
            "--lag=1ms",
            "--capacity=6GiB",
            "--order=wait-first",
            "--wait-limit=unlimited",
            "--remapping=0.25",
            "--reuse=opportunistic,internal-dependencies",
            "--sealing=4MiB",
            "--handle=32MiB",
            "--upstream=device",
            "--lane=8MiB",
            "--json",
            "--plot=out.svg",
            "a.csv",
            "b.csv.gz",
        ])
        .unwrap();
        assert_eq!(options.files().len(), 2);
        let policy = options.policy;
        assert_eq!(policy.lag, Duration::from_millis(1));
        assert_eq!(policy.capacity, Some(6 << 30));
        assert_eq!(policy.order, OrderName::WaitFirst);
        assert_eq!(policy.wait_limit, WaitLimitName::Unlimited);
        assert_eq!(policy.remapping, Some(RemappingName::Share(0.25)));
        assert_eq!(
            policy.reuse.to_string(),
            "opportunistic,internal-dependencies"
        );
        assert_eq!(policy.sealing, Some(SealingName::Bytes(4 << 20)));
        assert_eq!(policy.upstream, UpstreamName::Device);
        assert_eq!(
            (policy.handle, policy.lane),
            (Some(32 << 20), Some(8 << 20))
        );
    }

    #[test]
    fn names_of_policies_are_printed_as_they_are_read() {
        for text in ["all", "none", "follow-event-dependencies"] {
            assert_eq!(text.parse::<ReuseNames>().unwrap().to_string(), text);
        }
        for text in ["every-free", "on-demand", "4096", "spaced:4096"] {
            assert_eq!(text.parse::<SealingName>().unwrap().to_string(), text);
        }
        for text in ["always", "never", "0.125"] {
            assert_eq!(text.parse::<RemappingName>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn generating_takes_no_files_and_the_rest_makes_no_sense_without_it() {
        assert!(parse(&["--generate=cross-stream", "--operations=500", "--seed=3"]).is_ok());
        assert!(parse(&["--generate=cross-stream", "a.csv"]).is_err());
        assert!(parse(&["--operations=500"]).is_err());
        assert!(parse(&["--generate=cross-stream", "--operations=1"]).is_err());
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for argument in [
            "--lag=soon",
            "--capacity=much",
            "--capacity=0",
            "--order=first",
            "--reuse=some",
            "--reuse=all,none",
            "--sealing=never",
            "--remapping=often",
        ] {
            assert!(parse(&[argument]).is_err(), "{argument}");
        }
    }

    #[test]
    fn a_frontier_goes_with_nothing_that_it_chooses_itself() {
        let is_sound = |argument: &str| {
            let options = parse(&["--frontier=out.svg", argument]);
            options.and_then(Options::checked).is_ok()
        };
        for sound in ["--json", "--lag=1ms", "--seed=2", "--generate=cross-stream"] {
            assert!(is_sound(sound), "{sound}");
        }
        for unsound in [
            "--plot=b.svg",
            "--record=b.csv",
            "--handle=16MiB",
            "--order=grow-first",
            "--remapping=never",
            "--upstream=virtual",
            "--device=cuda",
        ] {
            assert!(!is_sound(unsound), "{unsound}");
        }
    }

    #[test]
    fn the_reference_grows_and_never_waits() {
        let policy = parse(&["--capacity=1GB", "--order=wait-first", "--lag=1ms"]);
        let reference = policy.unwrap().policy.unlimited();
        assert_eq!(reference.capacity, None);
        assert_eq!(reference.order, OrderName::GrowFirst);
        assert!(!reference.reuse.internal_dependencies);
        assert_eq!(reference.lag, Duration::from_millis(1));
    }
}
