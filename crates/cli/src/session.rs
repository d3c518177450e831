//! What all tasks of one run share: the device, the pool, the streams, and the counts.

use crate::machine::{Hope, Line, Machine, Time};
use crate::options::{OrderName, Policy, RemappingName, ReuseNames, SealingName, WaitLimitName};
use crate::patience::Patience;
use crate::record;
use crate::samples::Sample;
use crate::shelf::Shelf;
use crate::trace::Trace;
use anyhow::Context;
use hdrhistogram::Histogram;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::Device;
use weirpool::{Block, Event, Order, Pool, Remapping, Reuse, Sealing, WaitLimit};

/// One run of a trace.
pub(crate) struct Session<M: Machine> {
    /// Blocks from their allocation to their free.
    pub(crate) shelf: Shelf<Held>,
    pub(crate) lines: Vec<Line<M::Work>>,
    pub(crate) pool: Pool,
    pub(crate) machine: M,
    device: Arc<dyn Device>,
    /// On the device's clock.
    began: Cell<Duration>,
    pub(crate) patience: Patience,
    /// For each allocation, whether another stream frees it.
    pub(crate) handed_over: Vec<bool>,
    pub(crate) tally: RefCell<Tally>,
}

/// A block that is alive.
pub(crate) struct Held {
    pub(crate) block: Block,
    /// What was asked for.
    pub(crate) bytes: u64,
    /// Behind its first use: where another stream frees it, that one goes on from here.
    pub(crate) made: Option<Event>,
}

/// What is counted during a run.
pub(crate) struct Tally {
    /// Tasks that have not ended.
    pub(crate) running: usize,
    /// The first error of a task.
    pub(crate) error: Option<anyhow::Error>,
    pub(crate) operations: u64,
    pub(crate) operation_ns: Histogram<u64>,
    /// How late operations began, by no wait of their stream but because the host was busy.
    pub(crate) lateness_ns: Histogram<u64>,
    requested: u64,
    /// The most that was requested and not yet freed.
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
            shelf: Shelf::new(trace.allocations),
            lines: (0..trace.streams)
                .map(line)
                .collect::<anyhow::Result<_>>()?,
            pool,
            machine,
            device,
            began: Cell::default(),
            patience: Patience::default(),
            handed_over: trace.handed_over(),
            tally: RefCell::new(Tally::new()?),
        })
    }

    /// From here on time counts.
    pub(crate) fn start(&self) {
        self.began.set(self.device.now());
        self.machine.time().start();
    }

    /// The run's time, by which its operations are due.
    pub(crate) fn now(&self) -> Duration {
        self.machine.time().now()
    }

    /// The time that the run has taken so far, on the device's clock. At the trace's pace it is the same
    /// as [`now`](Self::now).
    pub(crate) fn elapsed(&self) -> Duration {
        self.device.now().saturating_sub(self.began.get())
    }

    /// What may be hoped for by who waits for memory, if anybody does.
    pub(crate) fn hope(&self) -> Option<Hope> {
        let signs = self.patience.signs()?;
        let calls = self.machine.memory_calls();
        Some(Hope { signs, calls })
    }

    /// The levels of this moment.
    pub(crate) fn sample(&self) -> Sample {
        let levels = self.pool.statistics();
        Sample {
            at: self.now(),
            reserved: levels.reserved.current,
            used: levels.used.current,
            pending: levels.pending.current,
            requested: self.tally.borrow().requested,
        }
    }

    /// Gives back all that the device gave, so that the next run finds it as this one did.
    pub(crate) fn close(&self) -> anyhow::Result<()> {
        self.shelf.clear();
        // What is freed only now is complete by the second time.
        for _ in 0..2 {
            self.pool.trim_to(0)?;
            self.machine.quiesce()?;
        }
        Ok(())
    }
}

impl Tally {
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

    /// An operation begins, by so much later than it was due.
    pub(crate) fn begins(&mut self, late: Duration) {
        self.lateness_ns.saturating_record(late.as_nanos() as u64);
    }

    /// An allocation or a free took so long on the CPU.
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

/// A pool under a policy.
pub(crate) fn pool(device: Arc<dyn Device>, policy: &Policy) -> anyhow::Result<Pool> {
    let mut builder = Pool::builder_shared(device)
        .upstream(policy.upstream.upstream())
        .order(order(policy.order))
        .reuse(reuse(policy.reuse))
        .wait_limit(wait_limit(policy.wait_limit));
    if let Some(bytes) = policy.capacity {
        builder = builder.capacity(bytes);
    }
    if let Some(bytes) = policy.handle {
        builder = builder.chunk_bytes(bytes);
    }
    if let Some(bytes) = policy.lane {
        builder = builder.lane_bytes(bytes);
    }
    if let Some(name) = policy.remapping {
        builder = builder.remapping(remapping(name));
    }
    if let Some(name) = policy.sealing {
        builder = builder.sealing(sealing(name));
    }
    if policy.record.is_some() {
        builder = record::prepare(builder);
    }
    builder.build().context("the pool cannot be built")
}

fn order(name: OrderName) -> Order {
    match name {
        OrderName::GrowFirst => Order::GrowFirst,
        OrderName::WaitFirst => Order::WaitFirst,
    }
}

fn reuse(names: ReuseNames) -> Reuse {
    Reuse {
        follow_event_dependencies: names.follow_event_dependencies,
        opportunistic: names.opportunistic,
        internal_dependencies: names.internal_dependencies,
    }
}

fn wait_limit(name: WaitLimitName) -> WaitLimit {
    match name {
        WaitLimitName::Tail => WaitLimit::Tail,
        WaitLimitName::Unlimited => WaitLimit::Unlimited,
    }
}

fn remapping(name: RemappingName) -> Remapping {
    match name {
        RemappingName::Always => Remapping::Always,
        RemappingName::Never => Remapping::Never,
        RemappingName::Share(share) => Remapping::Share(share),
    }
}

fn sealing(name: SealingName) -> Sealing {
    match name {
        SealingName::EveryFree => Sealing::EveryFree,
        SealingName::OnDemand => Sealing::OnDemand,
        SealingName::Bytes(bytes) => Sealing::Bytes(bytes),
        SealingName::Spaced(bytes) => Sealing::Spaced(bytes),
    }
}
