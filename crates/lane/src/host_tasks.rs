//! The host tasks that hold a stream: how many there are, since when, and how many were dropped before their end.

use crate::sync::{Guards, Mutex};
use std::borrow::Cow;
use std::panic::Location;
use std::time::Duration;

/// A host task that holds its stream.
#[derive(Clone, Debug)]
pub struct Holder {
    /// Its name, if it has one.
    pub name: Option<Cow<'static, str>>,
    /// Where it was submitted.
    pub location: &'static Location<'static>,
    /// When it was spawned, on the device's clock.
    pub since: Duration,
}

/// How a host task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostTaskEnding {
    /// It ran to its end.
    Complete,
    /// It was dropped, or it panicked, and the stream went on without it.
    Abandoned,
}

/// See the [module](self).
#[derive(Debug)]
pub struct HostTasks(Mutex<Tasks>);

#[derive(Debug, Default)]
struct Tasks {
    /// By the number of the task, in the order of their spawning.
    holders: Vec<(u64, Holder)>,
    spawned: u64,
    abandoned: u64,
}

impl HostTasks {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Guards::HostTasks, Tasks::default()))
    }

    /// Notes a new task. Returns its number.
    pub fn begin(&self, holder: Holder) -> u64 {
        let mut tasks = self.0.lock();
        tasks.spawned += 1;
        let number = tasks.spawned;
        tasks.holders.push((number, holder));
        number
    }

    /// Notes the end of a task.
    pub fn end(&self, number: u64, ending: HostTaskEnding) {
        let ended = {
            let mut tasks = self.0.lock();
            tasks.abandoned += u64::from(ending == HostTaskEnding::Abandoned);
            let at = tasks.holders.iter().position(|(held, _)| *held == number);
            at.map(|at| tasks.holders.remove(at))
        };
        drop(ended);
    }

    /// Returns the tasks that hold the stream, the first of which it reaches first.
    pub fn holders(&self) -> Vec<Holder> {
        let tasks = self.0.lock();
        tasks
            .holders
            .iter()
            .map(|(_, holder)| holder.clone())
            .collect()
    }

    /// Returns how many tasks hold the stream, and how many were abandoned so far.
    pub fn counts(&self) -> (usize, u64) {
        let tasks = self.0.lock();
        (tasks.holders.len(), tasks.abandoned)
    }
}
