//! Each test starts this program again, which then runs `child` alone, in the part that the environment names.

use super::*;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use weirpool_share::ipc::MOST_OUTSTANDING;
use weirpool_share::ipc::wire::{Allowed, Listener};

const PART: &str = "WEIRPOOL_IPC_PART";
const SOCKET: &str = "WEIRPOOL_IPC_SOCKET";

/// A process that plays a part, with a connection to it. It is killed when this is dropped.
struct Child {
    process: std::process::Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    folder: PathBuf,
}

impl Child {
    fn start(part: &str) -> (Self, wire::Connection) {
        use std::os::unix::fs::DirBuilderExt;
        // Tests of one part run at the same time.
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("weirpool-ipc-{}-{number}", std::process::id());
        let folder = env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .unwrap();
        let path = folder.join("socket");
        let listener = Listener::bind(&path, Allowed::own()).unwrap();
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["processes::child", "--exact", "--nocapture"])
            .env(PART, part)
            .env(SOCKET, &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let socket = accept(&listener, &mut process);
        assert_eq!(socket.peer().pid, process.id());
        let child = Self {
            input: process.stdin.take().unwrap(),
            output: BufReader::new(process.stdout.take().unwrap()),
            process,
            folder,
        };
        (child, socket)
    }

    /// Waits until the child says so.
    fn hears(&mut self, word: &str) {
        let mut line = String::new();
        while line.trim() != word {
            line.clear();
            let bytes = self.output.read_line(&mut line).unwrap();
            assert!(bytes > 0, "the child ended before it said {word}");
        }
    }

    fn tell(&mut self, word: &str) {
        writeln!(self.input, "{word}").unwrap();
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(id, signal).unwrap();
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn succeeds(mut self) {
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Waits for the child's connection.
///
/// # Panics
/// If the child ends before it connects.
fn accept(listener: &Listener, process: &mut std::process::Child) -> wire::Connection {
    let has_come = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !has_come.load(Ordering::Relaxed) {
                if process.try_wait().unwrap().is_some() {
                    return listener.shutdown();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let socket = listener.accept();
        has_come.store(true, Ordering::Relaxed);
        socket.expect("the child ended before it connected")
    })
}

fn say(word: &str) {
    println!("\n{word}");
}

fn listen_for(word: &str) {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    assert_eq!(line.trim(), word);
}

/// The other processes of these tests. Does nothing in a run of all tests.
#[test]
fn child() {
    let Ok(part) = env::var(PART) else {
        return;
    };
    let socket = wire::Connection::connect(env::var(SOCKET).unwrap(), &Allowed::own()).unwrap();
    let side = Side::new(SimDevice::new());
    let connection = side.open(socket);
    match &*part {
        "import" => {
            let mut block = side.receive(&connection).unwrap();
            let bytes = block_on(block.download(&side.stream, 0..4).unwrap()).unwrap();
            assert_eq!((&*bytes, block.label()), (&b"weir"[..], "data"));
            let written = block.upload(&side.stream, 0, b"pool").unwrap();
            block_on(written).unwrap();
            drop(block);
            // The exporter closes the connection once it knows.
            let ended = side.receive(&connection);
            assert!(matches!(ended, Err(IpcError::Ended { .. })));
            side.settle();
        }
        "hold" => {
            let _block = side.receive(&connection).unwrap();
            say("held");
            listen_for("end");
        }
        "export" => {
            let mut block = side.exportable(CHUNK);
            let written = block.upload(&side.stream, 0, b"weir").unwrap();
            block_on(written).unwrap();
            let _sent = block_on(connection.send(&block, "data")).unwrap();
            listen_for("end");
        }
        part => panic!("there is no part {part}"),
    }
}

fn side_with(part: &str) -> (Side, Child, Connection) {
    let (child, socket) = Child::start(part);
    let side = Side::new(SimDevice::new());
    let connection = side.open(socket);
    (side, child, connection)
}

#[test]
fn block_is_shared_with_another_process() {
    let (side, child, connection) = side_with("import");
    let mut block = side.exportable(CHUNK);
    let written = block.upload(&side.stream, 0, b"weir").unwrap();
    drop(written);
    let sent = block_on(connection.send(&block, "data")).unwrap();
    block_on(sent).unwrap();
    let bytes = block_on(block.download(&side.stream, 0..4).unwrap()).unwrap();
    assert_eq!(bytes, b"pool");
    drop((block, connection));
    child.succeeds();
    side.settle();
}

#[test]
fn killed_importer_ends_what_it_held() {
    let (side, mut child, connection) = side_with("hold");
    let (other, mut second, survivor) = side_with("hold");
    let block = side.exportable(CHUNK);
    let sent = block_on(connection.send(&block, "")).unwrap();
    let kept = other.exportable(CHUNK);
    let mut alive = block_on(survivor.send(&kept, "")).unwrap();
    child.hears("held");
    second.hears("held");
    drop(block);
    child.kill();
    assert!(matches!(block_on(sent), Err(IpcError::Ended { .. })));
    side.settle();
    assert_eq!(
        side.device.counters().physical_in_use,
        0,
        "it went back to the device"
    );
    assert!(
        common::poll(&mut alive).is_pending(),
        "another importer is not affected"
    );
    second.tell("end");
    let _ = block_on(alive);
}

#[test]
fn importer_keeps_its_mapping_when_the_exporter_is_killed() {
    let (side, mut child, connection) = side_with("export");
    let block = side.receive(&connection).unwrap();
    child.kill();
    let ended = side.receive(&connection);
    assert!(matches!(ended, Err(IpcError::Ended { .. })), "{ended:?}");
    let bytes = block_on(block.download(&side.stream, 0..4).unwrap()).unwrap();
    assert_eq!(bytes, b"weir");
    drop(block);
    side.settle();
}

#[test]
fn stopped_importer_holds_only_what_it_was_sent() {
    let (side, mut child, connection) = side_with("hold");
    let block = side.exportable(CHUNK);
    let first = block_on(connection.send(&block, "")).unwrap();
    child.hears("held");
    child.signal(rustix::process::Signal::STOP);
    let sent: Vec<_> = (1..MOST_OUTSTANDING)
        .map(|_| block_on(connection.send(&block, "")).unwrap())
        .collect();
    let refused = block_on(connection.send(&block, ""));
    assert!(matches!(refused, Err(IpcError::Outstanding)));
    drop(block);
    assert_eq!(side.shared().0, CHUNK);
    // Other connections, and the pool, go on.
    let (mut other, socket) = Child::start("import");
    let second = side.open(socket);
    let mut more = side.exportable(CHUNK);
    drop(more.upload(&side.stream, 0, b"weir").unwrap());
    block_on(block_on(second.send(&more, "data")).unwrap()).unwrap();
    drop((more, second));
    assert!(other.process.wait().unwrap().success());
    drop(block_on(side.pool.allocate(&side.stream, 12 * MIB)).unwrap());
    child.signal(rustix::process::Signal::CONT);
    child.tell("end");
    for sent in sent.into_iter().chain([first]) {
        let _ = block_on(sent);
    }
    side.settle();
}
