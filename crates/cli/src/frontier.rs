//! Memory against device time: each trace by handle size, for each way to treat free memory.
//!
//! Smaller handles waste less and cost more calls. Each point is a replay of its own.

mod draw;
mod labels;
mod table;

use crate::machine::{Machine, Site};
use crate::options::{Options, OrderName, Policy, RemappingName};
use crate::progress::Progress;
use crate::report::Report;
use crate::trace::Trace;
use crate::upstream::UpstreamName;
use crate::{run, session, units};
use std::fmt;
use std::io::{Write, stdout};
use std::path::Path;

const MIB: u64 = 1 << 20;

/// From the step of a GPU's virtual memory up to where whole segments are taken anyway.
const HANDLES: [u64; 11] = [2, 4, 6, 8, 10, 12, 14, 16, 24, 32, 64];

/// What happens when nothing free fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Free memory is mapped together for a share of the time, and more is taken.
    GrowFirst,
    /// Free memory is mapped together however long that takes, then more is taken.
    Always,
    /// More is taken, and free memory is mapped together where there is no more.
    Never,
    /// What is pending is waited for before more is taken.
    WaitFirst,
    /// More is taken: memory stays in the segments that it came in, whole handles each.
    Plain,
}

/// A replay with a handle size.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    trace: String,
    way: Way,
    chunk_bytes: u64,
    /// Device time of all driver calls, in per cent of the trace's own time.
    share: f64,
    /// Peak reserved over peak requested.
    ratio: f64,
}

/// All points, and under what they were taken.
#[derive(Clone, Debug)]
struct Frontier {
    points: Vec<Point>,
    conditions: String,
    /// The handle size of a pool that is not told any.
    default_chunk: u64,
}

/// Replays all `traces` in all ways, draws them into `file` and prints them.
pub(crate) fn show(
    site: &impl Site,
    traces: &[Trace],
    options: &Options,
    file: &Path,
) -> anyhow::Result<()> {
    let mut frontier = Frontier {
        points: Vec::new(),
        conditions: conditions(options),
        default_chunk: default_chunk(site, traces, &options.policy)?,
    };
    for (trace, way, handle) in replays(traces) {
        let report = replay(site, trace, &under(options, way, handle))?;
        if options.json {
            writeln!(stdout(), "{}", serde_json::to_string(&report)?)?;
        }
        frontier.points.push(Point::new(&report, way));
    }
    draw::draw(file, &frontier)?;
    if !options.json {
        write!(stdout(), "{}", table::table(&frontier))?;
    }
    Ok(())
}

fn replays(traces: &[Trace]) -> impl Iterator<Item = (&Trace, Way, u64)> {
    traces.iter().flat_map(|trace| {
        Way::ALL
            .into_iter()
            .flat_map(move |way| HANDLES.map(move |mebibytes| (trace, way, mebibytes * MIB)))
    })
}

fn under(options: &Options, way: Way, handle: u64) -> Options {
    let mut options = options.clone();
    options.policy.handle = Some(handle);
    options.policy.order = way.order();
    options.policy.remapping = way.remapping();
    options.policy.upstream = way.upstream();
    options
}

fn replay(site: &impl Site, trace: &Trace, options: &Options) -> anyhow::Result<Report> {
    let handle = options.policy.handle.map(units::binary_bytes);
    let name = format!("{} {}", trace.name, handle.unwrap_or_default());
    let progress = Progress::new(&name, trace.events.len(), options.json);
    let (report, _) = run::replay(site, trace, options, &progress)?;
    Ok(report)
}

/// A pool with little capacity has smaller ones than others.
fn default_chunk(site: &impl Site, traces: &[Trace], policy: &Policy) -> anyhow::Result<u64> {
    let Some(trace) = traces.first() else {
        return Ok(0);
    };
    let device = site.machine(trace, policy)?.device();
    Ok(session::pool(device, policy)?.chunk_bytes())
}

fn conditions(options: &Options) -> String {
    let policy = &options.policy;
    let mut parts = vec![
        format!("lag {}", units::duration(policy.lag)),
        format!("reuse {}", policy.reuse),
    ];
    let capacity = policy.capacity.map(units::bytes);
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
        }
    }
}

impl Frontier {
    /// The traces, each once, as they came.
    fn traces(&self) -> Vec<&str> {
        let mut traces: Vec<&str> = Vec::new();
        for point in &self.points {
            if !traces.contains(&point.trace.as_str()) {
                traces.push(&point.trace);
            }
        }
        traces
    }

    /// The points of a line, by rising handle size.
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
        Self::WaitFirst,
        Self::Plain,
    ];

    fn order(self) -> OrderName {
        match self {
            Self::WaitFirst => OrderName::WaitFirst,
            Self::GrowFirst | Self::Always | Self::Never | Self::Plain => OrderName::GrowFirst,
        }
    }

    fn remapping(self) -> Option<RemappingName> {
        match self {
            Self::Always => Some(RemappingName::Always),
            Self::Never => Some(RemappingName::Never),
            Self::GrowFirst | Self::WaitFirst | Self::Plain => None,
        }
    }

    fn upstream(self) -> UpstreamName {
        match self {
            Self::GrowFirst | Self::Always | Self::Never | Self::WaitFirst => UpstreamName::Virtual,
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
            Self::WaitFirst => "wait-first",
            Self::Plain => "plain memory",
        })
    }
}

#[cfg(test)]
mod tests;
