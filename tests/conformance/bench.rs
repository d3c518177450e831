//! The interface of a device under test, so that one suite serves all devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use weirpool::device::{Argument, Device, DeviceAddress, DeviceStream, NativeStream, RawStream};
use weirpool::{Block, PoolBuilder, Upstream};

/// Returns the device's name of a stream.
pub(crate) fn raw(work: &impl DeviceStream) -> RawStream {
    work.properties().unwrap().raw
}

/// A device under test, with the work that the suite needs.
///
/// The device has at least 12 GiB. All work is asynchronous: it is submitted, and runs in the order of its stream. All
/// work is short unless it is held.
pub(crate) trait Bench: Clone + Send + Sync + 'static {
    /// A stream of the device, as its owner holds it.
    type Work: DeviceStream + NativeStream + Clone + Send + Sync;

    /// A stream of the device, as another library holds it.
    type External: DeviceStream + Copy + Send + Sync + 'static;

    /// The upstream of the pools under test.
    const UPSTREAM: Upstream = Upstream::Virtual;

    /// Sets the memory of a pool under test over the device, which is this bench's or one in front of it.
    fn memory(builder: PoolBuilder, _device: &Arc<dyn Device>) -> PoolBuilder {
        builder.upstream(Self::UPSTREAM)
    }

    /// Whether the driver reuses the handle of a destroyed stream for the next one; `None` if it may or may not.
    const RECYCLES_STREAM_HANDLES: Option<bool>;

    /// Creates a bench over a device with free memory, on which no work runs.
    fn new() -> Self;

    /// Whether the other device is of the same host, so that its events can be waited for.
    const IS_OF_ONE_HOST: bool;

    /// Creates a bench over another device.
    fn another(&self) -> Self;

    fn device(&self) -> Arc<dyn Device>;

    fn stream(&self) -> Self::Work;

    /// Returns the stream as an external one: it is destroyed with the bench's last handle, even if it is in use.
    fn external(&self, work: &Self::Work) -> Self::External;

    /// Keeps work that is submitted to the stream later from running until the gate is opened.
    fn hold(&self, work: &Self::Work) -> Gate;

    /// Keeps the stream busy for a short while.
    fn spend(&self, work: &Self::Work);

    /// Fills memory with a value, in the order of the stream.
    fn fill(&self, work: &Self::Work, span: Span, value: u8);

    /// Compares memory with a value, in the order of the stream.
    fn compare(
        &self,
        work: &Self::Work,
        span: Span,
        value: u8,
        answer: impl FnOnce(bool) + Send + 'static,
    );

    /// Waits until everything submitted to the stream is complete. The pool does not learn of it.
    fn settle(&self, work: &Self::Work);

    /// Gives runnable work time to run, so that work that wrongly does not wait is complete afterwards.
    fn let_run(&self);

    /// Fills memory from the host, while no other processor uses it.
    fn host_fill(&self, span: Span, value: u8);

    /// Compares memory with a value by the host, while no other processor writes it.
    fn host_compare(&self, span: Span, value: u8) -> bool;
}

/// A range of device addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) address: DeviceAddress,
    pub(crate) bytes: u64,
}

/// The memory of an argument.
impl From<Argument<'_>> for Span {
    fn from(argument: Argument<'_>) -> Self {
        Self {
            address: argument.address(),
            bytes: argument.size(),
        }
    }
}

impl From<&Block> for Span {
    fn from(block: &Block) -> Self {
        Self {
            address: block.address(),
            bytes: block.size(),
        }
    }
}

/// Holds a stream. Dropping it releases the stream, so that a failing test leaves no stream held.
pub(crate) struct Gate(Option<Box<dyn FnOnce() + Send>>);

impl Gate {
    pub(crate) fn new(open: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(open)))
    }

    pub(crate) fn open(self) {
        drop(self);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            open();
        }
    }
}

/// Counts comparisons of memory, and their results.
#[derive(Clone, Default)]
pub(crate) struct Witness(Arc<Answers>);

#[derive(Default)]
struct Answers {
    asked: AtomicUsize,
    right: AtomicUsize,
    wrong: AtomicUsize,
}

impl Witness {
    /// Begins a comparison. The result must be called with whether memory was right.
    pub(crate) fn ask(&self) -> impl FnOnce(bool) + Send + 'static {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        let answers = self.0.clone();
        move |is_right| {
            let count = if is_right {
                &answers.right
            } else {
                &answers.wrong
            };
            count.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns how many comparisons failed.
    pub(crate) fn corruptions(&self) -> usize {
        self.0.wrong.load(Ordering::SeqCst)
    }

    /// Asserts that every comparison was made, and succeeded.
    pub(crate) fn assert_content(&self) {
        let read = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        let Answers { asked, right, .. } = &*self.0;
        let asked = read(asked);
        assert_eq!(self.corruptions(), 0, "corrupted, of {asked} blocks");
        assert_eq!(read(right), asked, "some comparisons were not made");
        assert!(asked > 0, "no comparison was made");
    }
}
