//! A small server, and calls of its routes.

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use bytesize::ByteSize;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::time::Duration;
use tower::ServiceExt;
use weirpool::device::sim::Clock;
use weirpool_server::config::{ModelConfig, Secret, TenantConfig};
use weirpool_server::model::Weights;
use weirpool_server::{Config, Server};

/// A model whose sequences of 128 tokens need 128 KiB.
pub(crate) fn config() -> Config {
    let standard = Config::default();
    Config {
        listen: ([127, 0, 0, 1], 0).into(),
        capacity: ByteSize::mib(2),
        slowdown: 50.0,
        page: 8,
        batch: 16,
        rows: 64,
        model: ModelConfig {
            width: 64,
            layers: 2,
            context: 128,
            ..standard.model.clone()
        },
        ..standard
    }
}

pub(crate) fn tenant(
    name: &str,
    key: &str,
    quota: Option<ByteSize>,
    queue: Option<usize>,
) -> TenantConfig {
    TenantConfig {
        name: name.to_owned(),
        key: key.to_owned(),
        quota,
        weight: 1,
        queue,
    }
}

/// The key of operators, where there are tenants.
pub(crate) const OPERATOR: &str = "key of operators";

/// Starts a server whose device follows tokio's clock.
pub(crate) async fn start(mut config: Config) -> Server {
    if !config.tenants.is_empty() {
        config
            .operator_key
            .get_or_insert(Secret(OPERATOR.to_owned()));
    }
    let server = Server::start_with(config, Clock::Tokio).await;
    server.expect("the server starts")
}

pub(crate) fn weights(config: &Config) -> Weights {
    Weights::generate(config.model.shape(), config.model.seed)
}

/// A prompt that depends on its number in each token.
pub(crate) fn prompt(number: u64, tokens: usize) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(number);
    (0..tokens).map(|_| random.u32(..256)).collect()
}

pub(crate) fn body(prompt: &[u32], max_tokens: usize) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens})
}

pub(crate) fn request(body: &Value) -> Request<Body> {
    Request::post("/v1/completions")
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))
        .expect("a request")
}

pub(crate) async fn send(server: &Server, request: Request<Body>) -> Response {
    send_to(server.router(), request).await
}

pub(crate) async fn send_to(router: Router, request: Request<Body>) -> Response {
    let response = router.oneshot(request).await;
    response.unwrap_or_else(|never| match never {})
}

/// Returns status and body.
pub(crate) async fn post(server: &Server, body: &Value) -> (StatusCode, Value) {
    let response = send(server, request(body)).await;
    let status = response.status();
    (status, json_of(response).await)
}

pub(crate) async fn json_of(response: Response) -> Value {
    let bytes = response.into_body().collect().await.expect("a body");
    serde_json::from_slice(&bytes.to_bytes()).expect("JSON")
}

pub(crate) async fn get(server: &Server, path: &str) -> (StatusCode, String) {
    let request = Request::get(path).header("authorization", format!("Bearer {OPERATOR}"));
    let request = request.body(Body::empty()).expect("a request");
    let response = send(server, request).await;
    let status = response.status();
    let bytes = response.into_body().collect().await.expect("a body");
    let text = String::from_utf8(bytes.to_bytes().into()).expect("text");
    (status, text)
}

pub(crate) fn tokens_of(answer: &Value) -> Vec<u32> {
    let tokens = answer["choices"][0]["token_ids"].as_array();
    let tokens = tokens.expect("an answer").iter();
    tokens
        .map(|token| token.as_u64().expect("a token") as u32)
        .collect()
}

/// Returns the bytes that are in use, without the evictable ones.
pub(crate) fn used(server: &Server) -> u64 {
    let statistics = server.pool().inspect().statistics();
    statistics.used.current - statistics.evictable
}

/// Waits until no request runs, and checks that memory is back at `idle` bytes.
pub(crate) async fn assert_idle(server: &Server, idle: u64) {
    let is_idle = async {
        while server.running() > 0 || used(server) > idle {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(60), is_idle).await;
    assert!(
        ended.is_ok(),
        "{} run, {} bytes are used, {idle} when idle",
        server.running(),
        used(server)
    );
    if let Some(device) = server.simulated() {
        device.assert_ordered();
    }
}
