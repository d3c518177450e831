//! The figures of the server, for Prometheus and for its page: those of the pool, and those of requests.

use crate::engine::{Engine, Engines};
use metrics::{Counter, Gauge, Histogram, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
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

/// The seconds after which a request counts for 1/e in the requests per second.
const PACE: f64 = 10.0;

/// The figures of one device.
struct OfDevice {
    pool: Mutex<Metrics>,
    memory: [Gauge; PURPOSES.len()],
    dashboard: Dashboard,
}

impl OfDevice {
    /// The name is that of the pool in all figures.
    fn new(engine: &Engine, name: String) -> Self {
        let pool = Mutex::new(Metrics::new(engine.pool(), name.clone()));
        let dashboard = Dashboard::new(engine.pool()).title(match name.as_str() {
            "server" => "weirpool-server".to_owned(),
            _ => format!("weirpool-server: {name}"),
        });
        Self {
            pool,
            memory: PURPOSES.map(
                |purpose| metrics::gauge!("server_memory_bytes", "purpose" => purpose, "pool" => name.clone()),
            ),
            // The router checks the hosts of all pages.
            dashboard: dashboard.hosts(Hosts::any()),
        }
    }
}

/// Requests per second, of which those of the last seconds count most.
struct Pace {
    last: Instant,
    rate: f64,
}

impl Pace {
    /// Counts a request. Returns how many there are per second.
    fn count(&mut self, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.last).as_secs_f64();
        self.rate = self.rate * (-passed / PACE).exp() + 1.0 / PACE;
        self.last = now;
        self.rate
    }
}

pub(crate) struct Figures {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    devices: Vec<OfDevice>,
    pace: Mutex<Pace>,
    running: Gauge,
    waiting: Gauge,
    kv_cache: Gauge,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    answer_tokens: Counter,
    first_token: Times,
    per_token: Times,
    duration: Times,
    ends: [Counter; AnswerEnd::NAMES.len()],
    tokens: Vec<Rate>,
}

/// Times for Prometheus and for the page.
struct Times {
    metric: Histogram,
    shown: Vec<Latency>,
}

impl Times {
    fn record(&self, time: Duration) {
        self.metric.record(time.as_secs_f64());
        self.shown.iter().for_each(|shown| shown.record(time));
    }
}

impl Figures {
    pub(crate) fn new(engines: &Engines) -> anyhow::Result<Self> {
        let recorder = PrometheusBuilder::new()
            .set_buckets(&BOUNDS)?
            .build_recorder();
        let handle = recorder.handle();
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
            metrics::describe_gauge!(
                "server_waiting_requests",
                Unit::Count,
                "requests that wait for memory"
            );
            metrics::describe_gauge!(
                "server_kv_cache_utilization",
                "the part of the pages of keys and values that requests hold, from 0 to 1"
            );
            metrics::describe_gauge!(
                "server_cache_config_info",
                "1; the tokens of a page and the number of pages that there is memory for are its labels"
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
                [
                    metrics::gauge!("server_running_requests"),
                    metrics::gauge!("server_waiting_requests"),
                    metrics::gauge!("server_kv_cache_utilization"),
                ],
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
            )
        });
        let ([running, waiting, kv_cache], tokens, histograms, ends) = registered;
        let devices: Vec<_> = metrics::with_local_recorder(&recorder, || {
            let all = engines.all().iter().enumerate();
            let devices = all.map(|(index, engine)| match engines.all().len() {
                1 => OfDevice::new(engine, "server".to_owned()),
                _ => OfDevice::new(engine, format!("server {index}")),
            });
            devices.collect()
        });
        let [prompt_tokens, cached_tokens, answer_tokens] = tokens;
        let (page, pages) = (engines.first().page(), engines.in_use().pages.1);
        metrics::with_local_recorder(&recorder, || {
            let labels = [
                ("block_size", page.to_string()),
                ("num_gpu_blocks", pages.to_string()),
            ];
            metrics::gauge!("server_cache_config_info", &labels).set(1.0);
        });
        let [first_token, per_token, duration] = histograms;
        let times = |metric, name| Times {
            metric,
            shown: devices
                .iter()
                .map(|it| it.dashboard.latency(name))
                .collect(),
        };
        let first_token = times(first_token, "time to the first token");
        let per_token = times(per_token, "time per token");
        let duration = times(duration, "time of a request");
        Ok(Self {
            recorder,
            handle,
            pace: Mutex::new(Pace {
                last: Instant::now(),
                rate: 0.0,
            }),
            running,
            waiting,
            kv_cache,
            prompt_tokens,
            cached_tokens,
            answer_tokens,
            first_token,
            per_token,
            duration,
            ends,
            tokens: devices
                .iter()
                .map(|it| it.dashboard.counter("tokens"))
                .collect(),
            devices,
        })
    }

    /// Counts a request by the status of its answer. Returns how many are answered per second.
    pub(crate) fn answered(&self, status: &str) -> f64 {
        let count = || metrics::counter!("server_requests_total", "status" => status.to_owned());
        metrics::with_local_recorder(&self.recorder, count).increment(1);
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        pace.count(Instant::now())
    }

    /// Counts an answer by how it ended.
    pub(crate) fn ended(&self, end: AnswerEnd) {
        self.ends[end as usize].increment(1);
    }

    /// Records a token: the time since the request arrived for its first one, since the token before for others.
    pub(crate) fn token(&self, is_first: bool, time: Duration) {
        self.answer_tokens.increment(1);
        self.tokens.iter().for_each(|tokens| tokens.add(1));
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

    /// Returns the live page of each device.
    pub(crate) fn dashboards(&self) -> impl Iterator<Item = Dashboard> {
        self.devices.iter().map(|device| device.dashboard.clone())
    }

    /// Returns all figures in the text format of Prometheus.
    pub(crate) fn render(&self, engines: &Engines) -> String {
        let load = engines.in_use();
        self.running.set(load.running as f64);
        self.waiting.set(load.waiting as f64);
        self.kv_cache.set(load.of_pages());
        let prefixes = engines.prefix_figures();
        self.prompt_tokens.absolute(prefixes.asked);
        self.cached_tokens.absolute(prefixes.found);
        for (device, engine) in self.devices.iter().zip(engines.all()) {
            for (gauge, bytes) in device.memory.iter().zip(engine.memory()) {
                gauge.set(bytes as f64);
            }
            let mut pool = device.pool.lock().unwrap_or_else(PoisonError::into_inner);
            metrics::with_local_recorder(&self.recorder, || pool.publish());
        }
        self.handle.render()
    }
}
