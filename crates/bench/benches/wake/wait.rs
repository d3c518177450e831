//! Waits for work, and the times at which they end.

use futures::executor::block_on;
use std::sync::Arc;
use std::sync::Mutex;
use std::task::{Context, Wake, Waker};
use std::time::Instant;
use weirpool::Stream;

/// When a wait ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    /// When the waker, or the thread that learned of completion, was called.
    pub(crate) woken: Instant,
    /// When the waiting task ran again.
    pub(crate) ran: Instant,
}

/// A wait that has begun.
pub(crate) type Waiting<'a> = Box<dyn FnOnce() -> Heard + 'a>;

/// A way to learn that work is complete.
pub(crate) trait Way: Sync {
    fn name(&self) -> String;

    /// Begins to wait for everything submitted to the stream so far.
    fn begin<'a>(&'a self, stream: &'a Stream) -> Waiting<'a>;
}

/// Awaits an event of the pool's stream, as tasks do.
pub(crate) struct Pooled;

impl Way for Pooled {
    fn name(&self) -> String {
        "weirpool".to_owned()
    }

    fn begin<'a>(&'a self, stream: &'a Stream) -> Waiting<'a> {
        let mut awaited = stream.event().expect("an event").into_future();
        Box::new(move || {
            let noting = Arc::new(Noting::default());
            let mut polled = std::pin::pin!(&mut awaited);
            let waited = std::future::poll_fn(|context| {
                *noting.to_wake.lock().expect("no panics") = Some(context.waker().clone());
                let waker = Waker::from(noting.clone());
                let answer = polled.as_mut().poll(&mut Context::from_waker(&waker));
                answer.map(|answer| answer.expect("work that does not fail"))
            });
            block_on(waited);
            let ran = Instant::now();
            let woken = noting.woken.lock().expect("no panics").unwrap_or(ran);
            Heard { woken, ran }
        })
    }
}

/// A waker that notes when it is called, and calls another.
#[derive(Default)]
struct Noting {
    to_wake: Mutex<Option<Waker>>,
    woken: Mutex<Option<Instant>>,
}

impl Wake for Noting {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().expect("no panics") = Some(Instant::now());
        let waker = self.to_wake.lock().expect("no panics").clone();
        waker.into_iter().for_each(Waker::wake);
    }
}
