//! `weirpool load`, executed against servers of this process, of which most are hostile.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A request as a server read it.
struct Seen {
    /// The number of the request, from 0.
    number: usize,
    head: String,
    body: Value,
}

impl Seen {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let value = lines.find(|(key, _)| key.eq_ignore_ascii_case(name))?.1;
        Some(value)
    }
}

/// Reads a request; none if the client has gone.
fn read(reader: &mut BufReader<TcpStream>, numbers: &AtomicUsize) -> Option<Seen> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let mut seen = Seen {
        number: numbers.fetch_add(1, Ordering::SeqCst),
        head,
        body: Value::Null,
    };
    let mut body = vec![0; seen.header("content-length")?.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    seen.body = serde_json::from_slice(&body).unwrap();
    Some(seen)
}

/// Answers each request, on a thread for each connection. `answer` returns whether the connection goes on.
fn serve(answer: impl Fn(&Seen, &mut TcpStream) -> bool + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let shared = Arc::new((answer, AtomicUsize::new(0)));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (shared, mut stream) = (shared.clone(), stream.unwrap());
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while let Some(seen) = read(&mut reader, &shared.1) {
                    if !(shared.0)(&seen, &mut stream) {
                        break;
                    }
                }
            });
        }
    });
    address
}

const HEAD: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const TOKEN: &str = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

/// The whole answer to a request.
fn answer(tokens: usize) -> String {
    let tokens = chunk(TOKEN).repeat(tokens);
    format!("{HEAD}{tokens}{}{}", chunk("data: [DONE]\n\n"), chunk(""))
}

fn send(stream: &mut TcpStream, text: &str) -> bool {
    stream.write_all(text.as_bytes()).is_ok()
}

/// Sends the text, and closes the connection.
fn last(stream: &mut TcpStream, text: &str) -> bool {
    send(stream, text);
    false
}

fn load(address: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weirpool"));
    command.args(["load", &format!("http://{address}"), "--json"]);
    command.args(arguments);
    command
}

/// Runs a load whose counts add up, and returns its report.
fn report(address: SocketAddr, arguments: &[&str]) -> Value {
    let output = load(address, arguments).output().unwrap();
    let report = parse(&output);
    assert!(output.status.success(), "{output:?}");
    report
}

fn parse(output: &Output) -> Value {
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let sum = |counts: &Value| -> u64 {
        let counts = counts.as_object().unwrap().values();
        counts.map(|count| count.as_u64().unwrap()).sum()
    };
    assert_eq!(sum(&report["ends"]), report["requests"], "{report}");
    assert_eq!(sum(&report["statuses"]), report["attempts"], "{report}");
    report
}

#[test]
fn requests_are_as_the_options_say_and_all_end() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    let address = serve(move |request, stream| {
        let tokens = request.body["max_tokens"].as_u64().unwrap();
        let header = |name| request.header(name).map(str::to_owned);
        let prompt = request.body["prompt"].as_array().unwrap();
        assert!(prompt.iter().all(|id| id.as_u64().unwrap() < 256));
        assert_eq!(request.body["stream"], true);
        assert!(request.head.starts_with("POST /v1/completions HTTP/1.1"));
        let deadline = header("X-Deadline-Ms").unwrap().parse::<u64>().unwrap();
        assert!((1..=30_000).contains(&deadline));
        sink.lock()
            .unwrap()
            .push((header("authorization"), prompt.len(), tokens));
        send(stream, &answer(tokens as usize))
    });
    let keys = ["--key=one", "--key=two=3"];
    let lengths = ["--prompt-tokens=3..5", "--max-tokens=2..4"];
    let rest = ["--clients=4", "--requests=40", "--deadline=30s"];
    let report = report(address, &[&keys[..], &lengths, &rest].concat());
    let seen = seen.lock().unwrap();
    assert_eq!(report["requests"], 40);
    assert_eq!(report["ends"]["done"], 40);
    assert_eq!(report["statuses"]["200"], 40);
    assert_eq!(seen.len(), 40, "no request was sent twice");
    assert!(
        seen.iter()
            .all(|(_, prompt, tokens)| { (3..=5).contains(prompt) && (2..=4).contains(tokens) })
    );
    let tokens: u64 = seen.iter().map(|(_, _, tokens)| tokens).sum();
    assert_eq!(report["tokens"], tokens);
    assert_eq!(report["time_to_first_token_ms"]["count"], 40);
    assert_eq!(report["time_between_tokens_ms"]["count"], tokens - 40);
    for (number, key) in ["Bearer one", "Bearer two"].iter().enumerate() {
        let sent = seen
            .iter()
            .filter(|(sent, ..)| sent.as_deref() == Some(key));
        assert_eq!(report["keys"][number]["requests"], sent.count());
    }
}

/// The server answers no request before the last one has arrived.
#[test]
fn arrivals_do_not_wait_for_answers() {
    const ALL: usize = 12;
    let arrived = Arc::new((Mutex::new(0), Condvar::new()));
    let address = serve(move |_, stream| {
        let mut count = arrived.0.lock().unwrap();
        *count += 1;
        arrived.1.notify_all();
        while *count < ALL {
            count = arrived.1.wait(count).unwrap();
        }
        drop(count);
        send(stream, &answer(1))
    });
    let report = report(
        address,
        &["--rate=200", "--requests=12", "--duration=1h", "--seed=5"],
    );
    assert_eq!(report["ends"]["done"], ALL);
}

/// A file of this test, removed when dropped.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str, content: &str) -> Self {
        let process = std::process::id();
        let path = std::env::temp_dir().join(format!("weirpool-load-{process}-{name}"));
        std::fs::write(&path, content).unwrap();
        Self(path)
    }

    fn argument(&self) -> String {
        format!("--arrivals={}", self.0.display())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Requests arrive at 0, 200, 200, 400 and 7,000 ms in both formats, replayed twice as fast; the last comes too late.
#[test]
fn recorded_arrivals_come_at_their_times_with_their_lengths() {
    let lengths = [(300, 2), (20, 1), (5000, 3), (1, 9), (7, 7)];
    let times = [(59, 900), (60, 100), (60, 100), (60, 300), (66, 900)];
    let mut csv = "TIMESTAMP,ContextTokens,GeneratedTokens\n".to_owned();
    let mut json = String::new();
    for ((second, millisecond), (prompt, answer)) in times.iter().zip(lengths) {
        let clock = format!("{:02}:{:02}.{millisecond}0000", second / 60, second % 60);
        csv += &format!("2023-11-16 18:{clock},{prompt},{answer}\r\n");
        let time = second * 1000 + millisecond;
        json += &format!(
            "{{\"timestamp\": {time}, \"input_length\": {prompt}, \"output_length\": {answer}, \"hash_ids\": [1]}}\n"
        );
    }
    for (name, content) in [("a.csv", csv), ("a.jsonl", json)] {
        let file = Scratch::new(name, &content);
        let begin = Instant::now();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = seen.clone();
        let address = serve(move |request, stream| {
            let tokens = request.body["max_tokens"].as_u64().unwrap();
            let prompt = request.body["prompt"].as_array().unwrap().len();
            let mut seen = sink.lock().unwrap();
            seen.push((prompt, tokens, begin.elapsed()));
            send(stream, &answer(tokens as usize))
        });
        let rest = ["--speed=2", "--duration=2s", "--prompt-tokens=10..400"];
        let report = report(address, &[&[&*file.argument()], &rest[..]].concat());
        assert_eq!(report["ends"]["done"], 4);
        let mut seen = std::mem::take(&mut *seen.lock().unwrap());
        seen.sort_by_key(|(.., at)| *at);
        let first = seen[0].2;
        assert!(seen[1].2 - first >= Duration::from_millis(80), "{seen:?}");
        assert!(seen[3].2 - first >= Duration::from_millis(180), "{seen:?}");
        let mut lengths: Vec<_> = seen
            .iter()
            .map(|(prompt, answer, _)| (*prompt, *answer))
            .collect();
        lengths.sort_unstable();
        assert_eq!(lengths, [(10, 9), (20, 1), (300, 2), (400, 3)]);
    }
}

/// All arrive at once, of which four may be in flight. The server answers once it has seen that there are no more.
#[test]
fn arrivals_beyond_the_bound_are_sent_later_with_the_times_of_their_arrivals() {
    const ALL: usize = 12;
    let json = "{\"timestamp\": 1, \"input_length\": 3, \"output_length\": 1}\n";
    let file = Scratch::new("burst.jsonl", &json.repeat(ALL));
    let open = Arc::new(Mutex::new((0, 0)));
    let seen = open.clone();
    let address = serve(move |_, stream| {
        {
            let (now, most) = &mut *seen.lock().unwrap();
            *now += 1;
            *most = (*most).max(*now);
        }
        thread::sleep(Duration::from_millis(100));
        seen.lock().unwrap().0 -= 1;
        send(stream, &answer(1))
    });
    let report = report(address, &[&file.argument(), "--in-flight=4096"]);
    assert_eq!(report["ends"]["done"], ALL);
    assert_eq!(open.lock().unwrap().1, 4);
    let longest = report["time_to_first_token_ms"]["max"].as_f64().unwrap();
    assert!(longest >= 200.0, "{report}");
}

/// A line of a pipe is read when its turn has come: what comes before it has been sent.
#[cfg(unix)]
#[test]
fn malformed_line_of_a_pipe_ends_the_load_when_it_is_read() {
    let address = serve(|_, stream| send(stream, &answer(1)));
    let mut command = load(address, &["--arrivals=/dev/stdin"]);
    command.stdin(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let line = "{\"timestamp\": 1, \"input_length\": 3, \"output_length\": 1}\n";
    input
        .write_all(format!("{line}no request\n").as_bytes())
        .unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("stdin:2: the line is `no request`"), "{text}");
}

#[test]
fn malformed_arrivals_end_the_load_before_the_first_request() {
    let address = serve(|_, _| panic!("a request"));
    let file = Scratch::new(
        "bad.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,x\n",
    );
    let output = load(address, &[&file.argument()]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("bad.csv:2: GeneratedTokens is `x`, expected a whole number"),
        "{text}"
    );
    let output = load(address, &["--arrivals=/nowhere/a.csv"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("/nowhere/a.csv: cannot be read, expected arrivals"),
        "{text}"
    );
}

#[test]
fn refusals_are_counted_by_their_retry_after() {
    let address = serve(|request, stream| {
        let body = "{\"error\":{\"message\":\"the queue is full\"}}";
        let length = body.len();
        let (status, header) = match request.number % 2 {
            0 => ("503 Service Unavailable", "Retry-After: 7\r\n"),
            _ => ("413 Content Too Large", ""),
        };
        let head = format!("HTTP/1.1 {status}\r\n{header}Content-Length: {length}\r\n\r\n");
        send(stream, &(head + body))
    });
    let report = report(address, &["--clients=1", "--requests=10"]);
    assert_eq!(report["ends"]["refused_with_retry_after"], 5);
    assert_eq!(report["ends"]["refused_without_retry_after"], 5);
    assert_eq!(
        (&report["statuses"]["503"], &report["statuses"]["413"]),
        (&5.into(), &5.into())
    );
    assert_eq!(report["messages"]["503"], "the queue is full");
}

/// The times count from the arrival, over all attempts.
#[test]
fn refused_request_is_sent_again_after_the_time_that_the_server_names() {
    let address = serve(|request, stream| {
        send(
            stream,
            &match request.number {
                0 => {
                    "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
                        .into()
                }
                _ => answer(1),
            },
        )
    });
    let arguments = ["--clients=1", "--requests=1", "--retry=backoff"];
    let report = report(address, &arguments);
    assert_eq!(
        (&report["attempts"], &report["retries"]),
        (&2.into(), &1.into())
    );
    assert_eq!(report["ends"]["done"], 1);
    assert_eq!(
        (&report["statuses"]["429"], &report["statuses"]["200"]),
        (&1.into(), &1.into())
    );
    let first = report["time_to_first_token_ms"]["max"].as_f64().unwrap();
    assert!(first >= 999.0, "{first}");
}

#[test]
fn server_that_refuses_for_ever_ends_the_retries() {
    let address = serve(|_, stream| {
        send(
            stream,
            "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n",
        )
    });
    let arguments = ["--clients=2", "--requests=4", "--retry=backoff"];
    let report = report(address, &arguments);
    assert_eq!(
        (&report["attempts"], &report["retries"]),
        (&24.into(), &20.into())
    );
    assert_eq!(report["ends"]["refused_with_retry_after"], 4);
}

/// Writes the text again and again, until the client has gone.
fn endless(stream: &mut TcpStream, head: &str, text: &str) -> bool {
    let text = text.repeat(64);
    let mut goes_on = send(stream, head);
    while goes_on {
        goes_on = send(stream, &text);
    }
    false
}

/// The process may take as much address space as its threads reserve, and little more.
#[test]
#[cfg(target_os = "linux")]
fn hostile_servers_are_reported_in_bounded_memory() {
    type Answer = fn(&Seen, &mut TcpStream) -> bool;
    let cases: [(&str, Option<u16>, &str, Answer); 16] = [
        ("timed_out", None, "--timeout", |_, stream| {
            // Until the client goes.
            let _ = stream.read(&mut [0]);
            false
        }),
        ("transport_error", None, "no valid answer", |_, _| false),
        ("transport_error", None, "no valid answer", |_, stream| {
            last(stream, "HTTP/1.1 abc\r\n\r\n")
        }),
        ("transport_error", None, "no valid answer", |_, stream| {
            last(stream, "\u{0}\u{1}\u{2}garbage\r\n\r\n")
        }),
        ("transport_error", None, "no valid answer", |_, stream| {
            endless(stream, "HTTP/1.1 200 OK\r\n", "X-Header: value\r\n")
        }),
        ("transport_error", None, "no valid answer", |_, stream| {
            endless(stream, "HTTP/1.1 200 OK\r\nX-Header: ", "endless")
        }),
        ("broken", Some(200), "broke off", |_, stream| {
            last(stream, &format!("{HEAD}{}", chunk(TOKEN)))
        }),
        (
            "broken",
            Some(200),
            "without `data: [DONE]`",
            |_, stream| last(stream, &format!("{HEAD}{}{}", chunk(TOKEN), chunk(""))),
        ),
        ("broken", Some(200), "a line of more than", |_, stream| {
            endless(stream, HEAD, &chunk(&"data: endless".repeat(1000)))
        }),
        ("broken", Some(200), "broke off", |_, stream| {
            last(stream, &format!("{HEAD}fffffffffffffffff\r\n"))
        }),
        ("broken", Some(200), "not a JSON object", |_, stream| {
            last(
                stream,
                &format!("{HEAD}{}", chunk("data: {\"choices\":\n\n")),
            )
        }),
        ("broken", Some(200), "late\\u{1b}[2J", |_, stream| {
            let event = "data: {\"error\":{\"message\":\"late\\u001b[2J\"}}\n\n";
            last(stream, &format!("{HEAD}{}", chunk(event)))
        }),
        ("late", Some(200), "the deadline passed", |_, stream| {
            let event = "data: {\"error\":{\"message\":\"cut off\",\"code\":504}}\n\n";
            last(stream, &format!("{HEAD}{}", chunk(event)))
        }),
        (
            "broken",
            Some(204),
            "without `data: [DONE]`",
            |_, stream| send(stream, "HTTP/1.1 204 No Content\r\n\r\n"),
        ),
        ("timed_out", Some(200), "--timeout", |_, stream| {
            endless(stream, HEAD, &chunk(TOKEN))
        }),
        (
            "refused_without_retry_after",
            Some(500),
            "endless",
            |_, stream| {
                let head =
                    "HTTP/1.1 500 Internal Server Error\r\nTransfer-Encoding: chunked\r\n\r\n";
                endless(stream, head, &chunk("endless"))
            },
        ),
    ];
    for (number, (end, status, message, answer)) in cases.into_iter().enumerate() {
        let address = serve(answer);
        let mut command = Command::new("sh");
        let limited = "ulimit -v 2000000; exec \"$0\" \"$@\"";
        command.args(["-c", limited, env!("CARGO_BIN_EXE_weirpool"), "load"]);
        command.arg(format!("http://{address}"));
        command.args(["--json", "--clients=3", "--requests=3"]);
        // The others end by themselves, however slow this machine is.
        let timeout = if end == "timed_out" { "2s" } else { "30s" };
        command.args(["--timeout", timeout]);
        let output = command.output().unwrap();
        let report = parse(&output);
        assert_eq!(report["ends"][end], 3, "case {number}: {report}");
        let status = status.map_or("none".to_owned(), |status| status.to_string());
        assert_eq!(report["statuses"][&status], 3, "case {number}: {report}");
        assert_eq!(output.status.success(), status != "none", "case {number}");
        let messages = report["messages"].as_object().unwrap();
        let mut messages = messages.values().map(|message| message.as_str().unwrap());
        assert!(
            messages.any(|text| text.contains(message)),
            "case {number}: {report}"
        );
    }
}

#[test]
fn abandoned_requests_are_disconnected() {
    let address = serve(|_, stream| {
        // The client goes in the middle, or before the beginning, so the answer need not end.
        let goes_on = send(stream, HEAD);
        let mut left = 1000;
        while goes_on && left > 0 && send(stream, &chunk(TOKEN)) {
            left -= 1;
        }
        let _ = stream.read(&mut [0]);
        false
    });
    let report = report(
        address,
        &[
            "--clients=4",
            "--requests=40",
            "--abandon=1",
            "--max-tokens=500",
        ],
    );
    assert_eq!(report["ends"]["abandoned"], 40, "{report}");
    let answered = report["statuses"]["200"].as_u64().unwrap();
    assert!((20..=40).contains(&answered), "{report}");
}

#[test]
fn whole_answers_count_if_they_are_whole() {
    let address = serve(|request, stream| {
        assert_eq!(request.body["stream"], false);
        assert_eq!(request.header("accept"), Some("application/json"));
        let whole = r#"{"choices":[{"text":"aaa","finish_reason":"length"}],"usage":{"completion_tokens":3}}"#;
        let answer = |body: &str, length: usize| {
            format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}")
        };
        match request.number % 4 {
            0 | 1 => send(stream, &answer(whole, whole.len())),
            2 => send(stream, &answer("{}", 2)),
            _ => last(stream, &answer(&whole[..40], whole.len())),
        }
    });
    let report = report(address, &["--whole", "--clients=1", "--requests=8"]);
    assert_eq!(
        (&report["ends"]["done"], &report["ends"]["broken"]),
        (&4.into(), &4.into())
    );
    assert_eq!(report["tokens"], 12, "{report}");
}

#[test]
fn slow_clients_read_everything_and_are_left_out_of_the_times() {
    let address = serve(|_, stream| send(stream, &answer(200)));
    let slow = ["--slow=1", "--slow-pause=1ms", "--max-tokens=200"];
    let report = report(
        address,
        &[&slow[..], &["--clients=4", "--requests=8"]].concat(),
    );
    assert_eq!(report["ends"]["done"], 8);
    assert_eq!(report["tokens"], 1600);
    assert_eq!(report["time_to_first_token_ms"]["count"], 0);
    assert_eq!(report["time_to_end_ms"]["count"], 0);
}

#[test]
#[cfg(unix)]
fn requests_without_a_file_descriptor_are_counted_with_a_hint() {
    let address = serve(|_, stream| {
        let _ = stream.read(&mut [0]);
        false
    });
    let mut command = Command::new("sh");
    let limited = "ulimit -n 48; exec \"$0\" \"$@\"";
    command.args(["-c", limited, env!("CARGO_BIN_EXE_weirpool"), "load"]);
    command.arg(format!("http://{address}"));
    let rest = ["--json", "--rate=10000", "--requests=60", "--timeout=3s"];
    let report = parse(&command.args(rest).output().unwrap());
    assert_eq!(report["ends"]["unsent"], 44, "{report}");
    assert_eq!(report["ends"]["timed_out"], 16, "{report}");
    let hint = report["messages"]["unsent"].as_str().unwrap();
    assert!(hint.contains("ulimit -n"), "{hint}");
}

#[test]
fn load_without_a_server_fails_and_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let output = load(address, &["--clients=2", "--requests=4"])
        .output()
        .unwrap();
    let report = parse(&output);
    assert_eq!(report["ends"]["transport_error"], 4);
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("answered none of 4 requests"), "{error}");
}

#[test]
fn report_is_printed_as_text() {
    let address = serve(|_, stream| send(stream, &answer(3)));
    let mut command = Command::new(env!("CARGO_BIN_EXE_weirpool"));
    // A name with several addresses, perhaps, of which the server listens at one.
    let url = format!("http://localhost:{}/", address.port());
    let output = command.args(["load", &url, "--clients=1", "--requests=5", "--key=secret"]);
    let text = String::from_utf8(output.output().unwrap().stdout).unwrap();
    for part in [
        "5 requests in",
        "done 5",
        "200 5",
        "first token",
        "key 1",
        "p99",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("secret"), "{text}");
}
