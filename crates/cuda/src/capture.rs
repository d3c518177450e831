//! Streams that are captured into graphs.
//!
//! The driver itself knows when a graph is gone and its last launch complete: a *user object* of the graph is destroyed
//! then. Each executable graph, and each launch, holds the objects of the graph that it was made of. So memory stays
//! with a graph that another library captures and launches, without a call at its launches.
//!
//! A capture that begins here is in the relaxed mode: it may end on any thread, and it leaves other threads' calls
//! alone.

use super::CudaDevice;
use super::driver::{capture_info, check, frontier, nodes_before, set_frontier};
use super::stream::handle;
use cudarc::driver::sys::{
    self, CUgraphExec, CUuserObject_flags as ObjectFlags, CUuserObjectRetain_flags as RetainFlags,
};
use std::ffi::c_void;
use std::fmt;
use std::panic::Location;
use weirpool_device::plain::{Mutex, thread};
use weirpool_device::{
    CaptureId, CapturedWork, Captures, DeviceError, DeviceErrorKind, Graph, Kept, RawStream,
};

const BEGIN: &str = "begin_capture";
const END: &str = "end_capture";
const KEEP: &str = "keep";
const LAUNCH: &str = "launch";

/// An executable graph, destroyed when dropped. The driver keeps what a running launch needs.
struct CudaGraph {
    device: CudaDevice,
    /// The driver allows one call with it at a time.
    executable: Mutex<Executable>,
}

#[derive(Debug)]
struct Executable(CUgraphExec);

// SAFETY: the driver's graph may be used on any thread.
unsafe impl Send for Executable {}

impl Graph for CudaGraph {
    unsafe fn launch(&self, stream: RawStream) -> Result<(), DeviceError> {
        let _visit = self.device.visit(LAUNCH)?;
        // The driver would refuse the launch as well, and invalidate the capture.
        // SAFETY: the caller guarantees the stream.
        unsafe { CudaDevice::refuse_captured(LAUNCH, stream) }?;
        let executable = self.executable.lock();
        // SAFETY: the graph is destroyed only when `self` is dropped; the caller guarantees the stream.
        check(LAUNCH, unsafe {
            sys::cuGraphLaunch(executable.0, handle(stream))
        })
    }
}

impl fmt::Debug for CudaGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CudaGraph").field(&self.executable).finish()
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if let Ok(_visit) = self.device.visit(LAUNCH) {
            // SAFETY: `self` owns the graph. A launch that runs goes on.
            let _ = unsafe { sys::cuGraphExecDestroy(self.executable.lock().0) };
        }
    }
}

/// Returns the node that captured work is.
fn node(work: &CapturedWork) -> sys::CUgraphNode {
    work.0 as sys::CUgraphNode
}

/// Makes a stream part of the capture of another one.
///
/// # Errors
/// Returns the driver's error.
///
/// # Safety
/// The streams are not destroyed.
unsafe fn join_capture(
    call: &'static str,
    stream: sys::CUstream,
    captured: sys::CUstream,
) -> Result<(), DeviceError> {
    let mut event = std::ptr::null_mut();
    let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
    // SAFETY: the call writes to `event`.
    check(call, unsafe { sys::cuEventCreate(&mut event, flags) })?;
    // SAFETY: the caller guarantees the streams, and no other code has the event. Captured work stays when it is
    // destroyed.
    unsafe {
        let recorded = check(call, sys::cuEventRecord(event, captured));
        let joined = recorded.and_then(|()| check(call, sys::cuStreamWaitEvent(stream, event, 0)));
        let _ = sys::cuEventDestroy_v2(event);
        joined
    }
}

/// The address of a kept value, which one thread at a time owns.
struct Parcel(*mut Kept);

// SAFETY: the value may be sent, and the parcel is its only owner.
unsafe impl Send for Parcel {}

impl Parcel {
    /// # Safety
    /// The address is a result of `Box::into_raw`, and no other code has it.
    unsafe fn open(self) -> Kept {
        // SAFETY: the caller's guarantee.
        *unsafe { Box::from_raw(self.0) }
    }
}

/// Drops a kept value: the driver calls this once no work of the graph can run any more. The value's drop may call the
/// driver, which this thread must not. If there is no thread, the value is leaked.
unsafe extern "C" fn release(kept: *mut c_void) {
    let parcel = Parcel(kept.cast());
    let thread = thread::Builder::new().name("weirpool-graph".to_owned());
    // SAFETY: `keep` made the address, and the driver calls this once.
    let _ = thread.spawn(move || drop(unsafe { parcel.open() }));
}

// SAFETY: a kept value belongs to a user object of the graph. The driver destroys it after the graph, the executable
// graphs made of it, and their launches.
unsafe impl Captures for CudaDevice {
    unsafe fn begin_capture(&self, stream: RawStream) -> Result<(), DeviceError> {
        let _visit = self.visit(BEGIN)?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the caller guarantees that the stream is usable.
        check(BEGIN, unsafe {
            sys::cuStreamBeginCapture_v2(handle(stream), mode)
        })
    }

    unsafe fn end_capture(&self, stream: RawStream) -> Result<Box<dyn Graph>, DeviceError> {
        let _visit = self.visit(END)?;
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the caller guarantees that the stream is usable; the call writes to `graph`.
        check(END, unsafe {
            sys::cuStreamEndCapture(handle(stream), &mut graph)
        })?;
        // SAFETY: the graph was just captured; the call writes to `executable`.
        let made = check(END, unsafe {
            sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0)
        });
        // SAFETY: no other code has the graph. The executable one holds its user objects.
        let _ = unsafe { sys::cuGraphDestroy(graph) };
        made?;
        Ok(Box::new(CudaGraph {
            device: self.clone(),
            executable: Mutex::new(Executable(executable)),
        }))
    }

    unsafe fn capture_of(&self, stream: RawStream) -> Result<Option<CaptureId>, DeviceError> {
        const CALL: &str = "capture_of";
        let _visit = self.visit(CALL)?;
        // SAFETY: the caller guarantees that the stream is usable.
        let info = unsafe { capture_info(CALL, handle(stream)) }?;
        Ok(info.map(|info| CaptureId(info.id)))
    }

    unsafe fn frontier(
        &self,
        stream: RawStream,
    ) -> Result<Option<(CaptureId, Vec<CapturedWork>)>, DeviceError> {
        const CALL: &str = "frontier";
        let _visit = self.visit(CALL)?;
        // SAFETY: the caller guarantees that the stream is usable.
        let found = unsafe { frontier(CALL, handle(stream)) }?;
        let named = |node: sys::CUgraphNode| CapturedWork(node as u64);
        Ok(found.map(|(info, nodes)| (CaptureId(info.id), nodes.into_iter().map(named).collect())))
    }

    unsafe fn before(
        &self,
        _stream: RawStream,
        work: CapturedWork,
    ) -> Result<Vec<CapturedWork>, DeviceError> {
        const CALL: &str = "before";
        let _visit = self.visit(CALL)?;
        // SAFETY: the caller guarantees that the work is of a capture under way, whose graph exists.
        let nodes = unsafe { nodes_before(CALL, node(&work)) }?;
        let named = |node: sys::CUgraphNode| CapturedWork(node as u64);
        Ok(nodes.into_iter().map(named).collect())
    }

    unsafe fn come_after(
        &self,
        stream: RawStream,
        captured: RawStream,
        work: &[CapturedWork],
    ) -> Result<(), DeviceError> {
        const CALL: &str = "wait";
        let _visit = self.visit(CALL)?;
        let nodes: Vec<_> = work.iter().map(node).collect();
        // SAFETY: the caller guarantees both streams, here and below.
        let [own, other] =
            [stream, captured].map(|stream| unsafe { capture_info(CALL, handle(stream)) });
        let Some(other) = other? else {
            let reason =
                "the stream to come after is not being captured, or its capture was invalidated";
            return Err(DeviceError::new(CALL, DeviceErrorKind::Unsupported, reason));
        };
        match own? {
            Some(own) if own.id == other.id => {
                // SAFETY: as above.
                let known = unsafe { frontier(CALL, handle(stream)) }?;
                let known = known.map(|(_, known)| known).unwrap_or_default();
                let mut further = nodes;
                further.retain(|node| !known.contains(node));
                match further.is_empty() {
                    true => Ok(()),
                    // SAFETY: the nodes are of the graph of this capture.
                    false => unsafe { set_frontier(CALL, handle(stream), &further, false) },
                }
            }
            Some(_) => {
                let reason = "the stream is part of another capture";
                Err(DeviceError::new(CALL, DeviceErrorKind::Unsupported, reason))
            }
            None => {
                // SAFETY: the caller guarantees both streams.
                unsafe { join_capture(CALL, handle(stream), handle(captured)) }?;
                // With no node to come after, the stream keeps what the event came after.
                match nodes.is_empty() {
                    true => Ok(()),
                    // SAFETY: the nodes are of the graph of this capture.
                    false => unsafe { set_frontier(CALL, handle(stream), &nodes, true) },
                }
            }
        }
    }

    unsafe fn keep(&self, stream: RawStream, kept: Kept) -> Result<(), DeviceError> {
        let _visit = self.visit(KEEP)?;
        // SAFETY: the caller guarantees that the stream is usable.
        let info = unsafe { capture_info(KEEP, handle(stream)) }?;
        let Some(info) = info else {
            let reason = "the stream is not being captured, or its capture was invalidated";
            let kind = DeviceErrorKind::Unsupported;
            return Err(DeviceError::new(KEEP, kind, reason));
        };
        let mut object = std::ptr::null_mut();
        let flags = ObjectFlags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
        let address = Box::into_raw(Box::new(kept));
        // SAFETY: the call writes to `object`; `release` owns its argument, and calls no driver function.
        let made = unsafe {
            sys::cuUserObjectCreate(&mut object, address.cast(), Some(release), 1, flags)
        };
        if let Err(error) = check(KEEP, made) {
            // SAFETY: the driver refused the value, and so will not release it.
            drop(unsafe { Parcel(address).open() });
            return Err(error);
        }
        let flags = RetainFlags::CU_GRAPH_USER_OBJECT_MOVE as u32;
        // SAFETY: the graph is being captured, and takes over the one reference to the object.
        let retained = unsafe { sys::cuGraphRetainUserObject(info.graph, object, 1, flags) };
        check(KEEP, retained).inspect_err(|_| {
            // SAFETY: the reference is still this call's. Without it the driver releases the value.
            let _ = unsafe { sys::cuUserObjectRelease(object, 1) };
        })
    }

    unsafe fn capture_fill(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
        value: u8,
        _location: &'static Location<'static>,
    ) -> Result<(), DeviceError> {
        const CALL: &str = "fill";
        let _visit = self.visit(CALL)?;
        // SAFETY: the caller guarantees the stream, and the range at each launch.
        check(CALL, unsafe {
            sys::cuMemsetD8Async(address, value, bytes as usize, handle(stream))
        })
    }

    unsafe fn capture_upload(
        &self,
        stream: RawStream,
        address: u64,
        bytes: &[u8],
        _location: &'static Location<'static>,
    ) -> Result<(), DeviceError> {
        const CALL: &str = "copy";
        if self.inner.plain.is_of_host(address, bytes.len() as u64) {
            let reason = "a copy into the host's memory is made by the host, which a graph does not launch; copy \
                          before the capture";
            let kind = DeviceErrorKind::Unsupported;
            return Err(DeviceError::new(CALL, kind, reason));
        }
        let stage = self.stage_of(bytes)?;
        let source = stage.start().cast::<c_void>();
        // First: once the copy is captured, only the graph knows when its source is read for the last time.
        // SAFETY: the caller guarantees that the stream is usable.
        unsafe { self.keep(stream, Box::new(stage)) }?;
        let _visit = self.visit(CALL)?;
        // SAFETY: the graph keeps the source; the caller guarantees the stream, and the range at each launch.
        check(CALL, unsafe {
            sys::cuMemcpyHtoDAsync_v2(address, source, bytes.len(), handle(stream))
        })
    }
}
