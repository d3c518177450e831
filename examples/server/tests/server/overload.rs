//! Twice the load that the server can bear, for ten minutes of virtual time.

use crate::common::{assert_idle, config, get, prompt, request, send, start, used};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weirpool_server::{Admission, Server};

const CAPACITY_RUN: Duration = Duration::from_secs(60);
const OVERLOAD: Duration = Duration::from_secs(600);

/// The most attempts of a request that is refused.
const ATTEMPTS: u32 = 6;

fn one(random: &mut fastrand::Rng) -> Value {
    let prompt = prompt(random.u64(..), random.usize(16..64));
    json!({"prompt": prompt, "max_tokens": random.usize(8..60), "stream": true})
}

/// What became of the requests.
#[derive(Default)]
struct Outcome {
    sent: u32,
    attempts: u32,
    /// Requests by the status of their last attempt, or 504 if an answer was cut off.
    statuses: BTreeMap<u16, u32>,
    first: Vec<Duration>,
    between: Vec<Duration>,
}

impl Outcome {
    fn text(&mut self) -> String {
        let Self {
            sent,
            attempts,
            statuses,
            first,
            between,
        } = self;
        let tokens = first.len() + between.len();
        let percentiles = |times: &mut Vec<Duration>| {
            times.sort_unstable();
            let at = |share: usize| times[(times.len() - 1) * share / 100];
            format!("{:?} {:?}", at(50), at(99))
        };
        let (first, between) = (percentiles(first), percentiles(between));
        format!(
            "{sent} sent, {attempts} attempts, {statuses:?}, {tokens} tokens; first token p50, p99: {first}; between tokens: {between}"
        )
    }

    fn add(&mut self, other: Self) {
        self.attempts += other.attempts;
        for (status, count) in other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        self.first.extend(other.first);
        self.between.extend(other.between);
    }
}

/// Sends a request, and sends it again if it is refused and `retries`.
async fn ask(server: &Server, body: Value, retries: bool, seed: u64) -> Outcome {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut outcome, begin) = (Outcome::default(), Instant::now());
    loop {
        outcome.attempts += 1;
        let response = send(server, request(&body)).await;
        let status = response.status();
        let after = response.headers().get("retry-after");
        if let Some(after) = after.filter(|_| retries && outcome.attempts < ATTEMPTS) {
            let after = after.to_str().unwrap().parse().unwrap();
            sleep(Duration::from_secs(after).mul_f64(1.0 + 0.5 * random.f64())).await;
            continue;
        }
        let mut status = status.as_u16();
        let (mut frames, mut last) = (response.into_body(), begin);
        while let Some(frame) = frames.frame().await {
            let frame = frame.unwrap();
            let text = std::str::from_utf8(frame.data_ref().unwrap()).unwrap();
            if text.contains("the deadline passed after") {
                status = 504;
            }
            if text.contains("\"token_ids\":[") && !text.contains("\"token_ids\":[]") {
                let times = match last == begin {
                    true => &mut outcome.first,
                    false => &mut outcome.between,
                };
                times.push(last.elapsed());
                last = Instant::now();
            }
        }
        *outcome.statuses.entry(status).or_default() += 1;
        return outcome;
    }
}

/// Returns the requests per second that clients without pauses get.
async fn capacity(server: &Server) -> f64 {
    let begin = Instant::now();
    let end = begin + CAPACITY_RUN;
    let clients = (0..64).map(async |seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut served = 0;
        while Instant::now() < end {
            let outcome = ask(server, one(&mut random), false, 0).await;
            match outcome.statuses.contains_key(&200) {
                true => served += 1,
                false => sleep(Duration::from_secs(1)).await,
            }
        }
        served
    });
    let served: u32 = futures::future::join_all(clients).await.into_iter().sum();
    f64::from(served) / begin.elapsed().as_secs_f64()
}

/// Sends requests at random times, and waits for their ends.
async fn overload(server: &Server, rate: f64, retries: bool) -> Outcome {
    let (mut random, begin) = (fastrand::Rng::with_seed(1), Instant::now());
    let (mut requests, mut all) = (FuturesUnordered::new(), Outcome::default());
    let mut next = begin;
    while begin.elapsed() < OVERLOAD {
        tokio::select! {
            () = tokio::time::sleep_until(next) => {
                requests.push(ask(server, one(&mut random), retries, random.u64(..)));
                all.sent += 1;
                next += Duration::from_secs_f64(-random.f64().max(1e-9).ln() / rate);
            }
            Some(outcome) = requests.next() => all.add(outcome),
        }
    }
    while let Some(outcome) = requests.next().await {
        all.add(outcome);
    }
    all
}

async fn slow(admission: Admission) -> Server {
    let mut config = config();
    config.slowdown = 20_000.0;
    config.timeout = Duration::from_secs(120);
    // About 40 s.
    config.queue = 16;
    config.admission = admission;
    start(config).await
}

#[tokio::test(start_paused = true)]
async fn ten_minutes_at_twice_the_capacity_lose_no_request() {
    let server = slow(Admission::Wait).await;
    let idle = used(&server);
    let rate = 2.0 * capacity(&server).await;
    let mut outcome = overload(&server, rate, false).await;
    let text = format!("at {rate:.2} per second: {}", outcome.text());
    let Outcome { sent, statuses, .. } = outcome;
    assert_eq!(statuses.values().sum::<u32>(), sent, "{text}");
    assert!(
        statuses
            .keys()
            .all(|status| [200, 503, 504].contains(status)),
        "{text}"
    );
    let served = f64::from(statuses[&200]);
    // Half is too much. A server that collapses under load serves far less of the rest.
    assert!(
        served > 0.4 * f64::from(sent) && served < 0.7 * f64::from(sent),
        "{text}"
    );
    assert_idle(&server, idle).await;
    let metrics = get(&server, "/metrics").await.1;
    let ok = metrics
        .lines()
        .filter(|line| line.starts_with("server_requests_total{status=\"200\"}"));
    assert_eq!(ok.count(), 1, "{metrics}");
    println!("{text}");
    server.shut_down().await.unwrap();
}

/// Prints figures of the note on the server; they do not depend on the host.
#[tokio::test(start_paused = true)]
#[ignore = "takes minutes: run it for its figures, with --nocapture"]
async fn admissions_compared() {
    let server = slow(Admission::Wait).await;
    let rate = 2.0 * capacity(&server).await;
    server.shut_down().await.unwrap();
    println!("{rate:.2} requests per second");
    for (admission, retries) in [
        (Admission::Wait, false),
        (Admission::Wait, true),
        (Admission::Fail, true),
        (Admission::Split, false),
    ] {
        let server = slow(admission).await;
        let idle = used(&server);
        let mut outcome = overload(&server, rate, retries).await;
        println!("{admission:?}, retries: {retries}: {}", outcome.text());
        assert_eq!(outcome.statuses.values().sum::<u32>(), outcome.sent);
        assert_idle(&server, idle).await;
        server.shut_down().await.unwrap();
    }
}
