//! An executor whose idle moments move the device's time.
//!
//! One thread, tasks in a fixed order, and time that moves only when no task can go on: so a run on
//! the virtual clock is the same every time, as long as no other thread takes part.

use super::SimDevice;
use super::builder::Clock;
use futures::executor::{LocalPool, LocalSpawner};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use weirpool_device::plain::{Arc, AtomicBool, Ordering, thread};

/// So long, in real time, is waited for another thread before the device is said to be stuck.
const GRACE: Duration = Duration::from_millis(500);
/// How often other threads' doings are looked for meanwhile.
const LOOK: Duration = Duration::from_millis(5);

impl SimDevice {
    /// Runs a future to its end on this thread. When it cannot go on, time moves to the next thing
    /// due, if the clock is virtual; a manual clock stands still, and the wall clock is waited for.
    ///
    /// # Panics
    /// When the future waits, nothing is due and no other thread helps for half a second: the
    /// message names the streams that are held up, and by what. With a body's panic, or what the
    /// ordering checker found. Inside another executor of the `futures` crate.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.run(|_| future)
    }

    /// The same with a spawner, for several tasks. Ends with the main future; tasks that are not
    /// done by then are dropped.
    ///
    /// ```
    /// use futures::task::LocalSpawnExt;
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
    /// As [`block_on`](Self::block_on).
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
                    self.engine.raise();
                    if self.engine.raised() > raised {
                        // A task raised it, and something caught the panic.
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

/// While it lives, the helper thread leaves virtual time alone.
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

/// Wakes the main future.
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

/// What is done when no task can go on.
struct Idle<'a> {
    device: &'a SimDevice,
    /// Since when nothing at all happens, and the count of device calls then.
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
            Clock::Wall => thread::park(),
            Clock::Virtual if self.device.advance_to_next() => self.interrupted(),
            Clock::Virtual | Clock::Manual => self.wait_for_others(),
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
        format!("the simulated device is stuck at {now:?}, and the future is not done: {deadlock}")
    }
}
