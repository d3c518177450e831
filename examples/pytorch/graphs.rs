//! The memory pools of PyTorch's graphs.
//!
//! PyTorch announces a capture before it begins, and names the pool that the capture is to allocate from. The streams
//! of the capture are not named: PyTorch passes a C++ function that recognises them. This library does not call it, and
//! asks the driver which capture a stream is part of when memory is allocated on it. The extension `graph_trees.cpp`
//! calls the function, also for pools that are used outside captures, and then names the pool of each allocation.

use crate::device_pool::DevicePool;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use weirpool::device::cuda::ExternalStream;
use weirpool::device::{CaptureId, Device, DeviceError, DeviceErrorKind};
use weirpool::{GraphMemory, JoinedCapture, StreamError};

/// PyTorch's name of a pool: C++'s `std::pair` of two integers, which is passed as this structure is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MempoolId(pub u64, pub u64);

/// The memory of a pool's graphs.
struct Mempool {
    memory: GraphMemory,
    /// The captures that were announced and not released: one for each graph.
    uses: usize,
}

/// A capture that was announced.
struct Announced {
    mempool: MempoolId,
    thread: ThreadId,
    /// The driver's number of the capture, once memory was allocated in it.
    capture: Option<CaptureId>,
    /// Its streams, by their names.
    joined: HashMap<u64, JoinedCapture>,
}

#[derive(Default)]
struct Book {
    mempools: HashMap<MempoolId, Mempool>,
    announced: Vec<Announced>,
}

impl Book {
    fn retain(&mut self, pool: &DevicePool, id: MempoolId) -> usize {
        let mempool = self.mempools.entry(id).or_insert_with(|| Mempool {
            memory: pool.graph_memory(),
            uses: 0,
        });
        mempool.uses += 1;
        mempool.uses
    }

    /// Takes out a stream's entries in earlier captures, which may have failed.
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
    book: Mutex<Book>,
    /// The number of announced captures. While it is 0, an allocation asks nothing.
    announced: AtomicUsize,
}

impl Graphs {
    /// Returns whether a capture was announced whose graph exists.
    pub(crate) fn has_any(&self) -> bool {
        self.announced.load(Ordering::Acquire) > 0
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes one more owner of a pool's memory. Returns how many there are.
    pub(crate) fn retain(&self, pool: &DevicePool, id: MempoolId) -> usize {
        self.lock().retain(pool, id)
    }

    /// Returns the number of owners of a pool's memory.
    pub(crate) fn uses(&self, id: MempoolId) -> usize {
        self.lock().mempools.get(&id).map_or(0, |pool| pool.uses)
    }

    /// Returns the memory of a pool that has owners.
    pub(crate) fn memory(&self, id: MempoolId) -> Option<GraphMemory> {
        let book = self.lock();
        Some(book.mempools.get(&id)?.memory.clone())
    }

    /// Announces that this thread is about to begin a capture.
    pub(crate) fn begin(&self, pool: &DevicePool, id: MempoolId) {
        let mut book = self.lock();
        book.retain(pool, id);
        let thread = thread::current().id();
        // PyTorch announces no end of a capture that failed.
        let failed = book
            .announced
            .extract_if(.., |other| other.thread == thread);
        let failed: Vec<_> = failed.collect();
        book.announced.push(Announced {
            mempool: id,
            thread,
            capture: None,
            joined: HashMap::new(),
        });
        self.announced
            .store(book.announced.len(), Ordering::Release);
        drop(book);
        drop(failed);
    }

    /// Notes that the capture that this thread announced is over; or another thread, if this one announced none.
    pub(crate) fn end(&self, id: MempoolId) {
        let mut book = self.lock();
        let thread = thread::current().id();
        let is_own = |capture: &Announced| capture.mempool == id && capture.thread == thread;
        let own = book.announced.iter().position(is_own);
        let any = || book.announced.iter().rposition(|other| other.mempool == id);
        let ended = own.or_else(any).map(|at| book.announced.remove(at));
        self.announced
            .store(book.announced.len(), Ordering::Release);
        drop(book);
        let joined = ended.into_iter().flat_map(|capture| capture.joined);
        for (_, joined) in joined {
            // PyTorch's streams live for as long as the process. A failure leaves memory pending.
            let _ = joined.end();
        }
    }

    /// Notes that a graph is gone. The pool's memory goes with its last graph, and what its live tensors need stays.
    pub(crate) fn release(&self, id: MempoolId) {
        let mut book = self.lock();
        let Some(mempool) = book.mempools.get_mut(&id) else {
            return;
        };
        mempool.uses -= 1;
        let gone = match mempool.uses {
            0 => book.mempools.remove(&id),
            _ => None,
        };
        drop(book);
        drop(gone);
    }

    /// Has a stream allocate from the memory of the capture that it is part of, if the capture was announced.
    ///
    /// # Errors
    /// Returns an error if the driver cannot tell, if it is unknown which of several captures this is, or if the pool
    /// cannot route the stream.
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
        let mut book = self.lock();
        let over = book.take_over(name, capture);
        drop(over);
        let Some(capture) = capture else {
            return Ok(());
        };
        let Book {
            mempools,
            announced,
        } = &mut *book;
        match find(announced, capture)? {
            Some(current) => current.join(mempools, pool, stream, capture),
            None => Ok(()),
        }
    }

    /// Has a stream allocate from the memory of a pool, if the stream is part of a capture. Returns whether it is.
    ///
    /// # Errors
    /// Returns an error if the driver cannot tell, or if the pool cannot route the stream.
    pub(crate) fn route_into(
        &self,
        pool: &DevicePool,
        stream: &ExternalStream,
        id: MempoolId,
    ) -> Result<bool, StreamError> {
        let capture = pool.capture_of(stream)?;
        let mut book = self.lock();
        let over = book.take_over(stream.raw().0, capture);
        drop(over);
        let Some(capture) = capture else {
            return Ok(false);
        };
        let Book {
            mempools,
            announced,
        } = &mut *book;
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
    /// Has a stream of this capture allocate from the memory of its pool.
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
        let joined = mempool.memory.join(&pool.registered(stream)?)?;
        self.joined.insert(name, joined);
        Ok(())
    }
}

/// Returns the announced capture that has this number; or else the one that this thread announced, or the only one, if
/// that has no number yet. `None` if other code began the capture.
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
                let reason = "several captures begin at a time, and this thread began none of them; begin one after \
                              the other";
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
        // SAFETY: the stream is usable in the call of PyTorch's that this is part of.
        unsafe { captures.capture_of(stream.raw()) }
    }
}
