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
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
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
        format!(
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n{line}\r\n\r\n"
        )
    };
    let deep = format!("{{\"prompt\": {}", "[".repeat(500_000));
    for (bytes, status) in [
        ("GARBAGE\r\n\r\n".to_owned(), "400"),
        (
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n"
                .to_owned(),
            "400",
        ),
        (header(&format!("x: {}", "y".repeat(1 << 20))), "431"),
        (header("content-length: 5000000000"), "413"),
        (header("content-length: 99999999999999999999999"), "400"),
        (header(&"x: y\r\n".repeat(200)), "431"),
        (
            header("transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\nx"),
            "400",
        ),
        (header("transfer-encoding: chunked\r\n\r\nzz\r\nx"), "400"),
        (header("transfer-encoding: gzip"), "400"),
        (
            header("expect: 100-continue\r\ncontent-length: 5000000000"),
            "413",
        ),
        (header("content-length: 10"), "408"),
        (post(&"x".repeat(2 << 20)), "413"),
        (post("{"), "400"),
        (post(&deep), "400"),
        (post("\u{0}\u{1}"), "400"),
        (
            "GET /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
                .to_owned(),
            "405",
        ),
        (
            "GET /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".to_owned(),
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
async fn unusual_clients_are_served_and_keep_nothing() {
    let config = Config {
        body_limit: bytesize::ByteSize::kib(4),
        client_timeout: Duration::from_secs(2),
        ..config()
    };
    let (server, address, idle) = listening(config).await;
    let valid = r#"{"prompt": "x"}"#;
    // A byte in each chunk.
    let chunks = |text: &str| {
        text.chars()
            .map(|letter| format!("1\r\n{letter}\r\n"))
            .collect::<String>()
            + "0\r\n\r\n"
    };
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n";
    let spread = valid.replace(' ', &" ".repeat(3_000));
    let mut stream = write(address, format!("{head}\r\n{}", chunks(&spread)).as_bytes()).await;
    assert!(read(&mut stream).await.starts_with("HTTP/1.1 200"));
    let endless = valid.replace(' ', &" ".repeat(5_000));
    let mut stream = write(
        address,
        format!("{head}\r\n{}", chunks(&endless)).as_bytes(),
    )
    .await;
    assert!(read(&mut stream).await.starts_with("HTTP/1.1 413"));
    // Two requests at once are answered in their order.
    let both = post(valid).replace("connection: close\r\n", "") + &post(valid);
    let answers = read(&mut write(address, both.as_bytes()).await).await;
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
    // An older protocol.
    let old = post(valid).replace("HTTP/1.1", "HTTP/1.0");
    assert!(
        read(&mut write(address, old.as_bytes()).await)
            .await
            .starts_with("HTTP/1.0 200")
    );
    // It asks before it sends the body.
    let length = valid.len();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
    );
    let mut stream = write(address, head.as_bytes()).await;
    let mut first = [0; 25];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(valid.as_bytes()).await.unwrap();
    assert!(read(&mut stream).await.starts_with("HTTP/1.1 200"));
    // It has sent all that it will send: for the server, it has gone. So has one that left a request behind.
    let long = post(r#"{"prompt": "x", "max_tokens": 100}"#);
    let mut half = write(address, long.as_bytes()).await;
    half.shutdown().await.unwrap();
    drop(read(&mut half).await);
    drop(write(address, format!("{long}{long}").as_bytes()).await);
    assert_idle(&server, idle).await;
    // A connection without a request is closed after a time.
    let mut kept = write(
        address,
        post(valid).replace("connection: close\r\n", "").as_bytes(),
    )
    .await;
    let closed = tokio::time::timeout(Duration::from_secs(20), read(&mut kept)).await;
    assert!(closed.unwrap().starts_with("HTTP/1.1 200"));
    server.shut_down().await.unwrap();
}

/// The only place is taken; the others are connected, and have sent their requests.
#[tokio::test]
async fn clients_that_wait_to_be_accepted_are_refused_at_shutdown() {
    let config = Config {
        connections: 1,
        slowdown: 1000.0,
        ..config()
    };
    let (server, address, _) = listening(config).await;
    let mut first = write(
        address,
        post(r#"{"prompt": "x", "max_tokens": 20, "stream": true}"#).as_bytes(),
    )
    .await;
    first.read_exact(&mut [0; 15]).await.unwrap();
    let mut others = Vec::new();
    for _ in 0..5 {
        others.push(write(address, post(r#"{"prompt": "x"}"#).as_bytes()).await);
    }
    let ended = tokio::spawn(server.shut_down());
    assert!(read(&mut first).await.contains("[DONE]"));
    for mut other in others {
        let answer = read(&mut other).await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer:?}");
    }
    ended.await.unwrap().unwrap();
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

/// The requests of a page of another site: without asking first, and by DNS rebinding; and those of the server's own page.
#[tokio::test]
async fn pages_of_other_sites_neither_compute_nor_read() {
    let config = Config {
        hosts: vec!["pool.example.com".to_owned()],
        ..config()
    };
    let (server, address, idle) = listening(config).await;
    let port = address.port();
    let body = r#"{"prompt": "csrf", "max_tokens": 40}"#;
    let ask = async |method: &str, path: &str, headers: &[String], body: &str| {
        let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let length = body.len();
        let text = format!(
            "{method} {path} HTTP/1.1\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
        );
        let answer = read(&mut write(address, text.as_bytes()).await).await;
        for kept in [
            "cross-origin-resource-policy: same-origin",
            "x-frame-options: DENY",
            "x-content-type-options: nosniff",
            "frame-ancestors 'none'",
        ] {
            assert!(answer.contains(kept), "{kept}: {answer}");
        }
        answer[9..12].parse::<u16>().unwrap()
    };
    let own = format!("host: 127.0.0.1:{port}");
    let json = "content-type: application/json".to_owned();
    let line = |line: &str| line.to_owned();
    let completions = "/v1/completions";
    for (headers, status) in [
        // What a page can send without asking first, and what it would ask for.
        (vec![own.clone(), line("content-type: text/plain")], 415),
        (vec![own.clone()], 415),
        (
            vec![own.clone(), line("content-type: application/json2")],
            415,
        ),
        (
            vec![
                own.clone(),
                json.clone(),
                line("origin: http://evil.example"),
            ],
            403,
        ),
        (vec![own.clone(), json.clone(), line("origin: null")], 403),
        (
            vec![
                own.clone(),
                json.clone(),
                format!("origin: http://localhost:{port}"),
            ],
            403,
        ),
        // Its name resolves to the server's address.
        (
            vec![format!("host: evil.example:{port}"), json.clone()],
            421,
        ),
        (
            vec![line("host: localhost.evil.example"), json.clone()],
            421,
        ),
        (
            vec![own.clone(), line("host: evil.example"), json.clone()],
            421,
        ),
        (vec![own.clone(), json.clone()], 200),
        (
            vec![
                own.clone(),
                json.clone(),
                format!("origin: http://127.0.0.1:{port}"),
            ],
            200,
        ),
        (
            vec![
                format!("host: localhost:{port}"),
                line("content-type: Application/JSON; charset=utf-8"),
            ],
            200,
        ),
        (
            vec![
                line("host: pool.example.com"),
                json.clone(),
                line("origin: https://pool.example.com"),
            ],
            200,
        ),
    ] {
        let answered = ask("POST", completions, &headers, body).await;
        assert_eq!(answered, status, "{headers:?}");
    }
    for path in [
        "/",
        "/metrics",
        "/healthz",
        "/readyz",
        "/v1/models",
        "/nowhere",
    ] {
        let status = ask("GET", path, &[line("host: evil.example")], "").await;
        assert_eq!(status, 421, "{path}");
        let origin = line("origin: http://evil.example");
        assert_eq!(ask("GET", path, &[own.clone(), origin], "").await, 403);
        let status = ask("GET", path, std::slice::from_ref(&own), "").await;
        assert_eq!(status, if path == "/nowhere" { 404 } else { 200 }, "{path}");
    }
    assert_eq!(
        ask("OPTIONS", completions, std::slice::from_ref(&own), "").await,
        405
    );
    let answer = ask("GET", "http://evil.example/metrics", &[own], "").await;
    assert_eq!(answer, 421, "a target with a host of its own");
    assert_idle(&server, idle).await;
    server.shut_down().await.unwrap();
}
