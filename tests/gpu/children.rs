//! Child processes: this program with a variable in its environment, for tests that a process does not survive, and for
//! the part of a second process.

use crate::{ends, processes, shutdown};
use std::io::{BufRead, BufReader, Read, Write};
use std::panic::catch_unwind;
use std::process::{Child, ChildStdin, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The variable that names the task of a child.
const CHILD: &str = "WEIRPOOL_GPU_CHILD";
/// The last line that a child prints.
pub(crate) const DONE: &str = "all as it should be";
/// The time limit of a child.
const PATIENCE: Duration = Duration::from_secs(30);

/// The tasks of children, by name.
const ACTS: &[(&str, fn())] = &[
    (ends::FAULT, ends::fault),
    (ends::FAULT_MAPPED, ends::fault_before_all_on_mapped),
    (ends::FAULT_PLAIN, ends::fault_before_all_on_plain),
    (ends::EXIT, ends::exit),
    (shutdown::EXIT_ELSEWHERE, shutdown::exit_elsewhere),
    (shutdown::WITHOUT_THREADS, shutdown::without_threads),
    (shutdown::DROP_MAPPED, shutdown::drop_mapped),
    (shutdown::DROP_PLAIN, shutdown::drop_plain),
    (processes::RESERVATION, processes::reservation),
    #[cfg(target_os = "linux")]
    (crate::ipc::READER, crate::ipc::reader),
    #[cfg(target_os = "linux")]
    (crate::broker::TENANT, crate::broker::tenant),
    #[cfg(target_os = "linux")]
    (crate::published::PUBLISHER, crate::published::publisher),
    #[cfg(target_os = "linux")]
    (crate::published::READER, crate::published::reader),
];

/// Runs the task of this process, if it is a child. Returns its exit code.
pub(crate) fn in_a_child() -> Option<ExitCode> {
    let task = std::env::var(CHILD).ok()?;
    let act = ACTS.iter().find(|(word, _)| *word == task);
    let (_, act) = act.unwrap_or_else(|| panic!("{CHILD} is {task}"));
    if catch_unwind(act).is_err() {
        return Some(ExitCode::FAILURE);
    }
    println!("{DONE}");
    Some(ExitCode::SUCCESS)
}

fn command(task: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(CHILD, task).stdout(Stdio::piped());
    command
}

/// Checks that a child completes its task and exits by itself, without a signal, and in time.
pub(crate) fn assert_child(task: &str) {
    assert_command(task, &mut command(task));
}

/// As [`assert_child`], for a child that can start no thread: the stacks are larger than the address space.
pub(crate) fn assert_child_without_threads(task: &str) {
    assert_command(
        task,
        command(task).env("RUST_MIN_STACK", (1u64 << 60).to_string()),
    );
}

fn assert_command(task: &str, command: &mut Command) {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let ended = await_end(&mut child);
    let said = text_of(child.stdout.take().unwrap());
    let complained = text_of(child.stderr.take().unwrap());
    let is_well = ended.is_some_and(|status| status.success()) && said.contains(DONE);
    let how = ended.map_or_else(
        || format!("did not end within {PATIENCE:?}, and was killed"),
        |status| format!("ended with {status}"),
    );
    assert!(is_well, "the child `{task}` {how}\n{said}{complained}");
}

fn text_of(mut pipe: impl Read) -> String {
    let mut text = String::new();
    pipe.read_to_string(&mut text).unwrap();
    text
}

fn await_end(child: &mut Child) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// A child with which the test exchanges lines. Dropping this kills it.
pub(crate) struct Neighbour {
    child: Child,
    to: Option<ChildStdin>,
    from: Receiver<String>,
}

impl Neighbour {
    /// Starts a child. Its error output goes to that of this process.
    pub(crate) fn start(task: &str) -> Self {
        let mut child = command(task).stdin(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (send, from) = channel();
        thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .try_for_each(|line| send.send(line))
        });
        let to = child.stdin.take();
        Self { child, to, from }
    }

    pub(crate) fn say(&mut self, line: &str) {
        let to = self.to.as_mut().expect("a child that is talked to");
        writeln!(to, "{line}").expect("a child that listens");
    }

    pub(crate) fn hear(&mut self) -> String {
        let line = self.from.recv_timeout(PATIENCE);
        line.unwrap_or_else(|error| panic!("the child says nothing: {error}"))
    }

    /// Closes the child's input, and waits for its end.
    pub(crate) fn end(mut self) {
        drop(self.to.take());
        let ended = await_end(&mut self.child);
        let is_well = ended.is_some_and(|status| status.success());
        assert!(is_well, "the child ended with {ended:?}");
        assert!(self.from.iter().any(|line| line == DONE));
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // Both calls fail if the child has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
