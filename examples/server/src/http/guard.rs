//! Requests of other sites' pages are refused, and answers are of no use to them.

use super::{App, Failure};
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Request, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
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
