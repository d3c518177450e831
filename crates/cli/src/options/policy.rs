//! The settings under which a trace is replayed.

use super::names::{Extent, RemappingName, ReuseNames, SealingName, UpstreamName, WhenShortName};
use super::values;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// The settings of one replay.
#[derive(Clone, Debug, Args)]
pub(crate) struct Policy {
    #[command(flatten)]
    pub(crate) conditions: Conditions,

    /// What the pool does first when no free memory fits, and how far a wait on the device may delay a stream
    #[arg(long, value_enum, default_value_t = WhenShortName::GrowFirst)]
    pub(crate) when_short: WhenShortName,

    /// The share of the time in which free memory is remapped before the pool grows: always (without a limit), never
    /// (only at the capacity), or a share, as 0.125 [default: the pool's]
    #[arg(long, value_name = "POLICY")]
    pub(crate) remapping: Option<RemappingName>,

    /// The size of a chunk, one physical allocation of the device [default: the pool's]
    #[arg(long, visible_alias = "handle", value_name = "BYTES", value_parser = values::some_bytes)]
    pub(crate) chunk_bytes: Option<u64>,

    /// The kind of memory that the pool takes from the device
    #[arg(long, value_enum, default_value_t = UpstreamName::Virtual)]
    pub(crate) upstream: UpstreamName,

    /// Writes the replay as a trace (.csv or .csv.gz), with its own times
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// Writes a page with the pool's figures and blocks over time, for a browser: one file that loads nothing else, with
    /// at most 300 frames of the 500 largest blocks each, so usually some megabytes. With several traces, one page for each
    /// (FILE.TRACE.html)
    #[arg(long, value_name = "FILE.html")]
    pub(crate) html: Option<PathBuf>,
}

/// The settings that a frontier does not vary.
#[derive(Clone, Debug, Args)]
pub(crate) struct Conditions {
    /// The average time that each stream runs behind the host, up to one hour: 500us, 1ms
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = values::duration)]
    pub(crate) lag: Duration,

    /// The most bytes that the pool may take from the device, up to 256TiB: 6GiB, 1500MB [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = values::some_bytes)]
    pub(crate) capacity: Option<u64>,

    /// How pending memory may be reused: follow-event-dependencies, opportunistic, internal-dependencies (separated by
    /// commas), all or none
    #[arg(long, value_name = "POLICIES", default_value = "all")]
    pub(crate) reuse: ReuseNames,

    /// When the event of a free is recorded: every-free, on-demand, or after this many bytes (4MiB), up to eight times as
    /// many where frees follow each other closely [default: the pool's]
    #[arg(long, value_name = "POLICY")]
    pub(crate) sealing: Option<SealingName>,

    /// Writes a pattern to each block and checks it before the free: pages, or full for every byte. The simulated
    /// device keeps these bytes on the host, for traces of up to 16 GiB
    #[arg(long, value_name = "EXTENT", value_enum, num_args = 0..=1, require_equals = true,
          default_missing_value = "pages")]
    pub(crate) verify: Option<Extent>,

    /// The most bytes that a stream caches; 0 disables the cache [default: the pool's]
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    pub(crate) lane: Option<u64>,

    /// Seeds the lags, the device and the generator
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

impl Policy {
    /// Returns the policy that a run is compared with: memory without a limit, and no waits for memory.
    pub(crate) fn unlimited(&self) -> Self {
        Self {
            conditions: Conditions {
                capacity: None,
                reuse: self.conditions.reuse.without_waits(),
                ..self.conditions.clone()
            },
            record: None,
            html: None,
            when_short: WhenShortName::GrowFirst,
            ..self.clone()
        }
    }
}
