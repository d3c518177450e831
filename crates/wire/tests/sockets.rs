//! Frames, descriptors, and peers that are hostile, hang or die, over sockets of this process.
#![cfg(target_os = "linux")]

use rustix::fs::FlockOperation;
use serde_json::{Value, json};
use std::fs::{self, File, Permissions};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use weirpool_wire::{Allowed, Connection, Error, Listener, MAX_DESCRIPTORS, MAX_FRAME};

/// A directory of this test that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("wire-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }

    fn entries(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn listen(folder: &Folder) -> Listener {
    Listener::bind(folder.socket(), Allowed::own()).unwrap()
}

fn file(contents: &[u8]) -> OwnedFd {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::memfd_create("test", flags).unwrap());
    file.write_all(contents).unwrap();
    file.rewind().unwrap();
    file.into()
}

#[test]
fn value_and_descriptors_arrive_together() {
    let folder = Folder::new("together");
    let listener = listen(&folder);
    let client = thread::spawn({
        let path = folder.socket();
        move || {
            let client = Connection::connect(path, &Allowed::own()).unwrap();
            let (one, two) = (file(b"one"), file(b"two"));
            client
                .send(&json!({"id": 7}), &[one.as_fd(), two.as_fd()])
                .unwrap();
            client.send(&json!("last"), &[]).unwrap();
            client.receive::<Value>().unwrap_err()
        }
    });
    let server = listener.accept().unwrap();
    assert_eq!(server.peer().pid, std::process::id());
    let (value, descriptors) = server.receive::<Value>().unwrap();
    assert_eq!(value, json!({"id": 7}));
    let read = |descriptor: OwnedFd| {
        assert!(is_close_on_exec(descriptor.as_fd()));
        let mut text = String::new();
        File::from(descriptor).read_to_string(&mut text).unwrap();
        text
    };
    let texts: Vec<_> = descriptors.into_iter().map(read).collect();
    assert_eq!(texts, ["one", "two"]);
    let (value, descriptors) = server.receive::<Value>().unwrap();
    assert_eq!((value, descriptors.len()), (json!("last"), 0));
    drop(server);
    assert!(matches!(client.join().unwrap(), Error::Closed));
}

fn is_close_on_exec(descriptor: BorrowedFd<'_>) -> bool {
    let flags = rustix::io::fcntl_getfd(descriptor).unwrap();
    flags.contains(rustix::io::FdFlags::CLOEXEC)
}

#[test]
fn socket_is_private_and_removed_at_the_end() {
    let folder = Folder::new("private");
    let listener = listen(&folder);
    let state = fs::symlink_metadata(folder.socket()).unwrap();
    assert!(state.file_type().is_socket());
    assert_eq!(state.permissions().mode() & 0o777, 0o600);
    assert_eq!(folder.entries(), [folder.socket()], "no lock is left");
    drop(listener);
    assert!(folder.entries().is_empty());
}

#[test]
fn socket_for_other_users_can_be_connected_to_by_them() {
    let folder = Folder::new("public");
    let _listener = Listener::bind(folder.socket(), Allowed::own().and(12_345)).unwrap();
    let state = fs::symlink_metadata(folder.socket()).unwrap();
    assert_eq!(state.permissions().mode() & 0o777, 0o666);
}

#[test]
fn live_socket_is_not_replaced() {
    let folder = Folder::new("live");
    let listener = listen(&folder);
    let second = Listener::bind(folder.socket(), Allowed::own());
    assert!(matches!(second, Err(Error::InUse(path)) if path == folder.socket()));
    // The attempt itself is a connection without a frame.
    let probe = listener.accept().unwrap();
    assert!(matches!(probe.receive::<Value>(), Err(Error::Closed)));
    Connection::connect(folder.socket(), &Allowed::own()).unwrap();
}

#[test]
fn dead_socket_is_replaced() {
    let folder = Folder::new("dead");
    let name = rustix::net::SocketAddrUnix::new(folder.socket()).unwrap();
    let (family, kind) = (
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
    );
    let dead = rustix::net::socket(family, kind, None).unwrap();
    rustix::net::bind(&dead, &name).unwrap();
    rustix::net::listen(&dead, 1).unwrap();
    drop(dead);
    let _listener = listen(&folder);
    Connection::connect(folder.socket(), &Allowed::own()).unwrap();
}

#[test]
fn one_of_many_listeners_replaces_a_dead_socket() {
    let folder = Folder::new("many");
    for _ in 0..50 {
        let name = rustix::net::SocketAddrUnix::new(folder.socket()).unwrap();
        let kind = rustix::net::SocketType::SEQPACKET;
        let dead = rustix::net::socket(rustix::net::AddressFamily::UNIX, kind, None).unwrap();
        rustix::net::bind(&dead, &name).unwrap();
        drop(dead);
        let start = std::sync::Barrier::new(4);
        let bound: Vec<_> = thread::scope(|scope| {
            let bind = || {
                start.wait();
                Listener::bind(folder.socket(), Allowed::own())
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(bind)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let count = bound.iter().filter(|result| result.is_ok()).count();
        assert_eq!(count, 1, "{bound:?}");
        Connection::connect(folder.socket(), &Allowed::own()).unwrap();
    }
}

#[test]
fn listener_whose_directory_is_removed_while_it_waits_fails() {
    let folder = Folder::new("gone");
    let path = folder.0.join("socket.lock");
    let lock = File::create(&path).unwrap();
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
    let (done, bound) = mpsc::channel();
    let socket = folder.socket();
    thread::spawn(move || done.send(Listener::bind(socket, Allowed::own())));
    let opened = || {
        let descriptors = fs::read_dir("/proc/self/fd").unwrap();
        let files = descriptors.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        files.filter(|file| *file == path).count()
    };
    while opened() < 2 {
        thread::yield_now();
    }
    fs::remove_dir_all(&folder.0).unwrap();
    drop(lock);
    let bound = bound.recv_timeout(Duration::from_secs(10));
    let bound = bound.expect("it neither waits nor tries for ever");
    assert!(matches!(bound, Err(Error::System { .. })), "{bound:?}");
}

#[test]
fn socket_of_a_later_listener_is_not_removed() {
    let folder = Folder::new("later");
    let first = listen(&folder);
    first.shutdown();
    assert!(matches!(first.accept(), Err(Error::Closed)));
    fs::remove_file(folder.socket()).unwrap();
    let _second = listen(&folder);
    drop(first);
    Connection::connect(folder.socket(), &Allowed::own()).unwrap();
}

#[test]
fn other_files_are_not_replaced() {
    let folder = Folder::new("file");
    fs::write(folder.socket(), "text").unwrap();
    let refused = Listener::bind(folder.socket(), Allowed::own());
    assert!(matches!(refused, Err(Error::NotASocket(_))));
    assert_eq!(fs::read(folder.socket()).unwrap(), b"text");
    fs::remove_file(folder.socket()).unwrap();
    std::os::unix::fs::symlink("/dev/null", folder.socket()).unwrap();
    let refused = Listener::bind(folder.socket(), Allowed::own());
    assert!(matches!(refused, Err(Error::NotASocket(_))));
}

#[test]
fn peer_of_another_user_is_refused_on_both_sides() {
    let folder = Folder::new("user");
    let nobody = Allowed::only([54_321]);
    let listener = Listener::bind(folder.socket(), nobody.clone()).unwrap();
    let client = Connection::connect(folder.socket(), &Allowed::own()).unwrap();
    let Err(Error::Refused(peer)) = listener.accept() else {
        panic!("the peer is refused");
    };
    assert_eq!(peer.pid, std::process::id());
    assert!(matches!(client.receive::<Value>(), Err(Error::Closed)));
    let refused = Connection::connect(folder.socket(), &nobody);
    assert!(matches!(refused, Err(Error::Refused(_))));
}

/// The user of the child below, which needs no name.
const OTHER_USER: u32 = 65_534;
const AS_OTHER: &str = "WEIRPOOL_TEST_SOCKET_OF_ANOTHER_USER";

/// Does nothing, unless this process was started by the next test.
#[test]
fn connects_as_another_user() {
    let Some(path) = std::env::var_os(AS_OTHER) else {
        return;
    };
    let allowed = Allowed::only([0, OTHER_USER]);
    match Connection::connect(path, &allowed) {
        Ok(connection) => match connection.receive::<Value>() {
            Ok((value, _)) => println!("outcome: received {value}"),
            Err(error) => println!("outcome: ended, {error}"),
        },
        Err(error) => println!("outcome: no connection, {error}"),
    }
}

#[test]
fn process_of_another_user_is_refused_unless_it_is_allowed() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root can start a process of another user");
        return;
    }
    let folder = Folder::new("other-user");
    let run = || {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "connects_as_another_user", "--nocapture"])
            .env(AS_OTHER, folder.socket())
            .current_dir("/")
            .uid(OTHER_USER)
            .gid(OTHER_USER)
            .output();
        let said = child.map(|child| String::from_utf8_lossy(&child.stdout).into_owned());
        // The program itself may lie where other users cannot read it.
        said.ok().filter(|said| said.contains("outcome: "))
    };
    let private = listen(&folder);
    fs::set_permissions(&folder.0, Permissions::from_mode(0o755)).unwrap();
    let Some(said) = run() else {
        println!("skipped: a process of another user cannot be started here");
        return;
    };
    assert!(
        said.contains("no connection"),
        "the socket is private: {said}"
    );
    drop(private);
    // The socket lets others in, and their user is checked.
    let listener = Listener::bind(folder.socket(), Allowed::only([0, 12_345])).unwrap();
    let accepting = thread::spawn(move || (listener.accept(), listener));
    let said = run().unwrap();
    assert!(said.contains("outcome: ended"), "{said}");
    let (refused, listener) = accepting.join().unwrap();
    let Err(Error::Refused(peer)) = refused else {
        panic!("the peer is refused: {refused:?}");
    };
    assert_eq!(peer.uid, OTHER_USER);
    drop(listener);
    let listener = Listener::bind(folder.socket(), Allowed::only([0, OTHER_USER])).unwrap();
    let accepting = thread::spawn(move || {
        let connection = listener.accept().unwrap();
        connection.send(&json!("welcome"), &[]).unwrap();
        connection.peer().uid
    });
    let said = run().unwrap();
    assert!(said.contains("received \"welcome\""), "{said}");
    assert_eq!(accepting.join().unwrap(), OTHER_USER);
}

#[test]
fn frame_that_is_too_long_is_an_error_and_discarded() {
    let (one, other) = Connection::pair().unwrap();
    let long = "a".repeat(MAX_FRAME);
    assert!(
        matches!(one.send(&long, &[]), Err(Error::TooLong { bytes }) if bytes == MAX_FRAME + 2)
    );
    let raw = vec![b' '; MAX_FRAME + 1];
    rustix::net::send(&one, &raw, rustix::net::SendFlags::empty()).unwrap();
    let longest = "a".repeat(MAX_FRAME - 2);
    one.send(&longest, &[]).unwrap();
    let refused = other.receive::<Value>();
    assert!(matches!(refused, Err(Error::TooLong { bytes }) if bytes == MAX_FRAME + 1));
    assert_eq!(other.receive::<String>().unwrap().0, longest);
}

#[test]
fn malformed_frame_is_an_error_and_its_descriptors_are_closed() {
    let (one, other) = Connection::pair().unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    for bad in ["{", "", "[1, 2", "\"a\"", "{\"id\": -1}", "null garbage"] {
        let bad = if bad.is_empty() { "\u{0}" } else { bad };
        one.send_raw(bad.as_bytes(), &[writer.as_fd()]).unwrap();
        let refused = other.receive::<std::collections::HashMap<String, u32>>();
        assert!(
            matches!(refused, Err(Error::Malformed(_))),
            "{bad}: {refused:?}"
        );
    }
    drop(writer);
    // The end of a pipe is seen once each copy of its writing end is closed.
    assert_eq!(rustix::io::read(&reader, &mut [0u8; 1]).unwrap(), 0);
}

#[test]
fn too_many_descriptors_are_refused_and_closed() {
    let (one, other) = Connection::pair().unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let many = vec![writer.as_fd(); MAX_DESCRIPTORS + 1];
    let refused = one.send(&json!(1), &many);
    assert!(matches!(refused, Err(Error::TooManyDescriptors)));
    for count in [MAX_DESCRIPTORS + 1, MAX_DESCRIPTORS + 2, 253] {
        send_unbounded(&one, &vec![writer.as_fd(); count]);
        let refused = other.receive::<Value>();
        assert!(
            matches!(refused, Err(Error::TooManyDescriptors)),
            "{refused:?}"
        );
    }
    one.send(&json!(2), &many[1..]).unwrap();
    assert_eq!(other.receive::<Value>().unwrap().1.len(), MAX_DESCRIPTORS);
    drop(many);
    drop(writer);
    assert_eq!(rustix::io::read(&reader, &mut [0u8; 1]).unwrap(), 0);
}

/// Sends a frame as a hostile peer does, without the checks of the crate.
fn send_unbounded(connection: &Connection, descriptors: &[BorrowedFd<'_>]) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
    let frame = [std::io::IoSlice::new(b"1")];
    rustix::net::sendmsg(connection, &frame, &mut ancillary, SendFlags::empty()).unwrap();
}

#[test]
fn peer_that_does_not_read_is_noticed() {
    let (one, _other) = Connection::pair().unwrap();
    let frame = "a".repeat(1000);
    let full = (0..1_000_000).find_map(|_| one.try_send(&frame, &[]).err());
    assert!(matches!(full, Some(Error::Full)), "{full:?}");
    one.set_timeouts(Some(Duration::from_millis(1)), None)
        .unwrap();
    assert!(matches!(one.send(&frame, &[]), Err(Error::TimedOut)));
}

#[test]
fn peer_that_says_nothing_is_noticed() {
    let (one, _other) = Connection::pair().unwrap();
    assert!(matches!(one.try_receive::<Value>(), Err(Error::Empty)));
    one.set_timeouts(None, Some(Duration::from_millis(1)))
        .unwrap();
    assert!(matches!(one.receive::<Value>(), Err(Error::TimedOut)));
}

#[test]
fn shutdown_ends_waits_of_other_threads() {
    let (one, other) = Connection::pair().unwrap();
    let frame = "a".repeat(1000);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| one.receive::<Value>());
        let sender = scope.spawn(|| {
            loop {
                if let Err(error) = one.send(&frame, &[]) {
                    return error;
                }
            }
        });
        one.shutdown();
        assert!(matches!(receiver.join().unwrap(), Err(Error::Closed)));
        assert!(matches!(sender.join().unwrap(), Error::Closed));
    });
    drop(other);
    let folder = Folder::new("shutdown");
    let listener = listen(&folder);
    thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().map(|_| ()));
        listener.shutdown();
        assert!(matches!(accepting.join().unwrap(), Err(Error::Closed)));
    });
}

#[test]
fn frames_of_several_senders_stay_whole() {
    let (one, other) = Connection::pair().unwrap();
    thread::scope(|scope| {
        for sender in 0..4u64 {
            let one = &one;
            scope.spawn(move || {
                for length in 0..50u64 {
                    one.send(&vec![sender; length as usize * 40], &[]).unwrap();
                }
            });
        }
        for _ in 0..200 {
            let (values, _) = other.receive::<Vec<u64>>().unwrap();
            assert!(values.iter().all(|value| *value == values[0]));
        }
    });
}

#[test]
fn path_that_is_too_long_is_an_error() {
    let folder = Folder::new("long");
    let refused = Listener::bind(folder.0.join("a".repeat(200)), Allowed::own());
    assert!(matches!(refused, Err(Error::System { .. })), "{refused:?}");
    assert!(folder.entries().is_empty());
}

#[test]
fn last_frames_of_a_peer_that_read_nothing_arrive() {
    let (one, other) = Connection::pair().unwrap();
    one.send(&json!("unread"), &[]).unwrap();
    other.send(&json!("first"), &[]).unwrap();
    other.send(&json!("last"), &[]).unwrap();
    drop(other);
    for expected in ["first", "last"] {
        assert_eq!(one.receive::<Value>().unwrap().0, json!(expected));
    }
    assert!(matches!(one.receive::<Value>(), Err(Error::Closed)));
}

#[test]
fn closed_peer_is_an_error_and_no_signal() {
    let (one, other) = Connection::pair().unwrap();
    drop(other);
    assert!(matches!(one.send(&json!(1), &[]), Err(Error::Closed)));
    assert!(one.as_fd().as_raw_fd() >= 0);
}
