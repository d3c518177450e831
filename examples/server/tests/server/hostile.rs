//! Attacks through the routes: memory, tokens and counts stay right, wherever clients stop and whatever they ask.

use crate::answers::assert_right;
use crate::common::{
    assert_idle, body, config, get, json_of, post, prompt, request, send, start, tenant, tokens_of,
    used, weights,
};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use bytesize::ByteSize;
use futures::future::join_all;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tower::ServiceExt;
use weirpool_server::{Config, Server};

fn with_header(mut request: Request<Body>, name: &'static str, value: &str) -> Request<Body> {
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}

async fn ask(server: &Server, body: &Value, headers: &[(&'static str, &str)]) -> Response {
    let request = headers
        .iter()
        .fold(request(body), |request, (name, value)| {
            with_header(request, name, value)
        });
    send(server, request).await
}

/// Returns the values of a family of metrics by one of its labels.
async fn family(server: &Server, name: &str) -> BTreeMap<String, u64> {
    let (_, text) = get(server, "/metrics").await;
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix('{'));
    lines
        .map(|line| {
            let (labels, value) = line.split_once("} ").unwrap();
            let label = labels.split('"').nth(1).unwrap();
            (label.to_owned(), value.parse::<f64>().unwrap() as u64)
        })
        .collect()
}

/// Two tenants ask alike on three streams, with memory for a few sequences; some clients go, and pages are evicted all the
/// time, on several threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn answers_are_right_while_pages_are_shared_evicted_and_abandoned() {
    let config = Config {
        slowdown: 1.0,
        streams: 3,
        capacity: ByteSize::kib(2560),
        tenants: vec![
            tenant("a", "a", None, None),
            tenant("b", "b", Some(ByteSize::kib(384)), None),
        ],
        ..config()
    };
    let weights = Arc::new(weights(&config));
    let server = Arc::new(Server::start(config).await.unwrap());
    let idle = used(&server);
    let clients = (0..12).map(|client: u64| {
        let (server, weights) = (server.clone(), weights.clone());
        tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(client);
            for number in 0..12 {
                let mut prompt = prompt(random.u64(..3), 40);
                prompt.truncate(random.usize(1..=40));
                prompt.extend(crate::common::prompt(random.u64(..), random.usize(..30)));
                let tokens = random.usize(1..40);
                let body =
                    json!({"prompt": prompt, "max_tokens": tokens, "stream": number % 2 == 0});
                let key = ["Bearer a", "Bearer b"][random.usize(..2)];
                let headers = [("authorization", key)];
                let answer = ask(&server, &body, &headers);
                if random.u8(..4) == 0 {
                    let mut answer = Box::pin(answer);
                    let patience = Duration::from_micros(random.u64(..20_000));
                    if let Ok(response) = tokio::time::timeout(patience, &mut answer).await {
                        let mut frames = response.into_body();
                        for _ in 0..random.usize(..5) {
                            let _ = frames.frame().await;
                        }
                    }
                    continue;
                }
                let response = answer.await;
                assert_eq!(response.status(), StatusCode::OK);
                let tokens_seen = match number % 2 {
                    0 => streamed_tokens(response).await,
                    _ => tokens_of(&json_of(response).await),
                };
                assert_eq!(tokens_seen.len(), tokens);
                if number % 3 == 0 {
                    assert_right(&weights, &prompt, &tokens_seen);
                }
            }
        })
    });
    for client in join_all(clients).await {
        client.unwrap();
    }
    assert!(server.pool().inspect().statistics().evictions > 100);
    assert_idle(&server, idle).await;
    Arc::into_inner(server).unwrap().shut_down().await.unwrap();
}

async fn streamed_tokens(response: Response) -> Vec<u32> {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(bytes.into()).unwrap();
    let data = text
        .split_terminator("\n\n")
        .map(|event| &event["data: ".len()..]);
    let parts = data.filter(|data| *data != "[DONE]");
    parts
        .flat_map(|part| tokens_of(&serde_json::from_str(part).unwrap()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn client_may_stop_behind_each_event_of_an_answer() {
    let server = start(config()).await;
    let idle = used(&server);
    // Six tokens, the end, and [DONE]; and more than there are.
    for events in 0..10 {
        for others in [0, 12] {
            let waiting: Vec<_> = (0..others)
                .map(|number| {
                    let router = server.router();
                    let request = request(&body(&prompt(number, 28), 60));
                    tokio::spawn(async move { router.oneshot(request).await.unwrap() })
                })
                .collect();
            tokio::task::yield_now().await;
            let body = json!({"prompt": prompt(99, 28), "max_tokens": 6, "stream": true,
                "stream_options": {"include_usage": true}});
            let mut frames = ask(&server, &body, &[]).await.into_body();
            for _ in 0..events {
                let _ = frames.frame().await;
            }
            drop(frames);
            // Among them are some that run, and some that wait.
            for (index, task) in waiting.into_iter().enumerate() {
                if index % 2 == 0 {
                    task.abort();
                } else {
                    assert_eq!(task.await.unwrap().status(), StatusCode::OK);
                }
            }
            assert_idle(&server, idle).await;
        }
    }
    server.shut_down().await.unwrap();
}

/// A batch of one sequence: the others hold memory, and wait for their turn. Their clients go.
#[tokio::test(start_paused = true)]
async fn client_that_goes_before_its_turn_frees_its_memory_at_once() {
    let server = start(Config {
        streams: 1,
        batch: 1,
        ..config()
    })
    .await;
    let idle = used(&server);
    let begin = |number| {
        let body = json!({"prompt": prompt(number, 28), "max_tokens": 100, "stream": true});
        let request = request(&body);
        let router = server.router();
        async move { router.oneshot(request).await.unwrap().into_body() }
    };
    let mut first = begin(0).await;
    assert!(first.frame().await.is_some());
    let alone = used(&server);
    let others = join_all((1..5).map(begin)).await;
    assert_eq!(server.running(), 5);
    drop(others);
    for _ in 0..3 {
        assert!(first.frame().await.is_some());
    }
    assert_eq!((server.running(), used(&server)), (1, alone));
    assert_eq!(
        first
            .collect()
            .await
            .unwrap()
            .to_bytes()
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
            % 2,
        0
    );
    assert_idle(&server, idle).await;
    server.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn counts_of_metrics_are_those_that_clients_saw() {
    let mut config = Config {
        queue: 6,
        ..config()
    };
    config.tenants = vec![
        tenant("one", "one", None, None),
        tenant("two", "two", Some(ByteSize::kib(256)), Some(1)),
    ];
    let server = start(config).await;
    let idle = used(&server);
    let mut random = fastrand::Rng::with_seed(7);
    let mut requests = Vec::new();
    for number in 0..300_u64 {
        let tokens = random.usize(1..80);
        let mut body = json!({"prompt": prompt(number % 9, 20), "max_tokens": tokens, "stream": random.bool()});
        let mut key = ["Bearer one", "Bearer two"][random.usize(..2)];
        match random.u8(..20) {
            0 => body["n"] = json!(2),
            1 => key = "Bearer three",
            2 => body["model"] = json!("other"),
            3 => body["max_tokens"] = json!(1000),
            _ => {}
        }
        let deadline = [None, None, Some(30), Some(5)][random.usize(..4)];
        let goes = (random.u8(..5) == 0).then(|| Duration::from_micros(random.u64(..40_000)));
        let pause = Duration::from_micros(random.u64(..100_000));
        requests.push((body, key, deadline, goes, pause));
    }
    let server = &server;
    let outcomes = requests
        .iter()
        .map(async |(body, key, deadline, goes, pause)| {
            tokio::time::sleep(*pause).await;
            let mut headers = vec![("authorization", *key)];
            let deadline = deadline.map(|deadline: u64| deadline.to_string());
            headers.extend(
                deadline
                    .as_deref()
                    .map(|deadline| ("x-deadline-ms", deadline)),
            );
            let mut status = None;
            let mut text = String::new();
            let whole = async {
                let response = ask(server, body, &headers).await;
                status = Some(response.status().as_u16());
                let mut frames = response.into_body();
                while let Some(frame) = frames.frame().await {
                    text += std::str::from_utf8(frame.unwrap().data_ref().unwrap()).unwrap();
                }
            };
            let has_gone = tokio::time::timeout(goes.unwrap_or(Duration::MAX), whole)
                .await
                .is_err();
            (status, has_gone, text)
        });
    let outcomes = join_all(outcomes).await;
    assert_idle(server, idle).await;
    let mut expected = BTreeMap::new();
    for (status, ..) in &outcomes {
        let status = status.map_or("none".to_owned(), |status: u16| status.to_string());
        *expected.entry(status).or_default() += 1_u64;
    }
    let counted = family(server, "server_requests_total").await;
    for status in ["200", "400", "401", "404", "429", "503", "504", "none"] {
        // A client that goes has the status, or not; and the server may know it before.
        assert!(
            expected.contains_key(status),
            "the test covers {status}: {expected:?}"
        );
    }
    assert_eq!(counted, expected);
    let ends = family(server, "server_answers_total").await;
    let complete = outcomes.iter().filter(|(status, has_gone, text)| {
        *status == Some(200) && !has_gone && text.contains("\"finish_reason\":\"length\"")
    });
    assert_eq!(ends["complete"], complete.count() as u64, "{ends:?}");
    let late = outcomes
        .iter()
        .filter(|(_, has_gone, text)| !has_gone && text.contains("the deadline passed after"));
    assert_eq!(ends["deadline"], late.count() as u64, "{ends:?}");
    assert_eq!(ends["failed"], 0);
    assert!(ends["abandoned"] > 0);
}

/// Memory by its purpose adds up, and an idle server holds its weights and evictable pages.
#[tokio::test(start_paused = true)]
async fn memory_is_shown_by_its_purpose() {
    let config = config();
    let bytes = config.model.shape().weight_bytes();
    let server = start(config).await;
    let body = json!({"prompt": prompt(1, 40), "max_tokens": 80, "stream": true});
    let mut frames = ask(&server, &body, &[]).await.into_body();
    assert!(frames.frame().await.is_some());
    let busy = family(&server, "server_memory_bytes").await;
    let all = server.pool().inspect().statistics().used.current;
    assert_eq!(busy.values().sum::<u64>(), all, "{busy:?}");
    assert!(
        busy["activations"] > 0 && busy["keys_and_values"] >= 120 * 1024,
        "{busy:?}"
    );
    frames.collect().await.unwrap();
    assert_idle(&server, used(&server)).await;
    let idle = family(&server, "server_memory_bytes").await;
    assert!(
        idle["weights"] >= bytes && idle["weights"] < bytes + 4096,
        "{idle:?}"
    );
    assert_eq!((idle["activations"], idle["keys_and_values"]), (0, 0));
    assert!(idle["prefix_cache"] > 0, "{idle:?}");
    assert_eq!(
        idle["prefix_cache"],
        server.pool().inspect().statistics().evictable
    );
    server.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn client_that_obeys_retry_after_is_served() {
    let server = start(Config {
        queue: 3,
        slowdown: 2000.0,
        ..config()
    })
    .await;
    let idle = used(&server);
    let begin = tokio::time::Instant::now();
    let clients = (0..60).map(async |number| {
        for attempt in 1.. {
            let response = ask(&server, &body(&prompt(number, 28), 60), &[]).await;
            if response.status() == StatusCode::OK {
                return attempt;
            }
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            let after = response.headers()["retry-after"].to_str().unwrap();
            let after: u64 = after.parse().unwrap();
            assert!((1..=30).contains(&after), "retry after {after} s");
            tokio::time::sleep(Duration::from_secs(after)).await;
        }
        unreachable!()
    });
    let attempts = join_all(clients).await;
    let most = *attempts.iter().max().unwrap();
    let elapsed = begin.elapsed();
    println!("{most} attempts at most, {elapsed:?}");
    assert!(most > 1 && most <= 40, "{attempts:?}");
    assert_idle(&server, idle).await;
    server.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn quotas_without_room_harm_no_other_tenant() {
    let mut config = config();
    config.tenants = vec![
        tenant("none", "none", Some(ByteSize(0)), None),
        tenant("byte", "byte", Some(ByteSize(1)), Some(0)),
        tenant("tight", "tight", Some(ByteSize::kib(128)), Some(0)),
        tenant("free", "free", None, None),
    ];
    let server = start(config).await;
    let idle = used(&server);
    for key in ["Bearer none", "Bearer byte"] {
        let response = ask(&server, &body(&[1, 2], 4), &[("authorization", key)]).await;
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert!(response.headers().get("retry-after").is_none());
    }
    // Its own prefix cache fills the quota, and gives way.
    for number in 0..20 {
        let body = body(&prompt(number, 60), 68);
        let response = ask(&server, &body, &[("authorization", "Bearer tight")]).await;
        assert_eq!(response.status(), StatusCode::OK, "{number}");
        let cached = server
            .pool()
            .tag(weirpool::Tag::new("tight"))
            .statistics()
            .used
            .current;
        assert!(cached <= 128 << 10, "{cached}");
    }
    let response = ask(&server, &body(&[1], 4), &[("authorization", "Bearer free")]).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_idle(&server, idle).await;
    server.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn extreme_deadlines_are_bounded() {
    let server = start(config()).await;
    let idle = used(&server);
    for (value, status) in [
        ("18446744073709551615", StatusCode::OK),
        ("+5000", StatusCode::OK),
        ("1", StatusCode::GATEWAY_TIMEOUT),
        ("1e3", StatusCode::BAD_REQUEST),
        ("0x10", StatusCode::BAD_REQUEST),
        ("18446744073709551616", StatusCode::BAD_REQUEST),
        ("NaN", StatusCode::BAD_REQUEST),
    ] {
        let response = ask(
            &server,
            &body(&prompt(1, 28), 60),
            &[("x-deadline-ms", value)],
        )
        .await;
        assert_eq!(response.status(), status, "{value}");
    }
    assert_idle(&server, idle).await;
    server.shut_down().await.unwrap();
}

/// A request that is admitted while the server shuts down is served or refused; it does not fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn shutdown_among_admissions_fails_no_request() {
    for round in 0..20 {
        let server = Server::start(Config {
            slowdown: 0.0,
            ..config()
        })
        .await
        .unwrap();
        let pool = server.pool().clone();
        let clients: Vec<_> = (0..8)
            .map(|number| {
                let router = server.router();
                tokio::spawn(async move {
                    let mut statuses = Vec::new();
                    while statuses.last() != Some(&StatusCode::SERVICE_UNAVAILABLE) {
                        let request = request(&body(&prompt(number, 4), 2));
                        let response = router.clone().oneshot(request).await.unwrap();
                        statuses.push(response.status());
                        assert!(response.into_body().collect().await.is_ok());
                    }
                    statuses
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_micros(500 * round)).await;
        let router = server.router();
        server.shut_down().await.unwrap();
        for client in clients {
            let statuses = client.await.unwrap();
            let refused = statuses.len() - 1;
            assert!(
                statuses[..refused]
                    .iter()
                    .all(|status| *status == StatusCode::OK),
                "{statuses:?}"
            );
        }
        let ready = router.oneshot(Request::get("/readyz").body(Body::empty()).unwrap());
        assert_eq!(
            ready.await.unwrap().status(),
            StatusCode::SERVICE_UNAVAILABLE
        );
        assert_eq!(pool.inspect().statistics().used.current, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn unusual_methods_and_types_are_answered_clearly() {
    let server = start(config()).await;
    let valid = body(&[1], 1).to_string();
    for (method, path, status) in [
        ("PUT", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/metrics", 405),
        ("HEAD", "/metrics", 200),
        ("POST", "/v1/completions/", 404),
        ("POST", "/v1/chat/completions", 404),
        ("GET", "//metrics", 404),
        ("BREW", "/v1/completions", 405),
    ] {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(Body::from(valid.clone()));
        let response = send(&server, request.unwrap()).await;
        assert_eq!(response.status().as_u16(), status, "{method} {path}");
    }
    let (status, error) = post(&server, &json!({"prompt": "x", "stop": "\n"})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(error["error"]["type"], "invalid_request_error");
    server.shut_down().await.unwrap();
}
