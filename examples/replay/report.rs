//! The figures of a replay: what a run gave, and what is said of it.

use crate::options::Policy;
use crate::samples::Sample;
use crate::trace::Trace;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// What one run of a trace gave.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) reserved_peak: u64,
    /// Nanoseconds of CPU time of each allocation and each free.
    pub(crate) operation_ns: Histogram<u64>,
    pub(crate) waits: u64,
    /// In virtual time.
    pub(crate) longest_wait: Duration,
    /// Waits on the device that the pool inserted to reuse pending memory.
    pub(crate) device_waits: u64,
    /// Those that order a consumer after its producer.
    pub(crate) handover_waits: u64,
    /// What all waits on the device cost together.
    pub(crate) stall: Duration,
    /// When all tasks and all work on the device were done.
    pub(crate) makespan: Duration,
    pub(crate) handle_bytes: u64,
    pub(crate) device_calls: u64,
    pub(crate) device_time: Duration,
    pub(crate) remaps: u64,
    pub(crate) failures: u64,
    /// Blocks whose contents were not what was written, where that was verified.
    pub(crate) corruptions: Option<u64>,
    pub(crate) samples: Vec<Sample>,
}

impl Outcome {
    /// Whether nothing ever waited for memory or went without, so that more memory could not have
    /// made the run any shorter.
    pub(crate) fn was_unhindered(&self) -> bool {
        self.waits == 0 && self.failures == 0 && self.device_waits == 0
    }
}

/// Everything that is said of a replay, under the names that `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) trace: String,
    pub(crate) ops: usize,
    pub(crate) streams: usize,
    pub(crate) trace_ns: u64,
    pub(crate) requested_peak: u64,
    pub(crate) reserved_peak: u64,
    pub(crate) reserved_over_requested: f64,
    pub(crate) ns_p50: u64,
    pub(crate) ns_p99: u64,
    pub(crate) waits: u64,
    pub(crate) wait_max_ns: u64,
    pub(crate) device_waits: u64,
    pub(crate) stall_ns: u64,
    pub(crate) makespan_over_unlimited: f64,
    pub(crate) handle_bytes: u64,
    pub(crate) device_calls: u64,
    pub(crate) device_ns: u64,
    pub(crate) remaps: u64,
    pub(crate) failures: u64,
    /// Null: contents are not verified yet.
    pub(crate) corruptions: Option<u64>,
    // What follows says under what the figures were taken, and what they were made of.
    pub(crate) makespan_ns: u64,
    pub(crate) handover_waits: u64,
    pub(crate) lag_ns: u64,
    pub(crate) capacity: Option<u64>,
    pub(crate) order: String,
    pub(crate) wait_limit: String,
    pub(crate) reuse: String,
    pub(crate) sealing: Option<String>,
    pub(crate) lane: Option<u64>,
    pub(crate) seed: u64,
}

impl Report {
    /// The report of a run of `trace` that would have taken `unlimited` with memory without bound.
    pub(crate) fn new(
        trace: &Trace,
        policy: &Policy,
        outcome: &Outcome,
        unlimited: Duration,
    ) -> Self {
        Self {
            trace: trace.name.clone(),
            ops: trace.events.len(),
            streams: trace.streams,
            trace_ns: nanoseconds(trace.duration),
            requested_peak: trace.requested_peak,
            reserved_peak: outcome.reserved_peak,
            reserved_over_requested: outcome.reserved_peak as f64 / trace.requested_peak as f64,
            ns_p50: outcome.operation_ns.value_at_quantile(0.50),
            ns_p99: outcome.operation_ns.value_at_quantile(0.99),
            waits: outcome.waits,
            wait_max_ns: nanoseconds(outcome.longest_wait),
            device_waits: outcome.device_waits,
            stall_ns: nanoseconds(outcome.stall),
            makespan_over_unlimited: ratio(outcome.makespan, unlimited),
            handle_bytes: outcome.handle_bytes,
            device_calls: outcome.device_calls,
            device_ns: nanoseconds(outcome.device_time),
            remaps: outcome.remaps,
            failures: outcome.failures,
            corruptions: outcome.corruptions,
            makespan_ns: nanoseconds(outcome.makespan),
            handover_waits: outcome.handover_waits,
            lag_ns: nanoseconds(policy.lag),
            capacity: policy.capacity,
            order: policy.order.to_string(),
            wait_limit: policy.wait_limit.to_string(),
            reuse: policy.reuse.to_string(),
            sealing: policy.sealing.map(|sealing| sealing.to_string()),
            lane: policy.lane,
            seed: policy.seed,
        }
    }

    /// Under what the trace was replayed, in one line for people.
    pub(crate) fn conditions(&self) -> String {
        let lag = format!(
            "lag {}",
            crate::units::duration(Duration::from_nanos(self.lag_ns))
        );
        let mut parts = vec![lag, self.order.clone(), format!("reuse {}", self.reuse)];
        parts.extend(
            self.sealing
                .as_ref()
                .map(|sealing| format!("sealing {sealing}")),
        );
        let capacity = self.capacity.map(crate::units::bytes);
        parts.extend(capacity.map(|bytes| format!("capacity {bytes}")));
        parts.join(" · ")
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// How much longer; two runs that took no time took the same.
fn ratio(duration: Duration, reference: Duration) -> f64 {
    if duration == reference {
        1.0
    } else {
        duration.as_secs_f64() / reference.as_secs_f64()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::options::Options;
    use clap::Parser;

    pub(crate) fn outcome() -> Outcome {
        let mut operation_ns = Histogram::new(3).unwrap();
        (1..=1000).for_each(|ns| operation_ns.record(ns).unwrap());
        Outcome {
            reserved_peak: 1_056,
            operation_ns,
            waits: 3,
            longest_wait: Duration::from_micros(1500),
            device_waits: 5,
            handover_waits: 1,
            stall: Duration::from_micros(20),
            makespan: Duration::from_micros(303),
            handle_bytes: 2 << 20,
            device_calls: 12,
            device_time: Duration::from_micros(9),
            remaps: 4,
            failures: 1,
            corruptions: None,
            samples: Vec::new(),
        }
    }

    pub(crate) fn report(name: &str) -> Report {
        let trace = Trace {
            name: name.to_owned(),
            events: Vec::new(),
            streams: 2,
            allocations: 0,
            duration: Duration::from_micros(299),
            requested_peak: 1_000,
        };
        let options = Options::parse_from(["replay", "--lag=1ms", "--capacity=2GB"]);
        Report::new(
            &trace,
            &options.policy,
            &outcome(),
            Duration::from_micros(300),
        )
    }

    #[test]
    fn json_has_the_promised_keys_on_one_line() {
        let line = serde_json::to_string(&report("t")).unwrap();
        assert!(!line.contains('\n'));
        let object: serde_json::Value = serde_json::from_str(&line).unwrap();
        for key in "trace, ops, streams, trace_ns, requested_peak, reserved_peak, \
            reserved_over_requested, ns_p50, ns_p99, waits, wait_max_ns, device_waits, stall_ns, \
            makespan_over_unlimited, handle_bytes, device_calls, device_ns, remaps, failures, \
            corruptions"
            .split(", ")
        {
            assert!(object.get(key).is_some(), "{key}");
        }
        assert!(object["corruptions"].is_null());
    }

    #[test]
    fn ratios_and_times_are_those_of_the_run() {
        let report = report("t");
        assert_eq!(report.reserved_over_requested, 1.056);
        assert_eq!(report.makespan_over_unlimited, 1.01);
        assert_eq!((report.ns_p50, report.ns_p99), (500, 990));
        assert_eq!(report.wait_max_ns, 1_500_000);
        assert_eq!(report.trace_ns, 299_000);
    }

    #[test]
    fn conditions_are_said_in_one_line() {
        let conditions = report("t").conditions();
        assert_eq!(
            conditions,
            "lag 1.00 ms · grow-first · reuse all · capacity 2.00 GB"
        );
    }

    #[test]
    fn only_a_run_without_waits_and_failures_was_unhindered() {
        let unhindered = Outcome {
            waits: 0,
            failures: 0,
            device_waits: 0,
            ..outcome()
        };
        assert!(unhindered.was_unhindered());
        assert!(
            !Outcome {
                waits: 1,
                ..unhindered.clone()
            }
            .was_unhindered()
        );
        assert!(
            !Outcome {
                failures: 1,
                ..unhindered.clone()
            }
            .was_unhindered()
        );
        assert!(
            !Outcome {
                device_waits: 1,
                ..unhindered
            }
            .was_unhindered()
        );
    }
}
