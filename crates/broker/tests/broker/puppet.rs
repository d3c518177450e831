//! A service in a process of its own, which does what its standard input says and reports on its standard output.

use crate::common::{CHUNK, MIB, use_block};
use crate::joint::Joint;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use weirpool::device::sim::SimStream;
use weirpool::{Pool, Stream};
use weirpool_broker::{Broker, BrokerConfig, BrokerOptions, lease_capacity, lease_of};

const ROLE: &str = "WEIRPOOL_TEST_PUPPET";

/// The options of a puppet, in its environment.
pub(crate) struct Setting<'a> {
    pub(crate) socket: &'a Path,
    pub(crate) joint: &'a Path,
    /// In MiB.
    pub(crate) memory: u64,
    pub(crate) guaranteed: u64,
}

/// A handle of a puppet. It is killed when this is dropped.
pub(crate) struct Puppet {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Puppet {
    pub(crate) fn start(setting: &Setting<'_>) -> Self {
        let Setting {
            memory, guaranteed, ..
        } = setting;
        Self::spawn(
            &format!("{memory};{guaranteed}"),
            setting.socket,
            setting.joint,
        )
    }

    /// Starts a broker in a process of its own.
    pub(crate) fn start_broker(socket: &Path, capacity: u64) -> Self {
        Self::spawn(&format!("broker;{capacity}"), socket, socket)
    }

    fn spawn(role: &str, socket: &Path, joint: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "puppet::puppet",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, role)
            .env("WEIRPOOL_TEST_SOCKET", socket)
            .env("WEIRPOOL_TEST_JOINT", joint)
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

    pub(crate) fn tell(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    /// Reads until a line that the puppet said. Returns what follows the word.
    pub(crate) fn expect(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            let length = self.output.read_line(&mut line).unwrap();
            assert!(length > 0, "the puppet ended without {word}");
            if let Some(said) = line.trim().split_once("puppet: ").map(|(_, said)| said) {
                let rest = said.strip_prefix(word);
                return rest
                    .unwrap_or_else(|| panic!("{said} in place of {word}"))
                    .trim()
                    .to_owned();
            }
        }
    }

    pub(crate) fn ask(&mut self, command: &str, word: &str) -> String {
        self.tell(command);
        self.expect(word)
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.process(), signal).unwrap();
        if signal == rustix::process::Signal::STOP {
            // The process may go on for a while.
            crate::common::eventually(|| self.state() == 'T');
        }
    }

    /// Returns the state of the process: S for one that sleeps, T for one that is stopped.
    pub(crate) fn state(&self) -> char {
        let process = self.process().as_raw_nonzero();
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.chars().next().unwrap()
    }

    pub(crate) fn process(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What runs in the other process.
struct Service {
    pool: Pool,
    work: SimStream,
    stream: Stream,
}

/// Does nothing, unless this process is a puppet.
#[test]
fn puppet() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    if let Some(capacity) = role.strip_prefix("broker;") {
        let socket = std::env::var_os("WEIRPOOL_TEST_SOCKET").unwrap();
        let config = BrokerConfig::new(socket, capacity.parse().unwrap());
        let broker = Broker::bind(config).unwrap();
        say("ready");
        return broker.run().unwrap();
    }
    let (memory, guaranteed) = role.split_once(';').unwrap();
    let number = |text: &str| text.parse::<u64>().unwrap() * MIB;
    let path = |name| PathBuf::from(std::env::var_os(name).unwrap());
    let joint = Joint::new(&path("WEIRPOOL_TEST_JOINT"), number(memory));
    let sim = joint.sim().clone();
    let options = BrokerOptions::new(path("WEIRPOOL_TEST_SOCKET"))
        .guaranteed(number(guaranteed))
        .headroom(0);
    let builder = Pool::builder(joint).chunk_bytes(CHUNK);
    let pool = lease_capacity(builder, options).build().unwrap();
    let work = sim.create_stream();
    let stream = pool.register(&work).unwrap();
    let service = Service { pool, work, stream };
    say("ready");
    let mut blocks = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (command, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match command {
            "allocate" => {
                let block = service
                    .pool
                    .allocate(&service.stream, number(rest))
                    .blocking()
                    .unwrap();
                use_block(&service.work, &block, Duration::from_micros(50));
                blocks.push(block);
                say("allocated");
            }
            "free" => {
                blocks.clear();
                say("freed");
            }
            "reserved" => say(&format!(
                "reserved {}",
                service.pool.inspect().statistics().reserved.current / MIB
            )),
            "connected" => {
                crate::common::eventually(|| lease_of(&service.pool).unwrap().is_connected);
                say("connected");
            }
            "serve" => serve(&service, rest),
            _ => panic!("the command {line}"),
        }
    }
}

fn say(words: &str) {
    println!("puppet: {words}");
    std::io::stdout().flush().unwrap();
}

/// Serves requests that hold different amounts of memory, up to a peak in MiB.
fn serve(service: &Service, rest: &str) {
    let (requests, peak) = rest.split_once(' ').unwrap();
    let (requests, peak): (u64, u64) = (requests.parse().unwrap(), peak.parse().unwrap());
    let mut served = 0;
    for request in 0..requests {
        // Each request takes all that it needs at once, so that processes do not wait for each other in circles.
        let bytes = (1 + (request * 7919 + u64::from(std::process::id())) % peak) * MIB;
        let reservation = service.pool.reserve(bytes).blocking().unwrap();
        let block = reservation.allocate(&service.stream, bytes).unwrap();
        use_block(&service.work, &block, Duration::from_micros(200));
        drop(block);
        service.stream.synchronize().blocking_or_poll();
        served += 1;
    }
    say(&format!("served {served}"));
}

trait BlockingOrPoll {
    fn blocking_or_poll(self);
}

impl BlockingOrPoll for weirpool::Completion {
    fn blocking_or_poll(self) {
        futures::executor::block_on(self).unwrap();
    }
}
