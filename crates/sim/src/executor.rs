//! An executor that moves the device's time when it is idle.
//!
//! It runs on one thread, polls tasks in a fixed order, and moves time only when no task can proceed. So a run on the
//! virtual clock is the same every time, as long as no other thread takes part.

use super::SimDevice;
use super::builder::Clock;
use futures_executor::{LocalPool, LocalSpawner};
use std::future::Future;
use std::panic::Location;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use weirpool_device::plain::{Arc, AtomicBool, Ordering, thread};

/// How long to wait for other threads, in real time, before the device counts as stuck.
const GRACE: Duration = Duration::from_millis(500);
/// How often to look for the effects of other threads meanwhile.
const LOOK: Duration = Duration::from_millis(5);

impl SimDevice {
    /// Runs a future to completion on this thread. When the future cannot proceed, a virtual clock moves to the next
    /// thing due; a manual clock stands still, and the wall clock is waited for.
    ///
    /// # Panics
    /// Panics if the future waits, nothing is due, and no other thread makes progress for half a second; the message
    /// names the streams that are blocked, and the reasons; and of each pool the requests that wait, with their
    /// locations in the source, tags and bytes, and the holders of its memory. Resumes the panic of a body, and panics
    /// with violations that the ordering checker found. Panics inside another executor of the `futures` crate.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.run(|_| future)
    }

    /// Runs a future as [`block_on`](Self::block_on) does, and passes a spawner for further tasks. Returns when the
    /// main future is complete; tasks that are not complete by then are dropped.
    ///
    /// ```
    /// use futures_util::task::LocalSpawnExt;
    /// use std::time::Duration;
    /// use weirpool::device::sim::SimDevice;
    ///
    /// let sim = SimDevice::new();
    /// let device = sim.clone();
    /// let slept = sim.run(|spawner| async move {
    ///     let nap = device.sleep(Duration::from_secs(60));
    ///     spawner.spawn_local_with_handle(nap).unwrap().await;
    ///     device.sleep(Duration::from_secs(60)).await;
    ///     "two minutes"
    /// });
    /// assert_eq!(slept, "two minutes");
    /// ```
    ///
    /// # Panics
    /// Panics as [`block_on`](Self::block_on) does.
    #[track_caller]
    pub fn run<F: Future>(&self, start: impl FnOnce(LocalSpawner) -> F) -> F::Output {
        let _driver = Driver::new(self);
        let raised = self.engine.raised();
        let mut idle = Idle::new(self);
        let mut pool = LocalPool::new();
        let main = Arc::new(Main::new());
        let waker = Waker::from(main.clone());
        let mut future = pin!(start(pool.spawner()));
        loop {
            if main.take() {
                let mut context = Context::from_waker(&waker);
                if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                    self.engine.raise(Location::caller());
                    if self.engine.raised() > raised {
                        // A task raised it, and some code caught the panic.
                        self.assert_ordered();
                    }
                    return output;
                }
                idle.interrupted();
            }
            pool.run_until_stalled();
            self.engine.pass_panic_on();
            if !main.is_woken() {
                idle.pass();
            }
        }
    }
}

/// While this lives, the helper thread does not move virtual time.
struct Driver<'a>(&'a SimDevice);

impl<'a> Driver<'a> {
    fn new(device: &'a SimDevice) -> Self {
        device.engine.call(|state| state.drivers += 1);
        Self(device)
    }
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        self.0.engine.call(|state| state.drivers -= 1);
    }
}

/// The waker of the main future.
struct Main {
    woken: AtomicBool,
    thread: thread::Thread,
}

impl Main {
    fn new() -> Self {
        Self {
            woken: AtomicBool::new(true),
            thread: thread::current(),
        }
    }

    fn take(&self) -> bool {
        self.woken.swap(false, Ordering::AcqRel)
    }

    fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Acquire)
    }
}

impl Wake for Main {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// The state while no task can proceed.
struct Idle<'a> {
    device: &'a SimDevice,
    /// Since when nothing has happened, and the count of device calls then.
    stuck: Option<(Instant, u64)>,
}

impl<'a> Idle<'a> {
    fn new(device: &'a SimDevice) -> Self {
        Self {
            device,
            stuck: None,
        }
    }

    fn interrupted(&mut self) {
        self.stuck = None;
    }

    fn pass(&mut self) {
        match self.device.engine.settings.clock {
            Clock::Virtual if self.device.advance_to_next() => self.interrupted(),
            Clock::Virtual | Clock::Manual => self.wait_for_others(),
            // The clock moves by itself.
            _ => thread::park(),
        }
    }

    fn wait_for_others(&mut self) {
        let activity = self.device.engine.peek(|state| state.activity);
        match self.stuck {
            Some((since, seen)) if seen == activity => {
                assert!(since.elapsed() < GRACE, "{}", self.report());
            }
            _ => self.stuck = Some((Instant::now(), activity)),
        }
        thread::park_timeout(LOOK);
    }

    fn report(&self) -> String {
        let (now, deadlock) = self
            .device
            .engine
            .peek(|state| (state.schedule.now(), state.describe_deadlock()));
        let explained = self.device.engine.explainers.explain();
        format!(
            "the simulated device is stuck at {now:?}, and the future is not complete: {deadlock}{explained}"
        )
    }
}
