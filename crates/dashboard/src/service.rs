//! The dashboard as a service over HTTP.

use crate::viewers::{Refusal, Viewers, off_the_runtime};
use crate::{Dashboard, page};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tower_service::Service;
use weirpool_observe::prometheus_text;

/// The body of a [`Dashboard`]'s answer. It never fails.
pub struct Body(Content);

enum Content {
    Whole(Bytes),
    Events(mpsc::Receiver<Bytes>),
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.0 {
            Content::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Content::Events(events) => {
                let event = events.poll_recv(cx);
                event.map(|event| event.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.0, Content::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Events(_) => SizeHint::default(),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Content::Whole(bytes) => write!(f, "Body({} bytes)", bytes.len()),
            Content::Events(_) => f.write_str("Body(events)"),
        }
    }
}

impl<B> Service<Request<B>> for Dashboard {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, _) = request.into_parts();
        let (dashboard, request) = (self.clone(), Request::from_parts(parts, ()));
        Box::pin(async move { Ok(dashboard.answer(&request).await) })
    }
}

impl Dashboard {
    async fn answer(&self, request: &Request<()>) -> Response<Body> {
        let wants = |kind| {
            let accepted = request.headers().get_all(header::ACCEPT).iter();
            accepted
                .filter_map(|value| value.to_str().ok())
                .any(|value| value.contains(kind))
        };
        let mut answer = match (self.hosts.check(request), request.method()) {
            (Err(foreign), _) => whole(foreign.status(), TEXT, format!("{foreign}\n")),
            (Ok(()), &Method::GET | &Method::HEAD) if self.is_metrics => {
                let (pool, title) = (self.viewers.pool.clone(), self.title.clone());
                let text = off_the_runtime(move || prometheus_text(&pool, &title)).await;
                whole_or_ending("text/plain; version=0.0.4; charset=utf-8", text)
            }
            (Ok(()), &Method::GET | &Method::HEAD) if wants("text/event-stream") => self.events(),
            (Ok(()), &Method::GET | &Method::HEAD)
                if wants("application/json") && !wants("text/html") =>
            {
                let frame = self.viewers.frame(Viewers::AGE).await;
                whole_or_ending("application/json", frame.as_deref().cloned())
            }
            (Ok(()), &Method::GET | &Method::HEAD) => self.document(),
            _ => {
                let text = "use GET\n".to_owned();
                let mut answer = whole(StatusCode::METHOD_NOT_ALLOWED, TEXT, text);
                let allowed = HeaderValue::from_static("GET, HEAD");
                answer.headers_mut().insert(header::ALLOW, allowed);
                answer
            }
        };
        if request.method() == Method::HEAD {
            // The length stays that of the answer to GET.
            let length = http_body::Body::size_hint(answer.body()).exact();
            if let Some(length) = length {
                let headers = answer.headers_mut();
                headers.insert(header::CONTENT_LENGTH, length.into());
            }
            *answer.body_mut() = Body(Content::Whole(Bytes::new()));
        }
        for (name, value) in [
            (header::CACHE_CONTROL, "no-store"),
            (header::VARY, "Accept"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::X_FRAME_OPTIONS, "DENY"),
            (
                HeaderName::from_static("cross-origin-resource-policy"),
                "same-origin",
            ),
        ] {
            let headers = answer.headers_mut();
            headers.insert(name, HeaderValue::from_static(value));
        }
        answer
    }

    fn document(&self) -> Response<Body> {
        let mut answer = whole(StatusCode::OK, "text/html; charset=utf-8", self.page());
        // A document cannot forbid framing by itself.
        let policy = format!("{}; frame-ancestors 'none'", page::policy());
        let policy = HeaderValue::try_from(policy).expect("visible ASCII");
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
        answer
    }

    fn events(&self) -> Response<Body> {
        match self.viewers.watch() {
            Ok(events) => respond(
                StatusCode::OK,
                "text/event-stream",
                Body(Content::Events(events)),
            ),
            Err(Refusal::TooMany) => {
                later("64 viewers are connected, the most there may be: close one\n")
            }
            Err(Refusal::NoRuntime) => {
                later("events need a tokio runtime: serve the dashboard from one\n")
            }
        }
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

fn whole(status: StatusCode, kind: &'static str, text: String) -> Response<Body> {
    respond(status, kind, Body(Content::Whole(text.into())))
}

/// Returns an answer with a text; without one, that the runtime ends.
fn whole_or_ending(kind: &'static str, text: Option<String>) -> Response<Body> {
    match text {
        Some(text) => whole(StatusCode::OK, kind, text),
        None => later("the server ends: ask again later\n"),
    }
}

/// Returns an answer that asks the client to come again in some seconds.
fn later(text: &str) -> Response<Body> {
    let mut answer = whole(StatusCode::SERVICE_UNAVAILABLE, TEXT, text.to_owned());
    let soon = HeaderValue::from_static("5");
    answer.headers_mut().insert(header::RETRY_AFTER, soon);
    answer
}

fn respond(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}
