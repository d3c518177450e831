//! What the pool asks of a backend.

use crate::{
    AlarmId, Capabilities, Chunk, DeviceError, DeviceId, MemoryInfo, MemoryKind, RawEvent,
    RawStream, Referee, Transfer, WatchId,
};
use std::any::Any;
use std::fmt;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// What the pool asks of a device.
///
/// Sizes and addresses are in bytes. A call returns an error only as a [`DeviceError`]; "not
/// complete yet" is never an error, and an error is never "not complete yet" (I10).
///
/// *Can wait* below says whether a call may block its thread on device work or on the operating
/// system for more than a few microseconds. The pool makes such calls only where it holds no lock,
/// and, where [`Capabilities::memory_calls_block`] says so, never inside a poll.
///
/// Names (streams, events, handles, watches) are for the device that gave them, and until they are
/// destroyed. The simulated device refuses others; a driver may not be able to tell, and fail in any way. So
/// who calls a device by hand answers for them; the pool does.
///
/// # Safety
///
/// The pool hands out addresses on the word of the device. An implementation must guarantee that
///
/// - live results of [`reserve`](Self::reserve) and [`allocate`](Self::allocate) are disjoint, and
///   mapped memory stays accessible to all work of the device until it is unmapped;
/// - a stream runs what it is given in order, and [`query`](Self::query) answers `true` only when
///   all work submitted to the stream before the event's last [`record`](Self::record) is complete;
/// - work submitted to `stream` after [`wait`](Self::wait) returned starts only after the work that
///   the awaited record covers;
/// - what [`host_pointer`](Self::host_pointer) answers is valid, for so many bytes, for as long as the memory
///   at that address is.
pub unsafe trait Device: fmt::Debug + Send + Sync + 'static {
    /// Which device this is.
    fn id(&self) -> DeviceId;

    /// One line for people: name, memory, what is supported, what is in use, and whether its memory is
    /// pooled.
    fn describe(&self) -> String;

    /// What the device supports. Constant over its life.
    fn capabilities(&self) -> Capabilities;

    /// Who is to be told of each block's life, where the device checks the order of what it is given
    /// to do. Asked once, when a pool is built; with none, the default, nothing is paid for it.
    fn referee(&self) -> Option<Arc<dyn Referee>> {
        None
    }

    /// Free and total memory of a kind, in bytes: of the device, or of its host where the kind
    /// [is taken from there](MemoryKind::is_of_host).
    ///
    /// # Errors
    /// When the device cannot tell, or does not support the kind.
    fn memory_info(&self, kind: MemoryKind) -> Result<MemoryInfo, DeviceError>;

    // ---- time --------------------------------------------------------------------------------

    /// The device's clock: time since an origin of its own. Never goes back. Cannot wait.
    fn now(&self) -> Duration;

    /// Calls `waker` once, at the time `at` of [`now`](Self::now) or soon after; at once if that is
    /// past. Wakes outside the device's locks. Cannot wait.
    fn set_alarm(&self, at: Duration, waker: &Waker) -> AlarmId;

    /// Forgets an alarm. One that rang already, or is unknown, is ignored.
    fn cancel_alarm(&self, alarm: AlarmId);

    // ---- address space and physical memory -----------------------------------------------------
    // Only where `Capabilities::virtual_memory`. Sizes and addresses are multiples of
    // `Capabilities::granularity`.

    /// Reserves a range of addresses without memory behind it. Can wait.
    ///
    /// # Errors
    /// When the address space is exhausted or unsupported.
    fn reserve(&self, bytes: u64) -> Result<u64, DeviceError>;

    /// Gives a whole reserved range back; nothing may be mapped in it. Can wait.
    ///
    /// # Errors
    /// When the range is not a reserved one.
    fn unreserve(&self, address: u64, bytes: u64) -> Result<(), DeviceError>;

    /// Takes physical memory. Can wait.
    ///
    /// # Errors
    /// [`DeviceErrorKind::OutOfMemory`] when there is not so much; nothing is taken then.
    fn create(&self, bytes: u64) -> Result<Chunk, DeviceError>;

    /// Gives physical memory back; it must not be mapped. Can wait.
    ///
    /// # Errors
    /// When the handle is unknown or still mapped.
    fn destroy(&self, handle: Chunk) -> Result<(), DeviceError>;

    /// Maps a whole handle of `bytes` at `address`, inside a reserved range where nothing is
    /// mapped, accessible to the device. Can wait.
    ///
    /// # Errors
    /// On failure nothing is mapped.
    fn map(&self, address: u64, handle: Chunk, bytes: u64) -> Result<(), DeviceError>;

    /// Unmaps what [`map`](Self::map) mapped there. No work that touches it may be running or
    /// submitted: the call does not wait for the device. Can wait.
    ///
    /// # Errors
    /// On failure the mapping stands.
    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DeviceError>;

    /// Takes plain memory of a kind, address and all, aligned to `Capabilities::granularity`. Can wait.
    ///
    /// # Errors
    /// [`DeviceErrorKind::OutOfMemory`] when there is not so much,
    /// [`DeviceErrorKind::Unsupported`] when `Capabilities::memory_kinds` has not the kind; nothing is
    /// taken then.
    fn allocate(&self, kind: MemoryKind, bytes: u64) -> Result<u64, DeviceError>;

    /// Gives plain memory back. May wait for *all* work of the device (CUDA's `cuMemFree` does).
    ///
    /// # Errors
    /// When `address` is not one that [`allocate`](Self::allocate) gave for the kind.
    fn free(&self, kind: MemoryKind, address: u64, bytes: u64) -> Result<(), DeviceError>;

    /// Where in the host's own memory such bytes lie, in memory of a kind that the host
    /// [sees](MemoryKind::is_seen_by_host). `None`, the default, where they do not lie there, as a simulated
    /// device's: the host then has them by [`download`](Self::download) and [`upload`](Self::upload) on
    /// [`RawStream::HOST`].
    ///
    /// What is there is the host's to read and write while no work of the device uses it, from the moment at
    /// which it is seen complete.
    fn host_pointer(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        let _ = (address, bytes);
        None
    }

    // ---- streams and events ----------------------------------------------------------------------

    /// Makes a stream, destroyed by [`destroy_stream`](Self::destroy_stream). Can wait.
    ///
    /// # Errors
    /// When the device is out of resources or broken.
    fn create_stream(&self) -> Result<RawStream, DeviceError>;

    /// Lets a stream go. Work submitted to it still runs to its end, and events recorded on it
    /// still complete.
    ///
    /// # Errors
    /// When the stream is unknown or the device broken.
    fn destroy_stream(&self, stream: RawStream) -> Result<(), DeviceError>;

    /// The backend's own object of a stream that the device made, or of one that can stand for the
    /// [host](RawStream::HOST): see [`DeviceStream::native`](https://docs.rs/weirpool/latest/weirpool/device/trait.DeviceStream.html#method.native).
    fn native_stream(&self, stream: RawStream) -> Option<Arc<dyn Any + Send + Sync>> {
        let _ = stream;
        None
    }

    /// Whether nobody has the stream any more but those who [keep](https://docs.rs/weirpool/latest/weirpool/device/trait.DeviceStream.html#method.keep_alive) it, of whom `hold` is one.
    /// Where streams are their own holds, as by default, that is the one who asks.
    fn is_abandoned(&self, hold: &Arc<dyn Any + Send + Sync>) -> bool {
        Arc::strong_count(hold) == 1
    }

    /// Makes an event (without timing). An event that was never recorded counts as complete.
    ///
    /// # Errors
    /// When the device is out of resources or broken.
    fn create_event(&self) -> Result<RawEvent, DeviceError>;

    /// Lets an event go. Waits that were submitted for it keep their effect.
    ///
    /// # Errors
    /// When the event is unknown or the device broken.
    fn destroy_event(&self, event: RawEvent) -> Result<(), DeviceError>;

    /// Records the event behind everything submitted to `stream` so far. A second record replaces
    /// the first, for queries from then on; an event that is watched is not recorded anew. Cannot wait.
    ///
    /// # Errors
    /// When stream and event are of different devices, the device is broken, or the stream does not
    /// run what it is given now (it is being captured: [`DeviceErrorKind::Unsupported`]); then the event
    /// stands as it was.
    fn record(&self, event: RawEvent, stream: RawStream) -> Result<(), DeviceError>;

    /// Whether the work behind the event's last record is complete. Cannot wait.
    ///
    /// # Errors
    /// Never for "not yet"; a device error that the work or the device met.
    fn query(&self, event: RawEvent) -> Result<bool, DeviceError>;

    /// Makes later work of `stream` start only after the event's last record so far: a wait on the
    /// device, which does not block the host. Cannot wait.
    ///
    /// # Errors
    /// When nothing was enqueued; [`DeviceErrorKind::Unsupported`] where the stream
    /// [takes no waits](https://docs.rs/weirpool/latest/weirpool/device/trait.DeviceStream.html#method.takes_waits) and the event is not complete, or takes none now (it is
    /// being captured).
    fn wait(&self, stream: RawStream, event: RawEvent) -> Result<(), DeviceError>;

    /// Calls `waker` once, when the event's last record so far completes or fails and not before; at
    /// once if it has. Wakes outside the device's locks, and never from a place where the device may
    /// not be called. While nothing is watched, a device spends no time on watching. Cannot wait.
    fn watch(&self, event: RawEvent, waker: &Waker) -> WatchId;

    /// Forgets a watch. One that was called already, or is unknown, is ignored.
    fn unwatch(&self, watch: WatchId);

    // ---- copies and fills --------------------------------------------------------------------------

    /// Copies bytes of the host to the device, in the order of `stream`. The bytes are taken before this
    /// returns. May take a while for many bytes, and never waits for work of the device. `place` is where
    /// in the source it was asked for, for reports.
    ///
    /// With [`RawStream::HOST`] the host writes them itself, into memory that it sees, before this returns.
    ///
    /// # Errors
    /// When nothing was enqueued; or when no event could be recorded behind the copy, which takes place.
    fn upload(
        &self,
        stream: RawStream,
        address: u64,
        bytes: &[u8],
        place: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError>;

    /// Copies bytes of the device to the host, in the order of `stream`. Never waits for work of the
    /// device. `place`, and [`RawStream::HOST`], as in [`upload`](Self::upload).
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    fn download(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        place: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError>;

    /// Writes `value` to `bytes` bytes from `address` on, in the order of `stream`. Cannot wait, and never panics:
    /// drops call it. `place`, and [`RawStream::HOST`], as in [`upload`](Self::upload).
    ///
    /// # Errors
    /// When nothing was enqueued; [`DeviceErrorKind::Unsupported`] where the stream does not run what it is
    /// given now (it is being captured). A pool that was to fill what is allocated leaves it out then.
    fn fill(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        value: u8,
        place: &'static Location<'static>,
    ) -> Result<(), DeviceError>;
}
