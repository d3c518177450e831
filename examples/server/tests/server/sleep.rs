//! Servers whose weights sleep on the host while there are no requests.

use crate::answers::assert_right;
use crate::common::{body, config, post, prompt, request, send, start, tokens_of, weights};
use axum::http::{HeaderValue, StatusCode};
use bytesize::ByteSize;
use std::time::{Duration, Instant};
use weirpool_broker::{Broker, BrokerConfig};
use weirpool_server::{Config, Server};

/// The smallest region has 32 MiB.
const WEIGHTS: u64 = 32 << 20;

fn sleepy(after: Duration) -> Config {
    Config {
        capacity: ByteSize::mib(48),
        sleep_after: Some(after),
        ..config()
    }
}

fn suspended(server: &Server) -> u64 {
    server.pool().inspect().statistics().suspended
}

#[tokio::test(start_paused = true)]
async fn idle_server_sleeps_and_its_next_request_wakes_it() {
    let config = sleepy(Duration::from_secs(10));
    let (weights, server) = (weights(&config), start(config).await);
    let prompt = prompt(1, 20);
    for _ in 0..3 {
        // The copies are made in the background, in real time: a paused clock would pass the time limit meanwhile.
        tokio::time::resume();
        let (status, answer) = post(&server, &body(&prompt, 20)).await;
        tokio::time::pause();
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_right(&weights, &prompt, &tokens_of(&answer));
        assert_eq!(suspended(&server), 0);
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert_eq!(suspended(&server), 0, "before its time");
        let begin = Instant::now();
        while suspended(&server) < WEIGHTS {
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "it does not sleep"
            );
            tokio::time::sleep(Duration::from_secs(1)).await;
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(server.pool().inspect().statistics().charged, 0);
    }
    server.shut_down().await.unwrap();
}

/// The first request wakes the weights, and waits for memory. The deadline of the next one is its own.
#[tokio::test]
async fn deadline_holds_while_another_request_wakes_the_weights() {
    let server = start(sleepy(Duration::from_millis(1))).await;
    while suspended(&server) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let stream = server.pool().create_stream().unwrap();
    let held = server.pool().try_allocate(&stream, 30 << 20).unwrap();
    let body = body(&prompt(1, 8), 4);
    let patient = post(&server, &body);
    let hurried = async {
        while server.pool().inspect().statistics().waits.waiting == 0 {
            tokio::task::yield_now().await;
        }
        let mut hurried = request(&body);
        let deadline = HeaderValue::from_static("100");
        hurried.headers_mut().insert("x-deadline-ms", deadline);
        let status = send(&server, hurried).await.status();
        drop(held);
        status
    };
    let ((patient, answer), hurried) = tokio::join!(patient, hurried);
    assert_eq!(hurried, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(patient, StatusCode::OK, "{answer}");
    server.shut_down().await.unwrap();
}

/// The servers must not both hold a part and wait for the rest, none may starve, and each answer is of its own weights.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_take_turns_on_memory_that_holds_one() {
    let folder = std::env::temp_dir().join(format!("weirpool-sleep-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let socket = folder.join("broker.sock");
    // Each server needs 32 MiB of weights and up to 16 MiB besides: together 1.6 times as much as there is.
    let broker = BrokerConfig::new(&socket, 60 << 20);
    let broker = Broker::bind(broker).unwrap().spawn().unwrap();
    let config = |seed| {
        let mut config = sleepy(Duration::from_millis(5));
        config.broker = Some(socket.clone());
        config.model.seed = seed;
        config.slowdown = 1.0;
        config
    };
    let configs = [config(1), config(2)];
    let models = configs.each_ref().map(weights);
    let [first, second] = configs;
    let first = start(first).await;
    while suspended(&first) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let servers = [first, start(second).await];
    let mut longest = Duration::ZERO;
    for round in 0..60_u64 {
        let turn = (round % 2) as usize;
        let both = [0, 1].map(|index| {
            let (server, model) = (&servers[index], &models[index]);
            async move {
                // In each round one server has a request, and in some of them both.
                if index != turn && round % 5 != 0 {
                    return Duration::ZERO;
                }
                let (begin, prompt) = (Instant::now(), prompt(round, 8));
                let (status, answer) = post(server, &body(&prompt, 4)).await;
                assert_eq!(status, StatusCode::OK, "round {round}: {answer}");
                assert_right(model, &prompt, &tokens_of(&answer));
                begin.elapsed()
            }
        });
        let waits = futures::future::join_all(both).await;
        longest = waits.into_iter().fold(longest, Duration::max);
    }
    println!("the longest wait: {longest:?}");
    for server in servers {
        server.shut_down().await.unwrap();
    }
    drop(broker);
    let _ = std::fs::remove_dir_all(folder);
}
