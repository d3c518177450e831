//! Tokens are those of the reference implementation, whatever else runs.

use crate::common::{
    assert_idle, body, config, post, prompt, request, send, start, tokens_of, used, weights,
};
use axum::http::StatusCode;
use futures::future::join_all;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use weirpool_server::model::{Weights, reference};

/// Sums that are rounded in another order differ by far less; a wrong key or value changes logits by far more.
const TOLERANCE: f32 = 1e-3;

pub(crate) fn assert_right(weights: &Weights, prompt: &[u32], answer: &[u32]) {
    let regrets = reference::regrets(weights, prompt, answer);
    let largest = regrets.iter().copied().fold(0.0, f32::max);
    assert!(largest < TOLERANCE, "wrong tokens: {regrets:?}");
}

#[tokio::test(start_paused = true)]
async fn answers_are_right_while_many_share_the_memory() {
    let config = config();
    let (weights, server) = (weights(&config), start(config).await);
    let idle = used(&server);
    // Together, they need several times the memory. Some begin alike.
    let requests: Vec<(Vec<u32>, usize)> = (0..60)
        .map(|number| {
            let mut tokens = prompt(number % 3, 24);
            tokens.extend(prompt(100 + number, 1 + number as usize % 40));
            (tokens, 1 + number as usize % 30)
        })
        .collect();
    let answers = requests.iter().map(async |(prompt, max_tokens)| {
        let (status, answer) = post(&server, &body(prompt, *max_tokens)).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        tokens_of(&answer)
    });
    let answers = join_all(answers).await;
    for ((prompt, max_tokens), answer) in requests.iter().zip(answers) {
        assert_eq!(answer.len(), *max_tokens);
        assert_right(&weights, prompt, &answer);
    }
    let statistics = server.pool().inspect().statistics();
    assert!(
        statistics.evictions > 0 && statistics.waits.waiting == 0,
        "{statistics:?}"
    );
    assert_idle(&server, idle).await;
    server.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn prefix_cache_changes_no_answer() {
    let config = config();
    let (weights, server) = (weights(&config), start(config).await);
    let shared = prompt(1, 64);
    for number in 0..6 {
        let prompt = [&shared[..10 * number + 8], &prompt(number as u64, 9)].concat();
        let (_, answer) = post(&server, &body(&prompt, 8)).await;
        assert_right(&weights, &prompt, &tokens_of(&answer));
    }
    // The whole prompt was computed before; its last token is computed again.
    let (_, first) = post(&server, &body(&shared, 8)).await;
    let (_, again) = post(&server, &body(&shared, 8)).await;
    assert_eq!(tokens_of(&first), tokens_of(&again));
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 56);
    server.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn streamed_answer_equals_the_whole_one() {
    let server = start(config()).await;
    let body = |stream: bool| json!({"prompt": "weir", "max_tokens": 20, "temperature": 1.0, "seed": 5, "stream": stream});
    let (_, whole) = post(&server, &body(false)).await;
    let response = send(&server, request(&body(true))).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let text = std::str::from_utf8(&bytes).unwrap();
    let events: Vec<&str> = text
        .split_terminator("\n\n")
        .map(|event| event.strip_prefix("data: ").unwrap())
        .collect();
    let (done, parts) = events.split_last().unwrap();
    assert_eq!(*done, "[DONE]");
    let parts: Vec<Value> = parts
        .iter()
        .map(|part| serde_json::from_str(part).unwrap())
        .collect();
    let tokens: Vec<u32> = parts.iter().flat_map(tokens_of).collect();
    assert_eq!(tokens, tokens_of(&whole));
    let joined: String = parts
        .iter()
        .map(|part| part["choices"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(whole["choices"][0]["text"], joined);
    assert_eq!(
        parts.last().unwrap()["choices"][0]["finish_reason"],
        "length"
    );
    server.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn sampling_depends_on_the_seed_and_not_on_the_batch() {
    let server = start(config()).await;
    let ask = async |seed: u64| {
        let body = json!({"prompt": "weir", "max_tokens": 12, "temperature": 1.5, "seed": seed});
        tokens_of(&post(&server, &body).await.1)
    };
    let alone = [ask(1).await, ask(2).await];
    assert_ne!(alone[0], alone[1]);
    let together = join_all([ask(1), ask(2), ask(1), ask(3)]).await;
    assert_eq!(
        [&together[0], &together[1], &together[2]],
        [&alone[0], &alone[1], &alone[0]]
    );
    server.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn weights_are_read_from_a_file() {
    let mut config = config();
    let weights = Weights::generate(config.model.shape(), 42);
    let path = std::env::temp_dir().join(format!(
        "weirpool-weights-{}.safetensors",
        std::process::id()
    ));
    weights.write(&path).unwrap();
    config.model.weights = Some(path.clone());
    // The file says how wide the model is.
    config.model.width = 8;
    let server = start(config.clone()).await;
    let prompt = prompt(3, 20);
    let (_, answer) = post(&server, &body(&prompt, 10)).await;
    assert_right(&weights, &prompt, &tokens_of(&answer));
    server.shut_down().await.unwrap();
    for bytes in [
        &b""[..],
        b"no tensors",
        &std::fs::read(&path).unwrap()[..5000],
    ] {
        std::fs::write(&path, bytes).unwrap();
        let refused = weirpool_server::Server::start(config.clone()).await.err();
        let message = refused.expect("no weights").to_string();
        assert!(message.contains("safetensors"), "{message}");
    }
    std::fs::remove_file(path).unwrap();
}
