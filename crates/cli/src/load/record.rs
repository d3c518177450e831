//! Counts and times of all requests.

use crate::units::printable;
use hdrhistogram::Histogram;
use hyper::StatusCode;
use std::collections::BTreeMap;
use std::time::Duration;

/// The longest time that is told apart from longer ones, in microseconds: two hours.
const LONGEST: u64 = 7_200_000_000;
/// The most characters of a message that are kept.
const MESSAGE: usize = 300;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Done,
    Abandoned,
    RefusedWithRetryAfter,
    RefusedWithoutRetryAfter,
    /// Cut off by its deadline, after the beginning of the answer.
    Late,
    Broken,
    TimedOut,
    TransportError,
    Unsent,
}

impl End {
    pub(super) const ALL: [Self; 9] = [
        Self::Done,
        Self::Abandoned,
        Self::RefusedWithRetryAfter,
        Self::RefusedWithoutRetryAfter,
        Self::Late,
        Self::Broken,
        Self::TimedOut,
        Self::TransportError,
        Self::Unsent,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Abandoned => "abandoned",
            Self::RefusedWithRetryAfter => "refused_with_retry_after",
            Self::RefusedWithoutRetryAfter => "refused_without_retry_after",
            Self::Late => "late",
            Self::Broken => "broken",
            Self::TimedOut => "timed_out",
            Self::TransportError => "transport_error",
            Self::Unsent => "unsent",
        }
    }
}

/// Times, with an error of 0.1 %.
pub(super) struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST, 3).expect("the bounds are valid"))
    }
}

impl Times {
    pub(super) fn record(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(LONGEST);
        self.0.saturating_record(micros.max(1));
    }

    pub(super) fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the times in milliseconds that this share of all is within.
    pub(super) fn millis(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / 1000.0
    }
}

/// The requests of one key.
#[derive(Default)]
pub(super) struct OfKey {
    pub(super) begun: u64,
    pub(super) ends: BTreeMap<End, u64>,
    pub(super) first: Times,
}

/// Counts and times of all requests. Each count is taken at a point of its own, so that they can be compared.
#[derive(Default)]
pub(super) struct Recorder {
    /// Requests that arrived.
    pub(super) begun: u64,
    pub(super) attempts: u64,
    pub(super) retries: u64,
    pub(super) ends: BTreeMap<End, u64>,
    pub(super) statuses: BTreeMap<u16, u64>,
    pub(super) without_status: u64,
    pub(super) tokens: u64,
    pub(super) keys: Vec<OfKey>,
    /// From the arrival to the first token.
    pub(super) first: Times,
    pub(super) between: Times,
    /// From the arrival to the end of the answer.
    pub(super) whole: Times,
    /// From the intended arrival to the beginning of the request.
    pub(super) late: Times,
    /// The first message of each status and each end.
    pub(super) messages: BTreeMap<String, String>,
}

impl Recorder {
    pub(super) fn new(keys: usize) -> Self {
        Self {
            keys: (0..keys).map(|_| OfKey::default()).collect(),
            ..Self::default()
        }
    }

    pub(super) fn arrived(&mut self, key: Option<usize>) {
        self.begun += 1;
        if let Some(key) = key {
            self.keys[key].begun += 1;
        }
    }

    pub(super) fn answered(&mut self, status: Option<StatusCode>) {
        match status {
            Some(status) => *self.statuses.entry(status.as_u16()).or_default() += 1,
            None => self.without_status += 1,
        }
    }

    pub(super) fn first_token(&mut self, key: Option<usize>, time: Duration) {
        self.first.record(time);
        if let Some(key) = key {
            self.keys[key].first.record(time);
        }
    }

    pub(super) fn ended(&mut self, key: Option<usize>, end: End) {
        *self.ends.entry(end).or_default() += 1;
        if let Some(key) = key {
            *self.keys[key].ends.entry(end).or_default() += 1;
        }
    }

    /// Keeps the first message of a status or an end.
    pub(super) fn note(&mut self, about: &str, message: &str) {
        if !self.messages.contains_key(about) {
            let message: String = printable(message.trim()).chars().take(MESSAGE).collect();
            self.messages.insert(about.to_owned(), message);
        }
    }

    /// Checks that each request has one end, and each attempt one status or none.
    ///
    /// # Errors
    /// Returns the counts that contradict each other.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let ends: u64 = self.ends.values().sum();
        let statuses: u64 = self.statuses.values().sum();
        let Self {
            begun,
            attempts,
            retries,
            without_status,
            ..
        } = *self;
        anyhow::ensure!(
            ends == begun,
            "the counts do not add up: {begun} requests, but {ends} ends"
        );
        anyhow::ensure!(
            attempts == begun + retries && attempts == statuses + without_status,
            "the counts do not add up: {begun} requests and {retries} retries, {attempts} attempts, but {statuses} \
             statuses and {without_status} without one"
        );
        for (number, key) in self.keys.iter().enumerate() {
            let ends: u64 = key.ends.values().sum();
            anyhow::ensure!(
                ends == key.begun,
                "the counts of key {} do not add up: {} requests, but {ends} ends",
                number + 1,
                key.begun
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn consistent() -> Recorder {
        let mut recorder = Recorder::new(1);
        for end in End::ALL {
            recorder.arrived(Some(0));
            recorder.attempts += 1;
            recorder.answered(None);
            recorder.ended(Some(0), end);
        }
        recorder.retries += 1;
        recorder.attempts += 1;
        recorder.answered(Some(StatusCode::OK));
        recorder.check().unwrap();
        recorder
    }

    #[test]
    fn counts_that_contradict_each_other_are_reported() {
        let faults: [fn(&mut Recorder); 6] = [
            |recorder| recorder.begun += 1,
            |recorder| recorder.attempts += 1,
            |recorder| recorder.retries += 1,
            |recorder| recorder.answered(None),
            |recorder| recorder.ended(None, End::Done),
            |recorder| recorder.keys[0].begun -= 1,
        ];
        for (number, fault) in faults.iter().enumerate() {
            let mut recorder = consistent();
            fault(&mut recorder);
            let error = recorder.check().expect_err(&number.to_string());
            assert!(error.to_string().contains("do not add up"), "{error}");
        }
    }

    #[test]
    fn messages_are_short_and_cannot_change_the_terminal() {
        let mut recorder = Recorder::default();
        recorder.note("500", &"\u{1b}[2J".repeat(1000));
        recorder.note("500", "second");
        let message = &recorder.messages["500"];
        assert_eq!(message.chars().count(), MESSAGE);
        assert!(message.starts_with("\\u{1b}[2J") && !message.contains('\u{1b}'));
    }

    #[test]
    fn times_beyond_the_bounds_are_kept_at_the_bounds() {
        let mut times = Times::default();
        times.record(Duration::ZERO);
        times.record(Duration::MAX);
        assert_eq!(times.count(), 2);
        assert_eq!(times.millis(0.0), 0.001);
        assert!((7_190_000.0..7_210_000.0).contains(&times.millis(1.0)));
    }
}
