//! The executors that the service can be run on here; it works on any.
//!
//! With the feature `tokio`, the pool spawns a reclaimer on the Tokio runtime while a request waits. On other executors
//! every free would wake all waiting requests, so the service spawns the reclaimer itself.

use clap::ValueEnum;
use futures::executor::LocalPool;
use futures::task::{FutureObj, Spawn, SpawnError};
use std::future::Future;
use std::io;
use weirpool::device::sim::SimDevice;

/// An executor, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExecutorName {
    /// Tokio, with a thread for each core
    Tokio,
    /// Tokio, with one thread
    TokioCurrent,
    /// The global executor of smol
    Smol,
    /// `futures::executor::LocalPool`: one thread, no timer, no I/O
    Futures,
    /// The simulated device's own, in virtual time: fast, and the same run every time
    Virtual,
}

impl ExecutorName {
    /// Returns whether the pool spawns its reclaimer on this executor by itself.
    pub(crate) fn has_reclaimer(self) -> bool {
        cfg!(feature = "tokio") && matches!(self, Self::Tokio | Self::TokioCurrent)
    }
}

/// An executor, ready to run.
#[derive(Debug)]
pub(crate) enum Executor {
    Tokio(tokio::runtime::Runtime),
    Smol,
    Futures(LocalPool),
    Virtual(SimDevice),
}

impl Executor {
    /// Creates the executor of this name.
    ///
    /// # Errors
    /// Returns an error if the operating system cannot start a thread.
    ///
    /// # Panics
    /// Panics if virtual time is requested, but no device has it.
    pub(crate) fn new(name: ExecutorName, virtual_time: Option<&SimDevice>) -> io::Result<Self> {
        use tokio::runtime::Builder;
        Ok(match name {
            ExecutorName::Tokio => Self::Tokio(Builder::new_multi_thread().build()?),
            ExecutorName::TokioCurrent => Self::Tokio(Builder::new_current_thread().build()?),
            ExecutorName::Smol => Self::Smol,
            ExecutorName::Futures => Self::Futures(LocalPool::new()),
            ExecutorName::Virtual => {
                let sim =
                    virtual_time.expect("virtual time was checked to be on the simulated device");
                Self::Virtual(sim.clone())
            }
        })
    }

    /// Runs a future to its end on this thread; the executor chooses the threads of the tasks that it spawns.
    pub(crate) fn run<F: Future>(self, start: impl FnOnce(Box<dyn Spawn>) -> F) -> F::Output {
        match self {
            Self::Tokio(runtime) => {
                let spawner = OnTokio(runtime.handle().clone());
                runtime.block_on(start(Box::new(spawner)))
            }
            Self::Smol => smol::block_on(start(Box::new(OnSmol))),
            Self::Futures(mut pool) => {
                let spawner = pool.spawner();
                pool.run_until(start(Box::new(spawner)))
            }
            Self::Virtual(sim) => sim.run(|spawner| start(Box::new(spawner))),
        }
    }
}

struct OnTokio(tokio::runtime::Handle);

impl Spawn for OnTokio {
    fn spawn_obj(&self, future: FutureObj<'static, ()>) -> Result<(), SpawnError> {
        drop(self.0.spawn(future));
        Ok(())
    }
}

struct OnSmol;

impl Spawn for OnSmol {
    fn spawn_obj(&self, future: FutureObj<'static, ()>) -> Result<(), SpawnError> {
        smol::spawn(future).detach();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::task::SpawnExt;

    #[test]
    fn each_executor_runs_spawned_tasks() {
        let sim = SimDevice::new();
        for name in ExecutorName::value_variants() {
            let executor = Executor::new(*name, Some(&sim)).unwrap();
            let answer = executor.run(|spawner| async move {
                let task = spawner.spawn_with_handle(async { 42 });
                task.unwrap().await
            });
            assert_eq!(answer, 42, "{name:?}");
        }
    }
}
