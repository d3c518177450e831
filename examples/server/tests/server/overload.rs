//! Twice the load that the server can bear, for ten minutes of virtual time.

use crate::common::{assert_idle, body, config, get, post, prompt, start, used};
use axum::http::StatusCode;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use weirpool_server::Server;

const CAPACITY_RUN: Duration = Duration::from_secs(60);
const OVERLOAD: Duration = Duration::from_secs(600);

fn one(random: &mut fastrand::Rng) -> serde_json::Value {
    let prompt = prompt(random.u64(..), random.usize(16..64));
    body(&prompt, random.usize(8..60))
}

/// Returns the requests per second that clients without pauses get.
async fn capacity(server: &Server) -> f64 {
    let begin = Instant::now();
    let end = begin + CAPACITY_RUN;
    let clients = (0..64).map(async |seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut served = 0;
        while Instant::now() < end {
            match post(server, &one(&mut random)).await.0 {
                StatusCode::OK => served += 1,
                _ => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
        served
    });
    let served: u32 = futures::future::join_all(clients).await.into_iter().sum();
    f64::from(served) / begin.elapsed().as_secs_f64()
}

#[tokio::test(start_paused = true)]
async fn ten_minutes_at_twice_the_capacity_lose_no_request() {
    let mut config = config();
    config.slowdown = 20_000.0;
    config.timeout = Duration::from_secs(120);
    let server = Arc::new(start(config).await);
    let idle = used(&server);
    let rate = 2.0 * capacity(&server).await;
    let (mut random, begin) = (fastrand::Rng::with_seed(1), Instant::now());
    let (mut requests, mut sent) = (FuturesUnordered::new(), 0);
    let mut statuses: BTreeMap<u16, u32> = BTreeMap::new();
    let mut next = begin;
    while begin.elapsed() < OVERLOAD {
        tokio::select! {
            () = tokio::time::sleep_until(next) => {
                let (server, body) = (server.clone(), one(&mut random));
                requests.push(async move { post(&server, &body).await.0 });
                sent += 1;
                next += Duration::from_secs_f64(-random.f64().max(1e-9).ln() / rate);
            }
            Some(status) = requests.next() => *statuses.entry(status.as_u16()).or_default() += 1,
        }
    }
    while let Some(status) = requests.next().await {
        *statuses.entry(status.as_u16()).or_default() += 1;
    }
    let text = format!("{sent} sent at {rate:.2} per second: {statuses:?}");
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
    Arc::into_inner(server).unwrap().shut_down().await.unwrap();
}
