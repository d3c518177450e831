//! The device contract, implemented by the driver.

use super::CudaDevice;
use super::driver::check;
use super::host_memory;
use super::stream::{Kept, device_id, handle, is_legacy_default, raw};
use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult, CUstreamCaptureStatus};
use std::any::Any;
use std::borrow::Cow;
use std::panic::Location;
use std::ptr::NonNull;
use std::task::Waker;
use std::time::Duration;
use weirpool_device::plain::Arc;
use weirpool_device::{
    AlarmId, Capabilities, Captures, Chunk, Device, DeviceError, DeviceErrorKind, DeviceId,
    DriverPools, Hold, HostFunction, MemoryInfo, MemoryKind, PeerAccess, RawEvent, RawStream,
    Transfer, WatchId,
};

fn event_handle(event: RawEvent) -> CUevent {
    event.0 as CUevent
}

pub(super) fn unsupported(call: &'static str, reason: &'static str) -> DeviceError {
    DeviceError::new(call, DeviceErrorKind::Unsupported, reason)
}

impl CudaDevice {
    /// Fails if the stream is being captured. Work submitted to such a stream does not run: its events must not be
    /// queried, and a wait for an event from outside breaks the capture. This query breaks nothing.
    ///
    /// # Safety
    /// The stream is one of the device and usable during the call.
    #[inline]
    pub(super) unsafe fn refuse_captured(
        call: &'static str,
        stream: RawStream,
    ) -> Result<(), DeviceError> {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is usable, as the caller guarantees; the call writes to `status`.
        let answer = unsafe { sys::cuStreamIsCapturing(handle(stream), &mut status) };
        if answer == CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT {
            let reason = "a stream is being captured that the legacy default stream is ordered with; call \
                          again when the capture is over";
            return Err(unsupported(call, reason));
        }
        check(call, answer)?;
        if status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            return Ok(());
        }
        let reason = "the stream is being captured; call again when the capture is over";
        Err(unsupported(call, reason))
    }
}

// SAFETY: the driver's allocations and reserved ranges are disjoint, and a mapping with access stands until it is
// unmapped. CUDA's streams run in order. A query of an event says that it is complete only when the work behind its
// last record is; `cuStreamWaitEvent` holds later work of the stream back until then. No call records an event on a
// stream that is being captured, nor makes such a stream wait. Plain memory that the host sees has the same address
// on the host until it is freed.
unsafe impl Device for CudaDevice {
    fn id(&self) -> DeviceId {
        device_id(&self.inner.context)
    }

    fn describe(&self) -> String {
        self.description()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::plain(self.inner.facts.step())
            .with_virtual_memory(self.uses_virtual_memory())
            .with_blocking_memory_calls(true)
            .with_device_side_waits(true)
            .with_memory_kinds(self.inner.facts.memory_kinds)
            .with_memory_pools(
                self.inner.facts.has_memory_pools(),
                self.inner.facts.handle_types(),
            )
            .with_ipc(self.inner.facts.has_ipc)
            .with_peers(self.inner.facts.peers)
    }

    fn ordinal(&self) -> u32 {
        self.inner.facts.ordinal() as u32
    }

    fn dlpack_type(&self) -> u32 {
        2
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.inner.facts.uuid
    }

    #[cfg(target_os = "linux")]
    fn sharing(&self) -> Option<&dyn weirpool_device::Sharing> {
        let has_sharing = self.uses_virtual_memory() && self.inner.facts.shares_chunks;
        has_sharing.then_some(self)
    }

    fn driver_pools(&self) -> Option<&dyn DriverPools> {
        self.inner.facts.has_memory_pools().then_some(self)
    }

    fn peer_access(&self) -> Option<&dyn PeerAccess> {
        Some(self)
    }

    fn memory_info(&self, kind: MemoryKind) -> Result<MemoryInfo, DeviceError> {
        self.inner.facts.check_kind("memory_info", kind)?;
        if kind.is_of_host() {
            let unknown = || {
                let reason = "the operating system does not report how much memory the host has";
                unsupported("memory_info", reason)
            };
            return host_memory::figures().ok_or_else(unknown);
        }
        let _visit = self.visit("memory_info")?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the call writes to the two variables.
        check("memory_info", unsafe {
            sys::cuMemGetInfo_v2(&mut free, &mut total)
        })?;
        Ok(MemoryInfo {
            free: free as u64,
            total: total as u64,
        })
    }

    // ---- time --------------------------------------------------------------------------------

    fn now(&self) -> Duration {
        self.inner.watcher.now()
    }

    fn set_alarm(&self, at: Duration, waker: &Waker) -> AlarmId {
        self.inner.watcher.set_alarm(at, waker)
    }

    fn cancel_alarm(&self, alarm: AlarmId) {
        self.inner.watcher.cancel_alarm(alarm);
    }

    // ---- address space and physical memory -----------------------------------------------------

    fn reserve(&self, bytes: u64) -> Result<u64, DeviceError> {
        self.reserve_addresses(bytes)
    }

    unsafe fn unreserve(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller's guarantee.
        unsafe { self.free_addresses(address, bytes) }
    }

    fn create(&self, bytes: u64) -> Result<Chunk, DeviceError> {
        self.create_memory(bytes)
    }

    unsafe fn destroy(&self, chunk: Chunk) -> Result<(), DeviceError> {
        // SAFETY: the caller's guarantee.
        unsafe { self.release_memory(chunk) }
    }

    unsafe fn map(&self, address: u64, chunk: Chunk, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller's guarantee.
        unsafe { self.map_memory(address, chunk, bytes) }
    }

    unsafe fn unmap(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller's guarantee.
        unsafe { self.unmap_memory(address, bytes) }
    }

    fn allocate(&self, kind: MemoryKind, bytes: u64) -> Result<u64, DeviceError> {
        self.inner.facts.check_kind("allocate", kind)?;
        let _visit = self.memory_call("allocate")?;
        let step = self.inner.facts.step();
        self.inner.plain.allocate(kind, bytes, step)
    }

    unsafe fn free(&self, kind: MemoryKind, address: u64, _bytes: u64) -> Result<(), DeviceError> {
        let _visit = self.memory_call("free")?;
        // SAFETY: the caller's guarantee.
        unsafe { self.inner.plain.free(kind, address) }
    }

    /// Returns the address itself: host and device have one address space.
    fn host_pointer(&self, address: u64, bytes: u64) -> Option<NonNull<u8>> {
        let kind = self.inner.plain.kind_of(address, bytes)?;
        let start = NonNull::new(address as *mut u8);
        start.filter(|_| kind.is_seen_by_host())
    }

    // ---- streams and events ----------------------------------------------------------------------

    fn create_stream(&self) -> Result<RawStream, DeviceError> {
        let stream = Self::create_stream(self)?;
        let name = raw(stream.cu_stream());
        self.inner.streams.lock().insert(name.0, stream);
        Ok(name)
    }

    unsafe fn destroy_stream(&self, stream: RawStream) -> Result<(), DeviceError> {
        let owner = self.inner.streams.lock().remove(&stream.0);
        let owner = owner.ok_or_else(|| {
            let reason = format!(
                "this device did not create stream {:#x}; destroy it where it was created",
                stream.0
            );
            DeviceError::new("destroy_stream", DeviceErrorKind::InvalidArgument, reason)
        })?;
        let _visit = self.visit("destroy_stream")?;
        drop(owner);
        Ok(())
    }

    fn is_abandoned(&self, hold: &Arc<dyn Any + Send + Sync>) -> bool {
        (**hold).downcast_ref::<Kept>().is_some_and(Kept::is_last)
    }

    fn native_stream(&self, stream: RawStream) -> Option<Arc<dyn Any + Send + Sync>> {
        let native = match stream {
            RawStream::HOST | RawStream(0) => Some(self.inner.context.default_stream()),
            _ => self.stream(stream),
        };
        native.as_ref().map(crate::stream::keep_alive)
    }

    fn create_event(&self) -> Result<RawEvent, DeviceError> {
        let _visit = self.visit("create_event")?;
        let mut event = std::ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the call writes to `event`.
        check("create_event", unsafe {
            sys::cuEventCreate(&mut event, flags)
        })?;
        Ok(RawEvent(event as u64))
    }

    unsafe fn destroy_event(&self, event: RawEvent) -> Result<(), DeviceError> {
        let _visit = self.visit("destroy_event")?;
        // SAFETY: the caller guarantees that `create_event` made the event and that no later call uses it.
        check("destroy_event", unsafe {
            sys::cuEventDestroy_v2(event_handle(event))
        })
    }

    unsafe fn record(&self, event: RawEvent, stream: RawStream) -> Result<(), DeviceError> {
        let _visit = self.visit("record")?;
        // SAFETY: the caller guarantees that the stream is usable.
        unsafe { Self::refuse_captured("record", stream) }?;
        // SAFETY: the caller guarantees that event and stream are usable.
        check("record", unsafe {
            sys::cuEventRecord(event_handle(event), handle(stream))
        })
    }

    unsafe fn query(&self, event: RawEvent) -> Result<bool, DeviceError> {
        let _visit = self.visit("query")?;
        let event = event_handle(event);
        // SAFETY: the caller guarantees that the event is usable.
        let answer = match unsafe { sys::cuEventQuery(event) } {
            CUresult::CUDA_ERROR_NOT_READY => return Ok(false),
            // SAFETY: the event was just seen complete.
            CUresult::CUDA_SUCCESS => unsafe { self.inner.pools.record_complete(event) },
            failed => failed,
        };
        check("query", answer).map(|()| true)
    }

    unsafe fn wait(&self, stream: RawStream, event: RawEvent) -> Result<(), DeviceError> {
        let _visit = self.visit("wait")?;
        if is_legacy_default(stream) {
            // SAFETY: the caller guarantees that the event is usable.
            if unsafe { self.query(event) }? {
                return Ok(());
            }
            let reason = "a wait in the legacy default stream would hold up all streams; await the event \
                          before you submit work, or use a stream of your own";
            return Err(unsupported("wait", reason));
        }
        // SAFETY: the caller guarantees that the stream is usable.
        if let Err(refused) = unsafe { Self::refuse_captured("wait", stream) } {
            // The work of a captured stream does not run, but comes after complete work.
            // SAFETY: the caller guarantees that the event is usable.
            let is_complete = unsafe { self.query(event) }?;
            return is_complete.then_some(()).ok_or(refused);
        }
        // SAFETY: the caller guarantees that event and stream are usable.
        check("wait", unsafe {
            sys::cuStreamWaitEvent(handle(stream), event_handle(event), 0)
        })
    }

    unsafe fn watch(&self, event: RawEvent, waker: &Waker) -> WatchId {
        // SAFETY: the caller's guarantee.
        unsafe { self.inner.watcher.watch(event, waker) }
    }

    fn unwatch(&self, watch: WatchId) {
        self.inner.watcher.unwatch(watch);
    }

    fn captures(&self) -> Option<&dyn Captures> {
        Some(self)
    }

    // ---- copies and fills --------------------------------------------------------------------------

    unsafe fn upload(
        &self,
        stream: RawStream,
        address: u64,
        bytes: &[u8],
        _location: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        if stream == RawStream::HOST {
            // SAFETY: the caller guarantees the order of uses, and that the range stays mapped.
            return unsafe { self.host_upload(address, bytes) };
        }
        // SAFETY: the caller's guarantee.
        unsafe { self.start_upload(stream, address, bytes) }
    }

    unsafe fn download(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        _location: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        if stream == RawStream::HOST {
            // SAFETY: the caller guarantees the order of uses, and that the range stays mapped.
            return unsafe { self.host_download(address, bytes) };
        }
        // SAFETY: the caller's guarantee.
        unsafe { self.start_download(stream, address, bytes) }
    }

    unsafe fn fill(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        value: u8,
        _location: &'static Location<'static>,
    ) -> Result<(), DeviceError> {
        if stream == RawStream::HOST {
            // SAFETY: the caller guarantees the order of uses, and that the range stays mapped.
            return unsafe { self.host_fill(address, bytes, value) };
        }
        let _visit = self.visit("fill")?;
        // A captured fill would run at each launch of the graph, when the memory may belong to another block.
        // SAFETY: the caller guarantees that the stream is usable.
        unsafe { Self::refuse_captured("fill", stream) }?;
        // SAFETY: the caller guarantees that the range stays mapped until the stream has passed the fill, and that
        // the stream is usable.
        check("fill", unsafe {
            sys::cuMemsetD8Async(address, value, bytes as usize, handle(stream))
        })
    }

    // ---- work of the host --------------------------------------------------------------------------

    unsafe fn run(&self, stream: RawStream, function: HostFunction) -> Result<(), DeviceError> {
        // SAFETY: the caller's guarantee.
        unsafe { self.start_function(stream, function) }
    }

    unsafe fn hold(
        &self,
        stream: RawStream,
        _name: Option<Cow<'static, str>>,
    ) -> Result<Box<dyn Hold>, DeviceError> {
        // SAFETY: the caller's guarantee.
        unsafe { self.start_hold(stream) }
    }
}
