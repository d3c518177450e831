//! A device in front of another: it counts the calls, keeps account of what was taken, makes calls fail,
//! and lies. So that tests which need it run on every backend.

use crate::common::pass_on;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weirpool::device::*;

/// A handle on the device in front; clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Probe(Arc<Front>);

struct Front {
    device: Arc<dyn Device>,
    book: Mutex<Book>,
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Front").field(&self.device).finish()
    }
}

#[derive(Default)]
struct Book {
    calls: BTreeMap<&'static str, u64>,
    /// Of those, the ones that name a stream.
    named: BTreeMap<RawStream, u64>,
    /// Calls that are to fail: how many of them may still pass, and how the next one fails.
    faults: BTreeMap<&'static str, (u64, DeviceErrorKind)>,
    /// Calls that fail, whenever they are made, and how.
    refused: BTreeMap<&'static str, DeviceErrorKind>,
    /// Calls that are answered as if all were well, and not made.
    lies: BTreeSet<&'static str>,
    /// Every call fails, for good.
    is_broken: bool,
    /// Bytes of physical memory taken, by handle or address.
    memory: BTreeMap<u64, u64>,
    peak: u64,
    /// What is done when a call is answered, before the caller hears of it.
    meanwhile: BTreeMap<&'static str, Meanwhile>,
}

/// What somebody else does in the middle of a call.
type Meanwhile = Box<dyn FnOnce() + Send>;

impl Book {
    fn held(&self) -> u64 {
        self.memory.values().sum()
    }

    fn take(&mut self, name: u64, bytes: u64) {
        self.memory.insert(name, bytes);
        self.peak = self.peak.max(self.held());
    }

    fn unless_broken(&self, name: &'static str) -> Result<(), DeviceError> {
        let sticky = DeviceErrorKind::Sticky;
        let error = || DeviceError::new(name, sticky, "broken on purpose");
        if self.is_broken { Err(error()) } else { Ok(()) }
    }
}

impl Probe {
    pub(crate) fn new(device: Arc<dyn Device>) -> Self {
        Self(Arc::new(Front {
            device,
            book: Mutex::default(),
        }))
    }

    pub(crate) fn device(&self) -> Arc<dyn Device> {
        Arc::new(self.clone())
    }

    /// How often a call of [`Device`] was made.
    pub(crate) fn calls(&self, name: &str) -> u64 {
        self.book().calls.get(name).copied().unwrap_or(0)
    }

    /// How often a call named the stream: for an event, a wait, a copy or a fill.
    pub(crate) fn calls_on(&self, stream: RawStream) -> u64 {
        self.book().named.get(&stream).copied().unwrap_or(0)
    }

    /// How often any was.
    pub(crate) fn all_calls(&self) -> u64 {
        self.book().calls.values().sum()
    }

    /// Bytes taken from the device now.
    pub(crate) fn held(&self) -> u64 {
        self.book().held()
    }

    /// The most bytes that were taken at any time.
    pub(crate) fn peak(&self) -> u64 {
        self.book().peak
    }

    /// Events that exist now.
    pub(crate) fn events(&self) -> u64 {
        self.calls("create_event") - self.calls("destroy_event")
    }

    /// Makes the `nth` call from now on fail, without effect; 1 is the next.
    pub(crate) fn fail(&self, name: &'static str, nth: u64, kind: DeviceErrorKind) {
        self.book().faults.insert(name, (nth - 1, kind));
    }

    /// No such call is to fail any more.
    pub(crate) fn fail_no_more(&self, name: &str) {
        self.book().faults.remove(name);
    }

    /// Makes every such call fail, without effect, until it is [allowed](Self::allow).
    pub(crate) fn refuse(&self, name: &'static str, kind: DeviceErrorKind) {
        self.book().refused.insert(name, kind);
    }

    /// Makes every call fail from now on, as after a kernel that faulted. What runs on the device ends as ever, and of that
    /// nobody learns.
    pub(crate) fn break_device(&self) {
        self.book().is_broken = true;
    }

    pub(crate) fn allow(&self, name: &str) {
        self.book().refused.remove(name);
    }

    /// Has this done in the middle of the next such call (`query`, `create`, `destroy`, `allocate` or
    /// `free`), when it is answered and the caller has not heard of it.
    pub(crate) fn amid_next(&self, name: &'static str, meanwhile: impl FnOnce() + Send + 'static) {
        self.book().meanwhile.insert(name, Box::new(meanwhile));
    }

    /// From now on says that every event is complete (`query`), or that a stream waits which does not
    /// (`wait`): what a test of order must notice.
    #[allow(dead_code, reason = "of use where nothing else than the bytes tells")]
    pub(crate) fn lie(&self, name: &'static str) {
        self.book().lies.insert(name);
    }

    fn lies(&self, name: &str) -> bool {
        self.book().lies.contains(name)
    }

    fn amid(&self, name: &'static str) {
        let meanwhile = self.book().meanwhile.remove(name);
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
    }

    /// Whether the failure that was asked for has come.
    pub(crate) fn has_failed(&self, name: &str) -> bool {
        !self.book().faults.contains_key(name)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call, or makes it fail; else it is the device's.
    fn enter(&self, name: &'static str) -> Result<&dyn Device, DeviceError> {
        let mut book = self.book();
        *book.calls.entry(name).or_default() += 1;
        book.unless_broken(name)?;
        if let Some(kind) = book.refused.get(name) {
            return Err(DeviceError::new(name, *kind, "a fault that was asked for"));
        }
        match book.faults.get_mut(name) {
            Some((0, kind)) => {
                let kind = *kind;
                book.faults.remove(name);
                Err(DeviceError::new(name, kind, "a fault that was asked for"))
            }
            Some((passes, _)) => {
                *passes -= 1;
                Ok(&*self.0.device)
            }
            None => Ok(&*self.0.device),
        }
    }

    /// The same for one that names a stream.
    fn enter_on(&self, name: &'static str, stream: RawStream) -> Result<&dyn Device, DeviceError> {
        *self.book().named.entry(stream).or_default() += 1;
        self.enter(name)
    }

    fn inner(&self) -> &dyn Device {
        &*self.0.device
    }
}

// SAFETY: every call that answers at all is answered by the device behind, but for lies, which tests tell
// to see what comes of them, over bytes that nobody needs.
unsafe impl Device for Probe {
    pass_on! {
        |probe| probe.inner() =>
        id, describe, capabilities, block_observer, now, set_alarm, cancel_alarm, host_pointer, native_stream,
        is_abandoned, watch, unwatch,
    }
    pass_on! {
        |probe, call| probe.enter(call)? =>
        memory_info, reserve, unreserve, map, unmap, create_stream, destroy_stream, create_event,
        destroy_event,
    }

    fn create(&self, bytes: u64) -> Result<Chunk, DeviceError> {
        let chunk = self.enter("create")?.create(bytes)?;
        self.book().take(chunk.0, bytes);
        self.amid("create");
        Ok(chunk)
    }

    unsafe fn destroy(&self, chunk: Chunk) -> Result<(), DeviceError> {
        // Before: from then on the chunk's name may be reused.
        let device = self.enter("destroy")?;
        self.book().memory.remove(&chunk.0);
        // SAFETY: the caller guarantees to this device what it guarantees to the other.
        let answer = unsafe { device.destroy(chunk) };
        self.amid("destroy");
        answer
    }

    fn allocate(&self, kind: MemoryKind, bytes: u64) -> Result<u64, DeviceError> {
        let address = self.enter("allocate")?.allocate(kind, bytes)?;
        self.book().take(address, bytes);
        self.amid("allocate");
        Ok(address)
    }

    unsafe fn free(&self, kind: MemoryKind, address: u64, bytes: u64) -> Result<(), DeviceError> {
        // Before: from then on the address may be reused.
        let device = self.enter("free")?;
        self.book().memory.remove(&address);
        // SAFETY: the caller guarantees to this device what it guarantees to the other.
        let answer = unsafe { device.free(kind, address, bytes) };
        self.amid("free");
        answer
    }

    unsafe fn record(&self, event: RawEvent, stream: RawStream) -> Result<(), DeviceError> {
        let device = self.enter_on("record", stream)?;
        // SAFETY: the caller guarantees to this device what it guarantees to the other.
        unsafe { device.record(event, stream) }
    }

    unsafe fn query(&self, event: RawEvent) -> Result<bool, DeviceError> {
        let device = self.enter("query")?;
        if self.lies("query") {
            return Ok(true);
        }
        // SAFETY: the caller guarantees to this device what it guarantees to the other.
        let answer = unsafe { device.query(event) };
        self.amid("query");
        // What the device did after it broke is no answer, whenever it was asked.
        self.book().unless_broken("query")?;
        answer
    }

    unsafe fn wait(&self, stream: RawStream, event: RawEvent) -> Result<(), DeviceError> {
        let device = self.enter_on("wait", stream)?;
        if self.lies("wait") {
            return Ok(());
        }
        // SAFETY: the caller guarantees to this device what it guarantees to the other.
        unsafe { device.wait(stream, event) }
    }

    unsafe fn upload(
        &self,
        stream: RawStream,
        address: u64,
        bytes: &[u8],
        location: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        let device = self.enter_on("upload", stream)?;
        // SAFETY: the caller guarantees to this device what it guarantees to the other.
        unsafe { device.upload(stream, address, bytes, location) }
    }

    unsafe fn download(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        location: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        let device = self.enter_on("download", stream)?;
        // SAFETY: the caller guarantees to this device what it guarantees to the other.
        unsafe { device.download(stream, address, bytes, location) }
    }

    unsafe fn fill(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        value: u8,
        location: &'static Location<'static>,
    ) -> Result<(), DeviceError> {
        let device = self.enter_on("fill", stream)?;
        // SAFETY: the caller guarantees to this device what it guarantees to the other.
        unsafe { device.fill(stream, address, bytes, value, location) }
    }
}
