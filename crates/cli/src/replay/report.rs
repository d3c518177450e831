//! The figures of a replay: the outcome of its run, and the report that is printed.

use super::samples::Sample;
use crate::options::{Pace, Policy, Target};
use crate::trace::Trace;
use crate::units;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;
use weirpool_dashboard::Frame;

/// The outcome of one run of a trace.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The most bytes that were requested and not yet freed: less than in the trace where late streams missed its
    /// peak.
    pub(crate) requested_high: u64,
    pub(crate) reserved_peak: u64,
    /// Nanoseconds of CPU time of each allocation and each free.
    pub(crate) operation_ns: Histogram<u64>,
    /// Nanoseconds by which each began late because the host was busy.
    pub(crate) lateness_ns: Histogram<u64>,
    pub(crate) waits: u64,
    /// On the device's clock, virtual or real.
    pub(crate) longest_wait: Duration,
    /// Device-side waits that the pool inserted to reuse pending memory.
    pub(crate) device_waits: u64,
    /// Device-side waits that order a consumer after its producer.
    pub(crate) handover_waits: u64,
    /// The time that streams spent in device-side waits; unknown on a GPU.
    pub(crate) stall: Option<Duration>,
    /// The time until all tasks and all work on the device were done.
    pub(crate) makespan: Duration,
    pub(crate) chunk_bytes: u64,
    pub(crate) device_calls: u64,
    pub(crate) device_time: Duration,
    pub(crate) memory_time: Duration,
    pub(crate) growths: u64,
    pub(crate) remaps: u64,
    pub(crate) failures: u64,
    /// Blocks whose contents differ from the written ones, where they are verified.
    pub(crate) corruptions: Option<u64>,
    pub(crate) samples: Vec<Sample>,
    /// The pool over time, if the policy asks for a page.
    pub(crate) frames: Option<Vec<Frame>>,
}

impl Outcome {
    /// Returns whether every request was served without a wait, so that more memory could not have shortened the run.
    pub(crate) fn was_unhindered(&self) -> bool {
        self.waits == 0 && self.failures == 0 && self.device_waits == 0
    }
}

/// The setting under which a trace was replayed.
#[derive(Clone, Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) target: &'a Target,
    pub(crate) policy: &'a Policy,
    /// The device, where there is more than one kind.
    pub(crate) description: Option<String>,
}

/// The report of a replay, with the keys that `--json` prints. Keys that make no sense on a device are left out.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) trace: String,
    pub(crate) device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<String>,
    /// In real time only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kernels: Option<bool>,
    pub(crate) ops: usize,
    pub(crate) streams: usize,
    pub(crate) trace_ns: u64,
    pub(crate) requested_peak: u64,
    /// The peak of this run, whose streams may have been late.
    pub(crate) requested_high: u64,
    pub(crate) reserved_peak: u64,
    pub(crate) reserved_over_requested: f64,
    pub(crate) reserved_over_high: f64,
    /// The least that any pool can reserve in this run: its peak of requested bytes, in whole chunks.
    pub(crate) lower_bound: u64,
    pub(crate) reserved_over_bound: f64,
    pub(crate) ns_p50: u64,
    pub(crate) ns_p99: u64,
    pub(crate) ns_mean: u64,
    /// By how much operations began late, where they follow the trace in real time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lateness_p99_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lateness_max_ns: Option<u64>,
    pub(crate) waits: u64,
    pub(crate) wait_max_ns: u64,
    pub(crate) device_waits: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stall_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) makespan_over_unlimited: Option<f64>,
    /// The size of a chunk; readers of the output know it as the size of CUDA's allocation handles.
    #[serde(rename = "handle_bytes")]
    pub(crate) chunk_bytes: u64,
    pub(crate) device_calls: u64,
    pub(crate) device_ns: u64,
    /// The part of it that memory calls took.
    pub(crate) memory_ns: u64,
    /// Growths of the pool. Where memory calls block, each is a wait too.
    pub(crate) growths: u64,
    pub(crate) remaps: u64,
    pub(crate) failures: u64,
    /// Null if contents are not verified.
    pub(crate) corruptions: Option<u64>,
    // The setting, and further figures.
    pub(crate) makespan_ns: u64,
    pub(crate) handover_waits: u64,
    pub(crate) lag_ns: u64,
    pub(crate) capacity: Option<u64>,
    pub(crate) when_short: String,
    pub(crate) reuse: String,
    pub(crate) remapping: Option<String>,
    pub(crate) upstream: String,
    pub(crate) sealing: Option<String>,
    pub(crate) lane: Option<u64>,
    pub(crate) seed: u64,
}

impl Report {
    /// Returns the report of a run of `trace`, whose makespan without a limit on memory is `unlimited`, if known.
    pub(crate) fn new(
        trace: &Trace,
        setting: Setting<'_>,
        outcome: &Outcome,
        unlimited: Option<Duration>,
    ) -> Self {
        let Setting { target, policy, .. } = setting;
        let conditions = &policy.conditions;
        let lower_bound = outcome
            .requested_high
            .next_multiple_of(outcome.chunk_bytes.max(1));
        let lateness = is_paced(target).then_some(&outcome.lateness_ns);
        Self {
            trace: trace.name.clone(),
            device: target.device.to_string(),
            description: setting.description,
            pace: target.is_cuda().then(|| target.pace().to_string()),
            kernels: target.is_cuda().then_some(target.kernels),
            ops: trace.events.len(),
            streams: trace.streams,
            trace_ns: nanoseconds(trace.duration),
            requested_peak: trace.requested_peak,
            requested_high: outcome.requested_high,
            reserved_peak: outcome.reserved_peak,
            reserved_over_requested: outcome.reserved_peak as f64 / trace.requested_peak as f64,
            reserved_over_high: outcome.reserved_peak as f64 / outcome.requested_high as f64,
            lower_bound,
            reserved_over_bound: outcome.reserved_peak as f64 / lower_bound as f64,
            ns_p50: outcome.operation_ns.value_at_quantile(0.50),
            ns_p99: outcome.operation_ns.value_at_quantile(0.99),
            ns_mean: outcome.operation_ns.mean().round() as u64,
            lateness_p99_ns: lateness.map(|lateness| lateness.value_at_quantile(0.99)),
            lateness_max_ns: lateness.map(Histogram::max),
            waits: outcome.waits,
            wait_max_ns: nanoseconds(outcome.longest_wait),
            device_waits: outcome.device_waits,
            stall_ns: outcome.stall.map(nanoseconds),
            makespan_over_unlimited: unlimited.map(|unlimited| ratio(outcome.makespan, unlimited)),
            chunk_bytes: outcome.chunk_bytes,
            device_calls: outcome.device_calls,
            device_ns: nanoseconds(outcome.device_time),
            memory_ns: nanoseconds(outcome.memory_time),
            growths: outcome.growths,
            remaps: outcome.remaps,
            failures: outcome.failures,
            corruptions: outcome.corruptions,
            makespan_ns: nanoseconds(outcome.makespan),
            handover_waits: outcome.handover_waits,
            lag_ns: nanoseconds(conditions.lag),
            capacity: conditions.capacity,
            when_short: policy.when_short.to_string(),
            reuse: conditions.reuse.to_string(),
            remapping: policy.remapping.map(|remapping| remapping.to_string()),
            upstream: policy.upstream.to_string(),
            sealing: conditions.sealing.map(|sealing| sealing.to_string()),
            lane: conditions.lane,
            seed: conditions.seed,
        }
    }

    /// Describes the setting in one line.
    pub(crate) fn conditions(&self) -> String {
        let lag = format!("lag {}", units::duration(Duration::from_nanos(self.lag_ns)));
        let mut parts = Vec::new();
        parts.extend(self.pace());
        parts.extend([
            lag,
            self.when_short.clone(),
            format!("reuse {}", self.reuse),
        ]);
        parts.extend(
            self.remapping
                .as_ref()
                .map(|remapping| format!("remapping {remapping}")),
        );
        parts.extend(
            self.sealing
                .as_ref()
                .map(|sealing| format!("sealing {sealing}")),
        );
        let capacity = self.capacity.map(units::bytes);
        parts.extend(capacity.map(|bytes| format!("capacity {bytes}")));
        parts.join(" · ")
    }

    /// Describes the device and the pace of a replay in real time.
    fn pace(&self) -> Option<String> {
        let pace = match self.pace.as_deref()? {
            "full" => "full speed",
            _ => "the trace's pace",
        };
        let work = match self.kernels {
            Some(true) => "kernels",
            _ => "no work",
        };
        Some(format!("{}, {pace}, {work}", self.device))
    }
}

/// Returns whether operations follow the trace in real time.
fn is_paced(target: &Target) -> bool {
    target.is_cuda() && target.pace() == Pace::Trace
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns how much longer a run took than another; two runs that took no time took the same.
fn ratio(duration: Duration, reference: Duration) -> f64 {
    if duration == reference {
        1.0
    } else {
        duration.as_secs_f64() / reference.as_secs_f64()
    }
}

#[cfg(test)]
pub(crate) mod tests;
