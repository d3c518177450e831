//! The server on an NVIDIA GPU: its tokens are those of the reference. Ignored, visibly, where there is no GPU.

use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let missing = missing();
    if let Some(reason) = &missing {
        eprintln!("ignored: {reason}");
    }
    let trial = Trial::test(
        "gpu::answers_are_right_while_many_share_the_memory",
        answers,
    );
    let trials = vec![trial.with_ignored_flag(missing.is_some())];
    libtest_mimic::run(&arguments, trials).exit_code()
}

#[cfg(not(feature = "cuda"))]
fn missing() -> Option<String> {
    Some("the feature `cuda` is off".to_owned())
}

#[cfg(feature = "cuda")]
fn missing() -> Option<String> {
    weirpool::device::cuda::CudaDevice::new(0)
        .err()
        .map(|error| error.to_string())
}

#[cfg(not(feature = "cuda"))]
fn answers() -> Result<(), Failed> {
    Err("the feature `cuda` is off".into())
}

#[cfg(feature = "cuda")]
fn answers() -> Result<(), Failed> {
    use axum::body::Body;
    use axum::http::Request;
    use futures::future::try_join_all;
    use http_body_util::BodyExt;
    use tower::ServiceExt;
    use weirpool_server::config::DeviceName;
    use weirpool_server::model::{Weights, reference};
    use weirpool_server::{Config, Server};

    let mut config = Config {
        device: vec![DeviceName::Cuda(0)],
        capacity: bytesize::ByteSize::mib(80),
        page: 8,
        ..Config::default()
    };
    config.model.width = 128;
    config.model.context = 256;
    let weights = Weights::generate(config.model.shape(), config.model.seed);
    let ask = async |server: &Server, number: u64| {
        let mut random = fastrand::Rng::with_seed(number % 7);
        let shared: Vec<u32> = (0..24).map(|_| random.u32(..256)).collect();
        random.seed(100 + number);
        let own = (0..random.usize(1..60)).map(|_| random.u32(..256));
        let prompt: Vec<u32> = shared.into_iter().chain(own).collect();
        let tokens = random.usize(1..50);
        let body = serde_json::json!({"prompt": prompt, "max_tokens": tokens}).to_string();
        let request = Request::post("/v1/completions")
            .header("content-type", "application/json")
            .body(Body::from(body));
        let response = server.router().oneshot(request?).await?;
        let bytes = response.into_body().collect().await?.to_bytes();
        let answer: serde_json::Value = serde_json::from_slice(&bytes)?;
        let answer = answer["choices"][0]["token_ids"].as_array().cloned();
        let answer = answer.ok_or_else(|| anyhow::anyhow!("no answer: {bytes:?}"))?;
        let answer: Vec<u32> = answer
            .iter()
            .filter_map(|token| token.as_u64())
            .map(|token| token as u32)
            .collect();
        anyhow::Ok((prompt, tokens, answer))
    };
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let server = Server::start(config).await?;
        let mut largest = 0.0_f32;
        for round in 0..4 {
            let answers =
                try_join_all((0..100).map(|number| ask(&server, 100 * round + number))).await?;
            for (prompt, tokens, answer) in answers.into_iter().step_by(5) {
                anyhow::ensure!(
                    answer.len() == tokens,
                    "{} tokens of {tokens}",
                    answer.len()
                );
                let regrets = reference::regrets(&weights, &prompt, &answer);
                largest = regrets.into_iter().fold(largest, f32::max);
            }
        }
        let statistics = server.pool().inspect().statistics();
        eprintln!(
            "largest difference to the best logit {largest:.1e}; {} evictions, {} growths",
            statistics.evictions, statistics.growths
        );
        anyhow::ensure!(largest < 1e-2, "wrong tokens: {largest}");
        server.shut_down().await
    })?;
    Ok(())
}
