//! The device contract: the calls that the pool makes.

use crate::{
    AlarmId, BlockObserver, Capabilities, Captures, Chunk, DeviceError, DeviceErrorKind, DeviceId,
    DriverPools, Explain, Hold, HostFunction, MemoryInfo, MemoryKind, PeerAccess, RawEvent,
    RawStream, Transfer, WatchId,
};
use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

/// A device, as the pool needs it.
///
/// Sizes and addresses are in bytes. A call fails only with a [`DeviceError`]: "not complete yet" is never an
/// error, and an error is never "not complete yet" (invariant `errors-are-errors`).
///
/// "Can wait" means that a call may block its thread, on device work or on the operating system, for more than a
/// few microseconds. The pool makes such calls only where it holds no lock (invariant `no-lock-across-calls`) and,
/// where [`Capabilities::memory_calls_block`] is set, never inside a poll.
///
/// # Preconditions
///
/// Names (streams, events, chunks, addresses) are valid for the device that returned them, until they are
/// destroyed. A driver may be unable to detect an invalid name. So each call that takes a name is unsafe, and its
/// safety section says what the caller guarantees. Watches and alarms are the exception: a device ignores ids that
/// it does not know.
///
/// ```compile_fail,E0133
/// use weirpool::device::{Device, RawEvent, RawStream};
///
/// fn forge(device: &dyn Device) {
///     let _ = device.record(RawEvent(0xdead), RawStream(0xbeef)); // does not compile: the call is unsafe
/// }
/// ```
///
/// # Safety
///
/// The pool hands out addresses on the word of the device. An implementation guarantees that
///
/// - live results of [`reserve`](Self::reserve) and [`allocate`](Self::allocate) are disjoint, and
///   mapped memory stays accessible to all work of the device until it is unmapped;
/// - a stream runs its work in order, and [`query`](Self::query) returns `true` only when all work submitted to
///   the stream before the event's last [`record`](Self::record) is complete;
/// - work submitted to `stream` after [`wait`](Self::wait) returned starts only after the work that
///   the awaited record covers;
/// - the pointer that [`host_pointer`](Self::host_pointer) returns is valid for the whole range, for as long as
///   the memory at that address exists.
pub unsafe trait Device: fmt::Debug + Send + Sync + 'static {
    /// Returns the id of the device.
    fn id(&self) -> DeviceId;

    /// Describes the device in one line of text: its name, memory and capabilities, the memory in use, and whether its
    /// memory is pooled.
    fn describe(&self) -> String;

    /// Returns the capabilities of the device. They are constant over its life.
    fn capabilities(&self) -> Capabilities;

    /// Returns the number of the device in the driver's list. The default is 0.
    fn ordinal(&self) -> u32 {
        0
    }

    /// Returns the type of the device in DLPack (`DLDeviceType`): 2 for CUDA. The default is 12, the type of devices
    /// that DLPack does not know.
    fn dlpack_type(&self) -> u32 {
        12
    }

    /// Returns the calls on the driver's own memory pools. The default is `None`: it has none.
    fn driver_pools(&self) -> Option<&dyn DriverPools> {
        None
    }

    /// Returns the calls between this device and others of its host, and on its own memory as one of them. The default
    /// is `None`: it is alone.
    fn peer_access(&self) -> Option<&dyn PeerAccess> {
        None
    }

    /// Returns the id of the physical device, by which processes know that they have the same one. The default is
    /// `None`: it has none.
    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }

    /// Returns the calls with which chunks are shared with other processes, if the device can share them. The default
    /// is `None`.
    #[cfg(unix)]
    fn sharing(&self) -> Option<&dyn crate::Sharing> {
        None
    }

    /// Returns an observer of all blocks if the device checks the order of its work. A pool calls this once, when it is
    /// built. The default is `None`, which costs nothing.
    fn block_observer(&self) -> Option<Arc<dyn BlockObserver>> {
        None
    }

    /// Keeps a pool's explanation of its waiting requests, for the device's report when no task can proceed. A pool
    /// calls this once, when it is built. The default ignores it.
    fn explain_with(&self, _pool: Weak<dyn Explain>) {}

    /// Returns free and total memory of a kind, in bytes: of the device, or of its host for kinds that are
    /// [taken from there](MemoryKind::is_of_host).
    ///
    /// # Errors
    /// Returns an error if the device cannot tell, or does not support the kind.
    fn memory_info(&self, kind: MemoryKind) -> Result<MemoryInfo, DeviceError>;

    // ---- time --------------------------------------------------------------------------------

    /// Reads the device's clock: the time since an arbitrary origin. It never goes back. Cannot wait.
    fn now(&self) -> Duration;

    /// Returns whether the clock is apart from real time, so that errors say what their durations are of. The default is
    /// `false`.
    fn is_time_virtual(&self) -> bool {
        false
    }

    /// Calls `waker` once, when [`now`](Self::now) reaches `at` or soon after, or immediately if that time is past. The
    /// device holds no lock during the call. Cannot wait.
    fn set_alarm(&self, at: Duration, waker: &Waker) -> AlarmId;

    /// Cancels an alarm. An unknown alarm, or one that is over, is ignored.
    fn cancel_alarm(&self, alarm: AlarmId);

    // ---- address space and physical memory -----------------------------------------------------
    // Only where `Capabilities::virtual_memory`. Sizes and addresses are multiples of
    // `Capabilities::granularity`.

    /// Reserves a range of addresses without memory behind it. Can wait.
    ///
    /// # Errors
    /// Returns an error if the address space is exhausted, or the device has no virtual memory.
    fn reserve(&self, bytes: u64) -> Result<u64, DeviceError>;

    /// Releases a whole reserved range. Can wait.
    ///
    /// # Errors
    /// Returns an error if the range is not a reserved one, or memory is mapped in it.
    ///
    /// # Safety
    /// The range is a whole result of [`reserve`](Self::reserve) that was not released, and nothing is mapped in
    /// it.
    unsafe fn unreserve(&self, address: u64, bytes: u64) -> Result<(), DeviceError>;

    /// Takes a chunk of physical memory. Can wait.
    ///
    /// # Errors
    /// Returns [`OutOfMemory`](crate::DeviceErrorKind::OutOfMemory) if the device does not have enough. It takes
    /// nothing then.
    fn create(&self, bytes: u64) -> Result<Chunk, DeviceError>;

    /// Returns a chunk to the device. Can wait.
    ///
    /// # Errors
    /// Returns an error if the chunk is unknown or still mapped.
    ///
    /// # Safety
    /// The chunk is a result of [`create`](Self::create) that was not destroyed, and it is not mapped.
    unsafe fn destroy(&self, chunk: Chunk) -> Result<(), DeviceError>;

    /// Maps a whole chunk of `bytes` at `address`, accessible to the device. Can wait.
    ///
    /// # Errors
    /// On failure nothing is mapped.
    ///
    /// # Safety
    /// The range lies in a reserved one, and nothing is mapped in it. The chunk is a result of
    /// [`create`](Self::create) with this size, was not destroyed, and is not mapped.
    unsafe fn map(&self, address: u64, chunk: Chunk, bytes: u64) -> Result<(), DeviceError>;

    /// Unmaps a chunk. Does not wait for work of the device, but can wait otherwise.
    ///
    /// # Errors
    /// On failure the mapping stays.
    ///
    /// # Safety
    /// [`map`](Self::map) mapped exactly this range, and no work that touches it is running or submitted.
    unsafe fn unmap(&self, address: u64, bytes: u64) -> Result<(), DeviceError>;

    /// Takes plain memory of a kind together with its addresses, aligned to `Capabilities::granularity`. Can wait.
    ///
    /// # Errors
    /// Returns [`OutOfMemory`](crate::DeviceErrorKind::OutOfMemory) if there is not enough, and
    /// [`Unsupported`](crate::DeviceErrorKind::Unsupported) if `Capabilities::memory_kinds` does not contain the kind;
    /// the device takes nothing then.
    fn allocate(&self, kind: MemoryKind, bytes: u64) -> Result<u64, DeviceError>;

    /// Releases plain memory. Can wait for *all* work of the device (CUDA's `cuMemFree` does).
    ///
    /// # Errors
    /// Returns an error if `address` is not one that [`allocate`](Self::allocate) returned for the kind.
    ///
    /// # Safety
    /// The range is a whole result of [`allocate`](Self::allocate) for the kind that was not freed, and no work
    /// that touches it is running or submitted.
    unsafe fn free(&self, kind: MemoryKind, address: u64, bytes: u64) -> Result<(), DeviceError>;

    /// Returns the position of a range of device addresses in the host's own address space, for a kind that the host
    /// [sees](MemoryKind::is_seen_by_host). The default is `None`: the bytes are not there (as with the simulated
    /// device), and the host reaches them by [`download`](Self::download) and [`upload`](Self::upload) on
    /// [`RawStream::HOST`].
    ///
    /// The host may use the bytes while no work of the device uses them, as soon as it has seen that work complete.
    fn host_pointer(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        let _ = (address, bytes);
        None
    }

    // ---- streams and events ----------------------------------------------------------------------

    /// Creates a stream, which lives until [`destroy_stream`](Self::destroy_stream). Can wait.
    ///
    /// # Errors
    /// Returns an error if the device is out of resources or broken.
    fn create_stream(&self) -> Result<RawStream, DeviceError>;

    /// Destroys a stream. Work submitted to it still runs to its end, and events recorded on it still complete.
    ///
    /// # Errors
    /// Returns an error if the device did not make the stream, or is broken.
    ///
    /// # Safety
    /// No later call of this caller names the stream.
    unsafe fn destroy_stream(&self, stream: RawStream) -> Result<(), DeviceError>;

    /// Returns the backend's own object for a stream that the device created, or for one that can stand for the
    /// [host](RawStream::HOST). The default is `None`.
    fn native_stream(&self, stream: RawStream) -> Option<Arc<dyn Any + Send + Sync>> {
        let _ = stream;
        None
    }

    /// Returns whether a stream has no owners other than those that registrations keep, of which `owner` is one. The
    /// default is whether `owner` has a reference count of 1.
    fn is_abandoned(&self, owner: &Arc<dyn Any + Send + Sync>) -> bool {
        Arc::strong_count(owner) == 1
    }

    /// Creates an event without timing. An event that was never recorded counts as complete.
    ///
    /// # Errors
    /// Returns an error if the device is out of resources or broken.
    fn create_event(&self) -> Result<RawEvent, DeviceError>;

    /// Destroys an event. Waits that were submitted for it keep their effect.
    ///
    /// # Errors
    /// Returns an error if the event is unknown or the device broken.
    ///
    /// # Safety
    /// The event is a result of [`create_event`](Self::create_event) that was not destroyed, and it is not
    /// watched.
    unsafe fn destroy_event(&self, event: RawEvent) -> Result<(), DeviceError>;

    /// Records the event behind everything submitted to `stream` so far. For later queries and waits, a second
    /// record replaces the first. Cannot wait.
    ///
    /// # Errors
    /// Returns an error if the stream and the event belong to different devices; if the device is broken; or, with
    /// [`Unsupported`](crate::DeviceErrorKind::Unsupported), if the stream does not run its work now because it is
    /// being captured. The event keeps its earlier record then.
    ///
    /// # Safety
    /// The event is one of this device that was not destroyed, and it is not watched. The stream is one of this
    /// device and usable during the call.
    unsafe fn record(&self, event: RawEvent, stream: RawStream) -> Result<(), DeviceError>;

    /// Returns whether the work behind the event's last record is complete. Cannot wait.
    ///
    /// # Errors
    /// Returns an error of the work or of the device. "Not yet" is never an error.
    ///
    /// # Safety
    /// The event is one of this device that was not destroyed.
    unsafe fn query(&self, event: RawEvent) -> Result<bool, DeviceError>;

    /// Makes later work of `stream` start only after the event's last record so far: a wait on the
    /// device, which does not block the host. Cannot wait. The event may be one of a device that is
    /// [beside](PeerAccess::is_beside) this one.
    ///
    /// # Errors
    /// The stream does not wait then. [`Unsupported`](crate::DeviceErrorKind::Unsupported) when the event is not
    /// complete and the stream accepts no waits, either never or while it is being captured.
    ///
    /// # Safety
    /// The event is one of this device, or of one beside it, that was not destroyed. The stream is one of this device
    /// and usable during the call.
    unsafe fn wait(&self, stream: RawStream, event: RawEvent) -> Result<(), DeviceError>;

    /// Calls `waker` once when the event's last record so far completes or fails, and not before; immediately if
    /// it already has. The device holds no lock during the call, and makes it only from a place where the device
    /// may be called. While nothing is watched, a device spends no time on watching. Cannot wait.
    ///
    /// # Safety
    /// The event is one of this device, and it is not destroyed before the waker was called or the watch
    /// [cancelled](Self::unwatch).
    unsafe fn watch(&self, event: RawEvent, waker: &Waker) -> WatchId;

    /// Cancels a watch. An unknown watch, or one that is over, is ignored.
    fn unwatch(&self, watch: WatchId);

    /// Returns the calls with which streams are captured, if the device has graphs. The default is `None`.
    fn captures(&self) -> Option<&dyn Captures> {
        None
    }

    // ---- copies and fills --------------------------------------------------------------------------

    /// Copies bytes of the host to the device, in the order of `stream`. The call has read `bytes` when it returns. It
    /// may take a while for many bytes, but never waits for work of the device. `location` is the caller's location in
    /// the source, for reports.
    ///
    /// With [`RawStream::HOST`] the host itself writes the bytes, into memory that it sees, before the call
    /// returns.
    ///
    /// # Errors
    /// Returns an error if nothing was enqueued, or if no event could be recorded behind the copy. In the second case
    /// the copy still takes place.
    ///
    /// # Safety
    /// The stream is one of this device and usable during the call. The range is mapped until the copy is
    /// complete, and other uses of it are ordered before or after the copy.
    unsafe fn upload(
        &self,
        stream: RawStream,
        address: u64,
        bytes: &[u8],
        location: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError>;

    /// Copies bytes of the device to the host, in the order of `stream`. Never waits for work of the
    /// device. `location` and [`RawStream::HOST`] are as in [`upload`](Self::upload).
    ///
    /// # Errors
    /// Returns the errors of [`upload`](Self::upload).
    ///
    /// # Safety
    /// Those of [`upload`](Self::upload).
    unsafe fn download(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        location: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError>;

    /// Writes `value` to `bytes` bytes from `address` on, in the order of `stream`. Cannot wait, and never panics,
    /// because drops call it. `location` and [`RawStream::HOST`] are as in [`upload`](Self::upload).
    ///
    /// # Errors
    /// Returns an error if nothing was enqueued: [`Unsupported`](crate::DeviceErrorKind::Unsupported) if the stream is
    /// being captured; a pool then leaves the memory as it is.
    ///
    /// # Safety
    /// Those of [`upload`](Self::upload).
    unsafe fn fill(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        value: u8,
        location: &'static Location<'static>,
    ) -> Result<(), DeviceError>;

    // ---- work of the host --------------------------------------------------------------------------

    /// Calls a function of the host when `stream` reaches it: after all work submitted before, and before all work
    /// submitted later. Cannot wait. The default is an error.
    ///
    /// A function whose stream breaks before it is dropped or leaked, and never called.
    ///
    /// # Errors
    /// The function is not called then. [`Unsupported`](crate::DeviceErrorKind::Unsupported) if the stream is being
    /// captured, or the device cannot call the host.
    ///
    /// # Safety
    /// The stream is one of this device and usable during the call.
    unsafe fn run(&self, stream: RawStream, function: HostFunction) -> Result<(), DeviceError> {
        let (_, _) = (stream, function);
        Err(lacks(
            "run",
            "this device cannot call functions of the host",
        ))
    }

    /// Holds `stream`: work submitted later waits on the device until the hold is released. Cannot wait. `name` is the
    /// name of the holder in reports. The default is an error.
    ///
    /// # Errors
    /// The stream is not held then. [`Unsupported`](crate::DeviceErrorKind::Unsupported) if the stream is being
    /// captured or accepts no waits, or the device cannot hold a stream.
    ///
    /// # Safety
    /// The stream is one of this device and usable during the call.
    unsafe fn hold(
        &self,
        stream: RawStream,
        name: Option<Cow<'static, str>>,
    ) -> Result<Box<dyn Hold>, DeviceError> {
        let (_, _) = (stream, name);
        Err(lacks(
            "hold",
            "this device cannot hold a stream for the host",
        ))
    }
}

fn lacks(call: &'static str, reason: &'static str) -> DeviceError {
    DeviceError::new(call, DeviceErrorKind::Unsupported, reason)
}
