//! The end of a server under load: answers that run are completed, the rest is refused, and the page does not delay it.

use crate::common::{config, prompt, used};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::json;
use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weirpool::device::sim::{Clock, SimDevice};
use weirpool::{AllocError, Pool, Stream};
use weirpool_dashboard::Dashboard;
use weirpool_server::{Config, Server};
use weirpool_tower::Answer;

const PATIENCE: Duration = Duration::from_secs(60);

/// What became of the requests of all clients.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Answers with their last event.
    pub(crate) complete: AtomicUsize,
    /// Answers of 503 with `Retry-After`.
    pub(crate) refused: AtomicUsize,
    /// Answers that began and did not end as they should.
    pub(crate) broken: AtomicUsize,
}

impl Counters {
    fn counts(&self) -> [usize; 3] {
        [&self.complete, &self.refused, &self.broken].map(|count| count.load(Ordering::SeqCst))
    }

    /// Waits until some answers are complete, while others run.
    pub(crate) fn wait_for_load(&self) {
        let begin = Instant::now();
        while self.counts()[0] < 20 {
            assert!(begin.elapsed() < PATIENCE, "{self:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Checks that no answer broke, among those of more clients than the server has memory for.
    pub(crate) fn assert_none_broke(&self) {
        let [complete, refused, broken] = self.counts();
        assert_eq!(broken, 0, "{self:?}");
        assert!(complete > 20 && refused > 0, "{self:?}");
    }
}

fn ask(address: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&part[..read]),
            // The server never saw the request, or it broke the answer.
            Err(error) if answer.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    match answer.is_empty() {
        true => Err(std::io::ErrorKind::UnexpectedEof.into()),
        false => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}

/// Sends one request after the other, until the server listens no more.
pub(crate) fn client(address: SocketAddr, number: u64, counters: &Counters) {
    for request in 0.. {
        let prompt = prompt(number * 1000 + request, 28);
        let body = json!({"prompt": prompt, "max_tokens": 60, "stream": true}).to_string();
        let length = body.len();
        let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close";
        let head = format!("{head}\r\ncontent-type: application/json\r\ncontent-length: {length}");
        let Ok(answer) = ask(address, &format!("{head}\r\n\r\n{body}")) else {
            return;
        };
        let is_whole = answer.ends_with("0\r\n\r\n") && answer.contains("data: [DONE]");
        let is_refusal = answer.to_ascii_lowercase().contains("\r\nretry-after: ");
        let count = match answer.get(..12) {
            Some("HTTP/1.1 200") if is_whole => &counters.complete,
            Some("HTTP/1.1 503") if is_refusal => &counters.refused,
            _ => {
                eprintln!("{answer}");
                &counters.broken
            }
        };
        count.fetch_add(1, Ordering::SeqCst);
    }
}

/// Watches the page until it ends. Returns what came.
pub(crate) fn viewer(address: SocketAddr) -> String {
    let request = "GET / HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n";
    ask(address, request).unwrap()
}

/// Each answer takes a few hundred milliseconds, and eight of them fit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_breaks_when_a_server_under_load_is_shut_down() {
    let server = Server::start(Config {
        capacity: bytesize::ByteSize::mib(2),
        slowdown: 400.0,
        // A connection that does not end by itself delays the end by this.
        client_timeout: PATIENCE,
        ..config()
    });
    let server = server.await.unwrap();
    let pool = server.pool().clone();
    let address = server.listen().await.unwrap();
    assert!(used(&server) > 0);
    let counters = Counters::default();
    let runtime = tokio::runtime::Handle::current();
    let (took, page) = thread::scope(|scope| {
        let page = scope.spawn(|| viewer(address));
        for number in 0..24 {
            let counters = &counters;
            scope.spawn(move || client(address, number, counters));
        }
        counters.wait_for_load();
        assert!(server.running() > 0);
        let begin = Instant::now();
        let ended = tokio::task::block_in_place(|| runtime.block_on(server.shut_down()));
        ended.unwrap();
        (begin.elapsed(), page.join().unwrap())
    });
    counters.assert_none_broke();
    assert!(page.ends_with("0\r\n\r\n"), "{page}");
    assert!(took < PATIENCE / 2, "{took:?}: an open page holds it up");
    assert!(pool.inspect().health().is_closed);
    assert_eq!(pool.inspect().statistics().used.current, 0);
}

/// Streams 64 lines, and allocates for each of them from the answer's reservation.
async fn lines(pool: Pool, stream: Stream) -> Response {
    let reserved = match pool.reserve(1 << 20).await {
        Ok(reserved) => reserved,
        Err(error) => return error.response::<Body>().into_response(),
    };
    let lines = futures::stream::unfold((reserved, stream, 0), async |(reserved, stream, line)| {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let block = reserved.allocate(&stream, 64 << 10);
        let text = match (line, block) {
            (64, _) => return None,
            (63, Ok(_)) => Ok("data: [DONE]\n".to_owned()),
            (line, Ok(_)) => Ok(format!("{line}\n")),
            (_, Err(error)) => Err::<String, AllocError>(error),
        };
        Some((text.map(Bytes::from), (reserved, stream, line + 1)))
    });
    Body::from_stream(lines).into_response()
}

/// The end of a service as the guide writes it, with axum's own graceful shutdown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn axum_service_ends_although_its_page_is_open_and_breaks_no_answer() {
    let device = SimDevice::builder().clock(Clock::Wall).build();
    let pool = Pool::builder(device).capacity(8 << 20).build().unwrap();
    let stream = pool.create_stream().unwrap();
    let answer = {
        let pool = pool.clone();
        move || lines(pool.clone(), stream.clone())
    };
    let app = Router::new().route("/v1/completions", post(answer));
    let app = app.route_service("/", Dashboard::new(&pool));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (terminate, terminated) = tokio::sync::oneshot::channel::<Infallible>();
    let stopping = pool.clone();
    let served = tokio::spawn(async move {
        axum::serve(listener, app)
            .with_graceful_shutdown(async move {
                let _ = terminated.await;
                stopping.stop_admitting();
            })
            .await
    });
    let counters = Counters::default();
    let runtime = tokio::runtime::Handle::current();
    thread::scope(|scope| {
        let page = scope.spawn(|| viewer(address));
        for number in 0..24 {
            let counters = &counters;
            scope.spawn(move || client(address, number, counters));
        }
        counters.wait_for_load();
        drop(terminate);
        let ended = tokio::time::timeout(PATIENCE / 2, served);
        let ended = tokio::task::block_in_place(|| runtime.block_on(ended));
        ended.expect("the open page ends").unwrap().unwrap();
        assert!(page.join().unwrap().ends_with("0\r\n\r\n"));
    });
    counters.assert_none_broke();
    let drained = pool.drain().timeout(Duration::from_secs(5)).await;
    drained.unwrap();
    pool.close();
}
