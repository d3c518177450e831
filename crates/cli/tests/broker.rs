//! `weirpool broker` and `weirpool top`, executed.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use weirpool::{Pool, device::sim::SimDevice};
use weirpool_broker::desk::MOST_CONNECTIONS;
use weirpool_broker::ledger::Publication;
use weirpool_broker::names::{Extent, Memory};
use weirpool_broker::{BrokerOptions, lease_capacity, names_of};
use weirpool_wire::{Allowed, Connection, Listener};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("weirpool-cli-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn weirpool(arguments: &[&str], socket: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weirpool"));
    command.args(arguments).arg("--socket").arg(socket);
    command
}

/// Starts a broker, and returns once it says that it listens.
fn start(socket: &Path) -> Child {
    let mut command = weirpool(&["broker", "--capacity", "64MiB"], socket);
    let mut broker = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(broker.stderr.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.contains("leases 64.0 MiB of device 0"), "{line}");
    broker
}

fn top(arguments: &[&str], socket: &Path) -> Output {
    weirpool(arguments, socket).output().unwrap()
}

#[test]
fn top_shows_what_the_broker_leases_until_a_signal() {
    let folder = Folder::new("top");
    let socket = folder.0.join("gpu0");
    let refused = top(&["top", "--once"], &socket);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no broker listens"));

    let mut broker = start(&socket);
    let second = weirpool(&["broker", "--capacity", "1MiB"], &socket)
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&second.stderr).contains("belongs to a process that is running")
    );
    let options = BrokerOptions::new(&*socket)
        .name("chat\x1b[2J")
        .guaranteed(8 << 20)
        .headroom(0);
    let builder = Pool::builder(SimDevice::new()).chunk_bytes(2 << 20);
    let pool = lease_capacity(builder, options).build().unwrap();
    let stream = pool.create_stream().unwrap();
    let block = pool.allocate(&stream, 16 << 20).blocking().unwrap();
    let shown = String::from_utf8(top(&["top", "--once"], &socket).stdout).unwrap();
    assert!(
        shown.contains("64.0 MiB leased to 1 clients; 48.0 MiB free"),
        "{shown}"
    );
    assert!(
        shown.contains("chat?[2J") && shown.contains(&std::process::id().to_string()),
        "{shown}"
    );
    let json = top(&["top", "--once", "--json"], &socket).stdout;
    let figures: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(figures["clients"][0]["lease"], 16 << 20);

    let killed = Command::new("kill")
        .arg("-TERM")
        .arg(broker.id().to_string())
        .status()
        .unwrap();
    assert!(
        killed.success() && broker.wait().unwrap().success(),
        "it ends in order"
    );
    assert!(!socket.exists());
    // The pool goes on within its lease, and the next broker knows it.
    drop(block);
    drop(pool.try_allocate(&stream, 16 << 20).unwrap());
    let mut broker = start(&socket);
    let shown = String::from_utf8(top(&["top", "--once"], &socket).stdout).unwrap();
    assert!(shown.contains("48.0 MiB free"), "{shown}");
    broker.kill().unwrap();
    broker.wait().unwrap();
}

#[test]
fn published_memory_is_shown_and_dropped() {
    let folder = Folder::new("named");
    let socket = folder.0.join("gpu0");
    let mut broker = start(&socket);
    let options = BrokerOptions::new(&*socket).headroom(0);
    let builder = Pool::builder(SimDevice::new()).chunk_bytes(2 << 20);
    let pool = lease_capacity(builder, options).build().unwrap();
    let stream = pool.create_stream().unwrap();
    let block = pool.allocate(&stream, 16 << 20).blocking().unwrap();
    // The broker knows memory by its descriptor alone.
    let descriptor = std::fs::File::open("/dev/null").unwrap().into();
    let publication = Publication {
        name: "llama".into(),
        replaces: false,
        memory: Memory {
            device: "0".into(),
            is_writable: false,
            blocks: vec![Extent {
                bytes: 12 << 20,
                length: 1,
            }],
        },
    };
    let (sender, receiver) = std::sync::mpsc::channel();
    let names = names_of(&pool).unwrap();
    names.publish(publication, vec![descriptor], move |held| {
        let _ = sender.send(held);
    });
    let held = receiver.recv().unwrap().unwrap();
    let shown = || String::from_utf8(top(&["top", "--once"], &socket).stdout).unwrap();
    let named = shown();
    let row = named.lines().find(|line| line.contains("llama")).unwrap();
    let columns: Vec<_> = row.split_whitespace().collect();
    assert_eq!(columns[1..], ["llama", "12.0", "MiB", "1", "1"], "{named}");
    assert!(named.contains("published as"), "{named}");
    let drop_name = |name| {
        let output = top(&["broker", "drop", name], &socket);
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (status, message) = drop_name("bert");
    assert!(
        status == Some(1) && message.contains("nothing is published as \"bert\""),
        "{message}"
    );
    let (status, message) = drop_name("llama");
    assert!(
        status == Some(0) && message.contains("1 processes have"),
        "{message}"
    );
    let left = shown();
    assert!(left.contains("has no name any more"), "{left}");
    drop((held, block));
    while shown().contains("published as") {}
    let usage = weirpool(&["broker"], &socket).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
    broker.kill().unwrap();
    broker.wait().unwrap();
}

/// The listener accepts nothing, like a broker that is stopped.
#[test]
fn top_of_a_silent_broker_says_so_and_fails() {
    let folder = Folder::new("silent");
    let socket = folder.0.join("gpu0");
    let _listener = Listener::bind(&socket, Allowed::own()).unwrap();
    for arguments in [&["top", "--once"][..], &["top"]] {
        let output = top(&[arguments, &["--timeout=20ms"]].concat(), &socket);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains("is silent"), "{message}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn silent_connections_keep_top_from_nothing() {
    let folder = Folder::new("connections");
    let socket = folder.0.join("gpu0");
    let mut broker = start(&socket);
    let silent: Vec<_> = (0..MOST_CONNECTIONS + 8)
        .map(|_| Connection::connect(&socket, &Allowed::own()).unwrap())
        .collect();
    let output = top(&["top", "--once"], &socket);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(shown.contains("64.0 MiB free"), "{shown}");
    drop(silent);
    broker.kill().unwrap();
    broker.wait().unwrap();
}

#[test]
fn extreme_options_are_refused_at_the_start() {
    let folder = Folder::new("extreme");
    let socket = folder.0.join("gpu0");
    for argument in [
        "--grace=9223372036854775808s",
        "--grace=18446744073709551615s",
        "--grace=31days",
        "--longest-hold=31days",
        "--capacity=0",
        "--capacity=16EiB",
    ] {
        let mut command = weirpool(&["broker"], &socket);
        if !argument.starts_with("--capacity") {
            command.arg("--capacity=1GiB");
        }
        let output = command.arg(argument).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{argument}: {message}");
        assert!(message.contains("expected"), "{argument}: {message}");
        assert!(!socket.exists());
    }
    for argument in ["--timeout=0s", "--timeout=2h"] {
        assert_eq!(top(&["top", argument], &socket).status.code(), Some(2));
    }
}
