//! What became of the requests, as text and as JSON.

use super::record::{End, Recorder, Times};
use crate::units::{count, duration};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// The report of a load. Times are in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    /// The time from the first arrival to the last end.
    seconds: f64,
    requests: u64,
    attempts: u64,
    retries: u64,
    ends: BTreeMap<&'static str, u64>,
    /// Attempts by status; those without one are `none`.
    statuses: BTreeMap<String, u64>,
    tokens: u64,
    tokens_per_second: f64,
    time_to_first_token_ms: Percentiles,
    time_between_tokens_ms: Percentiles,
    time_to_end_ms: Percentiles,
    arrivals_late_by_ms: Percentiles,
    keys: Vec<KeyReport>,
    /// The first message of each status and each end.
    messages: BTreeMap<String, String>,
}

/// Percentiles of times in milliseconds: 0 if there are none.
#[derive(Clone, Copy, Debug, Serialize)]
struct Percentiles {
    count: u64,
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

/// The requests of one key, which is not named: it is a secret.
#[derive(Clone, Debug, Serialize)]
struct KeyReport {
    /// The number of the key on the command line, from 1.
    key: usize,
    requests: u64,
    ends: BTreeMap<&'static str, u64>,
    time_to_first_token_ms: Percentiles,
}

impl From<&Times> for Percentiles {
    fn from(times: &Times) -> Self {
        Self {
            count: times.count(),
            p50: times.millis(0.5),
            p90: times.millis(0.9),
            p99: times.millis(0.99),
            max: times.millis(1.0),
        }
    }
}

fn by_name(ends: &BTreeMap<End, u64>) -> BTreeMap<&'static str, u64> {
    let of = |end: End| (end.name(), ends.get(&end).copied().unwrap_or_default());
    End::ALL.map(of).into()
}

impl Report {
    pub(super) fn new(recorder: &Recorder, elapsed: Duration) -> Self {
        let statuses = recorder.statuses.iter();
        let mut statuses: BTreeMap<_, _> = statuses
            .map(|(status, count)| (status.to_string(), *count))
            .collect();
        statuses.insert("none".to_owned(), recorder.without_status);
        let of_key = |(number, key): (usize, &super::record::OfKey)| KeyReport {
            key: number + 1,
            requests: key.begun,
            ends: by_name(&key.ends),
            time_to_first_token_ms: (&key.first).into(),
        };
        Self {
            seconds: elapsed.as_secs_f64(),
            requests: recorder.begun,
            attempts: recorder.attempts,
            retries: recorder.retries,
            ends: by_name(&recorder.ends),
            statuses,
            tokens: recorder.tokens,
            tokens_per_second: recorder.tokens as f64 / elapsed.as_secs_f64().max(1e-6),
            time_to_first_token_ms: (&recorder.first).into(),
            time_between_tokens_ms: (&recorder.between).into(),
            time_to_end_ms: (&recorder.whole).into(),
            arrivals_late_by_ms: (&recorder.late).into(),
            keys: recorder.keys.iter().enumerate().map(of_key).collect(),
            messages: recorder.messages.clone(),
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{} requests in {:.1} s ({:.1}/s), {} attempts\n",
            count(self.requests),
            self.seconds,
            self.requests as f64 / self.seconds.max(1e-6),
            count(self.attempts)
        );
        let ends = End::ALL.map(|end| (end.name(), self.ends[end.name()]));
        line(&mut text, "ends", &ends);
        let statuses: Vec<_> = self
            .statuses
            .iter()
            .map(|(name, n)| (&**name, *n))
            .collect();
        line(&mut text, "statuses", &statuses);
        let _ = writeln!(
            text,
            "{:<18}{}, {:.0}/s",
            "tokens",
            count(self.tokens),
            self.tokens_per_second
        );
        let _ = write!(text, "\n{:<18}", "");
        for head in ["p50", "p90", "p99", "max"] {
            let _ = write!(text, "{head:>10}");
        }
        text.push('\n');
        times(&mut text, "first token", &self.time_to_first_token_ms);
        times(&mut text, "between tokens", &self.time_between_tokens_ms);
        times(&mut text, "whole answer", &self.time_to_end_ms);
        times(&mut text, "arrivals late by", &self.arrivals_late_by_ms);
        for key in &self.keys {
            let _ = writeln!(text);
            let name = format!("key {}", key.key);
            let ends = End::ALL.map(|end| (end.name(), key.ends[end.name()]));
            line(&mut text, &name, &ends);
            times(&mut text, "first token", &key.time_to_first_token_ms);
        }
        for (about, message) in &self.messages {
            let _ = write!(text, "\n{about}, the first: {message}\n");
        }
        text
    }
}

/// Counts that are not zero.
fn line(text: &mut String, name: &str, counts: &[(&str, u64)]) {
    let counts = counts.iter().filter(|(_, number)| *number > 0);
    let counts: Vec<_> = counts
        .map(|(name, number)| format!("{} {}", name.replace('_', " "), count(*number)))
        .collect();
    let _ = writeln!(text, "{name:<18}{}", counts.join(", "));
}

fn times(text: &mut String, name: &str, times: &Percentiles) {
    let _ = write!(text, "{name:<18}");
    for millis in [times.p50, times.p90, times.p99, times.max] {
        let cell = match times.count {
            0 => "-".to_owned(),
            _ => duration(Duration::from_secs_f64(millis / 1000.0)),
        };
        let _ = write!(text, "{cell:>10}");
    }
    text.push('\n');
}
