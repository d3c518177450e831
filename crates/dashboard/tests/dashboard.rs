//! The dashboard as a service: its answers, the number of its viewers, and its end.

use futures::FutureExt;
use futures::future::poll_fn;
use futures::stream::{FuturesUnordered, StreamExt};
use http::{Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use serde_json::Value;
use std::any::Any;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;
use tower::ServiceExt;
use weirpool::device::DeviceAddress;
use weirpool::device::sim::{Clock, Operation, SimDevice, SimStream};
use weirpool::extend::{BlockOrigin, Event, Observer};
use weirpool::{Block, Pool, Tag};
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

/// Returns the events of a part of an answer: rows of the ring, and frames.
fn parsed(part: &str) -> (Vec<Value>, Vec<Value>) {
    let (mut rows, mut frames) = (Vec::new(), Vec::new());
    for event in part.strip_suffix("\n\n").unwrap().split("\n\n") {
        let (name, data) = event.split_once("data: ").unwrap();
        assert!(!data.contains('\n'));
        let events = if name.is_empty() {
            &mut frames
        } else {
            assert_eq!(name, "event: rows\n");
            &mut rows
        };
        events.push(serde_json::from_str(data).unwrap());
    }
    (rows, frames)
}

/// Returns the last frame in a part of an answer.
fn json(part: &str) -> Value {
    let (_, mut frames) = parsed(part);
    frames.pop().unwrap()
}

/// Returns the values that are sent as differences.
fn summed(differences: &Value) -> Vec<i64> {
    let differences = differences.as_array().unwrap().iter();
    let mut sum = 0;
    differences
        .map(|difference| {
            sum += difference.as_i64().unwrap();
            sum
        })
        .collect()
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
    let (rows, frames) = parsed(&next(&mut second).await.unwrap());
    assert_eq!(frames, [event]);
    assert_eq!((rows.len(), &rows[0]["is_whole"]), (1, &Value::Bool(true)));
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
async fn slow_viewer_gets_what_it_missed_and_holds_nothing_up() {
    let pool = pool();
    let stream = pool.create_stream().unwrap();
    let dashboard = Dashboard::new(&pool);
    let mut slow = ask(&dashboard, Method::GET, EVENTS).await.into_body();
    next(&mut slow).await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let _block = pool.try_allocate(&stream, 1 << 20).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    // The event that was underway; then all.
    next(&mut slow).await.unwrap();
    let (rows, frames) = parsed(&next(&mut slow).await.unwrap());
    assert_eq!(frames.last().unwrap()["levels"]["used"], 1 << 20);
    assert_eq!(rows[0]["is_whole"], true);
    assert!(summed(&rows[0]["times"]).len() >= 20);
}

#[tokio::test(start_paused = true)]
async fn stalled_viewer_loses_its_place_and_its_answer_ends() {
    let pool = pool();
    let dashboard = Dashboard::new(&pool);
    let stalled = FuturesUnordered::new();
    for _ in 0..64 {
        stalled.push(ask(&dashboard, Method::GET, EVENTS));
    }
    let mut stalled: Vec<_> = stalled.collect().await;
    let refused = ask(&dashboard, Method::GET, EVENTS).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    tokio::time::sleep(Duration::from_secs(35)).await;
    let mut body = ask(&dashboard, Method::GET, EVENTS).await.into_body();
    assert!(next(&mut body).await.is_some(), "the others hold it up");
    assert!(format!("{dashboard:?}").contains("viewers: 1"));
    // At most the event that was underway.
    let body = stalled[0].body_mut();
    assert!(next(body).await.is_some());
    assert!(next(body).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn ten_minutes_are_kept_without_viewers() {
    let pool = pool();
    let stream = pool.create_stream().unwrap();
    let dashboard = Dashboard::new(&pool);
    let tokens = dashboard.counter("tokens");
    let spike = async |bytes: u64| {
        let request = pool.allocate(&stream, bytes).tag(Tag::new("a tenant"));
        let block = request.try_now().unwrap();
        tokens.add(bytes >> 20);
        tokio::time::sleep(Duration::from_secs(2)).await;
        drop(block);
    };
    let at = async |seconds| tokio::time::sleep(Duration::from_secs(seconds)).await;
    // The first one is forgotten by the end.
    spike(32 << 20).await;
    at(290).await;
    spike(16 << 20).await;
    at(400).await;
    let mut body = ask(&dashboard, Method::GET, EVENTS).await.into_body();
    let (rows, frames) = parsed(&next(&mut body).await.unwrap());
    assert_eq!((rows.len(), frames.len()), (1, 1));
    let rows = &rows[0];
    let times = summed(&rows["times"]);
    assert_eq!(times.len(), 600);
    let spans: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // A collection that a busy host holds up makes a longer pause.
    assert!(spans.iter().all(|span| *span >= 1000));
    assert!(spans.iter().filter(|span| **span < 1100).count() > 500);
    let used = summed(&rows["pool"]["used"]);
    assert_eq!(used.iter().max(), Some(&(16 << 20)));
    assert_eq!(summed(&rows["pool"]["allocated"]).iter().sum::<i64>(), 1);
    let (name, counted) = (&rows["counters"][0][0], &rows["counters"][0][1]);
    assert_eq!(
        (name.as_str(), summed(counted).iter().sum()),
        (Some("tokens"), 16)
    );
    assert_eq!(rows["tags"][0][0], "a tenant");
    assert_eq!(summed(&rows["tags"][0][1]["used"]), used);
    // It shows when it was: some 400 s ago.
    let first = used.iter().position(|used| *used > 0).unwrap();
    assert!((398_000..404_000).contains(&(times[599] - times[first])));

    // What comes next continues the rows.
    let mut seen = times;
    while seen.len() < 605 {
        let (rows, _) = parsed(&next(&mut body).await.unwrap());
        for rows in rows {
            assert_eq!(rows["is_whole"], false);
            seen.extend(summed(&rows["times"]));
        }
    }
    let mut late = ask(&dashboard, Method::GET, EVENTS).await.into_body();
    let (rows, _) = parsed(&next(&mut late).await.unwrap());
    assert_eq!(summed(&rows[0]["times"])[..600], seen[5..605]);
}

#[tokio::test(start_paused = true)]
async fn events_of_many_tags_with_long_names_are_bounded() {
    let device = SimDevice::new();
    let pool = Pool::builder(device).capacity(1 << 30).history(100);
    let pool = pool.build().unwrap();
    let stream = pool.create_stream().unwrap();
    let dashboard = Dashboard::new(&pool);
    let held: Vec<_> = (0..10_000)
        .map(|number| {
            let name = format!("{number} {}", "long".repeat(500));
            let request = pool
                .allocate(&stream, 512 * (1 + number % 100))
                .tag(Tag::new(&name));
            request.try_now().unwrap()
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(700)).await;
    let mut bodies = Vec::new();
    for _ in 0..10 {
        bodies.push(ask(&dashboard, Method::GET, EVENTS).await.into_body());
    }
    let first = next(&mut bodies[0]).await.unwrap();
    assert!(first.len() < 1 << 20, "{} bytes", first.len());
    for body in &mut bodies[1..] {
        assert_eq!(next(body).await.unwrap(), first);
    }
    let (rows, _) = parsed(&first);
    let tags = rows[0]["tags"].as_array().unwrap();
    assert_eq!(tags.len(), 40);
    let used = |columns: &Value| *summed(&columns["used"]).last().unwrap();
    let sum: i64 = tags.iter().map(|tag| used(&tag[1])).sum();
    assert_eq!(
        sum + used(&rows[0]["others"]),
        *summed(&rows[0]["pool"]["used"]).last().unwrap()
    );
    let news = next(&mut bodies[0]).await.unwrap();
    assert!(news.len() < 128 << 10, "{} bytes", news.len());
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn collection_keeps_off_the_threads_of_the_runtime() {
    #[derive(Debug, Default)]
    struct Readers(Mutex<Vec<ThreadId>>);
    impl Observer for Readers {
        fn event(&self, _: &Event<'_>) {}
        fn origin_of(&self, _: DeviceAddress) -> Option<BlockOrigin> {
            self.0.lock().unwrap().push(std::thread::current().id());
            None
        }
    }
    let builder = Pool::builder(SimDevice::new()).capacity(64 << 20);
    let pool = builder
        .observer(Arc::new(Readers::default()))
        .build()
        .unwrap();
    let stream = pool.create_stream().unwrap();
    let _block = pool.try_allocate(&stream, 1 << 20).unwrap();
    let dashboard = Dashboard::new(&pool);
    let mut body = ask(&dashboard, Method::GET, EVENTS).await.into_body();
    for _ in 0..3 {
        next(&mut body).await.unwrap();
    }
    whole(ask(&dashboard, Method::GET, "application/json").await).await;
    let observer = pool.inspect().observers().next().unwrap();
    let readers: &Readers = (observer as &dyn Any).downcast_ref().unwrap();
    let readers = readers.0.lock().unwrap();
    assert!(readers.len() >= 2, "{readers:?}");
    assert!(!readers.contains(&std::thread::current().id()));
}

#[tokio::test(start_paused = true)]
async fn task_keeps_neither_the_dashboard_nor_the_pool() {
    let pool = pool();
    let weak = pool.downgrade();
    let dashboard = Dashboard::new(&pool);
    tokio::time::sleep(Duration::from_secs(5)).await;
    drop((pool, dashboard));
    assert!(weak.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn conditions_that_need_attention_are_told() {
    let device = SimDevice::builder().clock(Clock::Tokio).build();
    let pool = Pool::builder(device.clone())
        .capacity(64 << 20)
        .build()
        .unwrap();
    let stream = pool.create_stream().unwrap();
    let dashboard = Dashboard::new(&pool);
    let kinds = async || {
        // A row is added in the first second or shortly after it, since rows keep their own pace.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let frame = whole(ask(&dashboard, Method::GET, "application/json").await).await;
        let frame: Value = serde_json::from_str(&frame).unwrap();
        let alerts = frame["alerts"].as_array().unwrap().iter();
        let kinds = alerts.map(|alert| alert["kind"].as_str().unwrap().to_owned());
        kinds.collect::<Vec<_>>()
    };
    let after = async |seconds| {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        kinds().await
    };
    assert!(after(60).await.is_empty());
    // Memory that can be evicted does not count.
    let cached = pool
        .try_allocate(&stream, 64 << 20)
        .unwrap()
        .into_evictable();
    assert!(after(60).await.is_empty());
    drop(cached);
    let most = pool.try_allocate(&stream, 62 << 20).unwrap();
    assert!(after(5).await.is_empty());
    assert_eq!(after(10).await, ["nearly full"]);
    // A tag waits, while another one gets memory, and gives it back.
    let hungry = pool.allocate(&stream, 8 << 20).tag(Tag::new("hungry"));
    let mut hungry = Box::pin(hungry.into_future());
    assert!((&mut hungry).now_or_never().is_none());
    for _ in 0..35 {
        drop(pool.allocate(&stream, 512).priority(1).await);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(kinds().await, ["starving", "nearly full"]);
    // Nothing moves any more.
    let told = after(20).await;
    assert_eq!(told[0], "deadlock", "{told:?}");
    drop((hungry, most));
    assert!(after(2).await.is_empty());
    // The one request that waits could have all memory, once work is complete that takes long.
    let other = pool.create_stream().unwrap();
    let waits_behind = |time: u64, block: Block| {
        let kernel = Operation::new(Duration::from_secs(time));
        let kernel = kernel.reads(block.address(), block.size());
        let native = stream.native::<SimStream>().unwrap();
        let task = native.submit(&block, |sim, _| sim.submit(kernel));
        drop((task, block));
        let mut behind = Box::pin(pool.allocate(&other, 64 << 20).into_future());
        assert!((&mut behind).now_or_never().is_none());
        behind
    };
    let long = waits_behind(600, pool.try_allocate(&stream, 64 << 20).unwrap());
    assert!(after(55).await.is_empty());
    assert_eq!(after(10).await, ["device stalled"]);
    let block = long.await.unwrap();
    let told = kinds().await;
    assert!(told.iter().all(|kind| kind == "nearly full"), "{told:?}");
    drop(block);
    // Each of these is complete before one could think that the device stands still.
    for _ in 0..3 {
        let block = pool.try_allocate(&stream, 64 << 20);
        let block = block.expect("all memory is free");
        let short = waits_behind(50, block);
        assert!(after(45).await.is_empty());
        drop(short.await.unwrap());
    }
    device.faults().break_device("lost");
    pool.trim_to(0).unwrap_err();
    assert_eq!(kinds().await, ["device lost"]);
}

#[tokio::test]
async fn figures_for_prometheus_are_served_beside_the_page() {
    let dashboard = Dashboard::new(&pool()).title("a \"title\"");
    let figures = dashboard.metrics();
    let answer = ask(&figures, Method::GET, "*/*").await;
    assert_eq!(
        answer.headers()[header::CONTENT_TYPE],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    let text = whole(answer).await;
    assert!(
        text.contains("weirpool_capacity_bytes{pool=\"a \\\"title\\\"\"} 67108864\n"),
        "{text}"
    );
    let page = ask(&dashboard, Method::GET, "*/*").await;
    assert!(whole(page).await.starts_with("<!doctype html>"));
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
    // What comes until the pool is closed is kept, for the page of a service that drains; each answer ends.
    tokio::time::sleep(Duration::from_secs(9)).await;
    let mut body = ask(&dashboard, Method::GET, EVENTS).await.into_body();
    let (rows, _) = parsed(&next(&mut body).await.unwrap());
    assert!(summed(&rows[0]["times"]).len() > 8);
    while next(&mut body).await.is_some() {}
    closed.close();
    let mut body = ask(&dashboard, Method::GET, EVENTS).await.into_body();
    while next(&mut body).await.is_some() {}

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
