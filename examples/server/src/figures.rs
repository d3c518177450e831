//! The figures of the server, for Prometheus and for its page: those of the pool, and those of requests.

use crate::engine::Engine;
use metrics::{Counter, Gauge, Histogram, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use weirpool_dashboard::{Counter as Rate, Dashboard, Hosts, Latency};
use weirpool_observe::Metrics;

/// The bounds of the histograms, in seconds.
const BOUNDS: [f64; 16] = [
    0.0001, 0.0003, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
];

/// How the answer to a request that was admitted ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerEnd {
    /// It has as many tokens as were requested.
    Complete,
    /// Its deadline passed.
    Deadline,
    /// Its client disconnected.
    Abandoned,
    /// The device or the worker failed.
    Failed,
}

impl AnswerEnd {
    const NAMES: [&str; 4] = ["complete", "deadline", "abandoned", "failed"];
}

/// The purposes of memory. The memory of each tenant is in the pool's metrics of tags.
const PURPOSES: [&str; 5] = [
    "weights",
    "workspace",
    "activations",
    "keys_and_values",
    "prefix_cache",
];

pub(crate) struct Figures {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    pool: Mutex<Metrics>,
    running: Gauge,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    answer_tokens: Counter,
    first_token: Times,
    per_token: Times,
    duration: Times,
    ends: [Counter; AnswerEnd::NAMES.len()],
    memory: [Gauge; PURPOSES.len()],
    tokens: Rate,
    dashboard: Dashboard,
}

/// Times for Prometheus and for the page.
struct Times {
    metric: Histogram,
    shown: Latency,
}

impl Times {
    fn record(&self, time: Duration) {
        self.metric.record(time.as_secs_f64());
        self.shown.record(time);
    }
}

impl Figures {
    pub(crate) fn new(engine: &Engine) -> anyhow::Result<Self> {
        let recorder = PrometheusBuilder::new()
            .set_buckets(&BOUNDS)?
            .build_recorder();
        let handle = recorder.handle();
        let pool = Mutex::new(Metrics::new(engine.pool(), "server"));
        metrics::with_local_recorder(&recorder, || {
            metrics::describe_counter!(
                "server_requests_total",
                Unit::Count,
                "requests, by the status of the answer; none if the client disconnected before"
            );
            metrics::describe_counter!(
                "server_answers_total",
                Unit::Count,
                "answers to requests that were admitted, by how they ended"
            );
            metrics::describe_gauge!(
                "server_memory_bytes",
                Unit::Bytes,
                "used memory of the device, by its purpose"
            );
            metrics::describe_gauge!(
                "server_running_requests",
                Unit::Count,
                "admitted requests that have not ended"
            );
            metrics::describe_counter!(
                "server_prompt_tokens_total",
                Unit::Count,
                "tokens of prompts that were admitted"
            );
            metrics::describe_counter!(
                "server_cached_tokens_total",
                Unit::Count,
                "tokens of admitted prompts that were found in the prefix cache"
            );
            metrics::describe_counter!(
                "server_answer_tokens_total",
                Unit::Count,
                "tokens of answers"
            );
            metrics::describe_histogram!(
                "server_first_token_seconds",
                Unit::Seconds,
                "from the arrival of a request to its first token"
            );
            metrics::describe_histogram!(
                "server_token_seconds",
                Unit::Seconds,
                "from one token of an answer to the next"
            );
            metrics::describe_histogram!(
                "server_request_seconds",
                Unit::Seconds,
                "from the arrival of a request to its last token"
            );
        });
        let registered = metrics::with_local_recorder(&recorder, || {
            (
                metrics::gauge!("server_running_requests"),
                [
                    metrics::counter!("server_prompt_tokens_total"),
                    metrics::counter!("server_cached_tokens_total"),
                    metrics::counter!("server_answer_tokens_total"),
                ],
                [
                    metrics::histogram!("server_first_token_seconds"),
                    metrics::histogram!("server_token_seconds"),
                    metrics::histogram!("server_request_seconds"),
                ],
                AnswerEnd::NAMES.map(|end| metrics::counter!("server_answers_total", "end" => end)),
                PURPOSES
                    .map(|purpose| metrics::gauge!("server_memory_bytes", "purpose" => purpose)),
            )
        });
        let (running, tokens, histograms, ends, memory) = registered;
        let [prompt_tokens, cached_tokens, answer_tokens] = tokens;
        let dashboard = Dashboard::new(engine.pool()).title("weirpool-server");
        // The router checks the hosts of all pages.
        let dashboard = dashboard.hosts(Hosts::any());
        let [first_token, per_token, duration] = histograms;
        let times = |metric, name| Times {
            metric,
            shown: dashboard.latency(name),
        };
        let first_token = times(first_token, "time to the first token");
        let per_token = times(per_token, "time per token");
        let duration = times(duration, "time of a request");
        Ok(Self {
            recorder,
            handle,
            pool,
            running,
            prompt_tokens,
            cached_tokens,
            answer_tokens,
            first_token,
            per_token,
            duration,
            ends,
            memory,
            tokens: dashboard.counter("tokens"),
            dashboard,
        })
    }

    /// Counts a request by the status of its answer.
    pub(crate) fn answered(&self, status: &str) {
        let count = || metrics::counter!("server_requests_total", "status" => status.to_owned());
        metrics::with_local_recorder(&self.recorder, count).increment(1);
    }

    /// Counts an answer by how it ended.
    pub(crate) fn ended(&self, end: AnswerEnd) {
        self.ends[end as usize].increment(1);
    }

    /// Records a token: the time since the request arrived for its first one, since the token before for others.
    pub(crate) fn token(&self, is_first: bool, time: Duration) {
        self.answer_tokens.increment(1);
        self.tokens.add(1);
        let histogram = if is_first {
            &self.first_token
        } else {
            &self.per_token
        };
        histogram.record(time);
    }

    pub(crate) fn finished(&self, time: Duration) {
        self.duration.record(time);
    }

    /// Returns the live page.
    pub(crate) fn dashboard(&self) -> Dashboard {
        self.dashboard.clone()
    }

    /// Returns all figures in the text format of Prometheus.
    pub(crate) fn render(&self, engine: &Engine) -> String {
        self.running.set(engine.running() as f64);
        let prefixes = engine.prefix_figures();
        self.prompt_tokens.absolute(prefixes.asked);
        self.cached_tokens.absolute(prefixes.found);
        let memory = engine.memory();
        for (gauge, bytes) in self.memory.iter().zip(memory) {
            gauge.set(bytes as f64);
        }
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        metrics::with_local_recorder(&self.recorder, || pool.publish());
        self.handle.render()
    }
}
