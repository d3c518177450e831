//! Replays a trace: one task for each stream, all on one thread, by the machine's time.
//!
//! On the simulated device nothing here depends on real time or on other threads, so the same trace,
//! policy and seed give the same run, except for the CPU times that are measured.
//!
//! | module | purpose |
//! |---|---|
//! | [`session`], [`task`], [`backlog`] | the run, its tasks, and how far they run behind |
//! | [`exchange`], [`patience`] | blocks that streams hand over; tasks that wait for memory |
//! | [`timing`], [`samples`], [`progress`] | CPU time; levels over time; the bar on the terminal |
//! | [`report`], [`record`] | the figures of a replay; a replay written as a trace |

mod backlog;
mod exchange;
mod patience;
pub(crate) mod progress;
mod record;
pub(crate) mod report;
pub(crate) mod samples;
pub(crate) mod session;
mod task;
mod timing;

use crate::device::machine::{Figures, Machine, Site, Time};
use crate::options::{Policy, Target};
use crate::trace::Trace;
use anyhow::bail;
use backlog::Backlog;
use futures::executor::LocalPool;
use futures::task::LocalSpawnExt;
use progress::Progress;
use report::{Outcome, Report, Setting};
use samples::{Sample, Samples};
use session::Session;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;
use task::StreamTask;
use weirpool_dashboard::Frame;

/// The most frames of a page, with the one of its end.
const FRAMES: usize = 300;

/// What a run leaves to draw.
#[derive(Debug)]
pub(crate) struct Drawable {
    pub(crate) samples: Vec<Sample>,
    /// The pool over time, if the policy asks for a page.
    pub(crate) frames: Option<Vec<Frame>>,
}

/// Replays `trace`, and returns the report and the data for drawings of the run.
///
/// # Errors
/// Returns an error if the device or the pool fails, other than for lack of memory.
pub(crate) fn replay(
    site: &impl Site,
    trace: &Trace,
    target: &Target,
    policy: &Policy,
    progress: &Progress,
) -> anyhow::Result<(Report, Drawable)> {
    let outcome = run(site, trace, policy, progress)?;
    let unlimited = unlimited(site, trace, policy, &outcome, progress)?;
    let setting = Setting {
        target,
        policy,
        description: site.description(),
    };
    let report = Report::new(trace, setting, &outcome, unlimited);
    let Outcome {
        samples, frames, ..
    } = outcome;
    Ok((report, Drawable { samples, frames }))
}

/// Returns the makespan without a limit on memory and without waits, where the machine can compare two runs.
fn unlimited(
    site: &impl Site,
    trace: &Trace,
    policy: &Policy,
    outcome: &Outcome,
    progress: &Progress,
) -> anyhow::Result<Option<Duration>> {
    let Some(unlimited) = site.unlimited(policy) else {
        return Ok(None);
    };
    if outcome.was_unhindered() {
        return Ok(Some(outcome.makespan));
    }
    progress.again("(again, with unlimited memory)");
    Ok(Some(run(site, trace, &unlimited, progress)?.makespan))
}

fn run(
    site: &impl Site,
    trace: &Trace,
    policy: &Policy,
    progress: &Progress,
) -> anyhow::Result<Outcome> {
    let machine = site.machine(trace, policy)?;
    let session = Rc::new(Session::new(machine, trace, policy)?);
    let mut run = Run {
        session: session.clone(),
        executor: LocalPool::new(),
        samples: Samples::over(trace.duration, samples::MOST),
        frames: policy
            .html
            .is_some()
            .then(|| Samples::over(trace.duration, FRAMES - 1)),
        progress,
        latest: Latest::default(),
        patience: PATIENCE.saturating_add(policy.conditions.lag * 4),
    };
    run.start_tasks(trace, policy)?;
    session.start();
    run.drive()?;
    run.start_draining()?;
    run.drive()?;
    let makespan = session.elapsed();
    let figures = session.machine.figures()?;
    let outcome = run.outcome(makespan, figures);
    if let Some(file) = &policy.record {
        record::write(&session.pool, file)?;
    }
    session.close()?;
    Ok(outcome)
}

/// A run: polls tasks while they can go on, and moves time when they cannot.
struct Run<'a, M: Machine> {
    session: Rc<Session<M>>,
    executor: LocalPool,
    samples: Samples<Sample>,
    frames: Option<Samples<Frame>>,
    progress: &'a Progress,
    latest: Latest,
    /// The longest time without an operation while every task waits for another or for memory.
    patience: Duration,
}

/// The latest moment at which an operation was done.
#[derive(Clone, Copy, Debug, Default)]
struct Latest {
    operations: u64,
    at: Duration,
}

/// The longest time, in seconds of the run, that all tasks wait before one gives up. A pool that finds out by itself
/// that memory never comes takes a hundredth of a second.
const PATIENCE: Duration = Duration::from_secs(10);

impl<M: Machine> Run<'_, M> {
    fn start_tasks(&mut self, trace: &Trace, policy: &Policy) -> anyhow::Result<()> {
        let (lag, seed) = (policy.conditions.lag, policy.conditions.seed);
        let backlogs = Backlog::of_streams(trace.streams, lag, seed);
        let streams = trace.by_stream().into_iter().zip(backlogs).enumerate();
        for (stream, (events, backlog)) in streams {
            self.spawn(StreamTask::new(&self.session, stream, backlog).run(events))?;
        }
        Ok(())
    }

    /// Starts tasks that await the remaining work of the streams, which is part of the run's time.
    fn start_draining(&mut self) -> anyhow::Result<()> {
        for stream in 0..self.session.lines.len() {
            let session = self.session.clone();
            let drained = async move { Ok(session.lines[stream].stream.synchronize().await?) };
            self.spawn(drained)?;
        }
        Ok(())
    }

    fn spawn(
        &self,
        task: impl Future<Output = anyhow::Result<()>> + 'static,
    ) -> anyhow::Result<()> {
        let session = self.session.clone();
        session.counts.borrow_mut().running += 1;
        self.executor.spawner().spawn_local(async move {
            let result = task.await;
            let mut counts = session.counts.borrow_mut();
            counts.running -= 1;
            counts.error = counts.error.take().or(result.err());
        })?;
        Ok(())
    }

    fn drive(&mut self) -> anyhow::Result<()> {
        loop {
            self.executor.run_until_stalled();
            self.sample();
            if self.is_done()? {
                return Ok(());
            }
            if self.is_out_of_patience() && self.session.patience.end_longest() {
                continue;
            }
            let session = &self.session;
            let goes_on =
                session.machine.time().pass(session.hope()) || session.patience.end_longest();
            if !goes_on {
                bail!(
                    "the replay is stuck: tasks wait, but not for memory, and no operation is due"
                );
            }
        }
    }

    /// Returns whether no operation was done for long, and none is due: the pool asks again and again for memory that
    /// the device does not have.
    fn is_out_of_patience(&mut self) -> bool {
        let (operations, now) = (
            self.session.counts.borrow().operations,
            self.session.elapsed(),
        );
        if operations != self.latest.operations || self.session.asleep.get() > 0 {
            self.latest = Latest {
                operations,
                at: now,
            };
        }
        now.saturating_sub(self.latest.at) > self.patience
    }

    fn is_done(&self) -> anyhow::Result<bool> {
        let mut counts = self.session.counts.borrow_mut();
        match counts.error.take() {
            Some(error) => Err(error),
            None => Ok(counts.running == 0),
        }
    }

    fn sample(&mut self) {
        let now = self.session.now();
        if self.samples.is_due(now) {
            self.samples.push(now, self.session.sample(now));
            self.progress.at(self.session.counts.borrow().operations);
        }
        if let Some(frames) = self.frames.as_mut().filter(|frames| frames.is_due(now)) {
            frames.push(now, Frame::of(&self.session.pool));
        }
    }

    fn outcome(self, makespan: Duration, figures: Figures) -> Outcome {
        let statistics = self.session.pool.inspect().statistics();
        let frames = self.frames.map(|frames| {
            let mut frames = frames.into_vec();
            let last = Frame::of(&self.session.pool);
            // The end replaces a frame of the same moment.
            frames.pop_if(|frame| frame.time() >= last.time());
            frames.push(last);
            frames
        });
        let counts = self.session.counts.borrow();
        Outcome {
            requested_high: counts.requested_high,
            reserved_peak: statistics.reserved.high,
            operation_ns: counts.operation_ns.clone(),
            lateness_ns: counts.lateness_ns.clone(),
            waits: statistics.waits.served + statistics.waits.unserved(),
            longest_wait: counts.longest_wait,
            device_waits: statistics.device_waits,
            handover_waits: figures.waits - statistics.device_waits,
            stall: figures.stall,
            makespan,
            chunk_bytes: self.session.pool.inspect().describe().chunk_bytes,
            device_calls: figures.device_calls,
            device_time: figures.device_time,
            memory_time: figures.memory_time,
            growths: statistics.growths,
            remaps: statistics.remaps,
            failures: counts.failures,
            corruptions: figures.corruptions,
            samples: self.samples.into_vec(),
            frames,
        }
    }
}

#[cfg(test)]
mod tests;
