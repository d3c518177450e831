//! Failing device calls: some requests fail and say so, no memory is lost, and later answers are right.

use crate::answers::assert_right;
use crate::common::{
    assert_idle, body, config, get, post, prompt, request, start, tokens_of, used, weights,
};
use axum::http::StatusCode;
use futures::future::join_all;
use std::collections::BTreeMap;
use tower::ServiceExt;
use weirpool::device::DeviceErrorKind;
use weirpool::device::sim::{Call, Fault};

#[tokio::test(start_paused = true)]
async fn each_call_may_fail_once() {
    let config = config();
    let (weights, server) = (weights(&config), start(config).await);
    let idle = used(&server);
    let mut seen = BTreeMap::<_, u32>::new();
    let mut right = BTreeMap::new();
    for call in Call::ALL {
        for nth in [1, 3] {
            for kind in [DeviceErrorKind::Other, DeviceErrorKind::OutOfMemory] {
                server
                    .simulated()
                    .unwrap()
                    .faults()
                    .script(call, nth, Fault::Fails(kind));
                // Free memory returns to the device, so that it is mapped anew.
                let _ = server.pool().trim_to(0);
                let answers = join_all((0..4).map(|number| {
                    let body = body(&prompt(number % 2, 20 + number as usize), 4);
                    let server = &server;
                    async move { post(server, &body).await }
                }));
                for (number, (status, answer)) in answers.await.into_iter().enumerate() {
                    *seen.entry(status.as_u16()).or_default() += 1;
                    match status {
                        StatusCode::OK => {
                            let answer = tokens_of(&answer);
                            let right = right.entry(number).or_insert_with(|| answer.clone());
                            assert_eq!(answer, *right, "{call:?} {nth} {kind:?}");
                        }
                        StatusCode::INTERNAL_SERVER_ERROR | StatusCode::SERVICE_UNAVAILABLE => {
                            let message = answer["error"]["message"].as_str().unwrap();
                            assert!(!message.is_empty());
                        }
                        _ => panic!("{call:?} {nth} {kind:?}: {status} {answer}"),
                    }
                }
                assert_idle(&server, idle).await;
            }
        }
    }
    println!("{seen:?}");
    for (number, answer) in right {
        assert_right(&weights, &prompt(number as u64 % 2, 20 + number), &answer);
    }
    assert!(seen[&200] > 8 * seen[&500] && seen[&500] > 0, "{seen:?}");
    server.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn broken_device_is_reported_and_the_server_ends() {
    let server = start(config()).await;
    let router = server.router();
    let running = (0..20).map(|number| {
        let (router, request) = (router.clone(), request(&body(&prompt(number, 28), 100)));
        tokio::spawn(async move { router.oneshot(request).await.unwrap().status() })
    });
    let running: Vec<_> = running.collect();
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    assert!(server.running() > 0);
    server.simulated().unwrap().faults().break_device("a test");
    for answer in join_all(running).await {
        assert_eq!(answer.unwrap(), StatusCode::INTERNAL_SERVER_ERROR);
    }
    let (status, error) = post(&server, &body(&[1], 1)).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{error}");
    assert_eq!(
        get(&server, "/healthz").await.0,
        StatusCode::INTERNAL_SERVER_ERROR
    );
    assert_eq!(
        get(&server, "/readyz").await.0,
        StatusCode::SERVICE_UNAVAILABLE
    );
    let error = server.shut_down().await.unwrap_err();
    assert!(format!("{error:#}").contains("a test"), "{error:#}");
}
