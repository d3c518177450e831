//! The viewers of a dashboard, and the one task that collects frames for all of them.
//!
//! The task exists while there are viewers, and owns the sender; the dashboard has a weak reference. So whatever ends the
//! task, a panic or the end of its runtime included, ends the viewers' answers, and the next viewer starts another one.

use super::{Frame, Latency};
use crate::pool::Pool;
use crate::sync::plain::{Arc, Mutex, Weak};
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The least time between frames, and the most until the end of the pool is noticed.
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
        self.latencies.lock().push(latency);
    }

    /// Returns the number of viewers.
    pub(super) fn count(&self) -> usize {
        let sender = self.sender.lock().upgrade();
        sender.map_or(0, |sender| sender.receiver_count())
    }

    pub(super) fn frame(&self) -> Frame {
        let latencies = self.latencies.lock().clone();
        Frame::with(&self.pool, &latencies)
    }

    /// Adds a viewer. Returns the events for it, the latest one first if there is one.
    ///
    /// # Errors
    /// If there are too many viewers, or no runtime.
    pub(super) fn watch(self: &Arc<Self>) -> Result<BoxStream<'static, Bytes>, Refusal> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| Refusal::NoRuntime)?;
        let mut current = self.sender.lock();
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

/// Collects frames while there are viewers and the pool is open.
async fn collect(viewers: Weak<Viewers>, sender: Arc<watch::Sender<Bytes>>) {
    let mut recent = [Duration::MAX; 4];
    let mut next = Instant::now();
    while let Some(this) = viewers.upgrade() {
        // Before the frame, so that the last one shows that the pool is closed.
        let is_closed = this.pool.service().engine.shared.is_closed();
        let begin = Instant::now();
        if is_closed || begin >= next {
            sender.send_replace(event(&this.frame()));
            // The shortest of the last ones: the others were interrupted.
            recent.rotate_left(1);
            recent[3] = begin.elapsed();
            let took = recent.into_iter().min().unwrap_or_default();
            next = begin + took.saturating_mul(SHARE);
        }
        if is_closed {
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
        let mut current = this.sender.lock();
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
