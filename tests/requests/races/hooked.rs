//! The simulated device, with hooks that run inside its calls.

use super::*;
use std::task::Waker;
use weirpool::device::*;

type Hook = Box<dyn FnOnce() + Send>;

#[derive(Clone)]
pub(crate) struct Hooked {
    sim: SimDevice,
    hooks: Arc<Mutex<Vec<(&'static str, Hook)>>>,
    /// Plain memory that was freed, by its size: it is given out again first, as a driver does.
    pub(crate) spare: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("hooked")
    }
}

impl Hooked {
    pub(crate) fn new(sim: &SimDevice) -> Self {
        Self {
            sim: sim.clone(),
            hooks: Arc::default(),
            spare: Arc::default(),
        }
    }

    /// Has this done in the middle of the next such call.
    pub(crate) fn on(&self, call: &'static str, hook: impl FnOnce() + Send + 'static) {
        self.hooks.lock().unwrap().push((call, Box::new(hook)));
    }

    fn at(&self, call: &str) {
        let hook = {
            let mut h = self.hooks.lock().unwrap();
            h.iter().position(|(c, _)| *c == call).map(|i| h.remove(i))
        };
        if let Some((_, hook)) = hook {
            hook()
        }
    }
}

// SAFETY: plain memory that is freed stays taken, and is given again by its size; every other call is the
// simulated device's.
unsafe impl Device for Hooked {
    pass_on! {
        |hooked| &hooked.sim =>
        id, describe, capabilities, memory_info, now, cancel_alarm, reserve, unreserve, destroy, map,
        create_stream, destroy_stream, create_event, destroy_event, query, watch, unwatch, upload, download,
        fill,
    }

    fn set_alarm(&self, at: Duration, waker: &Waker) -> AlarmId {
        let alarm = self.sim.set_alarm(at, waker);
        self.at("alarm");
        alarm
    }

    fn create(&self, bytes: u64) -> Result<Chunk, DeviceError> {
        self.at("create");
        self.sim.create(bytes)
    }

    unsafe fn unmap(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.at("unmap");
        self.sim.unmap(address, bytes)
    }

    fn allocate(&self, kind: MemoryKind, bytes: u64) -> Result<u64, DeviceError> {
        self.at("allocate");
        let mut spare = self.spare.lock().unwrap();
        let fitting = spare.iter().position(|(size, _)| *size == bytes);
        match fitting.map(|at| spare.remove(at)) {
            Some((_, address)) => Ok(address),
            None => self.sim.allocate(kind, bytes),
        }
    }

    unsafe fn free(&self, _: MemoryKind, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.at("free");
        self.spare.lock().unwrap().push((bytes, address));
        self.at("freed");
        Ok(())
    }

    unsafe fn record(&self, event: RawEvent, stream: RawStream) -> Result<(), DeviceError> {
        self.at("record");
        self.sim.record(event, stream)
    }

    unsafe fn wait(&self, stream: RawStream, event: RawEvent) -> Result<(), DeviceError> {
        let answer = self.sim.wait(stream, event);
        self.at("wait");
        answer
    }
}
