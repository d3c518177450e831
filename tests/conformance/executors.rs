//! What runs the awaiting tests: no test knows which one it is on.

use futures::executor::LocalPool;
use futures::future::join_all;
use futures::task::SpawnExt;
use std::future::Future;
use std::pin::Pin;

/// A task of a test.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs tasks to their end, each spawned as the executor does it. A task's panic goes on.
pub(crate) trait Executor {
    fn run(tasks: Vec<Task>);
}

/// `futures::executor`, on one thread.
pub(crate) struct Futures;

impl Executor for Futures {
    fn run(tasks: Vec<Task>) {
        let mut pool = LocalPool::new();
        for task in tasks {
            pool.spawner().spawn(task).expect("an executor that runs");
        }
        pool.run();
    }
}

/// smol, on two threads.
pub(crate) struct Smol;

impl Executor for Smol {
    fn run(tasks: Vec<Task>) {
        let executor = smol::Executor::new();
        let (stop, stopped) = smol::channel::bounded::<()>(1);
        std::thread::scope(|scope| {
            scope.spawn(|| smol::block_on(executor.run(stopped.recv())));
            let tasks = tasks.into_iter().map(|task| executor.spawn(task));
            smol::block_on(executor.run(join_all(tasks)));
            drop(stop);
        });
    }
}

/// tokio, on the thread that blocks on it.
#[cfg(feature = "tokio")]
pub(crate) struct TokioCurrentThread;

#[cfg(feature = "tokio")]
impl Executor for TokioCurrentThread {
    fn run(tasks: Vec<Task>) {
        run_on(tokio::runtime::Builder::new_current_thread(), tasks);
    }
}

/// tokio, on two threads.
#[cfg(feature = "tokio")]
pub(crate) struct TokioMultiThread;

#[cfg(feature = "tokio")]
impl Executor for TokioMultiThread {
    fn run(tasks: Vec<Task>) {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2);
        run_on(builder, tasks);
    }
}

#[cfg(feature = "tokio")]
fn run_on(mut builder: tokio::runtime::Builder, tasks: Vec<Task>) {
    let runtime = builder.build().expect("a runtime");
    let tasks: Vec<_> = tasks.into_iter().map(|task| runtime.spawn(task)).collect();
    for ended in runtime.block_on(join_all(tasks)) {
        if let Err(error) = ended {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}
