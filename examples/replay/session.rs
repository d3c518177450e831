//! What all tasks of one run share: the device, the pool, the streams, and the counts.

use crate::options::{OrderName, Policy, ReuseNames, SealingName, WaitLimitName};
use crate::patience::Patience;
use crate::samples::Sample;
use crate::shelf::Shelf;
use crate::trace::Trace;
use crate::verify::Verifier;
use anyhow::Context;
use hdrhistogram::Histogram;
use std::cell::RefCell;
use std::time::Duration;
use weirpool::device::sim::{Backing, Clock, SimDevice, SimStream};
use weirpool::{Block, Event, Order, Pool, Reuse, Sealing, Stream, WaitLimit};

/// Larger than any trace that a pool without a capacity is replayed with.
const DEVICE_MEMORY: u64 = 256 << 30;

/// One run of a trace.
pub(crate) struct Session {
    /// Blocks from their allocation to their free.
    pub(crate) shelf: Shelf<Held>,
    pub(crate) lines: Vec<Line>,
    pub(crate) pool: Pool,
    pub(crate) device: SimDevice,
    pub(crate) patience: Patience,
    pub(crate) verifier: Option<Verifier>,
    /// For each allocation, whether another stream frees it.
    pub(crate) handed_over: Vec<bool>,
    pub(crate) tally: RefCell<Tally>,
}

/// A stream, as the device and as the pool know it.
pub(crate) struct Line {
    pub(crate) work: SimStream,
    pub(crate) stream: Stream,
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
    pub(crate) requested: u64,
    pub(crate) failures: u64,
    pub(crate) longest_wait: Duration,
}

impl Session {
    pub(crate) fn new(trace: &Trace, policy: &Policy) -> anyhow::Result<Self> {
        let device = SimDevice::builder()
            .memory(DEVICE_MEMORY.max(policy.capacity.unwrap_or(0)))
            .backing(match policy.verify {
                Some(_) => Backing::Bytes,
                None => Backing::AddressesOnly,
            })
            // The run moves time itself, when no task can go on; nothing else may.
            .clock(Clock::Manual)
            .seed(policy.seed)
            .build();
        let pool = pool(&device, policy)?;
        let lines = (0..trace.streams).map(|_| Line::new(&device, &pool));
        Ok(Self {
            shelf: Shelf::new(trace.allocations),
            lines: lines.collect::<anyhow::Result<_>>()?,
            pool,
            device,
            patience: Patience::default(),
            verifier: policy.verify.map(Verifier::new),
            handed_over: trace.handed_over(),
            tally: RefCell::new(Tally::new()?),
        })
    }

    /// Virtual time.
    pub(crate) fn now(&self) -> Duration {
        self.device.now()
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
}

impl Line {
    fn new(device: &SimDevice, pool: &Pool) -> anyhow::Result<Self> {
        let work = device.create_stream();
        let stream = pool.register(&work)?;
        Ok(Self { work, stream })
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
            requested: 0,
            failures: 0,
            longest_wait: Duration::ZERO,
        })
    }

    /// An allocation or a free took so long on the CPU.
    pub(crate) fn took(&mut self, spent: Duration) {
        self.operation_ns.saturating_record(spent.as_nanos() as u64);
    }

    pub(crate) fn waited(&mut self, duration: Duration) {
        self.longest_wait = self.longest_wait.max(duration);
    }
}

fn pool(device: &SimDevice, policy: &Policy) -> anyhow::Result<Pool> {
    let mut builder = Pool::builder(device.clone())
        .order(order(policy.order))
        .reuse(reuse(policy.reuse))
        .wait_limit(wait_limit(policy.wait_limit));
    if let Some(bytes) = policy.capacity {
        builder = builder.capacity(bytes);
    }
    if let Some(bytes) = policy.handle {
        builder = builder.handle_bytes(bytes);
    }
    if let Some(bytes) = policy.lane {
        builder = builder.lane_bytes(bytes);
    }
    if let Some(name) = policy.sealing {
        builder = builder.sealing(sealing(name));
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

fn sealing(name: SealingName) -> Sealing {
    match name {
        SealingName::EveryFree => Sealing::EveryFree,
        SealingName::OnDemand => Sealing::OnDemand,
        SealingName::Bytes(bytes) => Sealing::Bytes(bytes),
    }
}
