//! Several devices in one server, and its load as load balancers read it.

use crate::answers::assert_right;
use crate::common::{body, config, get, post, prompt, request, send, start, tokens_of, weights};
use axum::http::StatusCode;
use futures::future::join_all;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use weirpool_server::config::DeviceName;
use weirpool_server::{Config, Server};

fn on_devices(count: usize) -> Config {
    Config {
        device: vec![DeviceName::Sim; count],
        ..config()
    }
}

/// Returns the allocations of each device so far.
fn allocations(server: &Server) -> Vec<u64> {
    let pools = server.pools();
    pools
        .map(|pool| pool.inspect().statistics().allocations)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn requests_are_spread_over_the_devices_and_go_where_their_prefix_is() {
    let config = on_devices(3);
    let (weights, server) = (weights(&config), start(config).await);
    let before = allocations(&server);
    let answers = join_all((0..48).map(|number| {
        let (server, body) = (&server, body(&prompt(number, 40), 20));
        async move { post(server, &body).await }
    }));
    for (number, (status, answer)) in answers.await.into_iter().enumerate() {
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_right(&weights, &prompt(number as u64, 40), &tokens_of(&answer));
    }
    let after = allocations(&server);
    let taken: Vec<u64> = after
        .iter()
        .zip(&before)
        .map(|(now, then)| now - then)
        .collect();
    let (least, most) = (taken.iter().min().unwrap(), taken.iter().max().unwrap());
    assert!(*least > 0 && most < &(least * 2), "{taken:?}");
    // A prompt is where it was, although another device is as idle.
    for _ in 0..6 {
        let before = allocations(&server);
        let (_, answer) = post(&server, &body(&prompt(7, 40), 1)).await;
        let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert_eq!(cached, 32, "{answer}");
        let after = allocations(&server);
        let used = after.iter().zip(&before).filter(|(now, then)| now != then);
        assert_eq!(used.count(), 1);
    }
    server.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requests_go_to_the_devices_that_work() {
    let server = start(on_devices(2)).await;
    server.simulated().unwrap().faults().break_device("gone");
    // The first request for it finds out.
    let mut failed = 0;
    for number in 0..8 {
        let (status, answer) = post(&server, &body(&prompt(number, 9), 3)).await;
        match status {
            StatusCode::OK => {}
            _ => failed += 1,
        }
        assert!(failed <= 1, "{answer}");
    }
    assert_eq!(get(&server, "/readyz").await.0, StatusCode::OK);
    let (status, text) = get(&server, "/healthz").await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(text.starts_with("device 0: "), "{text}");
    server.shut_down().await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn figures_and_pages_are_those_of_each_device() {
    let server = start(on_devices(2)).await;
    let (status, _) = post(&server, &body(&prompt(1, 20), 3)).await;
    assert_eq!(status, StatusCode::OK);
    let (_, text) = get(&server, "/metrics").await;
    for pool in ["server 0", "server 1"] {
        let weights = format!("server_memory_bytes{{purpose=\"weights\",pool=\"{pool}\"}}");
        let line = text.lines().find(|line| line.starts_with(&weights));
        assert!(line.is_some_and(|line| !line.ends_with(" 0")), "{text}");
        assert!(text.contains(&format!("weirpool_reserved_bytes{{pool=\"{pool}\"")));
    }
    for path in ["/", "/1"] {
        assert_eq!(get(&server, path).await.0, StatusCode::OK);
    }
    assert_eq!(get(&server, "/2").await.0, StatusCode::NOT_FOUND);
    server.shut_down().await.unwrap();
}

/// Returns the value of a metric without labels.
async fn metric(server: &Server, name: &str) -> f64 {
    let (_, text) = get(server, "/metrics").await;
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("{name} ")));
    let value = line.and_then(|line| line.split(' ').nth(1));
    value.expect(&text).parse().unwrap()
}

/// The model server protocol of the Gateway API's inference extension, and the report of ORCA.
#[tokio::test(start_paused = true)]
async fn load_is_told_as_load_balancers_read_it() {
    let config = Config {
        load_report: true,
        ..config()
    };
    let server = start(config).await;
    let (_, text) = get(&server, "/metrics").await;
    let labels = "server_cache_config_info{block_size=\"8\",num_gpu_blocks=\"";
    let pages = text.lines().find_map(|line| line.strip_prefix(labels));
    let pages: f64 = pages
        .and_then(|rest| rest.split('"').next())
        .unwrap()
        .parse()
        .unwrap();
    // More requests than there is memory for, each of the whole context.
    let all = join_all((0..64).map(|number| {
        let (server, body) = (&server, body(&prompt(number, 64), 64));
        async move { send(server, request(&body)).await }
    }));
    let mut all = Box::pin(all);
    let busy = tokio::time::timeout(Duration::from_millis(1), &mut all);
    assert!(busy.await.is_err());
    let (running, waiting) = (
        metric(&server, "server_running_requests").await,
        metric(&server, "server_waiting_requests").await,
    );
    assert!(running > 0.0 && waiting > 0.0 && running + waiting == 64.0);
    let held = metric(&server, "server_kv_cache_utilization").await;
    let expected = running * 16.0 / pages;
    assert!(
        (held - expected).abs() < 1.0 / pages && held <= 1.0,
        "{held} {expected}"
    );
    for response in (&mut all).await {
        assert_eq!(response.status(), StatusCode::OK);
        let report = response.headers()["endpoint-load-metrics"]
            .to_str()
            .unwrap();
        let report = report.strip_prefix("TEXT ").unwrap();
        for pair in report.split(',') {
            let (name, value) = pair.split_once('=').unwrap();
            assert!(value.parse::<f64>().unwrap() >= 0.0, "{name}");
        }
    }
    let (idle, pages) = (
        metric(&server, "server_running_requests").await,
        pages as usize,
    );
    assert!(idle == 0.0 && pages > 100);
    drop(all);
    server.shut_down().await.unwrap();
}

async fn asked(address: std::net::SocketAddr) -> String {
    let mut line = String::new();
    let mut agent = TcpStream::connect(address).await.unwrap();
    agent.read_to_string(&mut line).await.unwrap();
    line
}

#[tokio::test]
async fn agent_tells_the_weight_and_the_end() {
    // A port that is free now.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let agent = free.local_addr().unwrap();
    drop(free);
    let config = Config {
        agent: Some(agent),
        ..config()
    };
    let server = Server::start(config).await.unwrap();
    server.listen().await.unwrap();
    assert_eq!(asked(agent).await, "ready up 100%\n");
    // A queue that moves slowly: requests are expected to wait.
    let all = join_all((0..96).map(|number| {
        let (server, body) = (&server, body(&prompt(number, 64), 64));
        async move { send(server, request(&body)).await.status() }
    }));
    let watched = async {
        let mut least = 100;
        while server.running() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        while server.running() > 0 {
            let line = asked(agent).await;
            // A slow host is no longer in the first seconds.
            let weight = line.trim_start_matches("ready ").strip_prefix("up ");
            let weight = weight.and_then(|it| it.strip_suffix("%\n"));
            least = least.min(weight.unwrap().parse::<u32>().unwrap());
        }
        least
    };
    let (statuses, least) = tokio::join!(all, watched);
    assert!(statuses.iter().all(|status| *status == StatusCode::OK));
    assert!((1..100).contains(&least), "{least}");
    let last = body(&prompt(1, 64), 64);
    let work = post(&server, &last);
    let stopped = async {
        while server.running() == 0 {
            tokio::task::yield_now().await;
        }
        server.pool().stop_admitting();
        asked(agent).await
    };
    let ((status, _), line) = tokio::join!(work, stopped);
    assert_eq!((status, &*line), (StatusCode::OK, "drain\n"));
    server.shut_down().await.unwrap();
    assert!(TcpStream::connect(agent).await.is_err());
}
