//! Answers to requests that fail, in OpenAI's shape.

use crate::engine::Refusal;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::time::Duration;
use weirpool::{AllocError, ErrorClass};

/// A request that fails.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    pub(crate) retry_after: Option<Duration>,
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

    /// The failure as an object of OpenAI's interface.
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
                status: status(&error),
                message,
                retry_after: error.retry_after(),
            },
            Refusal::Closing => Self::new(StatusCode::SERVICE_UNAVAILABLE, message),
            Refusal::Broken(_) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, message),
        }
    }
}

fn status(error: &AllocError) -> StatusCode {
    match error {
        AllocError::TimedOut { .. } => StatusCode::GATEWAY_TIMEOUT,
        AllocError::LimitReached { .. } => StatusCode::TOO_MANY_REQUESTS,
        AllocError::TooLarge { .. } | AllocError::OverLimit { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        error if matches!(error.class(), ErrorClass::Busy { .. }) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.to_json())).into_response();
        if let Some(after) = self.retry_after {
            // Whole seconds, rounded up.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            let seconds = HeaderValue::from(seconds.max(1));
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}
