//! Answers to requests that fail, in OpenAI's shape.

use crate::engine::Refusal;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use weirpool_tower::Answer;

/// A request that fails.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    pub(crate) retry_after: Option<HeaderValue>,
}

impl Failure {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            retry_after: None,
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// Returns the failure as an object of OpenAI's interface.
    pub(crate) fn to_json(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        };
        let error = json!({"message": self.message, "type": kind, "code": self.status.as_u16()});
        json!({ "error": error })
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::Memory(error) => Self {
                status: error.status(),
                message,
                retry_after: error.retry_after_header(),
            },
            Refusal::Asleep(_) | Refusal::Late => Self {
                retry_after: Some(HeaderValue::from_static("1")),
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
            },
            Refusal::Broken(_) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, message),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.to_json())).into_response();
        if let Some(after) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, after);
        }
        response
    }
}
