//! The state that all tasks of a run share: the device, the pool, the streams, and the counts.

use super::exchange::Exchange;
use super::patience::Patience;
use super::record;
use super::samples::Sample;
use crate::device::machine::{Hope, Line, Machine, Time};
use crate::options::{Conditions, Policy};
use crate::trace::Trace;
use anyhow::Context;
use hdrhistogram::Histogram;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::Device;
use weirpool::{Block, Event, Pool};

/// One run of a trace.
pub(crate) struct Session<M: Machine> {
    /// The blocks, from their allocation to their free.
    pub(crate) blocks: Exchange<Held>,
    pub(crate) lines: Vec<Line<M::Work>>,
    pub(crate) pool: Pool,
    pub(crate) machine: M,
    device: Arc<dyn Device>,
    /// The number of tasks that sleep until their next operation is due.
    pub(crate) asleep: Cell<usize>,
    /// The start of the run, on the device's clock.
    began: Cell<Duration>,
    pub(crate) patience: Patience,
    /// For each allocation, whether another stream frees it.
    pub(crate) handed_over: Vec<bool>,
    pub(crate) counts: RefCell<Counts>,
}

/// A live block.
pub(crate) struct Held {
    pub(crate) block: Block,
    /// The requested bytes.
    pub(crate) bytes: u64,
    /// The event behind its first use, where another stream frees it.
    pub(crate) made: Option<Event>,
}

/// The counts of a run.
pub(crate) struct Counts {
    /// Tasks that have not ended.
    pub(crate) running: usize,
    /// The first error of a task.
    pub(crate) error: Option<anyhow::Error>,
    pub(crate) operations: u64,
    pub(crate) operation_ns: Histogram<u64>,
    /// By how much operations began late because the host was busy, and not because their stream waited.
    pub(crate) lateness_ns: Histogram<u64>,
    requested: u64,
    /// The most bytes that were requested and not yet freed.
    pub(crate) requested_high: u64,
    pub(crate) failures: u64,
    pub(crate) longest_wait: Duration,
}

impl<M: Machine> Session<M> {
    pub(crate) fn new(machine: M, trace: &Trace, policy: &Policy) -> anyhow::Result<Self> {
        let device = machine.device();
        let pool = pool(device.clone(), policy)?;
        let line = |_| {
            let work = machine.create_stream()?;
            let stream = pool.register(&work)?;
            Ok(Line { work, stream })
        };
        Ok(Self {
            blocks: Exchange::new(trace.allocations),
            lines: (0..trace.streams)
                .map(line)
                .collect::<anyhow::Result<_>>()?,
            pool,
            machine,
            device,
            asleep: Cell::default(),
            began: Cell::default(),
            patience: Patience::default(),
            handed_over: trace.handed_over(),
            counts: RefCell::new(Counts::new()?),
        })
    }

    /// Starts the run's clock.
    pub(crate) fn start(&self) {
        self.began.set(self.device.now());
        self.machine.time().start();
    }

    /// Sleeps until `at`, by the run's time.
    pub(crate) async fn sleep_until(&self, at: Duration) {
        self.asleep.set(self.asleep.get() + 1);
        self.machine.time().sleep_until(at).await;
        self.asleep.set(self.asleep.get() - 1);
    }

    /// Returns the run's time, by which its operations are due.
    pub(crate) fn now(&self) -> Duration {
        self.machine.time().now()
    }

    /// Returns the time since the start on the device's clock: at the trace's pace the same as [`now`](Self::now).
    pub(crate) fn elapsed(&self) -> Duration {
        self.device.now().saturating_sub(self.began.get())
    }

    /// Returns the signs of memory on its way to the waiting tasks; `None` if no task waits for memory.
    pub(crate) fn hope(&self) -> Option<Hope> {
        let signs = self.patience.signs()?;
        let calls = self.machine.memory_calls();
        Some(Hope { signs, calls })
    }

    /// Returns the levels, which are current at `now`.
    pub(crate) fn sample(&self, now: Duration) -> Sample {
        let levels = self.pool.inspect().statistics();
        Sample {
            at: now,
            reserved: levels.reserved.current,
            used: levels.used.current,
            pending: levels.pending.current,
            requested: self.counts.borrow().requested,
        }
    }

    /// Gives all memory back to the device, so that the next run finds it as this one did.
    pub(crate) fn close(&self) -> anyhow::Result<()> {
        self.blocks.clear();
        // Blocks that are freed here are complete by the second round.
        for _ in 0..2 {
            let _ = self.pool.trim_to(0)?;
            self.machine.quiesce()?;
        }
        Ok(())
    }
}

impl Counts {
    fn new() -> anyhow::Result<Self> {
        const MINUTE: u64 = 60_000_000_000;
        Ok(Self {
            running: 0,
            error: None,
            operations: 0,
            operation_ns: Histogram::new_with_bounds(1, MINUTE, 3)?,
            lateness_ns: Histogram::new_with_bounds(1, MINUTE, 3)?,
            requested: 0,
            requested_high: 0,
            failures: 0,
            longest_wait: Duration::ZERO,
        })
    }

    /// Counts an operation that begins this much later than it was due.
    pub(crate) fn begins(&mut self, late: Duration) {
        self.lateness_ns.saturating_record(late.as_nanos() as u64);
    }

    /// Counts the CPU time of an allocation or a free.
    pub(crate) fn took(&mut self, spent: Duration) {
        self.operation_ns.saturating_record(spent.as_nanos() as u64);
    }

    pub(crate) fn allocated(&mut self, bytes: u64) {
        self.requested += bytes;
        self.requested_high = self.requested_high.max(self.requested);
    }

    pub(crate) fn freed(&mut self, bytes: u64) {
        self.requested -= bytes;
    }

    pub(crate) fn waited(&mut self, duration: Duration) {
        self.longest_wait = self.longest_wait.max(duration);
    }
}

/// Builds a pool under a policy.
///
/// # Errors
/// Returns an error if the pool refuses the settings.
pub(crate) fn pool(device: Arc<dyn Device>, policy: &Policy) -> anyhow::Result<Pool> {
    let Conditions {
        capacity,
        reuse,
        sealing,
        lane,
        ..
    } = policy.conditions;
    let mut builder = Pool::builder(device)
        .upstream(policy.upstream.upstream())
        .tuning(|tuning| {
            tuning.when_short = policy.when_short.when_short();
            tuning.reuse = reuse.reuse();
        });
    if let Some(bytes) = capacity {
        builder = builder.capacity(bytes);
    }
    if let Some(bytes) = policy.chunk_bytes {
        builder = builder.chunk_bytes(bytes);
    }
    if let Some(bytes) = lane {
        builder = builder.tuning(|tuning| tuning.lane_bytes = bytes);
    }
    if let Some(name) = policy.remapping {
        builder = builder.tuning(|tuning| tuning.remapping = name.remapping());
    }
    if let Some(name) = sealing {
        builder = builder.sealing(name.sealing());
    }
    if policy.record.is_some() {
        builder = record::prepare(builder);
    }
    builder.build().context("the pool cannot be built")
}
