//! Clients over TCP: hostile, slow, and gone.

use crate::common::{assert_idle, config, prompt, used};
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use weirpool_server::{Config, Server};

async fn listening(config: Config) -> (Server, SocketAddr, u64) {
    let server = Server::start(config).await.unwrap();
    let address = server.listen().await.unwrap();
    let idle = used(&server);
    (server, address, idle)
}

fn quick() -> Config {
    Config {
        client_timeout: Duration::from_millis(300),
        ..config()
    }
}

async fn write(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may refuse before it has read all.
    let _ = stream.write_all(bytes).await;
    stream
}

async fn read(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

fn post(body: &str) -> String {
    let length = body.len();
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

async fn assert_serves(address: SocketAddr) {
    let answer = read(&mut write(address, post(r#"{"prompt": "x"}"#).as_bytes()).await).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn hostile_requests_get_clear_answers() {
    let (server, address, idle) = listening(quick()).await;
    let header = |line: &str| {
        format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{line}\r\n\r\n")
    };
    let deep = format!("{{\"prompt\": {}", "[".repeat(500_000));
    for (bytes, status) in [
        ("GARBAGE\r\n\r\n".to_owned(), "400"),
        (
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n".to_owned(),
            "400",
        ),
        (header(&format!("x: {}", "y".repeat(1 << 20))), "431"),
        (header("content-length: 5000000000"), "408"),
        (header("content-length: 10"), "408"),
        (post(&"x".repeat(2 << 20)), "413"),
        (post("{"), "400"),
        (post(&deep), "400"),
        (post("\u{0}\u{1}"), "400"),
        (
            "GET /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_owned(),
            "405",
        ),
        (
            "GET /nowhere HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_owned(),
            "404",
        ),
    ] {
        let shown: String = bytes.chars().take(80).collect();
        let answer = read(&mut write(address, bytes.as_bytes()).await).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{shown:?}: {answer}"
        );
    }
    // Headers that never end are cut off.
    let mut slow = write(address, b"POST /v1/completions HTTP/1.1\r\nhost:").await;
    let cut_off = tokio::time::timeout(Duration::from_secs(20), read(&mut slow)).await;
    assert!(cut_off.is_ok(), "the connection is still open");
    assert_serves(address).await;
    assert_idle(&server, idle).await;
    server.shut_down().await.unwrap();
}

#[tokio::test]
async fn connections_are_limited_and_given_back() {
    let config = Config {
        connections: 8,
        ..quick()
    };
    let (server, address, idle) = listening(config).await;
    // They send nothing, and are cut off after the timeout; then others are accepted.
    let mut idlers = Vec::new();
    for _ in 0..40 {
        idlers.push(TcpStream::connect(address).await.unwrap());
    }
    assert_serves(address).await;
    assert_idle(&server, idle).await;
    drop(idlers);
    server.shut_down().await.unwrap();
}

#[tokio::test]
async fn killed_clients_and_slow_readers_keep_no_memory() {
    let (server, address, idle) = listening(quick()).await;
    let clients = (0..60).map(async |number: u64| {
        let mut random = fastrand::Rng::with_seed(number);
        let body =
            json!({"prompt": prompt(number % 5, 28), "max_tokens": 100, "stream": !number.is_multiple_of(3)});
        let text = post(&body.to_string());
        let end = random.usize(1..=text.len());
        match number % 4 {
            // Goes at a random point of its request.
            0 => drop(write(address, &text.as_bytes()[..end]).await),
            // Goes at a random time.
            1 | 2 => {
                let mut stream = write(address, text.as_bytes()).await;
                let patience = Duration::from_micros(random.u64(..50_000));
                let _ = tokio::time::timeout(patience, read(&mut stream)).await;
                // With data unread, this resets the connection.
                drop(stream);
            }
            // Reads a byte now and then.
            _ => {
                let mut stream = write(address, text.as_bytes()).await;
                for _ in 0..20 {
                    let _ = stream.read(&mut [0]).await;
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        }
    });
    futures::future::join_all(clients).await;
    assert_idle(&server, idle).await;
    assert_serves(address).await;
    server.shut_down().await.unwrap();
}
