//! The simulated device on the bench, in the settings that matter to a pool.

use crate::bench::{Bench, Gate, Span};
use crate::common::External;
use crate::site::eventually;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::DeviceAddress;
use weirpool::device::sim::{Clock, Operation, SimBuilder, SimDevice, SimStream};
use weirpool::device::{Device, MemoryKind};
use weirpool::{PoolBuilder, Upstream};
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

/// One way to set the device up.
pub(crate) trait Setting: Send + Sync + 'static {
    const CLOCK: Clock = Clock::Virtual;
    const UPSTREAM: Upstream = Upstream::Virtual;

    fn set(builder: SimBuilder) -> SimBuilder {
        builder
    }

    fn memory(builder: PoolBuilder, _device: &Arc<dyn Device>) -> PoolBuilder {
        builder.upstream(Self::UPSTREAM)
    }
}

/// Virtual memory, on the virtual clock: the defaults.
pub(crate) struct Mapped;

impl Setting for Mapped {}

/// Without virtual memory, and with no kind of memory but the device's own.
pub(crate) struct Plain;

impl Setting for Plain {
    fn set(builder: SimBuilder) -> SimBuilder {
        let lacks = [MemoryKind::Pinned, MemoryKind::Managed, MemoryKind::Host];
        let builder = builder.virtual_memory(false);
        lacks.into_iter().fold(builder, SimBuilder::without)
    }
}

/// Without virtual memory, and with memory calls that are not to be made inside a poll.
pub(crate) struct PlainSlowCalls;

impl Setting for PlainSlowCalls {
    fn set(builder: SimBuilder) -> SimBuilder {
        builder.virtual_memory(false).blocking_memory_calls(true)
    }
}

/// Page-locked memory of the host, with memory calls that are not to be made inside a poll.
pub(crate) struct Pinned;

impl Setting for Pinned {
    const UPSTREAM: Upstream = Upstream::Pinned;

    fn set(builder: SimBuilder) -> SimBuilder {
        builder.blocking_memory_calls(true)
    }
}

/// Memory that moves to the processor that uses it.
pub(crate) struct Managed;

impl Setting for Managed {
    const UPSTREAM: Upstream = Upstream::Managed;
}

/// Segments of a pool of the driver.
pub(crate) struct DriverPools;

impl Setting for DriverPools {
    const UPSTREAM: Upstream = Upstream::Device;

    fn memory(builder: PoolBuilder, device: &Arc<dyn Device>) -> PoolBuilder {
        match DriverPool::default_of(device) {
            Ok(default) => builder.segment_source(default.segments(DriverPoolUse::SubAllocated)),
            // The driver has no pools, or is broken.
            Err(_) => builder.upstream(Self::UPSTREAM),
        }
    }
}

/// Memory calls that are not to be made inside a poll.
pub(crate) struct SlowCalls;

impl Setting for SlowCalls {
    fn set(builder: SimBuilder) -> SimBuilder {
        builder.blocking_memory_calls(true)
    }
}

/// The wall clock.
pub(crate) struct RealTime;

impl Setting for RealTime {
    const CLOCK: Clock = Clock::Wall;
}

pub(crate) struct Sim<S> {
    device: SimDevice,
    setting: PhantomData<S>,
}

impl<S> Clone for Sim<S> {
    fn clone(&self) -> Self {
        Self {
            device: self.device.clone(),
            setting: PhantomData,
        }
    }
}

const AT_ONCE: Duration = Duration::ZERO;
const A_WHILE: Duration = Duration::from_micros(20);

impl<S: Setting> Bench for Sim<S> {
    type Work = SimStream;
    type External = External;

    const RECYCLES_STREAM_HANDLES: Option<bool> = Some(true);
    const IS_OF_ONE_HOST: bool = false;
    const UPSTREAM: Upstream = S::UPSTREAM;

    fn memory(builder: PoolBuilder, device: &Arc<dyn Device>) -> PoolBuilder {
        S::memory(builder, device)
    }

    fn new() -> Self {
        let builder = SimDevice::builder().memory(16 << 30).clock(S::CLOCK);
        Self {
            device: S::set(builder).build(),
            setting: PhantomData,
        }
    }

    fn another(&self) -> Self {
        Self::new()
    }

    fn device(&self) -> Arc<dyn Device> {
        self.device.clone().into()
    }

    fn stream(&self) -> SimStream {
        self.device.create_stream()
    }

    fn external(&self, work: &SimStream) -> External {
        External::of(work)
    }

    fn hold(&self, work: &SimStream) -> Gate {
        let flag = self.device.flag();
        work.wait_until(&flag, 1);
        Gate::new(move || flag.set(1))
    }

    fn spend(&self, work: &SimStream) {
        work.submit(Operation::new(A_WHILE));
    }

    fn fill(&self, work: &SimStream, span: Span, value: u8) {
        let Span { address, bytes } = span;
        let fill = Operation::new(AT_ONCE).named("fill").writes(address, bytes);
        work.submit(fill.run_each(move |memory| memory.fill(address, bytes, value)));
    }

    fn compare(
        &self,
        work: &SimStream,
        span: Span,
        value: u8,
        answer: impl FnOnce(bool) + Send + 'static,
    ) {
        let Span { address, bytes } = span;
        let compare = Operation::new(AT_ONCE)
            .named("compare")
            .reads(address, bytes);
        work.submit(compare.run(move |memory| {
            answer(is_full_of(span, value, |at, into| memory.read(at, into)));
        }));
    }

    fn settle(&self, work: &SimStream) {
        eventually(|| {
            while work.backlog() > 0 && S::CLOCK != Clock::Wall && self.device.advance_to_next() {}
            work.backlog() == 0
        });
    }

    fn let_run(&self) {
        if S::CLOCK == Clock::Wall {
            std::thread::sleep(5 * A_WHILE);
        } else {
            self.device.advance(5 * A_WHILE);
        }
    }

    fn host_fill(&self, span: Span, value: u8) {
        let filled = self.device.fill(span.address, span.bytes, value);
        filled.expect("memory that is mapped");
    }

    fn host_compare(&self, span: Span, value: u8) -> bool {
        is_full_of(span, value, |at, into| {
            self.device.read(at, into).expect("memory that is mapped");
        })
    }
}

/// Compares chunk by chunk, which is fast without optimization too.
fn is_full_of(span: Span, value: u8, mut read: impl FnMut(DeviceAddress, &mut [u8])) -> bool {
    const CHUNK: usize = 1 << 16;
    let expected = vec![value; CHUNK];
    let mut chunk = vec![0; CHUNK];
    (0..span.bytes).step_by(CHUNK).all(|at| {
        let bytes = CHUNK.min((span.bytes - at) as usize);
        read(span.address + at, &mut chunk[..bytes]);
        chunk[..bytes] == expected[..bytes]
    })
}
