//! The command line: the traces to replay, the settings, and the output.

mod lengths;
mod load;
mod names;
mod policy;
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
mod run;
mod target;
mod values;

use crate::trace::limits;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
pub(crate) use lengths::Lengths;
pub(crate) use load::{Load, PromptForm, Retry, Target as LoadTarget};
pub(crate) use names::{Extent, RemappingName, UpstreamName, WhenShortName};
pub(crate) use policy::{Conditions, Policy};
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
pub(crate) use run::Run;
use std::path::PathBuf;
#[cfg(target_os = "linux")]
use std::time::Duration;
pub(crate) use target::{DeviceName, Pace, Target};

/// The traces of the repository.
const RECORDED: [&str; 3] = ["llama_serve", "bert_train", "resnet_serve"];

/// Returns the file of a trace of the repository.
pub(crate) fn recorded(name: &str) -> PathBuf {
    let traces = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/traces");
    PathBuf::from(traces).join(format!("{name}.csv.gz"))
}

/// Tools for weirpool, a stream-ordered GPU memory pool. Without a command, it replays the recorded traces of the
/// repository.
#[derive(Clone, Debug, Parser)]
#[command(name = "weirpool", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

/// A command with its options.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    Replay(Box<Replay>),
    Frontier(Box<Frontier>),
    Load(Box<Load>),
    /// Prints one line for each GPU: its model, memory, memory pools and peers
    Devices,
    #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
    Run(Box<Run>),
    #[cfg(target_os = "linux")]
    Broker(Broker),
    #[cfg(target_os = "linux")]
    Top(Top),
}

impl Cli {
    /// Parses the arguments. If they are invalid, ends the process with an error message.
    pub(crate) fn command_or_exit() -> Command {
        Self::checked(Self::parse()).unwrap_or_else(|error| error.exit())
    }

    fn checked(self) -> Result<Command, clap::Error> {
        match self.command {
            None => Ok(Command::Replay(Box::new(Replay::parse_from(["replay"])))),
            Some(Command::Replay(replay)) => replay.checked().map(Box::new).map(Command::Replay),
            Some(command) => Ok(command),
        }
    }
}

/// Replays recorded allocations through the pool, on the simulated device or on a GPU.
#[derive(Clone, Debug, Parser)]
#[command(name = "replay", after_help = limits::HELP)]
pub(crate) struct Replay {
    #[command(flatten)]
    pub(crate) source: Source,

    #[command(flatten)]
    pub(crate) target: Target,

    #[command(flatten)]
    pub(crate) policy: Policy,

    /// Prints one JSON object for each trace, each on one line
    #[arg(long)]
    pub(crate) json: bool,

    /// Draws reserved, used, pending and requested bytes over time; with several traces, one picture for each, named
    /// after the trace (FILE.TRACE.svg)
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,

    /// Equivalent to `weirpool frontier --plot FILE.svg`
    #[arg(
        long,
        value_name = "FILE.svg",
        conflicts_with_all = ["plot", "html", "record", "chunk_bytes", "when_short", "remapping", "upstream"]
    )]
    pub(crate) frontier: Option<PathBuf>,
}

/// Replays each trace with chunks of 2 to 64 MiB: growing first (remapping for a share of the time, always, or never),
/// waiting first, and in plain memory. Prints reserved over requested memory and the device time of each, on the
/// simulated device.
#[derive(Clone, Debug, Parser)]
#[command(name = "frontier", after_help = limits::HELP)]
pub(crate) struct Frontier {
    #[command(flatten)]
    pub(crate) source: Source,

    #[command(flatten)]
    pub(crate) conditions: Conditions,

    /// Prints one JSON object for each replay, each on one line
    #[arg(long)]
    pub(crate) json: bool,

    /// Draws memory against device time
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
}

/// Leases the memory of a GPU to pools of several processes, until SIGINT or SIGTERM. Pools go on within their leases
/// afterwards, and find the next broker of the same socket.
#[cfg(target_os = "linux")]
#[derive(Clone, Debug, Parser)]
#[command(
    name = "broker",
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(crate) struct Broker {
    #[command(subcommand)]
    pub(crate) action: Option<BrokerAction>,

    #[command(flatten)]
    pub(crate) serving: Option<Serving>,
}

/// A command to a broker that runs.
#[cfg(target_os = "linux")]
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum BrokerAction {
    Drop(DropName),
}

/// Takes the name away from published memory. Processes that have the memory mapped keep it until they let go
#[cfg(target_os = "linux")]
#[derive(Clone, Debug, Args)]
pub(crate) struct DropName {
    /// The name, as `weirpool top` shows it
    pub(crate) name: String,

    /// The socket of the broker
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: PathBuf,
}

/// The options of a broker.
#[cfg(target_os = "linux")]
#[derive(Clone, Debug, Args)]
pub(crate) struct Serving {
    /// The GPU, for messages and to check the capacity; one broker for each GPU
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) device: u32,

    /// The bytes that can be leased: less than the memory of the GPU, which contexts and other users need as well
    #[arg(long, value_name = "BYTES", value_parser = values::some_bytes)]
    pub(crate) capacity: u64,

    /// The socket, in a directory that only this user can change
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: PathBuf,

    /// How long a process may take to act on a recall before others are asked in its place, up to 30 days
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = values::days)]
    pub(crate) grace: Duration,

    /// The longest time for which a process keeps memory that others gave back for it: 16 times what that took, at most this
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = values::days)]
    pub(crate) longest_hold: Duration,

    /// The most bytes that processes may publish under names [default: all of the capacity]
    #[arg(long, value_name = "BYTES", value_parser = values::some_bytes)]
    pub(crate) named: Option<u64>,
}

/// Shows the processes of a broker, their leases, the memory that they use and wait for, and the memory that has a name,
/// each time that a figure changes.
#[cfg(target_os = "linux")]
#[derive(Clone, Debug, Parser)]
#[command(name = "top")]
pub(crate) struct Top {
    /// The socket of the broker
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: PathBuf,

    /// Shows the present figures, and ends
    #[arg(long)]
    pub(crate) once: bool,

    /// How long the broker may take to send the first figures
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = values::some_duration)]
    pub(crate) timeout: Duration,

    /// Prints one JSON object for each change, each on one line
    #[arg(long)]
    pub(crate) json: bool,
}

/// The traces to replay.
#[derive(Clone, Debug, Args)]
pub(crate) struct Source {
    /// Traces, plain or gzip: CSV like the recorded ones, logs of RMM's logging_resource_adaptor, or snapshots of PyTorch
    /// (torch.cuda.memory._dump_snapshot), or instances of static memory planning as MiniMalloc and idealloc publish them (CSV
    /// of id,lower,upper,size; a moment is a microsecond) [default: the three recorded traces of the repository]
    pub(crate) paths: Vec<PathBuf>,

    /// The device of a PyTorch snapshot whose events are replayed [default: the first with an allocation]
    #[arg(long, value_name = "N")]
    pub(crate) trace_device: Option<usize>,

    /// Multiplies all sizes: MiniMalloc's instances plan a memory of 1 MiB, less than a chunk, and 1024 makes it 1 GiB
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=1 << 20)
    )]
    pub(crate) scale: u64,

    /// Replays a generated trace instead of files
    #[arg(long, value_name = "TRACE", conflicts_with_all = ["paths", "trace_device"])]
    pub(crate) generate: Option<Generated>,

    /// The number of allocations and frees to generate, up to 10 million
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u64).range(2..=10_000_000),
        requires = "generate"
    )]
    pub(crate) operations: u64,
}

/// A trace that can be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Generated {
    /// Producers and consumers on different streams
    CrossStream,
}

impl Source {
    /// Returns the files that are read.
    pub(crate) fn inputs(&self) -> Vec<PathBuf> {
        match self.generate {
            Some(_) => Vec::new(),
            None => self.files(),
        }
    }

    /// Returns the files to replay, when no trace is generated.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        if self.paths.is_empty() {
            RECORDED.map(recorded).to_vec()
        } else {
            self.paths.clone()
        }
    }
}

impl Replay {
    /// Returns these options if they are consistent.
    pub(crate) fn checked(self) -> Result<Self, clap::Error> {
        let conditions = &self.policy.conditions;
        let (has_lag, verifies) = (!conditions.lag.is_zero(), conditions.verify.is_some());
        let checked = self.target.check(has_lag, verifies);
        let checked = checked.and_then(|()| self.check_record());
        let checked = checked.and_then(|()| self.check_frontier());
        let refusal = |reason| Self::command().error(ErrorKind::ArgumentConflict, reason);
        checked.map_err(refusal).map(|()| self)
    }

    fn check_record(&self) -> Result<(), &'static str> {
        let is_one = self.source.generate.is_some() || self.source.paths.len() == 1;
        match &self.policy.record {
            Some(_) if !is_one => Err("--record takes exactly one trace, or --generate"),
            _ => Ok(()),
        }
    }

    fn check_frontier(&self) -> Result<(), &'static str> {
        match &self.frontier {
            Some(_) if self.target.is_cuda() => Err(
                "--frontier needs --device sim: there a replay gives the same figures each time",
            ),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
