//! The dashboard as a service: its answers, the number of its viewers, and its end.

use futures::future::poll_fn;
use futures::stream::{FuturesUnordered, StreamExt};
use http::{Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tower::ServiceExt;
use weirpool::Pool;
use weirpool::device::sim::SimDevice;
use weirpool_dashboard::{Body, Dashboard, Frame, Hosts};
use weirpool_observe::Record as _;

fn pool() -> Pool {
    let builder = Pool::builder(SimDevice::new());
    builder.capacity(64 << 20).history(100).build().unwrap()
}

async fn ask(dashboard: &Dashboard, method: Method, accept: &str) -> Response<Body> {
    let request = Request::builder().method(method).uri("/anywhere?a=b");
    let request = request.header(header::ACCEPT, accept).body(()).unwrap();
    dashboard.clone().oneshot(request).await.unwrap()
}

async fn next(body: &mut Body) -> Option<String> {
    let mut body = Pin::new(body);
    let frame = poll_fn(|cx| body.as_mut().poll_frame(cx)).await?;
    let data = frame.unwrap().into_data().unwrap();
    Some(String::from_utf8(data.to_vec()).unwrap())
}

async fn whole(answer: Response<Body>) -> String {
    let mut body = answer.into_body();
    let mut text = String::new();
    while let Some(part) = next(&mut body).await {
        text.push_str(&part);
    }
    text
}

fn json(event: &str) -> serde_json::Value {
    let json = event.strip_prefix("data: ").unwrap();
    let json = json.strip_suffix("\n\n").unwrap();
    assert!(!json.contains('\n'));
    serde_json::from_str(json).unwrap()
}

const EVENTS: &str = "text/event-stream";

#[tokio::test]
async fn answer_depends_on_the_accepted_types() {
    let pool = pool();
    let stream = pool.create_stream().unwrap();
    let _block = pool.try_allocate(&stream, 1 << 20).unwrap();
    let dashboard = Dashboard::new(&pool).title("a <b>title</b>");

    let page = ask(&dashboard, Method::GET, "text/html,*/*;q=0.8").await;
    assert_eq!(page.status(), StatusCode::OK);
    let policy = page.headers()[header::CONTENT_SECURITY_POLICY]
        .to_str()
        .unwrap();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"));
    assert_eq!(page.headers()[header::CACHE_CONTROL], "no-store");
    assert_eq!(page.headers()[header::VARY], "Accept");
    let length = page.body().size_hint().exact().unwrap();
    let text = whole(page).await;
    assert!(
        text.contains("a \\u003cb>title"),
        "the title is data, not HTML"
    );

    let head = ask(&dashboard, Method::HEAD, "text/html").await;
    assert_eq!(head.headers()[header::CONTENT_LENGTH], length.to_string());
    assert!(whole(head).await.is_empty());

    let frame = ask(&dashboard, Method::GET, "application/json").await;
    assert_eq!(frame.headers()[header::CONTENT_TYPE], "application/json");
    let frame: serde_json::Value = serde_json::from_str(&whole(frame).await).unwrap();
    assert_eq!(frame["is_serving"], true);
    assert_eq!(frame["levels"]["used"], 1 << 20);

    let refused = ask(&dashboard, Method::POST, "text/html").await;
    assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(refused.headers()[header::ALLOW], "GET, HEAD");
}

#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    let pool = pool();
    let dashboard = Dashboard::new(&pool);
    let named = dashboard.clone().hosts(Hosts::local().and("example.com"));
    let answer = async |dashboard: &Dashboard, host: &str, origin: Option<&str>| {
        let mut request = Request::get("/").header(header::HOST, host);
        if let Some(origin) = origin {
            request = request.header(header::ORIGIN, origin);
        }
        let request = request.header(header::ACCEPT, EVENTS).body(()).unwrap();
        let answer = dashboard.clone().oneshot(request).await.unwrap();
        let headers = answer.headers();
        assert_eq!(headers["cross-origin-resource-policy"], "same-origin");
        assert_eq!(headers[header::X_FRAME_OPTIONS], "DENY");
        assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        answer.status().as_u16()
    };
    let own = Some("http://localhost:8080");
    assert_eq!(answer(&dashboard, "127.0.0.1:8080", None).await, 200);
    assert_eq!(answer(&dashboard, "localhost:8080", own).await, 200);
    assert_eq!(answer(&dashboard, "127.0.0.1:8080", own).await, 403);
    assert_eq!(answer(&dashboard, "example.com", None).await, 421);
    assert_eq!(answer(&named, "example.com", None).await, 200);
}

#[tokio::test(start_paused = true)]
async fn viewers_share_one_collection_which_ends_with_the_last_of_them() {
    let pool = pool();
    let dashboard = Dashboard::new(&pool);
    let latency = dashboard.latency("time to first token");
    latency.record(Duration::from_millis(3));
    let collected = || format!("{dashboard:?}");
    assert!(collected().contains("viewers: 0"));

    let first = ask(&dashboard, Method::GET, EVENTS).await;
    assert_eq!(first.headers()[header::CONTENT_TYPE], EVENTS);
    let mut first = first.into_body();
    let event = json(&next(&mut first).await.unwrap());
    let times = event["times"].as_array().unwrap();
    assert_eq!(times[0]["name"], "time to first token");
    assert_eq!(times[0]["count"], 1);

    // One that joins later begins with the latest frame, and then both see the same ones.
    let mut second = ask(&dashboard, Method::GET, EVENTS).await.into_body();
    assert_eq!(json(&next(&mut second).await.unwrap()), event);
    let begin = tokio::time::Instant::now();
    for _ in 0..8 {
        let (seen, too) = (next(&mut first).await, next(&mut second).await);
        assert_eq!(seen.unwrap(), too.unwrap());
    }
    let took = begin.elapsed();
    assert!(
        took >= Duration::from_millis(1900),
        "four a second: {took:?}"
    );

    drop(first);
    assert!(collected().contains("viewers: 1"));
    assert!(next(&mut second).await.is_some());
    drop(second);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(collected().contains("viewers: 0"));
    // And it begins again.
    let mut third = ask(&dashboard, Method::GET, EVENTS).await.into_body();
    assert!(next(&mut third).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn slow_viewer_gets_the_latest_frame_and_holds_nothing_up() {
    let pool = pool();
    let stream = pool.create_stream().unwrap();
    let dashboard = Dashboard::new(&pool);
    let mut slow = ask(&dashboard, Method::GET, EVENTS).await.into_body();
    next(&mut slow).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let _block = pool.try_allocate(&stream, 1 << 20).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let event = json(&next(&mut slow).await.unwrap());
    assert_eq!(event["levels"]["used"], 1 << 20);
}

#[tokio::test(start_paused = true)]
async fn events_end_with_the_pool_and_with_the_dashboard() {
    let closed = pool();
    let dashboard = Dashboard::new(&closed);
    let mut body = ask(&dashboard, Method::GET, EVENTS).await.into_body();
    next(&mut body).await.unwrap();
    closed.stop_admitting();
    let mut last = String::new();
    while let Some(event) = next(&mut body).await {
        last = event;
    }
    assert_eq!(json(&last)["is_serving"], false);

    let open = pool();
    let dashboard = Dashboard::new(&open);
    let mut body = ask(&dashboard, Method::GET, EVENTS).await.into_body();
    drop(dashboard);
    while next(&mut body).await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn viewers_are_limited() {
    let pool = pool();
    let dashboard = Dashboard::new(&pool);
    let asked = FuturesUnordered::new();
    for _ in 0..70 {
        asked.push(ask(&dashboard, Method::GET, EVENTS));
    }
    let answers: Vec<_> = asked.collect().await;
    let refused = answers
        .iter()
        .filter(|answer| answer.status() == StatusCode::SERVICE_UNAVAILABLE);
    let refused: Vec<_> = refused.collect();
    assert_eq!(refused.len(), 6);
    assert!(
        refused
            .iter()
            .all(|answer| answer.headers().contains_key(header::RETRY_AFTER))
    );
    drop(answers);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        ask(&dashboard, Method::GET, EVENTS).await.status(),
        StatusCode::OK
    );
}

#[test]
fn events_outside_of_a_runtime_are_refused() {
    let dashboard = Dashboard::new(&pool());
    let answer = futures::executor::block_on(ask(&dashboard, Method::GET, EVENTS));
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let page = futures::executor::block_on(ask(&dashboard, Method::GET, "*/*"));
    assert_eq!(page.status(), StatusCode::OK);
}

#[test]
fn viewer_survives_the_end_of_the_runtime_that_collects() {
    let dashboard = Dashboard::new(&pool());
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
    };
    let first = runtime();
    let mut body = first
        .block_on(ask(&dashboard, Method::GET, EVENTS))
        .into_body();
    assert!(first.block_on(next(&mut body)).is_some());
    drop(first);
    let second = runtime();
    // Frames sent before may still be read; then the answer ends.
    while second.block_on(next(&mut body)).is_some() {}
    let mut body = second
        .block_on(ask(&dashboard, Method::GET, EVENTS))
        .into_body();
    assert!(second.block_on(next(&mut body)).is_some());
}

#[test]
fn frames_are_taken_while_memory_is_allocated_and_freed() {
    let device = SimDevice::new();
    let pool = Pool::builder(device)
        .capacity(64 << 20)
        .history(50)
        .build()
        .unwrap();
    let frames = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (pool, frames) = (&pool, &frames);
            scope.spawn(move || {
                let stream = pool.create_stream().unwrap();
                let mut random = fastrand::Rng::with_seed(seed);
                let mut held = Vec::new();
                let mut kept = Vec::new();
                while frames.load(Ordering::Relaxed) < 50 {
                    if let Ok(block) = pool.try_allocate(&stream, random.u64(1..4 << 20)) {
                        match random.bool() {
                            true => held.push(block),
                            false => kept.push(block.into_evictable()),
                        }
                    }
                    if held.len() > 4 || random.u8(..) < 32 {
                        held.pop();
                        kept.pop();
                    }
                }
            });
        }
        for _ in 0..50 {
            let frame = serde_json::to_value(Frame::of(&pool)).unwrap();
            let segments = frame["segments"].as_array().unwrap().iter();
            let blocks = segments.flat_map(|segment| segment["blocks"].as_array().unwrap());
            let shown: u64 = blocks.map(|block| block[1].as_u64().unwrap()).sum();
            let all = shown + frame["small_bytes"].as_u64().unwrap();
            assert!(all <= 64 << 20, "{all} bytes in a pool of 64 MiB");
            frames.fetch_add(1, Ordering::Relaxed);
        }
    });
}
