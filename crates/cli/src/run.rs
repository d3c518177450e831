//! Runs a trace: all its tasks on one thread, by the machine's time.
//!
//! On the simulated device nothing here depends on real time or on other threads, so the same trace,
//! policy and seed give the same run, but for the CPU times that are measured.

use crate::backlog::Backlog;
use crate::machine::{Figures, Machine, Site, Time};
use crate::options::{Options, Policy};
use crate::progress::Progress;
use crate::record;
use crate::report::{Outcome, Report, Setting};
use crate::samples::{Sample, Samples};
use crate::session::Session;
use crate::task::StreamTask;
use crate::trace::Trace;
use anyhow::bail;
use futures::executor::LocalPool;
use futures::task::LocalSpawnExt;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

/// Replays `trace` and reports it, with what a plot of it shows.
pub(crate) fn replay(
    site: &impl Site,
    trace: &Trace,
    options: &Options,
    progress: &Progress,
) -> anyhow::Result<(Report, Vec<Sample>)> {
    let policy = &options.policy;
    let outcome = run(site, trace, policy, progress)?;
    let unlimited = unlimited(site, trace, policy, &outcome, progress)?;
    let setting = Setting {
        target: &options.target,
        policy,
        description: site.description(),
    };
    let report = Report::new(trace, setting, &outcome, unlimited);
    Ok((report, outcome.samples))
}

/// How long the trace takes where memory has no bound and nobody waits for any.
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
    let mut driver = Driver {
        session: session.clone(),
        executor: LocalPool::new(),
        samples: Samples::over(trace.duration),
        progress,
    };
    driver.start_tasks(trace, policy)?;
    session.start();
    driver.drive()?;
    driver.start_draining()?;
    driver.drive()?;
    let makespan = session.elapsed();
    let figures = session.machine.figures()?;
    let outcome = driver.outcome(makespan, figures);
    if let Some(file) = &policy.record {
        record::write(&session.pool, file)?;
    }
    session.close()?;
    Ok(outcome)
}

/// Polls tasks while they can go on, and moves time when they cannot.
struct Driver<'a, M: Machine> {
    session: Rc<Session<M>>,
    executor: LocalPool,
    samples: Samples,
    progress: &'a Progress,
}

impl<M: Machine> Driver<'_, M> {
    fn start_tasks(&mut self, trace: &Trace, policy: &Policy) -> anyhow::Result<()> {
        let backlogs = Backlog::of_streams(trace.streams, policy.lag, policy.seed);
        let streams = trace.by_stream().into_iter().zip(backlogs).enumerate();
        for (stream, (events, backlog)) in streams {
            self.spawn(StreamTask::new(&self.session, stream, backlog).run(events))?;
        }
        Ok(())
    }

    /// What streams still have to do is part of the run's time.
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
        session.tally.borrow_mut().running += 1;
        self.executor.spawner().spawn_local(async move {
            let result = task.await;
            let mut tally = session.tally.borrow_mut();
            tally.running -= 1;
            tally.error = tally.error.take().or(result.err());
        })?;
        Ok(())
    }

    fn drive(&mut self) -> anyhow::Result<()> {
        loop {
            self.executor.run_until_stalled();
            self.look();
            if self.is_done()? {
                return Ok(());
            }
            let session = &self.session;
            let goes_on =
                session.machine.time().pass(session.hope()) || session.patience.end_longest();
            if !goes_on {
                bail!("the replay is stuck: tasks wait, but for no memory, and nothing is due");
            }
        }
    }

    fn is_done(&self) -> anyhow::Result<bool> {
        let mut tally = self.session.tally.borrow_mut();
        match tally.error.take() {
            Some(error) => Err(error),
            None => Ok(tally.running == 0),
        }
    }

    fn look(&mut self) {
        if self.samples.is_due(self.session.now()) {
            self.samples.push(self.session.sample());
            self.progress.at(self.session.tally.borrow().operations);
        }
    }

    fn outcome(self, makespan: Duration, figures: Figures) -> Outcome {
        let statistics = self.session.pool.statistics();
        let tally = self.session.tally.borrow();
        Outcome {
            requested_high: tally.requested_high,
            reserved_peak: statistics.reserved.high,
            operation_ns: tally.operation_ns.clone(),
            lateness_ns: tally.lateness_ns.clone(),
            waits: statistics.waits.served + statistics.waits.abandoned,
            longest_wait: tally.longest_wait,
            device_waits: statistics.device_waits,
            handover_waits: figures.waits - statistics.device_waits,
            stall: figures.stall,
            makespan,
            chunk_bytes: self.session.pool.chunk_bytes(),
            device_calls: figures.device_calls,
            device_time: figures.device_time,
            memory_time: figures.memory_time,
            growths: statistics.growths,
            remaps: statistics.remaps,
            failures: tally.failures,
            corruptions: figures.corruptions,
            samples: self.samples.into_vec(),
        }
    }
}

#[cfg(test)]
mod tests;
