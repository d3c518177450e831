//! Copies between host and device, staged in host memory that the device can address.
//!
//! The driver copies from and to ordinary memory only while it blocks the calling thread. So each copy goes through
//! a *stage*, a buffer that the device keeps. Only the copy touches it until its event is complete, even if its
//! future was dropped. A copy within the host's memory is made by the host, in the stream's order.

use super::CudaDevice;
use super::driver::{Visit, check};
use super::host::copy_in_order;
use super::stage::Stage;
use cudarc::driver::{CudaContext, sys};
use std::ffi::c_void;
use weirpool_device::plain::{Arc, Mutex};
use weirpool_device::{Device, DeviceError, RawEvent, RawStream, Transfer};

/// The call, in errors.
const CALL: &str = "copy";

/// The smallest stage, in bytes; sizes are powers of two.
const SMALLEST: u64 = 64 << 10;
/// The most bytes of spare stages to keep. Making a stage takes about 0.4 ms per MiB on an H200.
const MOST_SPARE: u64 = 256 << 20;

/// The stages that no transfer holds.
#[derive(Debug, Default)]
pub(super) struct Stages {
    spare: Mutex<Vec<Stage>>,
    /// The stages of transfers that were dropped before they were complete.
    abandoned: Mutex<Vec<(Stage, RawEvent)>>,
}

impl CudaDevice {
    /// # Safety
    /// As [`Device::upload`].
    pub(super) unsafe fn start_upload(
        &self,
        stream: RawStream,
        address: u64,
        bytes: &[u8],
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        let stage = self.take_stage(bytes.len() as u64)?;
        // SAFETY: the stage has room for the bytes, and only this transfer uses it.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), stage.start(), bytes.len());
        }
        let is_of_host = self.inner.plain.is_of_host(address, bytes.len() as u64);
        let copy = |stage: &Stage, handle| {
            if is_of_host {
                let (target, source) = (address as *mut u8, stage.start());
                // SAFETY: the stage is kept until the copy is complete; the caller guarantees the range.
                return unsafe { copy_in_order(target, source, bytes.len(), handle) };
            }
            let source = stage.start().cast::<c_void>();
            // SAFETY: the stage is kept until the copy is complete; the caller guarantees the range.
            unsafe { sys::cuMemcpyHtoDAsync_v2(address, source, bytes.len(), handle) }
        };
        // SAFETY: the caller guarantees that the stream is usable.
        unsafe { self.start(stage, stream, 0, copy) }
    }

    /// # Safety
    /// As [`Device::download`].
    pub(super) unsafe fn start_download(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        let stage = self.take_stage(bytes)?;
        let is_of_host = self.inner.plain.is_of_host(address, bytes);
        let copy = |stage: &Stage, handle| {
            if is_of_host {
                let (target, source) = (stage.start(), address as *const u8);
                // SAFETY: the stage is kept until the copy is complete; the caller guarantees the range.
                return unsafe { copy_in_order(target, source, bytes as usize, handle) };
            }
            let target = stage.start().cast::<c_void>();
            // SAFETY: the stage has room for the bytes and is kept until the copy is complete; the caller
            // guarantees the range.
            unsafe { sys::cuMemcpyDtoHAsync_v2(target, address, bytes as usize, handle) }
        };
        // SAFETY: the caller guarantees that the stream is usable.
        unsafe { self.start(stage, stream, bytes, copy) }
    }

    /// Submits a copy and records an event behind it.
    ///
    /// # Safety
    /// The stream is usable during the call.
    unsafe fn start(
        &self,
        stage: Stage,
        stream: RawStream,
        returns: u64,
        copy: impl FnOnce(&Stage, sys::CUstream) -> sys::CUresult,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        let event = match self.create_event() {
            Ok(event) => event,
            Err(error) => {
                self.put_stage(stage);
                return Err(error);
            }
        };
        // From here on the transfer owns the stage.
        let mut transfer = StagedTransfer {
            device: self.clone(),
            held: Some((stage, event)),
            returns,
        };
        let _visit = self.visit(CALL)?;
        // A captured copy would run at each launch of the graph, when the stage is used for other copies.
        // SAFETY: the caller guarantees that the stream is usable.
        unsafe { Self::refuse_captured(CALL, stream) }?;
        let (stage, _) = transfer.held();
        check(CALL, copy(stage, super::stream::handle(stream)))?;
        // SAFETY: the event was just made; the caller guarantees that the stream is usable.
        if let Err(error) = unsafe { self.record(event, stream) } {
            // The copy is submitted, and no event will show when it is complete: the stage is leaked. (An event
            // that was never recorded counts as complete.)
            transfer.held = None;
            return Err(error);
        }
        Ok(Box::new(transfer))
    }

    fn take_stage(&self, bytes: u64) -> Result<Stage, DeviceError> {
        self.sweep_abandoned();
        let bytes = bytes.max(SMALLEST).next_power_of_two();
        {
            let mut spare = self.inner.stages.spare.lock();
            let fitting = spare.iter().position(|stage| stage.bytes() == bytes);
            if let Some(at) = fitting {
                return Ok(spare.swap_remove(at));
            }
        }
        let _visit = self.visit(CALL)?;
        Stage::new(&self.inner.context, bytes)
    }

    /// Returns host memory with these bytes, for a captured copy that reads it at each launch.
    pub(super) fn stage_of(&self, bytes: &[u8]) -> Result<KeptStage, DeviceError> {
        let stage = self.take_stage(bytes.len() as u64)?;
        // SAFETY: the stage has room for the bytes, and no other code uses it.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), stage.start(), bytes.len());
        }
        Ok(KeptStage {
            device: self.clone(),
            stage: Some(stage),
        })
    }

    fn put_stage(&self, stage: Stage) {
        let mut spare = self.inner.stages.spare.lock();
        let kept: u64 = spare.iter().map(|stage| stage.bytes()).sum();
        if kept + stage.bytes() <= MOST_SPARE {
            return spare.push(stage);
        }
        drop(spare);
        stage.free(&self.inner.context);
    }

    /// Takes back the stages of dropped transfers that are complete by now.
    fn sweep_abandoned(&self) {
        let abandoned = std::mem::take(&mut *self.inner.stages.abandoned.lock());
        for (stage, event) in abandoned {
            self.put_back(stage, event);
        }
    }

    /// Takes back a stage if its copy is complete, and keeps it aside if not. The stage of a failed copy is leaked,
    /// because nothing shows when the device stops using it.
    fn put_back(&self, stage: Stage, event: RawEvent) {
        // SAFETY: the event belongs to the stage's copy, and is destroyed here only.
        match unsafe { self.query(event) } {
            Ok(false) => self.inner.stages.abandoned.lock().push((stage, event)),
            Ok(true) => {
                // SAFETY: no other code knows the event any more.
                let _ = unsafe { self.destroy_event(event) };
                self.put_stage(stage);
            }
            Err(_) => {}
        }
    }
}

impl Stages {
    /// Frees the stages when the device ends. The stages of incomplete copies are leaked.
    pub(super) fn free_all(&self, context: &Arc<CudaContext>) {
        let abandoned = std::mem::take(&mut *self.abandoned.lock());
        if let Ok(_visit) = Visit::new(CALL, context) {
            for (stage, event) in abandoned {
                let event = event.0 as sys::CUevent;
                // SAFETY: `create_event` made the event for this copy alone.
                let is_over = unsafe { sys::cuEventQuery(event) } == sys::CUresult::CUDA_SUCCESS;
                if is_over {
                    // SAFETY: no other code knows the event any more.
                    let _ = unsafe { sys::cuEventDestroy_v2(event) };
                    stage.free(context);
                }
            }
        }
        let spare = std::mem::take(&mut *self.spare.lock());
        spare.into_iter().for_each(|stage| stage.free(context));
    }
}

/// Host memory that a graph reads at each launch. Its owner drops it once no launch reads it any more.
pub(super) struct KeptStage {
    device: CudaDevice,
    /// Present until this is dropped.
    stage: Option<Stage>,
}

impl KeptStage {
    /// Returns the first byte.
    pub(super) fn start(&self) -> *const u8 {
        let stage = self.stage.as_ref().expect("present until this is dropped");
        stage.start()
    }
}

impl Drop for KeptStage {
    fn drop(&mut self) {
        if let Some(stage) = self.stage.take() {
            self.device.put_stage(stage);
        }
    }
}

struct StagedTransfer {
    device: CudaDevice,
    /// The stage and the event; `None` once the stage is leaked or taken back.
    held: Option<(Stage, RawEvent)>,
    /// The bytes that come from the device; 0 for an upload.
    returns: u64,
}

impl StagedTransfer {
    fn held(&self) -> &(Stage, RawEvent) {
        self.held.as_ref().expect("held until it is dropped")
    }

    /// Returns the bytes that came from the device, in the stage, once the copy is complete.
    fn arrived(&self) -> Result<Option<&[u8]>, DeviceError> {
        let (stage, event) = self.held();
        // SAFETY: the event is this transfer's own, and lives as long.
        if !unsafe { self.device.query(*event) }? {
            return Ok(None);
        }
        // SAFETY: the complete copy has written these bytes, and only this transfer uses the stage.
        let bytes = unsafe { std::slice::from_raw_parts(stage.start(), self.returns as usize) };
        Ok(Some(bytes))
    }
}

impl Transfer for StagedTransfer {
    fn event(&self) -> RawEvent {
        self.held().1
    }

    fn bytes(&mut self) -> Result<Option<Vec<u8>>, DeviceError> {
        Ok(self.arrived()?.map(<[u8]>::to_vec))
    }

    fn copy_to(&mut self, into: &mut [u8]) -> Result<bool, DeviceError> {
        let bytes = self.arrived()?;
        if let Some(bytes) = bytes {
            into.copy_from_slice(bytes);
        }
        Ok(bytes.is_some())
    }
}

impl Drop for StagedTransfer {
    fn drop(&mut self) {
        if let Some((stage, event)) = self.held.take() {
            self.device.put_back(stage, event);
        }
    }
}
