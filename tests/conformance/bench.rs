//! What a device under test provides, so that one suite serves all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use weirpool::device::{Argument, Device, DeviceAddress, DeviceStream};
use weirpool::{Block, Upstream};

/// A device under test, with the work that the suite needs done on it.
///
/// The device has at least 12 GiB. All work is asynchronous: it is submitted, and done in the order of
/// its stream. None of it takes long unless it is held.
pub(crate) trait Bench: Clone + Send + Sync + 'static {
    /// A stream of the device, as its user has it.
    type Work: DeviceStream + Clone + Send + Sync + 'static;

    /// A stream of the device, as another library has it.
    type External: DeviceStream + Copy + Send + Sync + 'static;

    /// Where the memory of the pools under test comes from.
    const UPSTREAM: Upstream = Upstream::Virtual;

    /// Whether the driver gives a stream's handle to the next one, once it is free; `None` where it may do
    /// either.
    const RECYCLES_STREAM_HANDLES: Option<bool>;

    /// A bench over a device with memory to spare, on which no work runs.
    fn new() -> Self;

    /// A bench over another device than this one's.
    fn another(&self) -> Self;

    fn device(&self) -> Arc<dyn Device>;

    fn stream(&self) -> Self::Work;

    /// The stream as a guest of another library's: it goes with its last handle of the bench's, whoever uses it.
    fn external(&self, work: &Self::Work) -> Self::External;

    /// Keeps what is submitted to the stream later from running until the gate is opened.
    fn hold(&self, work: &Self::Work) -> Gate;

    /// Keeps the stream busy for a short while.
    fn spend(&self, work: &Self::Work);

    /// Fills memory with a value, in the order of the stream.
    fn fill(&self, work: &Self::Work, span: Span, value: u8);

    /// Says whether memory is full of a value, in the order of the stream.
    fn compare(
        &self,
        work: &Self::Work,
        span: Span,
        value: u8,
        answer: impl FnOnce(bool) + Send + 'static,
    );

    /// Returns once all that was submitted to the stream is done. The pool does not learn of it.
    fn settle(&self, work: &Self::Work);

    /// Gives what may run the time to run: work that wrongly does not wait is done afterwards.
    fn let_run(&self);

    /// Fills memory from the host, which nobody else uses now.
    fn host_fill(&self, span: Span, value: u8);

    /// Whether memory is full of a value, read by the host; nobody writes it now.
    fn host_compare(&self, span: Span, value: u8) -> bool;
}

/// A range of device addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) address: DeviceAddress,
    pub(crate) bytes: u64,
}

/// What an argument of work stands for.
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

/// What a stream is held by. Dropped, it opens: a test that fails leaves no stream stuck.
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

/// Adds up what was asked of the bytes, and what they answered.
#[derive(Clone, Default)]
pub(crate) struct Witness(Arc<Answers>);

#[derive(Default)]
struct Answers {
    asked: AtomicUsize,
    right: AtomicUsize,
    wrong: AtomicUsize,
}

impl Witness {
    /// To be called with the answer.
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

    /// How often the bytes were not what they should be.
    pub(crate) fn corruptions(&self) -> usize {
        self.0.wrong.load(Ordering::SeqCst)
    }

    /// Every question was answered, and no byte was overwritten too early.
    pub(crate) fn assert_content(&self) {
        let read = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        let Answers { asked, right, .. } = &*self.0;
        let asked = read(asked);
        assert_eq!(self.corruptions(), 0, "corrupted, of {asked} blocks");
        assert_eq!(read(right), asked, "not looked at");
        assert!(asked > 0, "nothing was looked at");
    }
}
