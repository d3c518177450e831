//! Tenants beside one that floods the server.

use crate::common::{assert_idle, body, config, prompt, request, send, start, tenant, used};
use futures::future::join_all;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::sleep;
use weirpool_server::{Config, Server};

async fn ask(server: &Server, key: &str, number: u64, max_tokens: usize) -> u16 {
    let mut request = request(&body(&prompt(number, 60), max_tokens));
    let value = format!("Bearer {key}").parse().unwrap();
    request.headers_mut().insert("authorization", value);
    let response = send(server, request).await;
    response.status().as_u16()
}

/// One tenant without a quota sends far more than the server can bear. Each request of another tenant is answered all the
/// same, whether or not the flooding tenant has a queue limit of its own, which refuses what exceeds it.
#[tokio::test(start_paused = true)]
async fn flood_of_a_tenant_gets_no_request_of_another_refused() {
    for queue in [None, Some(8)] {
        let mut bob = tenant("bob", "sk-bob", None, None);
        bob.weight = 1000;
        let config = Config {
            queue: 32,
            tenants: vec![tenant("alice", "sk-alice", None, queue), bob],
            ..config()
        };
        let server = start(config).await;
        let idle = used(&server);
        let is_over = Cell::new(false);
        let flood = join_all((0..64).map(async |client: u64| {
            let mut statuses = Vec::new();
            while !is_over.get() {
                let status = ask(&server, "sk-alice", client, 20).await;
                if status != 200 {
                    sleep(Duration::from_millis(200)).await;
                }
                statuses.push(status);
            }
            statuses
        }));
        let bob = async {
            sleep(Duration::from_secs(1)).await;
            let mut statuses = Vec::new();
            for number in 0..5 {
                statuses.push(ask(&server, "sk-bob", number, 2).await);
                sleep(Duration::from_millis(100)).await;
            }
            is_over.set(true);
            statuses
        };
        let (flood, bob) = tokio::join!(flood, bob);
        assert!(bob.iter().all(|status| *status == 200), "{bob:?}");
        let mut statuses = BTreeMap::new();
        for status in flood.into_iter().flatten() {
            *statuses.entry(status).or_insert(0) += 1;
        }
        let refusal = if queue.is_some() { 429 } else { 503 };
        let has = |status| statuses.contains_key(&status);
        assert!(has(200) && has(refusal), "{statuses:?}");
        assert_idle(&server, idle).await;
        server.shut_down().await.unwrap();
    }
}
