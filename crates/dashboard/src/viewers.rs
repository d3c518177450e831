//! The viewers of a dashboard, and the one task that collects frames for all of them.
//!
//! The task exists while there are viewers, and owns the sender; the dashboard has a weak reference. So whatever ends the
//! task, a panic or the end of its runtime included, ends the viewers' answers, and the next viewer starts another one.

use crate::{Frame, Latency};
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use weirpool::Pool;

/// The least time between frames, and the most until the end of the service is noticed.
const PERIOD: Duration = Duration::from_millis(250);
/// The time from one collection to the next, in units of what the collection takes.
const SHARE: u32 = 400;
/// The most viewers.
pub(super) const MOST: usize = 64;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Viewers {
    pub(super) pool: Pool,
    latencies: Mutex<Vec<Latency>>,
    sender: Mutex<Weak<watch::Sender<Bytes>>>,
}

/// Why a viewer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    TooMany,
    NoRuntime,
}

impl Viewers {
    pub(super) fn new(pool: Pool) -> Self {
        Self {
            pool,
            latencies: Mutex::new(Vec::new()),
            sender: Mutex::new(Weak::new()),
        }
    }

    pub(super) fn add(&self, latency: Latency) {
        lock(&self.latencies).push(latency);
    }

    /// Returns the number of viewers.
    pub(super) fn count(&self) -> usize {
        let sender = lock(&self.sender).upgrade();
        sender.map_or(0, |sender| sender.receiver_count())
    }

    pub(super) fn frame(&self) -> Frame {
        let latencies = lock(&self.latencies).clone();
        Frame::with(&self.pool, &latencies)
    }

    /// Adds a viewer. Returns the events for it, the latest one first if there is one.
    ///
    /// # Errors
    /// If there are too many viewers, or no runtime.
    pub(super) fn watch(self: &Arc<Self>) -> Result<BoxStream<'static, Bytes>, Refusal> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| Refusal::NoRuntime)?;
        let mut current = lock(&self.sender);
        let receiver = match current.upgrade() {
            Some(sender) if sender.receiver_count() >= MOST => return Err(Refusal::TooMany),
            Some(sender) => {
                let mut receiver = sender.subscribe();
                if !receiver.borrow().is_empty() {
                    receiver.mark_changed();
                }
                receiver
            }
            None => {
                let (sender, receiver) = watch::channel(Bytes::new());
                let sender = Arc::new(sender);
                *current = Arc::downgrade(&sender);
                // The task keeps neither the dashboard nor the pool.
                runtime.spawn(collect(Arc::downgrade(self), sender));
                receiver
            }
        };
        let events = stream::unfold(receiver, |mut receiver| async {
            receiver.changed().await.ok()?;
            let event = receiver.borrow_and_update().clone();
            Some((event, receiver))
        });
        Ok(events.boxed())
    }
}

/// Locks a mutex whose value is valid at every point at which a holder can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Collects frames while there are viewers and the pool admits requests.
async fn collect(viewers: Weak<Viewers>, sender: Arc<watch::Sender<Bytes>>) {
    let mut recent = [Duration::MAX; 4];
    let mut next = Instant::now();
    while let Some(this) = viewers.upgrade() {
        // Before the frame, so that the last one shows that the service ends.
        let is_stopping = this.pool.inspect().health().is_stopping;
        let begin = Instant::now();
        if is_stopping || begin >= next {
            sender.send_replace(event(&this.frame()));
            // The shortest of the last ones: the others were interrupted.
            recent.rotate_left(1);
            recent[3] = begin.elapsed();
            let took = recent.into_iter().min().unwrap_or_default();
            next = begin + took.saturating_mul(SHARE);
        }
        if is_stopping {
            return;
        }
        drop(this);
        let _ = tokio::time::timeout(PERIOD, sender.closed()).await;
        if sender.receiver_count() > 0 {
            continue;
        }
        let Some(this) = viewers.upgrade() else {
            return;
        };
        // Under the lock: no viewer joins what ends here.
        let mut current = lock(&this.sender);
        if sender.receiver_count() == 0 {
            *current = Weak::new();
            return;
        }
    }
}

/// Returns a server-sent event. JSON has no line breaks.
fn event(frame: &Frame) -> Bytes {
    let json = serde_json::to_string(frame).expect("plain data, with names as keys");
    format!("data: {json}\n\n").into()
}
