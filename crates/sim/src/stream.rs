//! Streams as their users hold them.
//!
//! A handle is a name and a hold on it; what runs when is the schedule's.

use super::SimDevice;
use super::call::Call;
use super::flag::Flag;
use super::operation::Operation;
use super::schedule::Item;
use std::any::Any;
use std::fmt;
use weirpool_device::plain::Arc;
use weirpool_device::{DeviceError, DeviceId, RawStream};

/// A stream of a simulated device: an in-order queue of operations, records, waits and signals.
///
/// Clones are the same stream. One made by [`SimDevice::create_stream`] is destroyed when its last
/// clone is dropped; what was submitted still runs to its end.
#[derive(Clone)]
pub struct SimStream {
    hold: Arc<Hold>,
}

/// Keeps the stream's name from being given to another; destroys the stream if it owns it.
struct Hold {
    device: SimDevice,
    raw: RawStream,
    owned: bool,
}

impl SimDevice {
    /// Makes a stream that lives as long as its handles.
    ///
    /// # Panics
    /// When the device is broken, or the call was made to fail. The contract's
    /// [`Device::create_stream`](weirpool_device::Device::create_stream) answers the error instead.
    pub fn create_stream(&self) -> SimStream {
        match self.create_raw_stream(true) {
            Ok(raw) => SimStream::new(self, raw, true),
            Err(error) => panic!("{error}"),
        }
    }

    /// The stream of that name, so that work can be submitted to a stream that somebody else made
    /// and will destroy; none when there is no such stream, or it was destroyed.
    pub fn stream(&self, raw: RawStream) -> Option<SimStream> {
        let open = self.engine.call(|state| {
            let open = state.schedule.is_open(raw);
            if open {
                state.schedule.hold(raw);
            }
            open
        });
        open.then(|| SimStream::new(self, raw, false))
    }

    /// `held` from the start when a handle will let go of it.
    pub(super) fn create_raw_stream(&self, held: bool) -> Result<RawStream, DeviceError> {
        self.engine.call(|state| {
            state.enter(Call::CreateStream, 0)?;
            let raw = state.schedule.create_stream();
            if let Some(judge) = state.judge() {
                judge.order.open(raw);
            }
            if held {
                state.schedule.hold(raw);
            }
            Ok(raw)
        })
    }
}

impl SimStream {
    fn new(device: &SimDevice, raw: RawStream, owned: bool) -> Self {
        let device = device.clone();
        let hold = Arc::new(Hold { device, raw, owned });
        Self { hold }
    }

    /// The device that the stream belongs to.
    pub fn device(&self) -> &SimDevice {
        &self.hold.device
    }

    /// The id of the device that the stream belongs to.
    pub fn device_id(&self) -> DeviceId {
        self.device().engine.id
    }

    /// The device's name of the stream, which [`Device`](weirpool_device::Device)'s calls take.
    pub fn raw(&self) -> RawStream {
        self.hold.raw
    }

    /// An owner that keeps the stream usable while it is held.
    pub fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        self.hold.clone()
    }

    /// Puts an operation behind everything submitted so far. One of zero duration that nothing
    /// holds back completes before this returns. A broken device drops it.
    ///
    /// # Panics
    /// When the stream was destroyed; with a body's panic, when one is pending; with what the
    /// [ordering checker](https://docs.rs/weirpool/latest/weirpool/guide/testing/) found, after the submission.
    #[track_caller]
    pub fn submit(&self, operation: Operation) {
        self.push(Item::Operation(operation));
        self.device().engine.pass_panic_on();
    }

    /// Sets the flag to `value` when all that was submitted before is complete.
    ///
    /// # Panics
    /// When the stream was destroyed, or the flag is another device's.
    pub fn signal(&self, flag: &Flag, value: u64) {
        self.push(Item::Signal(flag.id_on(self.device()), value));
    }

    /// Holds what is submitted later back until the flag is at least that value: a wait on the
    /// device, which does not block the host, and counts as [stall](super::Counters::stall).
    ///
    /// # Panics
    /// When the stream was destroyed, or the flag is another device's.
    pub fn wait_until(&self, flag: &Flag, at_least: u64) {
        self.push(Item::WaitUntil(flag.id_on(self.device()), at_least));
    }

    fn push(&self, item: Item) {
        let raw = self.hold.raw;
        let dropped = self.device().engine.call(|state| {
            if state.broken().is_some() {
                return Ok(Some(item));
            }
            if !state.schedule.is_open(raw) {
                return Err(item);
            }
            state.submit(raw, item);
            Ok(None)
        });
        if let Err(item) = dropped {
            panic!("{item:?} submitted to a stream that was destroyed");
        }
    }

    /// How many items (operations, records, waits, signals) are not complete. The host then knows the
    /// others to be.
    pub fn backlog(&self) -> u64 {
        self.observe_progress().0
    }

    /// How many items are complete. The host then knows them to be.
    pub fn completed(&self) -> u64 {
        self.observe_progress().1
    }

    fn observe_progress(&self) -> (u64, u64) {
        let raw = self.hold.raw;
        self.device().engine.observe(|state| {
            let progress = state.schedule.progress(raw);
            if let Some(judge) = state.judge() {
                judge.order.observe_progress(raw, progress.1);
            }
            progress
        })
    }

    fn progress(&self) -> (u64, u64) {
        let raw = self.hold.raw;
        let engine = &self.device().engine;
        engine.peek(|state| state.schedule.progress(raw))
    }
}

impl fmt::Debug for SimStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (backlog, completed) = self.progress();
        f.debug_struct("SimStream")
            .field("raw", &self.hold.raw)
            .field("backlog", &backlog)
            .field("completed", &completed)
            .finish()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let (raw, owned) = (self.raw, self.owned);
        self.device.engine.call(|state| {
            if owned && state.schedule.is_open(raw) {
                // A broken device refuses the call, but its streams go all the same.
                let _refused = state.enter(Call::DestroyStream, 0);
                state.schedule.destroy_stream(raw);
            }
            state.schedule.release(raw);
        });
    }
}
