//! Requests of other sites' pages are refused, and answers are of no use to them.

use super::{App, Failure};
use crate::config::Secret;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Request, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::sync::Arc;

/// Answers requests for the server's own hosts, of its own pages and of programs. By headers, browsers keep the answers from
/// pages of other sites: as a resource, in a frame, or as another type than they have.
pub(super) async fn guard(
    State(app): State<Arc<App>>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let mut response = match app.hosts.check(&request) {
        Ok(()) => next.run(request).await,
        Err(foreign) => Failure::new(foreign.status(), foreign.to_string()).into_response(),
    };
    for (name, value) in [
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "frame-ancestors 'none'"),
    ] {
        let headers = response.headers_mut();
        // The page has a policy of its own, which forbids more.
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Answers requests with the key of operators: as `Authorization: Bearer KEY`, or as the password of the user `operator`,
/// which browsers ask for. Without a key, answers all requests if clients need none either.
pub(super) async fn for_operators(
    State(app): State<Arc<App>>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let Some(Secret(key)) = &app.config.operator_key else {
        if app.config.tenants.is_empty() {
            return next.run(request).await;
        }
        let message = "the page and the figures name tenants; set `operator_key` to read them";
        return Failure::new(StatusCode::FORBIDDEN, message).into_response();
    };
    let sent = request.headers().get(header::AUTHORIZATION);
    let sent = sent.map_or(&b""[..], HeaderValue::as_bytes);
    let password = STANDARD.encode(format!("operator:{key}"));
    let accepted = [format!("Bearer {key}"), format!("Basic {password}")];
    if accepted
        .iter()
        .any(|accepted| is_same(accepted.as_bytes(), sent))
    {
        return next.run(request).await;
    }
    let message = "the header Authorization has no key of operators; send `Bearer <key>`, or log in as `operator`";
    let mut response = Failure::new(StatusCode::UNAUTHORIZED, message).into_response();
    let ask = HeaderValue::from_static("Basic realm=\"operators\", charset=\"UTF-8\"");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
    response
}

/// Compares in a time that does not depend on where they differ.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |rest, (a, b)| rest | (a ^ b)) == 0
}

/// Checks that a body is JSON. A page of another site can send other types without asking the server first.
///
/// # Errors
/// Returns a failure with the status 415.
pub(super) fn check_type(headers: &HeaderMap) -> Result<(), Failure> {
    let value = headers.get(header::CONTENT_TYPE);
    let value = value.and_then(|value| value.to_str().ok()).unwrap_or("");
    let kind = value.split(';').next().unwrap_or("").trim();
    match kind.eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => Err(Failure::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body is not declared as JSON; send the header `Content-Type: application/json`",
        )),
    }
}
