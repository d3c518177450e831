//! Memory against device time: each trace by chunk size, for each way to find memory.
//!
//! Smaller chunks waste less memory and cost more calls. Each point is a replay of its own.

mod draw;
mod labels;
mod table;

use crate::device::machine::{Machine, Site};
use crate::options::{Conditions, Policy, RemappingName, Target, UpstreamName, WhenShortName};
use crate::output;
use crate::replay::progress::Progress;
use crate::replay::report::Report;
use crate::replay::{self, session};
use crate::trace::Trace;
use crate::units;
use std::fmt;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;

/// Chunk sizes in MiB: from the granularity of a GPU's virtual memory up to the size of large segments.
const CHUNKS: [u64; 11] = [2, 4, 6, 8, 10, 12, 14, 16, 24, 32, 64];

/// What the pool does when no free memory fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It remaps free memory for a share of the time, and grows.
    GrowFirst,
    /// It remaps free memory without a limit on the time, then grows.
    Always,
    /// It grows, and remaps free memory only at the capacity.
    Never,
    /// The stream waits for pending memory before the pool grows.
    WaitBriefly,
    /// It grows, in plain memory, which cannot be remapped.
    Plain,
}

/// The options of a frontier.
pub(crate) struct Setting<'a> {
    pub(crate) conditions: &'a Conditions,
    pub(crate) json: bool,
    pub(crate) plot: Option<PathBuf>,
}

/// A replay with a chunk size.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    trace: String,
    way: Way,
    chunk_bytes: u64,
    /// Device time of all driver calls, in per cent of the trace's own time.
    share: f64,
    /// Peak reserved over peak requested.
    ratio: f64,
    /// The lower bound of this chunk size over peak requested.
    bound: f64,
}

/// All points, and their conditions.
#[derive(Clone, Debug)]
struct Frontier {
    points: Vec<Point>,
    conditions: String,
    /// The chunk size that the pool chooses.
    default_chunk: u64,
}

/// Replays all `traces` in all ways, draws the points and prints them.
///
/// # Errors
/// Returns an error if a replay fails, or the picture cannot be written.
pub(crate) fn show(
    site: &impl Site,
    traces: &[Trace],
    setting: &Setting<'_>,
) -> anyhow::Result<()> {
    let mut frontier = Frontier {
        points: Vec::new(),
        conditions: described(setting.conditions),
        default_chunk: default_chunk(site, traces, setting.conditions)?,
    };
    for (trace, way, chunk) in replays(traces) {
        let policy = way.policy(setting.conditions, Some(chunk));
        let name = format!("{} {}", trace.name, units::binary_bytes(chunk));
        let progress = Progress::new(&name, trace.events.len(), setting.json);
        let (report, _) = replay::replay(site, trace, &Target::SIM, &policy, &progress)?;
        if setting.json {
            output::print(&format!("{}\n", serde_json::to_string(&report)?))?;
        }
        frontier.points.push(Point::new(&report, way));
    }
    if let Some(file) = &setting.plot {
        draw::draw(file, &frontier)?;
    }
    if !setting.json {
        output::print(&table::table(&frontier))?;
    }
    Ok(())
}

fn replays(traces: &[Trace]) -> impl Iterator<Item = (&Trace, Way, u64)> {
    traces.iter().flat_map(|trace| {
        Way::ALL
            .into_iter()
            .flat_map(move |way| CHUNKS.map(|mebibytes| (trace, way, mebibytes * MIB)))
    })
}

/// Returns the chunk size that the pool chooses, which is smaller at a small capacity.
fn default_chunk(
    site: &impl Site,
    traces: &[Trace],
    conditions: &Conditions,
) -> anyhow::Result<u64> {
    let Some(trace) = traces.first() else {
        return Ok(0);
    };
    let policy = Way::GrowFirst.policy(conditions, None);
    let device = site.machine(trace, &policy)?.device();
    Ok(session::pool(device, &policy)?
        .inspect()
        .describe()
        .chunk_bytes)
}

fn described(conditions: &Conditions) -> String {
    let mut parts = vec![
        format!("lag {}", units::duration(conditions.lag)),
        format!("reuse {}", conditions.reuse),
    ];
    let capacity = conditions.capacity.map(units::bytes);
    parts.extend(capacity.map(|bytes| format!("capacity {bytes}")));
    parts.join(" · ")
}

impl Point {
    fn new(report: &Report, way: Way) -> Self {
        Self {
            trace: report.trace.clone(),
            way,
            chunk_bytes: report.chunk_bytes,
            share: 100.0 * report.device_ns as f64 / report.trace_ns as f64,
            ratio: report.reserved_over_requested,
            bound: report.lower_bound as f64 / report.requested_peak as f64,
        }
    }
}

impl Frontier {
    /// Returns the traces, each once, in the order of the points.
    fn traces(&self) -> Vec<&str> {
        let mut traces: Vec<&str> = Vec::new();
        for point in &self.points {
            if !traces.contains(&point.trace.as_str()) {
                traces.push(&point.trace);
            }
        }
        traces
    }

    /// Returns the points of a line, by rising chunk size.
    fn line(&self, trace: &str, way: Way) -> impl Iterator<Item = &Point> + Clone {
        self.points
            .iter()
            .filter(move |point| point.trace == trace && point.way == way)
    }
}

impl Way {
    const ALL: [Self; 5] = [
        Self::GrowFirst,
        Self::Always,
        Self::Never,
        Self::WaitBriefly,
        Self::Plain,
    ];

    fn policy(self, conditions: &Conditions, chunk: Option<u64>) -> Policy {
        Policy {
            conditions: conditions.clone(),
            when_short: self.when_short(),
            remapping: self.remapping(),
            chunk_bytes: chunk,
            upstream: self.upstream(),
            record: None,
            html: None,
        }
    }

    fn when_short(self) -> WhenShortName {
        match self {
            Self::WaitBriefly => WhenShortName::WaitBriefly,
            Self::GrowFirst | Self::Always | Self::Never | Self::Plain => WhenShortName::GrowFirst,
        }
    }

    fn remapping(self) -> Option<RemappingName> {
        match self {
            Self::Always => Some(RemappingName::Always),
            Self::Never => Some(RemappingName::Never),
            Self::GrowFirst | Self::WaitBriefly | Self::Plain => None,
        }
    }

    fn upstream(self) -> UpstreamName {
        match self {
            Self::GrowFirst | Self::Always | Self::Never | Self::WaitBriefly => {
                UpstreamName::Virtual
            }
            Self::Plain => UpstreamName::Device,
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::GrowFirst => "grow-first",
            Self::Always => "remapping always",
            Self::Never => "remapping never",
            Self::WaitBriefly => "wait-briefly",
            Self::Plain => "plain memory",
        })
    }
}

#[cfg(test)]
mod tests;
