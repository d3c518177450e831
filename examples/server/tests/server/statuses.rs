//! Statuses: what fails says so, keeps no memory, and costs no other request anything.

use crate::common::{
    OPERATOR, assert_idle, body, config, get, json_of, post, prompt, request, send, start, tenant,
    used,
};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode};
use bytesize::ByteSize;
use futures::FutureExt;
use futures::future::join_all;
use http_body_util::BodyExt;
use serde_json::json;
use std::time::Duration;
use weirpool::device::sim::Clock;
use weirpool_server::config::{Secret, TenantConfig};
use weirpool_server::{Admission, Config, Server};

#[tokio::test(start_paused = true)]
async fn full_queue_is_refused_with_the_time_of_a_retry() {
    let mut config = config();
    config.queue = 4;
    let server = start(config).await;
    let idle = used(&server);
    // Served after waits, these give the pool an estimate.
    for _ in 0..3 {
        join_all((0..16).map(|number| post_owned(&server, number, 100))).await;
    }
    let answers = join_all((0..40).map(|number| {
        let body = body(&prompt(number, 28), 100);
        let response = send(&server, request(&body));
        response.map(|response| {
            (
                response.status(),
                response.headers().get("retry-after").cloned(),
            )
        })
    }));
    let answers = answers.await;
    let refused = answers
        .iter()
        .filter(|(status, _)| *status == StatusCode::SERVICE_UNAVAILABLE);
    let times: Vec<_> = refused.map(|(_, time)| time.clone()).collect();
    let served = answers
        .iter()
        .filter(|(status, _)| *status == StatusCode::OK)
        .count();
    assert!(
        times.len() > 10 && served + times.len() == 40,
        "{answers:?}"
    );
    assert!(
        times
            .iter()
            .all(|time| time.as_ref().is_some_and(is_seconds)),
        "{times:?}"
    );
    assert_idle(&server, idle).await;
    server.shut_down().await.unwrap();
}

fn is_seconds(value: &HeaderValue) -> bool {
    value
        .to_str()
        .is_ok_and(|value| value.parse::<u64>().is_ok_and(|seconds| seconds > 0))
}

async fn post_owned(
    server: &weirpool_server::Server,
    number: u64,
    max_tokens: usize,
) -> StatusCode {
    post(server, &body(&prompt(number, 28), max_tokens)).await.0
}

#[tokio::test(start_paused = true)]
async fn passed_deadline_is_a_504_and_frees_the_memory() {
    let server = start(config()).await;
    let idle = used(&server);
    let ask = async |milliseconds: &str, is_streamed: bool| {
        let mut request =
            request(&json!({"prompt": prompt(1, 28), "max_tokens": 100, "stream": is_streamed}));
        request
            .headers_mut()
            .insert("x-deadline-ms", milliseconds.parse().unwrap());
        send(&server, request).await
    };
    // While it runs: 100 steps of some milliseconds.
    let response = ask("40", false).await;
    assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
    let error = json_of(response).await;
    assert!(
        error["error"]["message"]
            .as_str()
            .unwrap()
            .contains("deadline"),
        "{error}"
    );
    let streamed = ask("40", true).await;
    assert_eq!(streamed.status(), StatusCode::OK);
    let text = streamed.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(
        text.contains("\"code\":504") && text.ends_with("data: [DONE]\n\n"),
        "{text}"
    );
    // While it waits for the memory of others. Those get more time.
    let others = join_all((0..12).map(|number| post_owned(&server, number, 100)));
    let late = async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        ask("3", false).await.status()
    };
    let (others, late) = tokio::join!(others, late);
    assert_eq!(late, StatusCode::GATEWAY_TIMEOUT);
    assert!(
        others.iter().all(|status| *status == StatusCode::OK),
        "{others:?}"
    );
    for value in ["", "0", "-1", "soon", "99999999999999999999999"] {
        assert_eq!(
            ask(value, false).await.status(),
            StatusCode::BAD_REQUEST,
            "{value:?}"
        );
    }
    assert_idle(&server, idle).await;
    server.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn client_that_goes_leaves_the_queue_and_frees_its_memory() {
    let server = start(config()).await;
    let idle = used(&server);
    for number in 0..200 {
        let mut random = fastrand::Rng::with_seed(number);
        let requests = (0..8).map(|index| {
            let body =
                json!({"prompt": prompt(index, 28), "max_tokens": 60, "stream": index % 2 == 0});
            let server = &server;
            let answer = async move {
                let mut body = send(server, request(&body)).await.into_body();
                while body.frame().await.is_some() {}
            };
            let answer = Box::pin(answer);
            tokio::time::timeout(Duration::from_micros(random.u64(..30_000)), answer)
        });
        let requests: Vec<_> = requests.collect();
        join_all(requests).await;
    }
    assert_idle(&server, idle).await;
    assert_eq!(post_owned(&server, 1, 10).await, StatusCode::OK);
    server.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn tenants_have_keys_and_quotas() {
    let mut config = config();
    config.tenants = vec![
        tenant("small", "key-1", Some(ByteSize::kib(256)), Some(2)),
        tenant("large", "key-2", None, None),
    ];
    let server = start(config).await;
    let idle = used(&server);
    let ask = async |key: Option<&str>, prompt_tokens: usize, max_tokens: usize| {
        let mut request = request(&body(&prompt(1, prompt_tokens), max_tokens));
        if let Some(key) = key {
            let value = format!("Bearer {key}").parse().unwrap();
            request.headers_mut().insert("authorization", value);
        }
        send(&server, request).await.status()
    };
    assert_eq!(ask(None, 1, 1).await, StatusCode::UNAUTHORIZED);
    assert_eq!(ask(Some("key-3"), 1, 1).await, StatusCode::UNAUTHORIZED);
    assert_eq!(ask(Some("key-1"), 8, 8).await, StatusCode::OK);
    // Two run, two wait for the quota, the rest is refused. The other tenant does not notice.
    let small = join_all((0..10).map(|_| ask(Some("key-1"), 28, 100)));
    let large = join_all((0..4).map(|_| ask(Some("key-2"), 28, 100)));
    let (small, large) = tokio::join!(small, large);
    assert!(
        large.iter().all(|status| *status == StatusCode::OK),
        "{large:?}"
    );
    let served = small
        .iter()
        .filter(|status| **status == StatusCode::OK)
        .count();
    let refused = small
        .iter()
        .filter(|status| **status == StatusCode::TOO_MANY_REQUESTS)
        .count();
    assert!(served >= 4 && served + refused == 10, "{small:?}");
    let text = get(&server, "/metrics").await.1;
    assert!(
        text.contains(r#"weirpool_tag_limit_bytes{pool="server",tag="small"} 262144"#),
        "{text}"
    );
    assert_idle(&server, idle).await;
    server.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn page_and_figures_need_the_key_of_operators() {
    async fn ask(router: &Router, path: &str, key: Option<&str>) -> (u16, bool) {
        use tower::ServiceExt;
        let mut request = Request::get(path);
        if let Some(key) = key {
            request = request.header("authorization", key);
        }
        let request = request.body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        let asks = answer.headers().contains_key("www-authenticate");
        (answer.status().as_u16(), asks)
    }
    let tenants = vec![tenant("one", "key-1", None, None)];
    // `operator:key of operators`.
    let password = "Basic b3BlcmF0b3I6a2V5IG9mIG9wZXJhdG9ycw==";
    let bearer = format!("Bearer {OPERATOR}");
    let with = |key: Option<&str>, tenants: &[TenantConfig], operators| Config {
        operator_key: key.map(|key| Secret(key.to_owned())),
        operators,
        tenants: tenants.to_owned(),
        ..config()
    };
    let server = start(with(Some(OPERATOR), &tenants, None)).await;
    let router = server.router();
    for path in ["/", "/metrics"] {
        assert_eq!(ask(&router, path, None).await, (401, true));
        assert_eq!(ask(&router, path, Some("Bearer key-1")).await, (401, true));
        assert_eq!(
            ask(&router, path, Some("Bearer key of operator")).await.0,
            401
        );
        assert_eq!(ask(&router, path, Some(password)).await.0, 200);
        assert_eq!(ask(&router, path, Some(&bearer)).await.0, 200);
    }
    for path in ["/healthz", "/readyz", "/v1/models"] {
        assert_eq!(ask(&router, path, None).await.0, 200);
    }
    assert_eq!(ask(&router, "/nowhere", None).await.0, 404);
    let debug = format!("{:?}", with(Some(OPERATOR), &tenants, None));
    assert!(!debug.contains(OPERATOR), "{debug}");
    server.shut_down().await.unwrap();

    // Tenants, and no key of operators: nothing to read.
    let server = Server::start_with(with(None, &tenants, None), Clock::Tokio)
        .await
        .unwrap();
    for path in ["/", "/metrics"] {
        assert_eq!(
            ask(&server.router(), path, Some("Bearer key-1")).await,
            (403, false)
        );
    }
    server.shut_down().await.unwrap();

    // An address of their own.
    let own = Some(([127, 0, 0, 1], 0).into());
    let server = start(with(None, &[], own)).await;
    let operators = server.operators().unwrap();
    for path in ["/", "/metrics"] {
        assert_eq!(ask(&server.router(), path, None).await.0, 404);
        assert_eq!(ask(&operators, path, None).await.0, 200);
    }
    assert_eq!(ask(&operators, "/v1/models", None).await.0, 404);
    server.shut_down().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn server_that_shuts_down_completes_what_runs_and_refuses_the_rest() {
    let server = start(config()).await;
    assert_eq!(get(&server, "/readyz").await.0, StatusCode::OK);
    assert_eq!(get(&server, "/healthz").await.0, StatusCode::OK);
    let router = server.router();
    let send = |number: u64| {
        let router = router.clone();
        let body = body(&prompt(number, 28), 100);
        tokio::spawn(async move {
            use tower::ServiceExt;
            router.oneshot(request(&body)).await.unwrap().status()
        })
    };
    let requests: Vec<_> = (0..30).map(send).collect();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(server.running() > 0);
    server.shut_down().await.unwrap();
    let statuses = join_all(requests).await.into_iter().map(Result::unwrap);
    let (served, refused): (Vec<_>, Vec<_>) =
        statuses.partition(|status| *status == StatusCode::OK);
    assert!(
        !served.is_empty() && !refused.is_empty(),
        "{served:?} {refused:?}"
    );
    assert!(
        refused
            .iter()
            .all(|status| *status == StatusCode::SERVICE_UNAVAILABLE),
        "{refused:?}"
    );
    assert_eq!(send(1).await.unwrap(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn other_admissions_fail_or_waste() {
    let with = |admission| {
        let mut config = config();
        config.admission = admission;
        config
    };
    let server = start(with(Admission::Fail)).await;
    let statuses = join_all((0..40).map(|number| post_owned(&server, number, 60))).await;
    assert!(
        statuses.contains(&StatusCode::SERVICE_UNAVAILABLE),
        "{statuses:?}"
    );
    server.shut_down().await.unwrap();
    let server = start(with(Admission::Split)).await;
    let idle = used(&server);
    let streamed = json!({"prompt": prompt(1, 28), "max_tokens": 4, "stream": true});
    let mut frames = send(&server, request(&streamed)).await.into_body();
    assert!(frames.frame().await.is_some());
    assert!(used(&server) >= idle + (128 << 10), "a whole context");
    drop(frames);
    assert_idle(&server, idle).await;
    let statuses = join_all((0..40).map(|number| post_owned(&server, number, 1))).await;
    assert!(
        statuses.iter().all(|status| *status == StatusCode::OK),
        "{statuses:?}"
    );
    server.shut_down().await.unwrap();
}
