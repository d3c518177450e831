//! Errors as answers to HTTP requests, and the terms of a request in its headers.

use crate::Need;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use std::fmt;
use std::time::Duration;
use weirpool::device::DeviceErrorKind;
use weirpool::{AllocError, StreamError, Tag};

/// The value of `Retry-After` if no time can be estimated.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);
/// The longest deadline that a header may name.
const LONGEST_DEADLINE: Duration = Duration::from_secs(24 * 60 * 60);

/// Converts an error into an HTTP status and a whole response for the client: feature `http`.
///
/// The statuses of an [`AllocError`]:
///
/// | error | status |
/// |---|---|
/// | [`LimitReached`](AllocError::LimitReached), [`DeadlockedAtLimit`](AllocError::DeadlockedAtLimit), [`QueueFull`](AllocError::QueueFull) of a tag | 429 Too Many Requests |
/// | [`QueueFull`](AllocError::QueueFull) of the pool, [`Shed`](AllocError::Shed), [`Exhausted`](AllocError::Exhausted), [`Deadlocked`](AllocError::Deadlocked), [`NotReservedForCapture`](AllocError::NotReservedForCapture), [`Stopping`](AllocError::Stopping), [`Closed`](AllocError::Closed), a device that is out of memory | 503 Service Unavailable |
/// | [`TimedOut`](AllocError::TimedOut) | 504 Gateway Timeout |
/// | [`TooLarge`](AllocError::TooLarge), [`OverLimit`](AllocError::OverLimit) | 413 Content Too Large |
/// | all others: the device's errors, and calls that the service should not make | 500 Internal Server Error |
///
/// A request that is cancelled has no answer: its client is gone. [`RefusalLayer`](crate::RefusalLayer) answers for a
/// whole service.
pub trait Answer: fmt::Display {
    /// Returns the status of the answer to a request that failed with this error.
    fn status(&self) -> StatusCode;

    /// Returns the value of the header `Retry-After`. For an [`AllocError`], it is
    /// [`retry_after`](AllocError::retry_after) in whole seconds, rounded up. With the statuses 429 and 503 it is 1 if
    /// that time is not known, unless the pool is closed: by then another server may answer for one that is
    /// [stopping](AllocError::Stopping).
    fn retry_after_header(&self) -> Option<HeaderValue> {
        None
    }

    /// Returns an answer with the [status](Self::status), [`Retry-After`](Self::retry_after_header), and the error's
    /// message as text. The message has figures of the pool; where those are not public, write a body of your own.
    fn response<B: From<String>>(&self) -> Response<B> {
        let mut response = Response::new(B::from(self.to_string()));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        let plain = HeaderValue::from_static("text/plain; charset=utf-8");
        headers.insert(CONTENT_TYPE, plain);
        if let Some(seconds) = self.retry_after_header() {
            headers.insert(RETRY_AFTER, seconds);
        }
        response
    }
}

impl Answer for AllocError {
    fn status(&self) -> StatusCode {
        match self {
            Self::LimitReached { .. } | Self::DeadlockedAtLimit { .. } => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::QueueFull(full) if full.tag.is_some() => StatusCode::TOO_MANY_REQUESTS,
            Self::QueueFull(_)
            | Self::Shed { .. }
            | Self::Exhausted(_)
            | Self::Deadlocked(_)
            | Self::NotReservedForCapture { .. }
            | Self::Stopping
            | Self::Closed => StatusCode::SERVICE_UNAVAILABLE,
            Self::TimedOut { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::TooLarge { .. } | Self::OverLimit { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Device(error) | Self::Stream(StreamError::Device(error))
                if error.kind() == DeviceErrorKind::OutOfMemory =>
            {
                StatusCode::SERVICE_UNAVAILABLE
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn retry_after_header(&self) -> Option<HeaderValue> {
        let is_busy = matches!(
            self.status(),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        );
        let may_retry = self.is_retryable() || matches!(self, Self::Stopping);
        let default = (is_busy && may_retry).then_some(RETRY_AFTER_DEFAULT);
        let wait = self.retry_after().or(default)?;
        let part = u64::from(wait.subsec_nanos() > 0);
        Some(wait.as_secs().saturating_add(part).into())
    }
}

/// Why the terms of a request could not be read from its headers: feature `http`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The header of the deadline is not a number of milliseconds, or the number is more than a day.
    #[error(
        "the header {name} is not a whole number of milliseconds up to 86400000; correct it, or leave it out"
    )]
    InvalidDeadline {
        /// The name of the header.
        name: HeaderName,
    },
    /// The request has the header several times.
    #[error("the header {name} is repeated; send it once")]
    Repeated {
        /// The name of the header.
        name: HeaderName,
    },
    /// The service knows no tag for the value of the header, or for a request without the header.
    #[error("the header {name} names no known tenant; send a valid value")]
    UnknownTag {
        /// The name of the header.
        name: HeaderName,
    },
}

/// The status is 401 Unauthorized for an unknown tag in `Authorization`, and 400 Bad Request otherwise.
impl Answer for HeaderError {
    fn status(&self) -> StatusCode {
        match self {
            Self::UnknownTag { name } if name == AUTHORIZATION => StatusCode::UNAUTHORIZED,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

/// Terms from the headers of a request, whose values are not to be trusted: feature `http`.
///
/// ```
/// use http::{HeaderMap, HeaderName, header::AUTHORIZATION};
/// use std::collections::HashMap;
/// use weirpool::Tag;
/// use weirpool_tower::{Answer, HeaderError, Need};
///
/// const DEADLINE: HeaderName = HeaderName::from_static("x-deadline-ms");
/// let tenants = HashMap::from([("sk-1", Tag::new("search")), ("sk-2", Tag::new("chat"))]);
/// let need = |bytes: u64, headers: &HeaderMap| {
///     Need::new(bytes)
///         .deadline_from(headers, &DEADLINE)?
///         .tag_from(headers, &AUTHORIZATION, |key| tenants.get(key?).copied())
/// };
/// let mut headers = HeaderMap::new();
/// headers.insert(DEADLINE, "1500".parse()?);
/// headers.insert(AUTHORIZATION, "Bearer sk-2".parse()?);
/// need(4096, &headers)?;
/// headers.insert(AUTHORIZATION, "Bearer sk-3".parse()?);
/// assert_eq!(need(4096, &headers).unwrap_err().status(), 401);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Need {
    /// Sets the deadline that a header names in milliseconds from now. Without the header, the need has no deadline.
    ///
    /// # Errors
    /// Returns an error if the header is repeated, or not a whole number up to 86,400,000 (a day).
    pub fn deadline_from(
        mut self,
        headers: &HeaderMap,
        name: &HeaderName,
    ) -> Result<Self, HeaderError> {
        let Some(value) = only(headers, name)? else {
            return Ok(self);
        };
        let within = millis(value.as_bytes()).filter(|within| *within <= LONGEST_DEADLINE);
        let within = within.ok_or_else(|| HeaderError::InvalidDeadline { name: name.clone() })?;
        self.terms.deadline = Some(within);
        Ok(self)
    }

    /// Charges the reservation to the tag that `tag` returns for the value of a header. It is called with `None` if
    /// there is no header, or its value is not text. The scheme `Bearer` of the header `Authorization` is left out of
    /// the value.
    ///
    /// Tags are never freed, so `tag` must look the value up in a table of the service, and must not create a
    /// [`Tag`] of it: clients could create any number.
    ///
    /// # Errors
    /// Returns an error if the header is repeated, or `tag` returns `None`.
    pub fn tag_from(
        mut self,
        headers: &HeaderMap,
        name: &HeaderName,
        tag: impl FnOnce(Option<&str>) -> Option<Tag>,
    ) -> Result<Self, HeaderError> {
        let value = only(headers, name)?.and_then(|value| value.to_str().ok());
        let value = match value {
            Some(value) if name == AUTHORIZATION => bearer(value),
            value => value,
        };
        let tag = tag(value).ok_or_else(|| HeaderError::UnknownTag { name: name.clone() })?;
        self.terms.tag = Some(tag);
        Ok(self)
    }
}

/// Which of several values counts is not the same for every proxy and server: none does.
fn only<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a HeaderValue>, HeaderError> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(HeaderError::Repeated { name: name.clone() }),
    }
}

/// Digits only: `u64`'s parser takes a sign, too.
fn millis(value: &[u8]) -> Option<Duration> {
    let is_number = value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| is_number)?;
    text.parse().ok().map(Duration::from_millis)
}

/// Returns the token of the scheme `Bearer`, whose name may be in any case.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| token.trim_matches(' '))
}
