//! What outlives the pool: memory that running device work may still touch (I11).
//!
//! When the last handle goes, whatever is complete is released at once. The rest is left to the
//! *deferred release*, which watches the streams' last events and releases when all are complete. If the device
//! is broken, or an event cannot be recorded behind what was freed last (a stream is being captured), the
//! memory is leaked: nobody can tell when it would be safe.

#![allow(unsafe_code)]

use super::Driver;
use super::memory::Held;
use crate::device::{Device, DeviceError, MemoryKind, Watch};
use crate::lane::{Lane, Marker};
use crate::sync::{Arc, assert_unlocked, plain};
use crate::trace;
use std::task::{Wake, Waker};

/// See the [module](self).
#[derive(Debug)]
struct DeferredRelease {
    device: plain::Arc<dyn Device>,
    chunk_bytes: u64,
    calls_block: bool,
    kind: MemoryKind,
    state: plain::Mutex<Option<Assets>>,
}

#[derive(Debug)]
struct Assets {
    held: Held,
    lanes: Vec<Arc<Lane>>,
    watches: Vec<Watch<Marker>>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.tell_lost();
        let held = self.memory.take_held();
        if self.seal_lanes().is_err() || self.fault().is_some() {
            return;
        }
        if self.lanes().iter().any(|lane| lane.cache.is_dirty()) {
            return;
        }
        let assets = Assets {
            held,
            lanes: self.lanes().iter().cloned().collect(),
            watches: Vec::new(),
        };
        let deferred_release = plain::Arc::new(DeferredRelease {
            device: self.device.clone(),
            calls_block: self.capabilities.memory_calls_block,
            chunk_bytes: self.settings.geometry.chunk_bytes,
            kind: self.settings.kind,
            state: plain::Mutex::new(Some(assets)),
        });
        deferred_release.settle_aside();
    }
}

impl Driver {
    /// Nobody has a block any more, since each keeps its pool: what the books call lent was granted to who
    /// was forgotten.
    fn tell_lost(&self) {
        if !trace::IS_TOLD {
            return;
        }
        self.flush_lanes();
        let (blocks, bytes) = {
            let heap = self.heap.lock();
            (heap.used_blocks(), heap.totals().used.current)
        };
        if blocks > 0 {
            trace::leaked(
                (blocks, 0),
                bytes,
                &"granted, and forgotten before they were taken",
            );
        }
    }
}

impl DeferredRelease {
    /// Settles, on a thread of its own where memory calls block: this one may be a runtime's, or the one by
    /// which the device wakes.
    fn settle_aside(self: plain::Arc<Self>) {
        if !self.calls_block {
            return self.settle();
        }
        let thread = plain::thread::Builder::new().name("weirpool-estate".into());
        let settled = self.clone();
        if thread.spawn(move || settled.settle()).is_err() {
            // Late for whoever shares this thread, rather than never.
            self.settle();
        }
    }

    /// Releases if everything is complete; else watches what is not.
    fn settle(self: plain::Arc<Self>) {
        let Some(assets) = self.state.lock().take() else {
            return;
        };
        match self.first_unfinished(&assets) {
            Err(_) => drop(assets.watches),
            Ok(None) => self.release(&assets.held),
            Ok(Some(lane)) => self.watch(lane, assets),
        }
    }

    /// A stream with work on its way.
    fn first_unfinished(&self, assets: &Assets) -> Result<Option<Arc<Lane>>, DeviceError> {
        for lane in &assets.lanes {
            lane.timeline.reap(&*self.device)?;
            if !lane.timeline.is_idle() {
                return Ok(Some(lane.clone()));
            }
        }
        Ok(None)
    }

    fn watch(self: &plain::Arc<Self>, lane: Arc<Lane>, mut assets: Assets) {
        let newest = lane.timeline.newest();
        assets.watches.clear();
        *self.state.lock() = Some(assets);
        let Some(newest) = newest else {
            return self.clone().settle();
        };
        // The watch may call at once, and settle: nothing is locked here.
        let waker = Waker::from(self.clone());
        let watch = Watch::new(newest, &waker);
        if let Some(assets) = self.state.lock().as_mut() {
            assets.watches.push(watch);
        }
    }

    /// Gives everything back. What the device refuses is leaked: there is nobody left to tell.
    fn release(&self, held: &Held) {
        assert_unlocked("release");
        // SAFETY: `held` is what the device gave to this pool and still has of it. No block exists any more, and all
        // work that was submitted before the frees is complete (invariant `safe-teardown`).
        unsafe {
            for (address, chunk) in &held.chunks {
                if self.device.unmap(*address, self.chunk_bytes).is_ok() {
                    let _ = self.device.destroy(*chunk);
                }
            }
            for chunk in &held.unmapped {
                let _ = self.device.destroy(*chunk);
            }
            for (address, bytes) in &held.ranges {
                let _ = self.device.unreserve(*address, *bytes);
            }
            for (address, bytes) in &held.segments {
                let _ = self.device.free(self.kind, *address, *bytes);
            }
        }
    }
}

impl Wake for DeferredRelease {
    fn wake(self: plain::Arc<Self>) {
        self.settle_aside();
    }
}
