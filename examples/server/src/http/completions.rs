//! `POST /v1/completions`.

use super::guard::check_type;
use super::openai::{Answer, Completion, Text, usage};
use super::{App, Failure, unix_time};
use crate::engine::{Admitted, Event, Finish, Job};
use crate::figures::AnswerEnd;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::sse::{self, Sse};
use axum::response::{IntoResponse, Response};
use bytesize::ByteSize;
use futures::stream::{self, Stream, StreamExt};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The header with the time that a client allows, in milliseconds.
const DEADLINE: &str = "x-deadline-ms";

/// Answers a request: all at once, or as a stream of events.
pub(super) async fn complete(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let arrived = Instant::now();
    let tenant = app.tenants.of(request.headers())?;
    check_type(request.headers())?;
    let (allowed, is_urgent) = allowed(request.headers(), app.config.timeout)?;
    let model = &app.config.model.name;
    // The body is not kept while the request waits: it can be far larger than the request in it.
    let completion = {
        let body = read(&app, request.into_body()).await?;
        Completion::parse(&body, model, &app.engines.first().shape())?
    };
    let Completion {
        prompt,
        max_tokens,
        sampling,
        is_streamed,
        wants_usage,
    } = completion;
    let asked = prompt.len();
    let job = Job {
        prompt,
        max_tokens,
        sampling,
        tenant,
        deadline: arrived + allowed,
        is_urgent,
    };
    // Dropped if the client disconnects: the request then leaves the queue.
    let (Admitted { events, cached }, shape) = app.engines.admit(job).await?;
    let answer = Answer {
        id: format!("cmpl-{}", app.next.fetch_add(1, Ordering::Relaxed)),
        created: unix_time(),
        model: model.clone(),
    };
    let running = Running {
        app,
        events,
        text: Text::new(&shape),
        arrived,
        last: arrived,
        tokens: 0,
        end: AnswerEnd::Abandoned,
    };
    if is_streamed {
        let wants_usage = wants_usage.then_some((asked, cached));
        return Ok(Sse::new(streamed(running, answer, wants_usage)).into_response());
    }
    collected(running, &answer, asked, cached).await
}

/// Returns the time that a client allows, and whether it sent one.
fn allowed(headers: &HeaderMap, most: Duration) -> Result<(Duration, bool), Failure> {
    let Some(value) = headers.get(DEADLINE) else {
        return Ok((most, false));
    };
    let milliseconds = value
        .to_str()
        .ok()
        .and_then(|value| value.parse::<u64>().ok());
    match milliseconds.filter(|milliseconds| *milliseconds > 0) {
        Some(milliseconds) => Ok((Duration::from_millis(milliseconds).min(most), true)),
        None => Err(Failure::invalid(
            "the header X-Deadline-Ms is no positive number of milliseconds",
        )),
    }
}

/// Reads the body of a request, within its limits.
async fn read(app: &App, body: Body) -> Result<Vec<u8>, Failure> {
    let collected = collect(body, app.config.body_limit);
    let read = timeout(app.config.client_timeout, collected).await;
    read.unwrap_or_else(|_| {
        let time = humantime::format_duration(app.config.client_timeout);
        Err(Failure::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not arrive within {time}"),
        ))
    })
}

/// Copies the parts of a body: each may be one byte of a buffer that it keeps.
async fn collect(mut body: Body, limit: ByteSize) -> Result<Vec<u8>, Failure> {
    let too_large = || {
        let message = format!("the body exceeds {limit}; send a shorter prompt");
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    if body.size_hint().lower() > limit.as_u64() {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| Failure::invalid(format!("the body cannot be read: {error}")))?;
        let part = frame.data_ref().map_or(&[][..], |part| &part[..]);
        if (bytes.len() + part.len()) as u64 > limit.as_u64() {
            return Err(too_large());
        }
        bytes.extend_from_slice(part);
    }
    Ok(bytes)
}

/// An answer that is being computed. Dropping it cancels the computation.
struct Running {
    app: Arc<App>,
    events: tokio::sync::mpsc::UnboundedReceiver<Event>,
    text: Text,
    arrived: Instant,
    /// The time of the last token, or of the arrival.
    last: Instant,
    tokens: usize,
    /// How the answer ended: it counts as abandoned until another end is seen.
    end: AnswerEnd,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.app.figures.ended(self.end);
    }
}

/// A part of an answer.
enum Part {
    Token(u32, String),
    End(Finish, String),
    Failed(Failure),
}

impl Running {
    async fn next(&mut self) -> Part {
        match self.events.recv().await {
            Some(Event::Token(token)) => {
                let now = Instant::now();
                let figures = &self.app.figures;
                figures.token(self.tokens == 0, now - self.last);
                self.last = now;
                self.tokens += 1;
                Part::Token(token, self.text.push(token))
            }
            Some(Event::Finished(finish)) => {
                self.end = match finish {
                    Finish::Length => AnswerEnd::Complete,
                    Finish::Deadline => AnswerEnd::Deadline,
                };
                self.app.figures.finished(self.arrived.elapsed());
                Part::End(finish, self.text.finish())
            }
            Some(Event::Failed(reason)) => {
                self.end = AnswerEnd::Failed;
                Part::Failed(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, reason))
            }
            None => {
                self.end = AnswerEnd::Failed;
                let message = "the worker ended before the answer was complete";
                Part::Failed(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, message))
            }
        }
    }
}

/// Returns a whole answer. One that is cut off by its deadline fails with 504.
async fn collected(
    mut running: Running,
    answer: &Answer,
    asked: usize,
    cached: usize,
) -> Result<Response, Failure> {
    let (mut all, mut tokens) = (String::new(), Vec::new());
    loop {
        match running.next().await {
            Part::Token(token, text) => {
                tokens.push(token);
                all.push_str(&text);
            }
            Part::End(Finish::Deadline, _) => return Err(late(tokens.len())),
            Part::End(finish, text) => {
                all.push_str(&text);
                let mut body = answer.part(&all, &tokens, Some(finish));
                body["usage"] = usage(asked, tokens.len(), cached);
                return Ok(Json(body).into_response());
            }
            Part::Failed(failure) => return Err(failure),
        }
    }
}

fn late(tokens: usize) -> Failure {
    let message = format!(
        "the deadline passed after {tokens} tokens of the answer; allow more time, or request fewer tokens"
    );
    Failure::new(StatusCode::GATEWAY_TIMEOUT, message)
}

/// Returns an answer as events: one for each token, one for the end, `[DONE]`. After a failure, or once the deadline
/// has passed, there is an event with the error before `[DONE]`.
fn streamed(
    running: Running,
    answer: Answer,
    wants_usage: Option<(usize, usize)>,
) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let parts = stream::unfold(Some(running), move |running| {
        let answer = answer.clone();
        async move {
            let mut running = running?;
            let part = running.next().await;
            let done = "[DONE]".to_owned();
            let (events, rest) = match part {
                Part::Token(token, text) => {
                    let event = answer.part(&text, &[token], None).to_string();
                    (vec![event], Some(running))
                }
                Part::End(Finish::Deadline, _) => {
                    (vec![late(running.tokens).to_json().to_string(), done], None)
                }
                Part::End(finish, text) => {
                    let mut events = vec![answer.part(&text, &[], Some(finish)).to_string()];
                    if let Some((asked, cached)) = wants_usage {
                        let usage = usage(asked, running.tokens, cached);
                        events.push(answer.usage(usage).to_string());
                    }
                    events.push(done);
                    (events, None)
                }
                Part::Failed(failure) => (vec![failure.to_json().to_string(), done], None),
            };
            Some((stream::iter(events), rest))
        }
    });
    parts
        .flatten()
        .map(|data| Ok(sse::Event::default().data(data)))
}
