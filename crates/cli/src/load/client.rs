//! One request to the server, with its retries, from its arrival to its end.

use super::descriptors;
use super::events::{Event, Events, LONGEST_LINE, Malformed, message};
use super::plan::{Abandon, Planned};
use super::record::{End, Recorder};
use crate::options::{Load, LoadTarget, Retry};
use fastrand::Rng;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// The most that is read of a refusal, and behind the end of an answer.
const REST: usize = 64 << 10;
/// How long a client waits for the body of a refusal, and for the end of a body behind the end of its answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The attempts of a request that is retried.
const ATTEMPTS: u32 = 6;
/// The first pause between attempts, unless the server names one. It doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The receive buffer of a slow client's socket in bytes.
const SLOW_BUFFER: u32 = 4096;
/// The least buffer of hyper.
const SMALL_BUFFER: usize = 8 << 10;
/// The most bytes of an answer's head.
const BUFFER: usize = 64 << 10;

/// Why a request has no complete answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(
        "no file descriptor is free for a further connection; raise the limit (`ulimit -n`), or lower --rate or --clients"
    )]
    NoDescriptor,
    #[error("the server cannot be reached: {0}")]
    Unreachable(io::Error),
    #[error("no valid answer: {0}")]
    NoAnswer(hyper::Error),
    #[error("the answer has not ended within the time of --timeout")]
    TimedOut,
    #[error("the answer broke off: {0}")]
    BrokeOff(hyper::Error),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("the server reports within the answer: {0}")]
    Reported(String),
    #[error("the server reports that the deadline passed: {0}")]
    Late(String),
    #[error("the answer ended without `data: [DONE]`")]
    NoEnd,
    #[error("the answer is not a JSON object with a `finish_reason`")]
    NotWhole,
}

impl Failure {
    fn end(&self) -> End {
        match self {
            Self::NoDescriptor => End::Unsent,
            Self::Unreachable(_) | Self::NoAnswer(_) => End::TransportError,
            Self::TimedOut => End::TimedOut,
            Self::Late(_) => End::Late,
            Self::BrokeOff(_)
            | Self::Malformed(_)
            | Self::Reported(_)
            | Self::NoEnd
            | Self::NotWhole => End::Broken,
        }
    }
}

/// How one attempt ended that has a status, or that the client ended itself.
enum Outcome {
    Done,
    Abandoned,
    Refused {
        status: StatusCode,
        retry_after: Option<String>,
        message: String,
    },
}

/// A connection with the task that drives it.
struct Connection {
    send: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
    _permit: OwnedSemaphorePermit,
}

/// The socket is closed, whatever is under way on it.
impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// All clients of one server.
pub(super) struct Client {
    options: Load,
    address: SocketAddr,
    host: String,
    idle: Mutex<Vec<Connection>>,
    /// One permit for each connection that may be open.
    connections: Arc<Semaphore>,
    recorder: Mutex<Recorder>,
}

impl Client {
    pub(super) fn new(options: Load, address: SocketAddr) -> Self {
        let LoadTarget { host, port, .. } = &options.url;
        let host = match host.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => format!("[{address}]:{port}"),
            _ => format!("{host}:{port}"),
        };
        Self {
            address,
            host,
            idle: Mutex::default(),
            connections: Arc::new(Semaphore::new(descriptors::for_connections())),
            recorder: Mutex::new(Recorder::new(options.keys.len())),
            options,
        }
    }

    pub(super) fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request that arrived at `arrival`, and counts how it ends.
    pub(super) async fn serve(&self, planned: Planned, arrival: Instant) -> End {
        self.recorder().late.record(arrival.elapsed());
        let mut random = Rng::with_seed(planned.seed);
        let mut attempts = 0;
        let end = loop {
            attempts += 1;
            let outcome = self.attempt(&planned, arrival).await;
            let pause = self.pause(&outcome, attempts, &mut random);
            let left = self.options.timeout.saturating_sub(arrival.elapsed());
            match pause.filter(|pause| *pause < left) {
                Some(pause) => {
                    self.recorder().retries += 1;
                    sleep(pause).await;
                }
                None => break self.conclude(outcome, arrival, &planned),
            }
        };
        self.recorder().ended(planned.key, end);
        end
    }

    /// Makes one attempt, and counts its status, or that it has none.
    async fn attempt(&self, planned: &Planned, arrival: Instant) -> Result<Outcome, Failure> {
        self.recorder().attempts += 1;
        let mut status = None;
        let left = self.options.timeout.saturating_sub(arrival.elapsed());
        let answer = self.exchange(planned, arrival, &mut status);
        let outcome = match planned.abandon {
            Some(Abandon::After(patience)) if patience < left => timeout(patience, answer)
                .await
                .unwrap_or(Ok(Outcome::Abandoned)),
            _ => timeout(left, answer)
                .await
                .unwrap_or(Err(Failure::TimedOut)),
        };
        self.recorder().answered(status);
        outcome
    }

    /// Returns the time until the next attempt, if there is one.
    fn pause(
        &self,
        outcome: &Result<Outcome, Failure>,
        attempts: u32,
        random: &mut Rng,
    ) -> Option<Duration> {
        if self.options.retry == Retry::None || attempts == ATTEMPTS {
            return None;
        }
        let named = match outcome {
            Ok(Outcome::Refused {
                status: StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE,
                retry_after,
                ..
            }) => retry_after.as_ref().and_then(|text| text.parse().ok()),
            Err(Failure::Unreachable(_)) => None,
            _ => return None,
        };
        let doubled = FIRST_PAUSE * (1 << (attempts - 1));
        let pause = named.map_or(doubled, Duration::from_secs);
        // So that clients that were refused together do not return together.
        Some(pause.saturating_add(pause.checked_div(2)?.mul_f64(random.f64())))
    }

    fn conclude(
        &self,
        outcome: Result<Outcome, Failure>,
        arrival: Instant,
        planned: &Planned,
    ) -> End {
        let mut recorder = self.recorder();
        match outcome {
            Ok(Outcome::Done) => {
                if !planned.is_slow {
                    recorder.whole.record(arrival.elapsed());
                }
                End::Done
            }
            Ok(Outcome::Abandoned) => End::Abandoned,
            Ok(Outcome::Refused {
                status,
                retry_after,
                message,
            }) => {
                recorder.note(status.as_str(), &message);
                match retry_after {
                    Some(_) => End::RefusedWithRetryAfter,
                    None => End::RefusedWithoutRetryAfter,
                }
            }
            Err(failure) => {
                let end = failure.end();
                recorder.note(end.name(), &described(&failure));
                end
            }
        }
    }

    async fn exchange(
        &self,
        planned: &Planned,
        arrival: Instant,
        status: &mut Option<StatusCode>,
    ) -> Result<Outcome, Failure> {
        let request = self.request(planned, arrival);
        let (connection, response) = self.send(request, planned.is_slow).await?;
        *status = Some(response.status());
        if !response.status().is_success() {
            return Ok(self.refusal(connection, response).await);
        }
        let body = response.into_body();
        match self.options.whole {
            true => self.whole(connection, body).await,
            false => self.answer(connection, body, planned, arrival).await,
        }
    }

    fn request(&self, planned: &Planned, arrival: Instant) -> Request<Full<Bytes>> {
        let is_streamed = !self.options.whole;
        let body = planned.body(&self.options.model, self.options.prompt_form, is_streamed);
        let accepted = match is_streamed {
            true => "text/event-stream",
            false => "application/json",
        };
        let mut request = Request::post(&*self.options.url.path)
            .header(HOST, &*self.host)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, accepted);
        if let Some(key) = planned.key {
            let key = &self.options.keys[key].key;
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        if let Some(deadline) = self.options.deadline {
            let left = deadline.saturating_sub(arrival.elapsed());
            request = request.header("x-deadline-ms", left.as_millis().max(1).to_string());
        }
        request
            .body(Full::from(body))
            .expect("options are checked when they are parsed")
    }

    /// Sends the request on a connection of its own, or on one that an earlier request has left.
    async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
        is_slow: bool,
    ) -> Result<(Connection, Response<Incoming>), Failure> {
        while let Some(mut connection) = self.idle(is_slow) {
            // A connection that the server has closed meanwhile gives the request back.
            match connection.send.try_send_request(request).await {
                Ok(response) => return Ok((connection, response)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(Failure::NoAnswer(error.into_error())),
                },
            }
        }
        let mut connection = self.connect(is_slow).await?;
        let response = connection.send.send_request(request).await;
        let response = response.map_err(Failure::NoAnswer)?;
        Ok((connection, response))
    }

    fn idle(&self, is_slow: bool) -> Option<Connection> {
        if is_slow {
            return None;
        }
        self.idle_list().pop()
    }

    fn idle_list(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self, is_slow: bool) -> Result<Connection, Failure> {
        let permit = self.permit().ok_or(Failure::NoDescriptor)?;
        let stream = self.stream(is_slow).await.map_err(|error| {
            if descriptors::are_exhausted(&error) {
                Failure::NoDescriptor
            } else {
                Failure::Unreachable(error)
            }
        })?;
        let mut builder = Builder::new();
        builder.max_buf_size(if is_slow { SMALL_BUFFER } else { BUFFER });
        let (send, driver) = builder
            .handshake(TokioIo::new(stream))
            .await
            .map_err(Failure::NoAnswer)?;
        let driver = tokio::spawn(async {
            // Its errors are those of the request.
            let _ = driver.await;
        });
        Ok(Connection {
            send,
            driver: driver.abort_handle(),
            _permit: permit,
        })
    }

    /// An idle connection gives way to a client that may not use it.
    fn permit(&self) -> Option<OwnedSemaphorePermit> {
        let permit = self.connections.clone().try_acquire_owned();
        permit.ok().or_else(|| {
            drop(self.idle_list().pop()?);
            self.connections.clone().try_acquire_owned().ok()
        })
    }

    async fn stream(&self, is_slow: bool) -> io::Result<TcpStream> {
        let socket = match self.address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        if is_slow {
            socket.set_recv_buffer_size(SLOW_BUFFER)?;
        }
        let stream = socket.connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn refusal(&self, connection: Connection, response: Response<Incoming>) -> Outcome {
        let (head, mut body) = response.into_parts();
        let mut text = Vec::new();
        if rest(&mut body, |piece| text.extend_from_slice(piece)).await {
            self.keep(connection);
        }
        let retry_after = head.headers.get(RETRY_AFTER);
        Outcome::Refused {
            status: head.status,
            retry_after: retry_after.map(|value| String::from_utf8_lossy(value.as_bytes()).into()),
            message: refusal_message(&text),
        }
    }

    /// Reads an answer that is not streamed.
    async fn whole(&self, connection: Connection, mut body: Incoming) -> Result<Outcome, Failure> {
        let mut text = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(Failure::BrokeOff)?;
            text.extend_from_slice(frame.data_ref().map_or(&[][..], |piece| piece));
            if text.len() > LONGEST_LINE {
                return Err(Malformed::LongLine.into());
            }
        }
        let answer = serde_json::from_slice::<serde_json::Value>(&text).ok();
        let answer = answer.filter(|answer| answer["choices"][0]["finish_reason"].is_string());
        let answer = answer.ok_or(Failure::NotWhole)?;
        let tokens = answer["usage"]["completion_tokens"].as_u64();
        self.recorder().tokens += tokens.unwrap_or_default();
        self.keep(connection);
        Ok(Outcome::Done)
    }

    async fn answer(
        &self,
        connection: Connection,
        mut body: Incoming,
        planned: &Planned,
        arrival: Instant,
    ) -> Result<Outcome, Failure> {
        let mut events = Events::default();
        let mut tokens = 0;
        let mut last: Option<Instant> = None;
        let abandons = |tokens| planned.abandon == Some(Abandon::AfterTokens(tokens));
        if abandons(0) {
            return Ok(Outcome::Abandoned);
        }
        loop {
            if planned.is_slow {
                sleep(self.options.slow_pause).await;
            }
            let frame = body.frame().await.ok_or(Failure::NoEnd)?;
            let frame = frame.map_err(Failure::BrokeOff)?;
            let Some(piece) = frame.data_ref() else {
                continue;
            };
            let mut ended = None;
            events.read(piece, |event| {
                match event {
                    Event::Token => {
                        tokens += 1;
                        self.token(&mut last, planned, arrival);
                        ended = abandons(tokens).then_some(Ok(Outcome::Abandoned));
                    }
                    Event::Done => ended = Some(Ok(Outcome::Done)),
                    Event::Error(message) => ended = Some(Err(Failure::Reported(message))),
                    Event::Late(message) => ended = Some(Err(Failure::Late(message))),
                    Event::Other => {}
                }
                ended.is_none()
            })?;
            match ended {
                Some(Ok(Outcome::Done)) => {
                    if rest(&mut body, |_| ()).await {
                        self.keep(connection);
                    }
                    return Ok(Outcome::Done);
                }
                Some(ended) => return ended,
                None => {}
            }
        }
    }

    fn token(&self, last: &mut Option<Instant>, planned: &Planned, arrival: Instant) {
        let now = Instant::now();
        let mut recorder = self.recorder();
        recorder.tokens += 1;
        if !planned.is_slow {
            match *last {
                Some(last) => recorder.between.record(now - last),
                None => recorder.first_token(planned.key, now - arrival),
            }
        }
        *last = Some(now);
    }

    fn keep(&self, connection: Connection) {
        if !connection.send.is_closed() {
            self.idle_list().push(connection);
        }
    }
}

/// Reads the rest of a body, within limits, and returns whether it has ended.
async fn rest(body: &mut Incoming, mut seen: impl FnMut(&[u8])) -> bool {
    let read = async {
        let mut left = REST;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return false };
            let piece = frame.data_ref().map_or(&[][..], |piece| &piece[..]);
            if piece.len() > left {
                return false;
            }
            left -= piece.len();
            seen(piece);
        }
        true
    };
    timeout(PATIENCE, read).await.unwrap_or(false)
}

/// Returns the message of an error as OpenAI shapes it, or the body as it is.
fn refusal_message(body: &[u8]) -> String {
    let parsed = serde_json::from_slice::<serde_json::Value>(body).ok();
    let error = parsed.as_ref().and_then(|parsed| parsed.get("error"));
    error.map_or_else(|| String::from_utf8_lossy(body).into_owned(), message)
}

/// Returns the message with its causes: hyper's messages name none.
fn described(failure: &Failure) -> String {
    let mut text = failure.to_string();
    let (Failure::NoAnswer(error) | Failure::BrokeOff(error)) = failure else {
        return text;
    };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
