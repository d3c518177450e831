//! The threads that do what must not hold up the calling thread: growth and maintenance where memory calls block, the
//! release of memory after the end of a pool, and calls of other libraries for drops and futures.
//!
//! A memory call may wait for the device, and a call of another library for anything. So no job queues behind another
//! one: a job runs on a thread that has none, or on a new one. The number of threads is bounded all the same, because
//! an [`Errand`] runs on one thread at a time. A pool has two of them, its growth and its maintenance. The process has
//! one for the futures of all pools, and one for each ended pool whose memory is still in use.
//!
//! A thread that has no job is kept for a while: growths follow each other, and a new thread takes as long to start and
//! to make its first calls as to map a chunk or two. It ends with its [`Background`] at the latest, and is never joined,
//! since its own job may drop the last reference to the pool. A panic ends its job alone.

use crate::plain::{self, Arc, AtomicU64, Condvar, Mutex, OnceLock, Ordering, thread};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// How long a thread looks for the next job before it sleeps: a sleeping thread runs tens of microseconds late.
const LINGER: Duration = Duration::from_micros(200);

/// How long a thread waits for the next job before it ends.
const KEPT: Duration = Duration::from_millis(100);

type Job = Box<dyn FnOnce() + Send>;

/// The threads of one pool, or those of the process.
#[derive(Default)]
pub struct Background(Arc<Desk>);

/// Where threads without a job wait for one.
#[derive(Default)]
struct Desk {
    posted: Mutex<Posted>,
    /// The number of jobs that wait for a thread.
    waiting: AtomicU64,
    news: Condvar,
}

#[derive(Default)]
struct Posted {
    /// At most as many as there are idle threads.
    jobs: VecDeque<Job>,
    idle: usize,
    is_closed: bool,
}

impl Background {
    /// Returns the threads for jobs that belong to no living pool.
    pub fn of_process() -> &'static Self {
        static OF_PROCESS: OnceLock<Background> = OnceLock::new();
        OF_PROCESS.get_or_init(Self::default)
    }

    /// Runs a job that is to call [`Errand::run`], on a thread that has no other job. If the errand is under way, it runs
    /// once more instead.
    ///
    /// # Errors
    /// Returns the job if no thread can be started. The caller runs it, or [cancels](Errand::cancel) the errand.
    pub fn call(&self, errand: &Errand, job: impl FnOnce() + Send + 'static) -> Result<(), Job> {
        if !errand.is_to_be_run() {
            return Ok(());
        }
        let mut posted = self.0.posted.lock();
        posted.jobs.push_back(Box::new(job));
        if posted.jobs.len() > posted.idle {
            let desk = self.0.clone();
            let thread = thread::Builder::new().name("weirpool-jobs".into());
            if thread.spawn(move || desk.work()).is_err() {
                return posted.jobs.pop_back().map_or(Ok(()), Err);
            }
            posted.idle += 1;
        }
        self.0.record_waiting(&posted);
        drop(posted);
        self.0.news.notify_one();
        Ok(())
    }
}

impl Drop for Background {
    /// One of the threads may be the one that runs this.
    fn drop(&mut self) {
        self.0.posted.lock().is_closed = true;
        self.0.news.notify_all();
    }
}

impl Desk {
    /// The thread, which counts as idle.
    fn work(&self) {
        while let Some(job) = self.next_job() {
            plain::catch(job);
            self.posted.lock().idle += 1;
        }
    }

    /// Waits for a job; `None` once none has come for a while, or none can come any more. The thread counts as idle no
    /// longer.
    fn next_job(&self) -> Option<Job> {
        let since = Instant::now();
        while self.waiting.load(Ordering::Acquire) == 0 && since.elapsed() < LINGER {
            thread::yield_now();
        }
        let mut posted = self.posted.lock();
        loop {
            let job = posted.jobs.pop_front();
            let left = KEPT.saturating_sub(since.elapsed());
            if job.is_some() || posted.is_closed || left.is_zero() {
                posted.idle -= 1;
                self.record_waiting(&posted);
                return job;
            }
            let slept = self.news.wait_timeout(posted, left);
            posted = slept.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    fn record_waiting(&self, posted: &Posted) {
        let waiting = posted.jobs.len() as u64;
        self.waiting.store(waiting, Ordering::Release);
    }
}

const IDLE: u64 = 0;
const RUNNING: u64 = 1;
/// The job was called, and has not begun to run since.
const CALLED: u64 = 2;

/// A job that runs on one thread at a time. If it is called while it runs, that thread runs it again.
#[derive(Debug, Default)]
pub struct Errand(AtomicU64);

impl Errand {
    /// Notes a call. Returns whether the caller is to have the job run.
    #[must_use = "the job runs only if the caller has it run"]
    pub fn is_to_be_run(&self) -> bool {
        self.0.swap(CALLED, Ordering::AcqRel) == IDLE
    }

    /// Runs the job until no call came while it ran. A panic of the last run is passed on.
    pub fn run(&self, mut job: impl FnMut()) {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        loop {
            self.0.swap(RUNNING, Ordering::AcqRel);
            let run = catch_unwind(AssertUnwindSafe(&mut job));
            let ended = self.0.compare_exchange(RUNNING, IDLE, success, failure);
            match run {
                Err(panic) if ended.is_ok() => resume_unwind(panic),
                // It was reported. The payload's destructor may panic as well.
                Err(panic) => std::mem::forget(panic),
                Ok(()) if ended.is_ok() => return,
                Ok(()) => {}
            }
        }
    }

    /// Takes a call back whose job no thread runs.
    pub fn cancel(&self) {
        self.0.store(IDLE, Ordering::Release);
    }
}

#[cfg(all(test, not(weirpool_loom)))]
mod tests {
    use super::*;
    use crate::plain::AtomicBool;

    /// Runs an errand that counts its runs, and whether two overlap.
    struct Counting {
        errand: Errand,
        runs: AtomicU64,
        is_under_way: AtomicBool,
    }

    impl Counting {
        fn call(self: &Arc<Self>, background: &Background, job: impl Fn() + Send + 'static) {
            let this = self.clone();
            let run = move || {
                this.errand.run(|| {
                    assert!(!this.is_under_way.swap(true, Ordering::AcqRel));
                    this.runs.fetch_add(1, Ordering::AcqRel);
                    this.is_under_way.store(false, Ordering::Release);
                    job();
                });
            };
            assert!(background.call(&self.errand, run).is_ok());
        }

        fn await_runs(&self, runs: u64) {
            while self.runs.load(Ordering::Acquire) < runs {
                thread::yield_now();
            }
        }
    }

    fn counting() -> Arc<Counting> {
        Arc::new(Counting {
            errand: Errand::default(),
            runs: AtomicU64::new(0),
            is_under_way: AtomicBool::new(false),
        })
    }

    #[test]
    fn errand_runs_after_each_call_and_on_one_thread_at_a_time() {
        let (background, counting) = (Background::default(), counting());
        for call in 1..=1000 {
            let before = counting.runs.load(Ordering::Acquire);
            counting.call(&background, || {});
            counting.await_runs(before + 1);
            assert!(counting.runs.load(Ordering::Acquire) <= call);
        }
    }

    #[test]
    fn job_that_blocks_delays_no_other_job() {
        let (background, blocked, other) = (Background::default(), counting(), counting());
        let gate = Arc::new(AtomicBool::new(false));
        let is_open = gate.clone();
        blocked.call(&background, move || {
            while !is_open.load(Ordering::Acquire) {
                thread::yield_now();
            }
        });
        other.call(&background, || {});
        other.await_runs(1);
        gate.store(true, Ordering::Release);
    }

    #[test]
    fn errand_that_panics_is_called_again() {
        let (background, counting) = (Background::default(), counting());
        counting.call(&background, || std::panic::resume_unwind(Box::new(())));
        counting.await_runs(1);
        while counting.errand.0.load(Ordering::Acquire) != IDLE {
            thread::yield_now();
        }
        counting.call(&background, || {});
        counting.await_runs(2);
    }

    #[test]
    fn thread_without_a_job_ends() {
        let (background, counting) = (Background::default(), counting());
        counting.call(&background, || {});
        counting.await_runs(1);
        while Arc::strong_count(&background.0) > 1 {
            thread::yield_now();
        }
        assert_eq!(background.0.posted.lock().idle, 0);
        counting.call(&background, || {});
        counting.await_runs(2);
    }
}
