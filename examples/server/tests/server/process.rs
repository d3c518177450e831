//! The program: started, and ended by signals.

use crate::ends::{Counters, client, viewer};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) struct Program {
    child: Child,
    address: String,
    output: BufReader<std::process::ChildStderr>,
}

impl Program {
    fn start(arguments: &[&str]) -> Self {
        Self::start_until(arguments, "\n").0
    }

    /// Returns what it said until a line with this text, as well, which ends with its address.
    pub(crate) fn start_until(arguments: &[&str], end: &str) -> (Self, String) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_weirpool-server"))
            .args(["--listen", "127.0.0.1:0"])
            .args(arguments)
            .env("NO_COLOR", "1")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stderr.take().unwrap());
        let mut text = String::new();
        while !text.contains(end) {
            assert!(output.read_line(&mut text).unwrap() > 0, "{text}");
        }
        let address = text.trim().rsplit("http://").next().unwrap().to_owned();
        let program = Self {
            child,
            address,
            output,
        };
        (program, text)
    }

    /// Adds what it said since it listened, until it has ended.
    pub(crate) fn output_to(&mut self, text: &mut String) {
        self.output.read_to_string(text).unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status();
        assert!(status.unwrap().success());
    }

    pub(crate) fn ask(&self, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
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

/// More clients than the server has memory for, and a viewer of the page.
#[test]
fn no_answer_breaks_when_a_program_under_load_is_terminated() {
    // As the servers of other tests.
    let model = "--width=64 --layers=2 --context=128 --page=8 --batch=16 --rows=64";
    let place = "--capacity=2MiB --slowdown=400 --client-timeout=60s";
    let flags: Vec<_> = model.split(' ').chain(place.split(' ')).collect();
    let program = Program::start(&flags);
    let address = program.address.parse().unwrap();
    let counters = Counters::default();
    let (took, page) = std::thread::scope(|scope| {
        let page = scope.spawn(|| viewer(address));
        for number in 0..24 {
            let counters = &counters;
            scope.spawn(move || client(address, number, counters));
        }
        counters.wait_for_load();
        program.signal("TERM");
        let begin = Instant::now();
        let page = page.join().unwrap();
        let (status, text) = program.rest();
        assert_eq!(status, Some(0), "{text}");
        assert!(text.contains("all memory was returned"), "{text}");
        (begin.elapsed(), page)
    });
    counters.assert_none_broke();
    assert!(page.ends_with("0\r\n\r\n"), "{page}");
    assert!(took < Duration::from_secs(30), "{took:?}");
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

/// Two signals that come before the server can look at the first.
#[test]
fn signals_in_quick_succession_both_count() {
    let program = Program::start(&["--slowdown=1000000"]);
    let mut stream = program.ask(r#"{"prompt": "x", "max_tokens": 400, "stream": true}"#);
    stream.read_exact(&mut [0; 15]).unwrap();
    program.signal("INT");
    program.signal("TERM");
    let (status, text) = program.rest();
    assert_eq!(status, Some(130), "{text}");
}

/// Runs the program, which has to end by itself, with variables of the environment.
fn refused(arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_weirpool-server"));
    program.args(arguments).env("NO_COLOR", "1");
    let output = program.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), text)
}

#[test]
fn bad_settings_are_explained() {
    for (argument, expected) in [
        ("--capacity=1MiB", "raise the capacity"),
        ("--capacity=16EiB", "1 PiB"),
        ("--config=/no/such/file", "no file"),
        ("--listen=192.0.2.1:80", "cannot listen"),
        ("--weights=/no/such/weights", "cannot read the weights"),
        ("--weights=/dev/null", "not a regular file"),
        ("--weights=/dev/zero", "not a regular file"),
        ("--hosts=a:80", "not a name without a port"),
        ("--hosts=", "not a name without a port"),
        ("--layers=16777216", "lower the number of layers"),
        ("--width=16777216", "lower its sizes"),
        ("--vocabulary=16777216", "raise the capacity"),
        ("--context=16777216", "raise the capacity"),
        ("--page=1048576", "raise the capacity"),
        (
            "--streams=1048576",
            "lower the context or the number of streams",
        ),
        ("--rows=1048576", "raise the capacity"),
        ("--timeout=0s", "is not from 1ms to"),
        ("--timeout=1000000years", "is not from 1ms to"),
        ("--client-timeout=100years", "client_timeout"),
        ("--body-limit=0", "from 1 KiB to 1 GiB"),
        ("--slowdown=NaN", "slowdown"),
        ("--device=cuda:1,cuda:1", "cuda:1 is named twice"),
    ] {
        let (status, text) = refused(&[argument], &[]);
        assert_eq!(status, Some(1), "{argument}: {text}");
        assert!(text.contains(expected), "{argument}: {text}");
        assert_eq!(text.lines().count(), 1, "{argument}: {text}");
    }
    let (_, text) = refused(&["--device=sim,sim", "--broker=/none"], &[]);
    assert!(text.contains("start a server for each"), "{text}");
    let (_, text) = refused(&["--context=8192", "--page=1", "--capacity=1GiB"], &[]);
    assert!(text.contains("raise --page"), "{text}");
    for argument in [
        "--capacity=much",
        "--streams=-1",
        "--device=tpu",
        "--colour=blue",
        "--admission=maybe",
    ] {
        let (status, text) = refused(&[argument], &[]);
        assert_eq!(status, Some(2), "{argument}: {text}");
        assert!(text.contains("--help"), "{argument}: {text}");
    }
}

#[test]
fn bad_settings_of_the_environment_and_of_tenants_are_explained() {
    for (variable, value, expected) in [
        ("WEIRPOOL_SERVER_CAPASITY", "1GiB", "capasity"),
        ("WEIRPOOL_SERVER_CAPACITY", "much", "CAPACITY"),
        ("WEIRPOOL_SERVER_MODEL__WIDTH", "-1", "MODEL"),
        ("WEIRPOOL_SERVER_CONFIG", "/no/such/file", "no file"),
        (
            "WEIRPOOL_SERVER_TENANTS",
            r#"[{name="weights", key="k"}]"#,
            "another name",
        ),
        (
            "WEIRPOOL_SERVER_TENANTS",
            r#"[{name="requests", key="k"}]"#,
            "another name",
        ),
        (
            "WEIRPOOL_SERVER_TENANTS",
            r#"[{name="", key="k"}]"#,
            "1 to 64",
        ),
        (
            "WEIRPOOL_SERVER_TENANTS",
            r#"[{name="a", key=""}]"#,
            "header",
        ),
        (
            "WEIRPOOL_SERVER_TENANTS",
            r#"[{name="a", key="two words"}]"#,
            "header",
        ),
        (
            "WEIRPOOL_SERVER_TENANTS",
            r#"[{name="a", key="ü"}]"#,
            "header",
        ),
        (
            "WEIRPOOL_SERVER_TENANTS",
            r#"[{name="a", key="k", weight=0}]"#,
            "at least 1",
        ),
        (
            "WEIRPOOL_SERVER_TENANTS",
            r#"[{name="a", key="k"}, {name="a", key="l"}]"#,
            "share",
        ),
        (
            "WEIRPOOL_SERVER_TENANTS",
            r#"[{name="a", key="k"}, {name="b", key="k"}]"#,
            "share",
        ),
        ("WEIRPOOL_SERVER_TENANTS", r#"[{name="a"}]"#, "key"),
        (
            "WEIRPOOL_SERVER_TENANTS",
            r#"[{name="a", key="k", quotta="1GiB"}]"#,
            "quotta",
        ),
    ] {
        let (status, text) = refused(&[], &[(variable, value)]);
        assert_eq!(status, Some(1), "{variable}={value}: {text}");
        assert!(text.contains(expected), "{variable}={value}: {text}");
    }
    // Flags are above the environment, which is above the defaults.
    let (_, text) = refused(&["--streams=0"], &[("WEIRPOOL_SERVER_STREAMS", "3")]);
    assert!(text.contains("streams is 0"), "{text}");
}

/// The settings of tenants hold their keys: whatever is wrong with them, and wherever a key stands, errors leave it out.
#[test]
fn errors_of_settings_print_no_key() {
    let file = std::env::temp_dir().join(format!("weirpool-keys-{}.toml", std::process::id()));
    let option = format!("--config={}", file.display());
    let tenant = "[[tenants]]\nname = 'a'\n";
    for (text, expected) in [
        (format!("{tenant}key = sk-secret\n"), "line 3, column 7"),
        (format!("{tenant}key = 'sk-secret\n"), "line 3"),
        (format!("{tenant}key 'sk-secret'\n"), "line 3"),
        (format!("{tenant}key = 'sk-secret' weight = 2\n"), "line 3"),
        (
            format!("{tenant}key = 'sk-secret'\nkey = 'sk-secret'\n"),
            "line 4",
        ),
        (format!("{tenant}weight = 'sk-secret'\n"), "expected u32"),
        (format!("{tenant}key = 'k'\nquota = 'sk-secret'\n"), "quota"),
        (
            format!("{tenant}key = ['sk-secret']\n"),
            "expected a string",
        ),
        (format!("{tenant}'sk-secret' = 'key'\n"), "unknown field"),
        ("tenants = 'sk-secret'\n".to_owned(), "tenants"),
        ("tenants = ['sk-secret']\n".to_owned(), "tenants"),
        ("[tenants]\na = 'sk-secret'\n".to_owned(), "tenants"),
        (format!("{tenant}key = 'sk-secret \\n'\n"), "cannot be sent"),
        (
            format!("{tenant}key = \"sk-secret \\n\"\n"),
            "cannot be sent",
        ),
        (
            format!("{tenant}key = 'sk-secret'\nweight = 0\n"),
            "at least 1",
        ),
        (
            format!("{tenant}key = 'sk-secret'\n{tenant}key = 'sk-secret'\n"),
            "share",
        ),
    ] {
        std::fs::write(&file, &text).unwrap();
        let (status, said) = refused(&[&option], &[]);
        assert_eq!(status, Some(1), "{text}: {said}");
        assert!(!said.contains("secret"), "{text}: {said}");
        assert!(said.contains(expected), "{text}: {said}");
        assert_eq!(said.lines().count(), 1, "{text}: {said}");
    }
    std::fs::remove_file(file).unwrap();
    for value in [
        "sk-secret",
        "[sk-secret]",
        r#"[{name="a", key=["sk-secret"]}]"#,
        r#"[{name="a", key="k", weight="sk-secret"}]"#,
        r#"[{name="a", key="k", quota="sk-secret"}]"#,
        r#"[{name="a", key="sk-secret"#,
        r#"{a="sk-secret"}"#,
    ] {
        let (status, said) = refused(&[], &[("WEIRPOOL_SERVER_TENANTS", value)]);
        assert_eq!(status, Some(1), "{value}: {said}");
        assert!(!said.contains("secret"), "{value}: {said}");
    }
}

#[test]
fn names_of_tenants_are_printable() {
    for name in ["\u{202e}rtl\u{2028}evil\u{2029}", "a\u{200b}", "\u{3164}"] {
        let value = format!(r#"[{{name="{name}", key="k"}}]"#);
        let (status, said) = refused(&[], &[("WEIRPOOL_SERVER_TENANTS", &value)]);
        assert_eq!(status, Some(1), "{name:?}: {said}");
        assert!(said.contains("printable"), "{name:?}: {said}");
        assert!(!said.contains(name), "{name:?}: {said}");
    }
}

/// The file is long enough to take a while, and takes no space.
#[cfg(unix)]
#[test]
fn signal_ends_the_server_while_it_reads_weights() {
    const BYTES: u64 = 3 << 30;
    let header =
        format!(r#"{{"x":{{"dtype":"U8","shape":[{BYTES}],"data_offsets":[0,{BYTES}]}}}}"#);
    let path = std::env::temp_dir().join(format!("weirpool-sparse-{}", std::process::id()));
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + BYTES).unwrap();
    let program = Program::start(&[&format!("--weights={}", path.display())]);
    assert!(
        program.address.contains("bytes of weights"),
        "{}",
        program.address
    );
    program.signal("TERM");
    let (status, text) = program.rest();
    assert_eq!((status, &*text), (Some(0), ""));
    // One whose length is another than its header says is not read.
    file.set_len(8 + header.len() as u64 + BYTES - 1).unwrap();
    let (status, text) = refused(&[&format!("--weights={}", path.display())], &[]);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("by its header"), "{text}");
}
