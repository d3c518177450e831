//! The memory pools of PyTorch's graphs.
//!
//! PyTorch announces a capture before it begins, and names the pool that the capture is to allocate from. The streams
//! of the capture are not named: PyTorch passes a C++ function that recognises them. This library does not call it, and
//! asks the driver which capture a stream is part of when it allocates memory there. The extension `graph_trees.cpp`
//! calls the function, also for pools that are used outside captures, and then names the pool of each allocation.

use crate::device_pool::DevicePool;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use weirpool::device::cuda::ExternalStream;
use weirpool::device::{CaptureId, Device, DeviceError, DeviceErrorKind};
use weirpool::{GraphMemory, JoinedCapture, StreamError};

/// PyTorch's id of a pool: C++'s `std::pair` of two integers, which is passed like this structure.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MempoolId(pub u64, pub u64);

/// The memory of a pool's graphs.
struct Mempool {
    memory: GraphMemory,
    /// The number of owners: announced captures and other owners, until they are released.
    uses: usize,
}

/// A capture that was announced.
struct Announced {
    mempool: MempoolId,
    thread: ThreadId,
    /// The driver's number of the capture, once memory was allocated in it.
    capture: Option<CaptureId>,
    /// The streams of the capture, by their handles.
    joined: HashMap<u64, JoinedCapture>,
}

#[derive(Default)]
struct Captures {
    mempools: HashMap<MempoolId, Mempool>,
    announced: Vec<Announced>,
}

impl Captures {
    fn retain(&mut self, pool: &DevicePool, id: MempoolId) -> usize {
        let mempool = self.mempools.entry(id).or_insert_with(|| Mempool {
            memory: pool.graph_memory(),
            uses: 0,
        });
        mempool.uses += 1;
        mempool.uses
    }

    /// Removes and returns a stream's entries in earlier captures, which may have failed.
    fn take_over(&mut self, name: u64, capture: Option<CaptureId>) -> Vec<JoinedCapture> {
        let is_over = |other: &&mut Announced| other.capture != capture;
        let over = self.announced.iter_mut().filter(is_over);
        over.filter_map(|other| other.joined.remove(&name))
            .collect()
    }
}

/// The graphs of a device.
#[derive(Default)]
pub(crate) struct Graphs {
    captures: Mutex<Captures>,
    /// The number of announced captures. While it is 0, an allocation does not ask the driver.
    announced: AtomicUsize,
}

impl Graphs {
    /// Returns whether a capture was announced and has not ended.
    pub(crate) fn has_any(&self) -> bool {
        self.announced.load(Ordering::Acquire) > 0
    }

    fn lock(&self) -> MutexGuard<'_, Captures> {
        self.captures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an owner of a pool's memory. Returns the number of owners.
    pub(crate) fn retain(&self, pool: &DevicePool, id: MempoolId) -> usize {
        self.lock().retain(pool, id)
    }

    /// Returns the number of owners of a pool's memory.
    pub(crate) fn uses(&self, id: MempoolId) -> usize {
        self.lock().mempools.get(&id).map_or(0, |pool| pool.uses)
    }

    /// Returns the memory of a pool that has owners.
    pub(crate) fn memory(&self, id: MempoolId) -> Option<GraphMemory> {
        let captures = self.lock();
        Some(captures.mempools.get(&id)?.memory.clone())
    }

    /// Announces that this thread is about to begin a capture.
    pub(crate) fn begin(&self, pool: &DevicePool, id: MempoolId) {
        let mut captures = self.lock();
        captures.retain(pool, id);
        let thread = thread::current().id();
        // PyTorch does not announce the end of a capture that failed.
        let failed = captures
            .announced
            .extract_if(.., |other| other.thread == thread);
        let failed: Vec<_> = failed.collect();
        captures.announced.push(Announced {
            mempool: id,
            thread,
            capture: None,
            joined: HashMap::new(),
        });
        self.announced
            .store(captures.announced.len(), Ordering::Release);
        drop(captures);
        drop(failed);
    }

    /// Notes the end of the pool's capture that this thread announced, or else of the last one of any thread.
    pub(crate) fn end(&self, id: MempoolId) {
        let mut captures = self.lock();
        let thread = thread::current().id();
        let is_own = |capture: &Announced| capture.mempool == id && capture.thread == thread;
        let own = captures.announced.iter().position(is_own);
        let any = || {
            captures
                .announced
                .iter()
                .rposition(|other| other.mempool == id)
        };
        let ended = own.or_else(any).map(|at| captures.announced.remove(at));
        self.announced
            .store(captures.announced.len(), Ordering::Release);
        drop(captures);
        let joined = ended.into_iter().flat_map(|capture| capture.joined);
        for (_, joined) in joined {
            // PyTorch's streams live for as long as the process. A failure leaves memory pending.
            let _ = joined.end();
        }
    }

    /// Removes an owner. The last owner's release frees the pool's memory, except for that of live tensors.
    pub(crate) fn release(&self, id: MempoolId) {
        let mut captures = self.lock();
        let Some(mempool) = captures.mempools.get_mut(&id) else {
            return;
        };
        mempool.uses -= 1;
        let gone = match mempool.uses {
            0 => captures.mempools.remove(&id),
            _ => None,
        };
        drop(captures);
        drop(gone);
    }

    /// Routes a stream's allocations to the memory of the capture that it is part of, if that was announced.
    ///
    /// # Errors
    /// Returns an error if the driver does not report the capture, if it is unknown which of several captures this is,
    /// or if the pool cannot route the stream.
    pub(crate) fn route(
        &self,
        pool: &DevicePool,
        stream: &ExternalStream,
    ) -> Result<(), StreamError> {
        if !self.has_any() {
            return Ok(());
        }
        let capture = pool.capture_of(stream)?;
        let name = stream.raw().0;
        let mut captures = self.lock();
        let over = captures.take_over(name, capture);
        drop(over);
        let Some(capture) = capture else {
            return Ok(());
        };
        let Captures {
            mempools,
            announced,
        } = &mut *captures;
        match find(announced, capture)? {
            Some(current) => current.join(mempools, pool, stream, capture),
            None => Ok(()),
        }
    }

    /// Routes a stream's allocations to the memory of a pool, if the stream is part of a capture. Returns whether it
    /// is.
    ///
    /// # Errors
    /// Returns an error if the driver does not report the capture, or if the pool cannot route the stream.
    pub(crate) fn route_into(
        &self,
        pool: &DevicePool,
        stream: &ExternalStream,
        id: MempoolId,
    ) -> Result<bool, StreamError> {
        let capture = pool.capture_of(stream)?;
        let mut captures = self.lock();
        let over = captures.take_over(stream.raw().0, capture);
        drop(over);
        let Some(capture) = capture else {
            return Ok(false);
        };
        let Captures {
            mempools,
            announced,
        } = &mut *captures;
        let is_current = |other: &&mut Announced| {
            other.mempool == id && other.capture.is_none_or(|known| known == capture)
        };
        if let Some(current) = announced.iter_mut().find(is_current) {
            current.join(mempools, pool, stream, capture)?;
        }
        Ok(true)
    }
}

impl Announced {
    /// Routes the allocations of a stream of this capture to the memory of the capture's pool.
    fn join(
        &mut self,
        mempools: &HashMap<MempoolId, Mempool>,
        pool: &DevicePool,
        stream: &ExternalStream,
        capture: CaptureId,
    ) -> Result<(), StreamError> {
        self.capture = Some(capture);
        let name = stream.raw().0;
        if self.joined.contains_key(&name) {
            return Ok(());
        }
        let Some(mempool) = mempools.get(&self.mempool) else {
            return Ok(());
        };
        // SAFETY: the library gives the host no access to blocks (`Block::host`).
        let joined = unsafe { mempool.memory.join(&pool.registered(stream)?) }?;
        self.joined.insert(name, joined);
        Ok(())
    }
}

/// Returns the announced capture with this number. If there is none, returns a capture without a number: the one that
/// this thread announced, or else the only one. Returns `None` if other code began the capture.
fn find(
    announced: &mut [Announced],
    capture: CaptureId,
) -> Result<Option<&mut Announced>, DeviceError> {
    let thread = thread::current().id();
    let known = announced
        .iter()
        .position(|other| other.capture == Some(capture));
    let is_new = |other: &Announced| other.capture.is_none();
    let own = || {
        announced
            .iter()
            .position(|other| is_new(other) && other.thread == thread)
    };
    let at = match known.or_else(own) {
        Some(at) => Some(at),
        None => {
            let mut new = (0..announced.len()).filter(|at| is_new(&announced[*at]));
            let only = new.next();
            if new.next().is_some() {
                let reason = "several captures begin at the same time, and this thread began none of them; begin one \
                              after the other";
                let kind = DeviceErrorKind::Unsupported;
                return Err(DeviceError::new("capture_of", kind, reason));
            }
            only
        }
    };
    Ok(at.map(|at| &mut announced[at]))
}

impl DevicePool {
    /// Returns the capture that a stream is part of.
    pub(crate) fn capture_of(
        &self,
        stream: &ExternalStream,
    ) -> Result<Option<CaptureId>, DeviceError> {
        let Some(captures) = self.device().captures() else {
            return Ok(None);
        };
        // SAFETY: the stream is valid during the call from PyTorch that this is part of.
        unsafe { captures.capture_of(stream.raw()) }
    }
}
