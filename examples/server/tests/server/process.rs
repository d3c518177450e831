//! The program: started, and ended by signals.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

struct Program {
    child: Child,
    address: String,
    output: BufReader<std::process::ChildStderr>,
}

impl Program {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_weirpool-server"))
            .args(["--listen", "127.0.0.1:0"])
            .args(arguments)
            .env("NO_COLOR", "1")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line.trim().rsplit("http://").next().unwrap().to_owned();
        Self {
            child,
            address,
            output,
        }
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status();
        assert!(status.unwrap().success());
    }

    fn ask(&self, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        stream
    }

    fn rest(mut self) -> (Option<i32>, String) {
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        (self.child.wait().unwrap().code(), text)
    }
}

#[test]
fn first_signal_completes_answers() {
    // An answer takes some seconds.
    let program = Program::start(&["--slowdown=1000"]);
    let mut stream = program.ask(r#"{"prompt": "x", "max_tokens": 40, "stream": true}"#);
    let mut first = [0; 15];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    program.signal("TERM");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("[DONE]"), "{answer}");
    let (status, text) = program.rest();
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("all memory was returned"), "{text}");
}

#[test]
fn second_signal_exits_at_once() {
    let program = Program::start(&["--slowdown=1000000"]);
    let mut stream = program.ask(r#"{"prompt": "x", "max_tokens": 400, "stream": true}"#);
    stream.read_exact(&mut [0; 15]).unwrap();
    program.signal("INT");
    let mut line = String::new();
    let mut program = program;
    while !line.contains("shutting down") {
        line.clear();
        assert_ne!(program.output.read_line(&mut line).unwrap(), 0);
    }
    program.signal("INT");
    let (status, text) = program.rest();
    assert_eq!(status, Some(130), "{text}");
}

#[test]
fn bad_settings_are_explained() {
    for (argument, expected) in [
        ("--capacity=1MiB", "raise the capacity"),
        ("--config=/no/such/file", "no file"),
        ("--listen=192.0.2.1:80", "cannot listen"),
        ("--weights=/no/such/weights", "cannot read the weights"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_weirpool-server"))
            .args([argument])
            .env("NO_COLOR", "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(expected), "{argument}: {text}");
    }
}
