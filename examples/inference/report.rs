//! The figures of a service, and the conditions that they must meet.

use crate::bound::{self, Checked, Verdict};
use crate::kind::Kind;
use crate::run::Outcome;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// So much of the throughput of unlimited memory is to be reached.
const SHARE: f64 = 0.95;

/// Everything that is said of a service, under the names that `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) service: &'static str,
    pub(crate) served: u64,
    pub(crate) failures: u64,
    pub(crate) makespan_ns: u64,
    /// Requests served a second.
    pub(crate) throughput: f64,
    /// How much of the device's places was busy with requests that were served.
    pub(crate) busy: f64,
    /// From the arrival on, of those that were served.
    pub(crate) latency_p50_ns: u64,
    pub(crate) latency_p99_ns: u64,
    pub(crate) latency_p999_ns: u64,
    /// For memory, of all requests.
    pub(crate) wait_mean_ns: u64,
    pub(crate) wait_p99_ns: u64,
    pub(crate) wait_max_ns: u64,
    pub(crate) capacity: u64,
    pub(crate) reserved_peak: u64,
    /// What the longest wait of those that were served may be.
    pub(crate) wait_max_bound_ns: Option<u64>,
    /// Waits that were longer than they may be in a queue that is served in order.
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
    let mut histogram = Histogram::new(3).expect("three digits are few");
    for time in times {
        histogram += nanoseconds(time);
    }
    histogram
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Something that is asked of the run, and whether it is so.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Check {
    pub(crate) is_so: bool,
    /// The run fails where it is not.
    pub(crate) is_required: bool,
    pub(crate) text: String,
}

/// Returns the checks of the reports of all services, which are in their order.
pub(crate) fn checks(reports: &[Report], requires_throughput: bool) -> Vec<Check> {
    let find = |kind: Kind| reports.iter().find(|report| report.service == kind.name());
    let (Some(waiting), Some(unlimited)) = (find(Kind::Waiting), find(Kind::Unlimited)) else {
        return Vec::new();
    };
    let share = waiting.throughput / unlimited.throughput;
    vec![
        Check {
            is_so: waiting.failures == 0,
            is_required: true,
            text: format!("no failures while requests wait: {}", waiting.failures),
        },
        Check {
            is_so: waiting.verdict.is_good(),
            is_required: true,
            text: bounded(&waiting.verdict),
        },
        Check {
            is_so: share >= SHARE,
            is_required: requires_throughput,
            text: format!(
                "{:.1} % of the throughput of unlimited memory, of at least {:.0} %",
                100.0 * share,
                100.0 * SHARE
            ),
        },
    ]
}

fn bounded(verdict: &Verdict) -> String {
    let told = |wait: &Checked| {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        format!("{:.1} of {:.1} ms", ms(wait.wait), ms(wait.bound))
    };
    match (&verdict.longest, &verdict.tightest) {
        (Some(longest), Some(tightest)) => format!(
            "each wait is within the byte-seconds of the queue ahead over the memory: the longest is {}, \
             the tightest {}; over it: {}",
            told(longest),
            told(tightest),
            verdict.broken
        ),
        _ => "no request had to wait".to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
