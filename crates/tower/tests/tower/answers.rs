//! Errors as answers, and terms from headers.

use crate::common::*;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Request, Response, StatusCode};
use std::task::{Context, Poll};
use std::time::Duration;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use weirpool::device::{DeviceError, DeviceErrorKind};
use weirpool::*;
use weirpool_tower::*;

/// Returns the status, and the value of `Retry-After`.
fn answer(error: &AllocError) -> (u16, Option<String>) {
    let response: Response<String> = error.response();
    assert_eq!(*response.body(), error.to_string());
    assert_eq!(
        response.headers()[CONTENT_TYPE],
        "text/plain; charset=utf-8"
    );
    let seconds = response.headers().get(RETRY_AFTER);
    let seconds = seconds.map(|seconds| seconds.to_str().unwrap().to_owned());
    (response.status().as_u16(), seconds)
}

fn shed(millis: u64) -> AllocError {
    let limit = Duration::from_millis(1000);
    AllocError::Shed {
        expected: limit + Duration::from_millis(millis),
        limit,
        is_virtual: false,
    }
}

#[test]
fn every_error_has_the_status_that_says_whose_fault_it_is() {
    let device = manual();
    let tag = Tag::new("answers: statuses");
    let pool = builder(&device, 8 * MIB).queue_limit(1).build().unwrap();
    pool.tag(tag).set_limit(Some(2 * MIB));
    let (_, stream) = stream(&device, &pool);
    pool.tag(tag).set_queue_limit(Some(QueueLimit::requests(0)));
    let of_tag = |bytes| pool.allocate(&stream, bytes).tag(tag);
    let one = Some("1".to_owned());
    let failed = |request: Allocate<'_>| answer(&now(request).unwrap_err());

    let held = of_tag(2 * MIB).try_now().unwrap();
    assert_eq!(
        answer(&of_tag(MIB).try_now().unwrap_err()),
        (429, one.clone())
    );
    assert_eq!(
        failed(of_tag(MIB)),
        (429, one.clone()),
        "the tag's queue is full"
    );
    assert_eq!(failed(of_tag(3 * MIB)), (413, None));
    assert_eq!(failed(pool.allocate(&stream, 9 * MIB)), (413, None));
    let all = pool.try_allocate(&stream, 6 * MIB).unwrap();
    assert_eq!(
        answer(&pool.try_allocate(&stream, MIB).unwrap_err()),
        (503, one.clone())
    );
    let late = not_ready(pool.allocate(&stream, MIB).deadline(us(5)));
    assert_eq!(
        failed(pool.allocate(&stream, MIB)),
        (503, one.clone()),
        "the queue is full"
    );
    device.advance(us(10));
    assert_eq!(answer(&now(late).unwrap_err()), (504, None));
    drop((held, all));
    let reservation = pool.reserve(MIB).try_now().unwrap();
    let beyond = reservation.allocate(&stream, 2 * MIB).unwrap_err();
    assert_eq!(
        answer(&beyond),
        (500, None),
        "the service needs more than it reserved"
    );
    drop(reservation);
    let odd = pool.allocate(&stream, MIB).alignment(3).try_now();
    assert_eq!(answer(&odd.unwrap_err()), (500, None));
    pool.stop_admitting();
    let stopping = pool.try_allocate(&stream, MIB).unwrap_err();
    assert_eq!(answer(&stopping), (503, one.clone()), "of another server");
    pool.close();
    let closed = pool.try_allocate(&stream, MIB).unwrap_err();
    assert_eq!(answer(&closed), (503, None), "a retry does not help");

    let failure = |kind| AllocError::from(DeviceError::new("create", kind, "test"));
    assert_eq!(answer(&failure(DeviceErrorKind::Sticky)), (500, None));
    assert_eq!(answer(&failure(DeviceErrorKind::Unsupported)), (500, None));
    assert_eq!(answer(&failure(DeviceErrorKind::OutOfMemory)), (503, one));
    let stream_error = AllocError::from(StreamError::ForeignDevice);
    assert_eq!(answer(&stream_error), (500, None));
}

#[test]
fn retry_after_is_in_whole_seconds_rounded_up() {
    let after = |millis| answer(&shed(millis)).1.unwrap();
    assert_eq!(
        [0, 1, 999, 1000, 1001, 59_000].map(after),
        ["0", "1", "1", "1", "2", "59"]
    );
    let endless = AllocError::Shed {
        expected: Duration::MAX,
        limit: Duration::ZERO,
        is_virtual: false,
    };
    assert_eq!(answer(&endless).1, Some(u64::MAX.to_string()));
}

const DEADLINE: HeaderName = HeaderName::from_static("x-deadline-ms");

fn headers(name: &HeaderName, values: &[&[u8]]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(name, HeaderValue::from_bytes(value).unwrap());
    }
    headers
}

#[test]
fn malformed_deadline_is_a_bad_request() {
    let need =
        |values: &[&[u8]]| Need::new(1).deadline_from(&headers(&DEADLINE, values), &DEADLINE);
    for value in ["0", "1", "0001", "86400000"] {
        assert!(need(&[value.as_bytes()]).is_ok(), "{value}");
    }
    assert!(need(&[]).is_ok());
    let long = "9".repeat(10_000);
    for value in [
        "",
        " ",
        "-1",
        "+1",
        "1.5",
        "1s",
        "1e3",
        "0x10",
        "86400001",
        "18446744073709551616",
        "\u{663}",
        &long,
    ] {
        let error = need(&[value.as_bytes()]).unwrap_err();
        assert_eq!(
            error,
            HeaderError::InvalidDeadline { name: DEADLINE },
            "{value}"
        );
        assert_eq!(error.status(), StatusCode::BAD_REQUEST);
        assert!(error.to_string().len() < 200, "the value is not repeated");
    }
    let error = need(&[b"5", b"5"]).unwrap_err();
    assert_eq!(error, HeaderError::Repeated { name: DEADLINE });
    assert_eq!(
        need(&[b"\xff"]).unwrap_err().response::<String>().status(),
        400
    );
}

#[test]
fn tag_comes_from_the_services_table_and_never_from_the_client() {
    let tag = Tag::new("answers: tenant");
    let need = |name: &HeaderName, values: &[&[u8]]| {
        let mut seen = Vec::new();
        let table = |value: Option<&str>| {
            seen.push(value.map(str::to_owned));
            (value == Some("sk-1")).then_some(tag)
        };
        let need = Need::new(1).tag_from(&headers(name, values), name, table);
        (need.map(|need| format!("{need:?}")), seen)
    };
    let plain = HeaderName::from_static("x-tenant");
    let known: [(&HeaderName, &[u8]); 4] = [
        (&plain, b"sk-1"),
        (&AUTHORIZATION, b"Bearer sk-1"),
        (&AUTHORIZATION, b"bearer  sk-1"),
        (&AUTHORIZATION, b"BEARER sk-1"),
    ];
    for (name, value) in known {
        let (need, seen) = need(name, &[value]);
        assert!(need.unwrap().contains("answers: tenant"));
        assert_eq!(seen, [Some("sk-1".to_owned())]);
    }
    let unknown: [(&HeaderName, &[u8], Option<&str>); 6] = [
        (&plain, b"sk-2", Some("sk-2")),
        (&plain, b"Bearer sk-1", Some("Bearer sk-1")),
        (&plain, b"\xff\xfe", None),
        (&AUTHORIZATION, b"sk-1", None),
        (&AUTHORIZATION, b"Basic sk-1", None),
        (&AUTHORIZATION, b"Bearer sk-1 x", Some("sk-1 x")),
    ];
    for (name, value, given) in unknown {
        let (need, seen) = need(name, &[value]);
        assert_eq!(seen, [given.map(str::to_owned)]);
        let error = need.unwrap_err();
        assert_eq!(error, HeaderError::UnknownTag { name: name.clone() });
        let status = if *name == AUTHORIZATION { 401 } else { 400 };
        assert_eq!(error.status(), status);
    }
    assert_eq!(need(&AUTHORIZATION, &[]).1, [None]);
    let (repeated, seen) = need(&AUTHORIZATION, &[b"Bearer sk-2", b"Bearer sk-1"]);
    assert_eq!(
        repeated,
        Err(HeaderError::Repeated {
            name: AUTHORIZATION
        })
    );
    assert_eq!(seen, []);
}

#[test]
fn layer_answers_requests_without_memory_and_passes_other_errors_on() {
    let device = manual();
    let pool = builder(&device, 8 * MIB).queue_limit(0).build().unwrap();
    let (_, stream) = stream(&device, &pool);
    let need = |request: Request<u64>| async {
        let need = Need::new(*request.body()).deadline_from(request.headers(), &DEADLINE)?;
        Ok((need, request))
    };
    let handler = service_fn(|_: Request<u64>| async {
        Ok::<_, HeaderError>(Response::new("done".to_owned()))
    });
    let mut service = ServiceBuilder::new()
        .layer(RefusalLayer::new(|error: AllocError| error.response()))
        .layer(HttpReserveLayer::new(&pool, need))
        .service(handler);
    let mut send = |bytes, deadline: &str| {
        let mut request = Request::new(bytes);
        let value = deadline.parse().unwrap();
        request.headers_mut().insert(DEADLINE, value);
        now(service.call(request)).map(|answer: Response<_>| answer.status().as_u16())
    };
    assert_eq!(send(MIB, "100"), Ok(200));
    let refused = HeaderError::InvalidDeadline { name: DEADLINE };
    assert_eq!(send(MIB, "soon"), Err(refused));
    assert_eq!(send(9 * MIB, "100"), Ok(413));
    let held = pool.try_allocate(&stream, 8 * MIB).unwrap();
    assert_eq!(send(MIB, "100"), Ok(503));
    drop(held);
    pool.inspect().check_conserved().unwrap();
}

/// A service whose readiness fails once for want of memory.
struct Unready(Option<AllocError>);

impl Service<()> for Unready {
    type Response = String;
    type Error = ReserveError<HeaderError>;
    type Future = std::future::Ready<Result<String, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(
            self.0
                .take()
                .map_or(Ok(()), |error| Err(ReserveError::Memory(error))),
        )
    }

    fn call(&mut self, (): ()) -> Self::Future {
        std::future::ready(Ok("called".to_owned()))
    }
}

#[test]
fn request_is_answered_if_the_inner_service_is_not_ready_for_want_of_memory() {
    let inner = Unready(Some(AllocError::Closed));
    let layer = RefusalLayer::new(|error: AllocError| error.to_string());
    let mut service = tower::Layer::layer(&layer, inner);
    for expected in [&*AllocError::Closed.to_string(), "called"] {
        let answer = now(async { service.ready().await?.call(()).await });
        assert_eq!(answer.unwrap(), expected);
    }
}
