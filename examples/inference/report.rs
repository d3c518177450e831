//! The figures of a service, and the conditions that they must meet.

use crate::bound::{self, Checked, Verdict};
use crate::kind::Kind;
use crate::run::Outcome;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// The required share of the throughput of unlimited memory.
const SHARE: f64 = 0.95;

/// The figures of a service, under the names that `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) service: &'static str,
    pub(crate) served: u64,
    pub(crate) failures: u64,
    pub(crate) makespan_ns: u64,
    /// Requests served per second.
    pub(crate) throughput: f64,
    /// The share of the device's time, over all places, that served requests took.
    pub(crate) busy: f64,
    /// The time from arrival to end, for served requests.
    pub(crate) latency_p50_ns: u64,
    pub(crate) latency_p99_ns: u64,
    pub(crate) latency_p999_ns: u64,
    /// The wait for memory, for all requests.
    pub(crate) wait_mean_ns: u64,
    pub(crate) wait_p99_ns: u64,
    pub(crate) wait_max_ns: u64,
    pub(crate) capacity: u64,
    pub(crate) reserved_peak: u64,
    /// The bound of the longest wait of a served request.
    pub(crate) wait_max_bound_ns: Option<u64>,
    /// The number of waits that exceed their bound.
    pub(crate) over_bound: usize,
    #[serde(skip)]
    pub(crate) verdict: Verdict,
}

impl Report {
    pub(crate) fn of(outcome: &Outcome, capacity: u64) -> Self {
        let records = &outcome.records;
        let served: Vec<_> = records.iter().filter(|one| one.stay.is_some()).collect();
        let latency = histogram(served.iter().map(|one| one.ended - one.arrived));
        let wait = histogram(records.iter().map(|one| one.waited));
        let ended = records.iter().map(|one| one.ended).max();
        let began = records.first().map(|one| one.arrived);
        let makespan = ended.unwrap_or_default() - began.unwrap_or_default();
        let work: Duration = served.iter().map(|one| one.work).sum();
        let places = outcome.places as f64 * makespan.as_secs_f64();
        let stays: Vec<_> = records.iter().filter_map(|one| one.stay).collect();
        let verdict = bound::check(&stays, outcome.shared);
        Self {
            service: outcome.kind.name(),
            served: served.len() as u64,
            failures: (records.len() - served.len()) as u64,
            makespan_ns: nanoseconds(makespan),
            throughput: served.len() as f64 / makespan.as_secs_f64().max(f64::MIN_POSITIVE),
            busy: work.as_secs_f64() / places.max(f64::MIN_POSITIVE),
            latency_p50_ns: latency.value_at_quantile(0.5),
            latency_p99_ns: latency.value_at_quantile(0.99),
            latency_p999_ns: latency.value_at_quantile(0.999),
            wait_mean_ns: wait.mean() as u64,
            wait_p99_ns: wait.value_at_quantile(0.99),
            wait_max_ns: wait.max(),
            capacity,
            reserved_peak: outcome.reserved_peak,
            wait_max_bound_ns: verdict.longest.map(|longest| nanoseconds(longest.bound)),
            over_bound: verdict.broken,
            verdict,
        }
    }
}

fn histogram(times: impl Iterator<Item = Duration>) -> Histogram<u64> {
    let mut histogram = Histogram::new(3).expect("three significant digits are valid");
    for time in times {
        histogram += nanoseconds(time);
    }
    histogram
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A condition on the run, and whether it is met.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Check {
    pub(crate) is_met: bool,
    /// The program fails if the condition is not met.
    pub(crate) is_required: bool,
    pub(crate) text: String,
}

/// Returns the checks of the reports of all services.
pub(crate) fn checks(reports: &[Report], requires_throughput: bool) -> Vec<Check> {
    let find = |kind: Kind| reports.iter().find(|report| report.service == kind.name());
    let (Some(waiting), Some(unlimited)) = (find(Kind::Waiting), find(Kind::Unlimited)) else {
        return Vec::new();
    };
    let share = waiting.throughput / unlimited.throughput;
    vec![
        Check {
            is_met: waiting.failures == 0,
            is_required: true,
            text: format!(
                "waiting requests do not fail; failures: {}",
                waiting.failures
            ),
        },
        Check {
            is_met: waiting.verdict.is_good(),
            is_required: true,
            text: bounded(&waiting.verdict),
        },
        Check {
            is_met: share >= SHARE,
            is_required: requires_throughput,
            text: format!(
                "{:.1} % of the throughput of unlimited memory; expected: at least {:.0} %",
                100.0 * share,
                100.0 * SHARE
            ),
        },
    ]
}

fn bounded(verdict: &Verdict) -> String {
    let shown = |wait: &Checked| {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        format!("{:.1} of {:.1} ms", ms(wait.wait), ms(wait.bound))
    };
    match (&verdict.longest, &verdict.tightest) {
        (Some(longest), Some(tightest)) => format!(
            "each wait is within its bound, the byte-seconds of the queue ahead divided by the memory: the \
             longest is {}, the tightest {}; waits over their bound: {}",
            shown(longest),
            shown(tightest),
            verdict.broken
        ),
        _ => "no request waited".to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
