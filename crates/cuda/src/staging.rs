//! Copies between host and device, through memory of the host that the device reaches by itself.
//!
//! The driver copies from and to ordinary memory only while it keeps the calling thread. So a copy goes
//! through a *stage*, which the device keeps, and which nothing but the copy touches until its event is
//! complete, whoever still waits for it. What is the host's own memory the host copies, in the stream's order.

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

/// Stages are powers of two, from this size up.
const SMALLEST: u64 = 64 << 10;
/// Bytes of spare stages that are kept at most: making one takes about 0.4 ms a MiB on an H200.
const MOST_SPARE: u64 = 256 << 20;

/// The stages that nobody holds.
#[derive(Debug, Default)]
pub(super) struct Stages {
    spare: Mutex<Vec<Stage>>,
    /// Transfers that were let go before they were complete.
    abandoned: Mutex<Vec<(Stage, RawEvent)>>,
}

impl CudaDevice {
    pub(super) fn start_upload(
        &self,
        stream: RawStream,
        address: u64,
        bytes: &[u8],
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        let stage = self.take_stage(bytes.len() as u64)?;
        // SAFETY: the stage is at least so large, is not the caller's memory, and nobody else has it.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), stage.start(), bytes.len());
        }
        let is_of_host = self.is_of_host(address, bytes.len() as u64);
        self.start(stage, stream, 0, |stage, handle| {
            if is_of_host {
                let (target, source) = (address as *mut u8, stage.start());
                // SAFETY: the stage is kept until the copy is complete; the address is the block's.
                return unsafe { copy_in_order(target, source, bytes.len(), handle) };
            }
            let source = stage.start().cast::<c_void>();
            // SAFETY: the stage is kept until the copy is complete; the address is the block's.
            unsafe { sys::cuMemcpyHtoDAsync_v2(address, source, bytes.len(), handle) }
        })
    }

    pub(super) fn start_download(
        &self,
        stream: RawStream,
        address: u64,
        bytes: u64,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        let stage = self.take_stage(bytes)?;
        let is_of_host = self.is_of_host(address, bytes);
        self.start(stage, stream, bytes, |stage, handle| {
            if is_of_host {
                let (target, source) = (stage.start(), address as *const u8);
                // SAFETY: as above.
                return unsafe { copy_in_order(target, source, bytes as usize, handle) };
            }
            let target = stage.start().cast::<c_void>();
            // SAFETY: the stage is at least so large, and kept until the copy is complete.
            unsafe { sys::cuMemcpyDtoHAsync_v2(target, address, bytes as usize, handle) }
        })
    }

    fn start(
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
        // From here on the stage is the transfer's.
        let mut transfer = StagedTransfer {
            device: self.clone(),
            held: Some((stage, event)),
            returns,
        };
        let _visit = self.visit(CALL)?;
        // A captured copy would be made at each launch of the graph, from a stage that is long reused.
        Self::refuse_captured(CALL, stream)?;
        let (stage, _) = transfer.held();
        check(CALL, copy(stage, super::stream::handle(stream)))?;
        if let Err(error) = self.record(event, stream) {
            // The copy is on its way and no event says when it is over (an event that was never recorded
            // counts as complete): the stage is leaked.
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

    fn put_stage(&self, stage: Stage) {
        let mut spare = self.inner.stages.spare.lock();
        let kept: u64 = spare.iter().map(|stage| stage.bytes()).sum();
        if kept + stage.bytes() <= MOST_SPARE {
            return spare.push(stage);
        }
        drop(spare);
        stage.free(&self.inner.context);
    }

    /// Takes back the stages of transfers that nobody waited for and that are complete by now.
    fn sweep_abandoned(&self) {
        let abandoned = std::mem::take(&mut *self.inner.stages.abandoned.lock());
        for (stage, event) in abandoned {
            self.put_back(stage, event);
        }
    }

    /// A stage whose copy is over is spare again; one whose copy is not stays out. One whose copy failed
    /// is leaked: nobody can tell when the device lets go of it.
    fn put_back(&self, stage: Stage, event: RawEvent) {
        match self.query(event) {
            Ok(false) => self.inner.stages.abandoned.lock().push((stage, event)),
            Ok(true) => {
                let _ = self.destroy_event(event);
                self.put_stage(stage);
            }
            Err(_) => {}
        }
    }
}

impl Stages {
    /// The end of the device: its stages are given back. Copies that are still on their way keep theirs, and
    /// so they are leaked.
    pub(super) fn free_all(&self, context: &Arc<CudaContext>) {
        let abandoned = std::mem::take(&mut *self.abandoned.lock());
        if let Ok(_visit) = Visit::new(CALL, context) {
            for (stage, event) in abandoned {
                let event = event.0 as sys::CUevent;
                // SAFETY: the event is one of `create_event`'s, and is the transfer's own.
                let is_over = unsafe { sys::cuEventQuery(event) } == sys::CUresult::CUDA_SUCCESS;
                if is_over {
                    // SAFETY: nobody else knows of the event.
                    let _ = unsafe { sys::cuEventDestroy_v2(event) };
                    stage.free(context);
                }
            }
        }
        let spare = std::mem::take(&mut *self.spare.lock());
        spare.into_iter().for_each(|stage| stage.free(context));
    }
}

struct StagedTransfer {
    device: CudaDevice,
    /// Until this is dropped, or the stage is leaked.
    held: Option<(Stage, RawEvent)>,
    /// Bytes that come from the device.
    returns: u64,
}

impl StagedTransfer {
    fn held(&self) -> &(Stage, RawEvent) {
        self.held.as_ref().expect("held until it is dropped")
    }

    /// What came from the device, where it lies.
    fn arrived(&self) -> Result<Option<&[u8]>, DeviceError> {
        let (stage, event) = self.held();
        if !self.device.query(*event)? {
            return Ok(None);
        }
        // SAFETY: the copy has written so many bytes, and is over; nobody else writes the stage while it is held.
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
