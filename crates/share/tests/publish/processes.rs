//! Several processes, which are killed at each step, and a broker that is. Each test starts this program again, which then
//! runs `puppet` alone and does what its standard input says.

use crate::{Folder, MIB, Side};
use futures::executor::block_on;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use weirpool_broker::names::{NameError, NameStanding};
use weirpool_broker::{Broker, BrokerConfig, lease_of, withdraw};
use weirpool_share::ipc::{Attached, Publish, PublishError};

const ROLE: &str = "WEIRPOOL_PUBLISH_ROLE";
const SOCKET: &str = "WEIRPOOL_PUBLISH_SOCKET";
const CAPACITY: u64 = 64 * MIB;

/// A process that plays a part. It is killed when this is dropped.
struct Puppet {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Puppet {
    fn start(folder: &Folder, role: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["processes::puppet", "--exact", "--nocapture"])
            .env(ROLE, role)
            .env(SOCKET, folder.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut puppet = Self {
            child,
            input,
            output,
        };
        puppet.expect("ready");
        puppet
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    /// Reads until a line that the puppet said. Returns what follows the word.
    fn expect(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            let length = self.output.read_line(&mut line).unwrap();
            assert!(length > 0, "the puppet ended without {word}");
            if let Some((_, said)) = line.trim().split_once("puppet: ") {
                let rest = said.strip_prefix(word);
                let rest = rest.unwrap_or_else(|| panic!("{said} in place of {word}"));
                return rest.trim().to_owned();
            }
        }
    }

    fn ask(&mut self, command: &str, word: &str) -> String {
        self.tell(command);
        self.expect(word)
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(words: &str) {
    println!("\npuppet: {words}");
    std::io::stdout().flush().unwrap();
}

/// The other processes of these tests. Does nothing in a run of all tests.
#[test]
fn puppet() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let socket = PathBuf::from(std::env::var_os(SOCKET).unwrap());
    if role == "broker" {
        let broker = Broker::bind(BrokerConfig::new(socket, CAPACITY)).unwrap();
        say("ready");
        return broker.run().unwrap();
    }
    let side = Side::new(&socket, 0);
    say("ready");
    let (mut blocks, mut attached) = (Vec::new(), Vec::<Attached>::new());
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        match *words {
            ["load", mib, text] => {
                let bytes = mib.parse::<u64>().unwrap() * MIB;
                blocks.push(side.exportable(bytes, text));
                say("loaded");
            }
            ["publish", name] => {
                let published = block_on(side.pool.publish(name, &blocks).into_future());
                say(&format!("published {}", published.unwrap()));
            }
            ["attach", name] => {
                attached
                    .push(block_on(side.pool.attach(name, &side.stream).into_future()).unwrap());
                say("attached");
            }
            ["read", length] => {
                let block = &attached.last().unwrap().blocks()[0];
                let range = 0..length.parse().unwrap();
                let bytes = block_on(block.download(&side.stream, range).unwrap()).unwrap();
                say(&format!("read {}", String::from_utf8_lossy(&bytes)));
            }
            ["forever", name] => loop {
                // Killed in the middle of any step.
                let block = side.exportable(8 * MIB, "forever");
                let publishing = side.pool.publish(name, [&block]).replacing();
                block_on(publishing.into_future()).unwrap();
                drop(block);
                drop(block_on(side.pool.attach(name, &side.stream).into_future()).unwrap());
            },
            ["attach-forever", name] => loop {
                drop(block_on(side.pool.attach(name, &side.stream).into_future()).unwrap());
            },
            ["drop"] => {
                blocks.clear();
                attached.clear();
                say("dropped");
            }
            ["connected"] => {
                crate::eventually(|| lease_of(&side.pool).unwrap().is_connected);
                say("connected");
            }
            _ => panic!("the command {line}"),
        }
    }
}

/// Attaches a name once the broker has it back.
fn read_once_back(side: &Side, name: &str, length: usize) -> (u64, String) {
    loop {
        match side.read(name, length) {
            Err(PublishError::Name(NameError::Lost { .. })) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            read => return read.unwrap(),
        }
    }
}

#[test]
fn memory_of_a_killed_publisher_is_attached_by_the_next_process() {
    let folder = Folder::new("killed");
    let _broker = folder.broker(CAPACITY);
    let mut publisher = Puppet::start(&folder, "");
    publisher.ask("load 40 weights", "loaded");
    // Killed before it hands the memory over: nothing is left.
    publisher.kill();
    folder.until_free();
    let mut publisher = Puppet::start(&folder, "");
    publisher.ask("load 40 weights", "loaded");
    publisher.ask("publish llama", "published");
    publisher.kill();
    let left = folder.until(|figures| figures.clients.is_empty());
    assert_eq!((left.free, left.names[0].clients), (24 * MIB, 0));
    let mut reader = Puppet::start(&folder, "");
    reader.ask("attach llama", "attached");
    assert_eq!(reader.ask("read 7", "read"), "weights");
    // The name is withdrawn, and a process that is killed lets go of it.
    withdraw(&folder.socket(), "llama", Duration::from_secs(5))
        .unwrap()
        .unwrap();
    assert_eq!(folder.figures().free, 24 * MIB);
    assert_eq!(reader.ask("read 7", "read"), "weights");
    reader.kill();
    folder.until_free();
}

/// Whatever the publisher was doing, the name leads to whole memory of one version or to none, and nothing else counts.
#[test]
fn publisher_that_is_killed_at_any_step_leaves_a_whole_version_or_none() {
    let folder = Folder::new("any-step");
    let _broker = folder.broker(CAPACITY);
    let reader = folder.side();
    let mut random = fastrand::Rng::with_seed(50);
    let mut published = 0;
    for _ in 0..30 {
        let mut publisher = Puppet::start(&folder, "");
        publisher.tell("forever llama");
        std::thread::sleep(Duration::from_micros(random.u64(0..20_000)));
        publisher.kill();
        let left = folder.until(|figures| {
            figures.clients.len() == 1 && figures.names.iter().all(|name| name.clients == 0)
        });
        let named = 8 * MIB * left.names.len() as u64;
        assert!(
            left.names.len() <= 1 && left.free == CAPACITY - named,
            "{left:?}"
        );
        if let [name] = &*left.names {
            published += 1;
            let read = reader.read("llama", 7).unwrap();
            assert_eq!(read, (name.version, "forever".into()));
        }
    }
    assert!(published > 0, "no round came as far");
}

#[test]
fn process_that_is_killed_while_it_attaches_holds_nothing() {
    let folder = Folder::new("attaching");
    let _broker = folder.broker(CAPACITY);
    let publisher = folder.side();
    let block = publisher.exportable(8 * MIB, "weights");
    publisher.publish("llama", &block).unwrap();
    let mut random = fastrand::Rng::with_seed(50);
    for _ in 0..20 {
        let mut reader = Puppet::start(&folder, "");
        reader.tell("attach-forever llama");
        std::thread::sleep(Duration::from_micros(random.u64(0..10_000)));
        reader.kill();
        folder.until(|figures| figures.clients.len() == 1 && figures.names[0].clients == 1);
    }
    drop((block, publisher));
    withdraw(&folder.socket(), "llama", Duration::from_secs(5))
        .unwrap()
        .unwrap();
    folder.until_free();
}

#[test]
fn killed_broker_gets_memory_back_from_a_process_that_has_it() {
    let folder = Folder::new("broker-killed");
    let mut broker = Puppet::start(&folder, "broker");
    let mut publisher = Puppet::start(&folder, "");
    publisher.ask("load 24 weights", "loaded");
    let version: u64 = publisher.ask("publish llama", "published").parse().unwrap();
    let mut reader = Puppet::start(&folder, "");
    reader.ask("attach llama", "attached");
    for round in 0..4 {
        broker.kill();
        // In later rounds only one that attached has the memory.
        if round == 1 {
            publisher.ask("drop", "dropped");
        }
        // The next broker counts the memory before the process that has it is back.
        reader.signal(Signal::STOP);
        broker = Puppet::start(&folder, "broker");
        let figures = folder.figures();
        let named: u64 = figures.names.iter().map(|name| name.bytes).sum();
        assert_eq!((figures.free, named), (CAPACITY - 24 * MIB, 24 * MIB));
        if round > 1 {
            assert_eq!(figures.names[0].standing, NameStanding::Lost);
            let side = folder.side();
            let lost = side.read("llama", 7);
            assert!(
                matches!(lost, Err(PublishError::Name(NameError::Lost { .. }))),
                "{lost:?}"
            );
        }
        reader.signal(Signal::CONT);
        let side = folder.side();
        let read = read_once_back(&side, "llama", 7);
        assert_eq!(read, (version, "weights".into()));
        drop(side);
        folder.until(|figures| figures.clients.len() == 2 && figures.free == CAPACITY - 24 * MIB);
    }
    // No process has it mapped any more: the broker has it, and with that one it ends.
    reader.ask("drop", "dropped");
    folder.until(|figures| figures.names[0].clients == 0);
    broker.kill();
    let _broker = Puppet::start(&folder, "broker");
    folder.until_free();
    assert!(folder.figures().names.is_empty());
}

/// Requests that the broker did not answer are repeated, and none is lost or made twice.
#[test]
fn requests_outlive_the_broker_that_did_not_answer_them() {
    let folder = Folder::new("unanswered");
    let mut broker = Puppet::start(&folder, "broker");
    let side = folder.side();
    for round in 0..12 {
        let block = side.exportable(8 * MIB, "weights");
        block_on(block.download(&side.stream, 0..1).unwrap()).unwrap();
        broker.signal(Signal::STOP);
        let (pool, sent) = (side.pool.clone(), std::sync::Barrier::new(2));
        let version = std::thread::scope(|threads| {
            let publishing = threads.spawn(|| {
                let publishing = pool.publish("llama", [&block]).replacing().into_future();
                sent.wait();
                block_on(publishing)
            });
            sent.wait();
            std::thread::sleep(Duration::from_millis(2));
            match round % 3 {
                // It never sees the request.
                0 => {}
                // It may have handled it, and not have answered, or have answered and not be read.
                _ => broker.signal(Signal::CONT),
            }
            std::thread::sleep(Duration::from_micros(round * 50));
            let next = std::mem::replace(&mut broker, unstarted());
            next.kill();
            broker = Puppet::start(&folder, "broker");
            publishing.join().unwrap().unwrap()
        });
        assert_eq!(
            read_once_back(&side, "llama", 7),
            (version, "weights".into())
        );
        let figures = folder.until(|figures| figures.names.len() == 1);
        assert_eq!(
            (figures.names[0].version, figures.names[0].clients),
            (version, 1)
        );
        assert_eq!(side.pool.inspect().statistics().charged, 0);
        drop(block);
        withdraw(&folder.socket(), "llama", Duration::from_secs(5))
            .unwrap()
            .unwrap();
        folder.until(|figures| figures.names.is_empty());
    }
    drop(side);
    folder.until_free();
}

/// A process that does nothing, in place of one that is gone.
fn unstarted() -> Puppet {
    let mut child = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = child.stdin.take().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    Puppet {
        child,
        input,
        output,
    }
}
