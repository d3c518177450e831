//! Teardown: gives the memory back after the pool has ended, and never while running work can touch it (invariant
//! `safe-teardown`).
//!
//! When the last handle goes, complete memory is released at once. The rest is left to a *deferred release*, which
//! watches one unfinished event after the other, and releases everything when all are complete. Memory is leaked if
//! nothing can tell when it would be safe: if the device is broken, if no event can be recorded behind the last frees
//! because a stream is captured, or if the last events of a stream report errors.

#![allow(unsafe_code, reason = "gives the memory back")]

use super::{Engine, HeapStore, Lender, Streams, ordering};
use crate::background::{Background, Errand};
use crate::heap::inspect;
use crate::lane::{Flush, Lane, Marker, Watch};
use crate::seam::{Fact, SegmentSource};
use crate::sync::{Arc, plain};
use std::task::{Wake, Waker};
use weirpool_segments::{HeldMemory, Refused};

/// See the [module](self).
#[derive(Debug)]
struct DeferredRelease {
    calls_block: bool,
    source: plain::Arc<dyn SegmentSource>,
    has_source: bool,
    /// Peers have access to the segments of the source, rather than to chunks.
    ends_access: bool,
    /// Told once the device has everything back.
    lender: Option<plain::Arc<Lender>>,
    /// A watch may call back at once: then the thread that looks does so again, instead of calling itself.
    errand: Errand,
    assets: plain::Mutex<Option<Assets>>,
}

#[derive(Debug)]
struct Assets {
    held: HeldMemory,
    /// Plain segments: address and bytes.
    segments: Vec<(u64, u64)>,
    lanes: Vec<Arc<Lane>>,
    watch: Option<Watch>,
}

/// How far the work is that may still touch the memory.
enum TeardownProgress {
    Complete,
    /// Up to this point at most.
    Running(Arc<Marker>),
    /// Its end cannot be seen.
    Unknown,
}

/// Gives the memory back at the end of the engine.
pub(super) fn end(engine: &Engine) {
    report_lost(&engine.streams, &engine.store);
    let Engine { shared, supply, .. } = engine;
    let held = supply.memory.take_held();
    let source = supply.memory.segments();
    let segments = match shared.settings.geometry.virtual_memory {
        true => Vec::new(),
        false => inspect::segments(&engine.store.heap.lock()),
    };
    let is_sealed = ordering::seal_lanes(engine).is_ok() && shared.fault().is_none();
    let lanes: Vec<_> = engine.streams.lanes().iter().cloned().collect();
    if !is_sealed || lanes.iter().any(|lane| lane.cache.last_closed().1) {
        return leak(shared.settings.has_source, source, &segments);
    }
    let deferred_release = plain::Arc::new(DeferredRelease {
        calls_block: shared.capabilities.memory_calls_block,
        source: source.clone(),
        has_source: shared.settings.has_source,
        ends_access: !shared.settings.geometry.virtual_memory,
        lender: shared.settings.lender.clone(),
        errand: Errand::default(),
        assets: plain::Mutex::new(Some(Assets {
            held,
            segments,
            lanes,
            watch: None,
        })),
    });
    deferred_release.start();
}

/// Reports memory that was granted to futures that were forgotten. No block exists any more, since each keeps its pool.
fn report_lost(streams: &Streams, store: &HeapStore) {
    if !store.announcer.is_open() {
        return;
    }
    streams.flush(store, Flush::All);
    let (blocks, bytes) = {
        let heap = store.heap.lock();
        (inspect::used_blocks(&heap), heap.totals().used.current)
    };
    if blocks > 0 {
        store.announcer.tell(|| Fact::Leaked {
            blocks,
            reservations: 0,
            bytes,
            forgotten: true,
        });
    }
}

/// Leaks memory that work may still use. A source of segments that was given lives on then, because it may release them
/// when it is dropped.
fn leak(has_source: bool, source: &plain::Arc<dyn SegmentSource>, segments: &[(u64, u64)]) {
    if has_source && !segments.is_empty() {
        std::mem::forget(source.clone());
    }
}

impl DeferredRelease {
    /// Looks in the background where memory calls block: this thread may be a runtime's, or the one by which the device
    /// wakes.
    fn start(self: plain::Arc<Self>) {
        let this = self.clone();
        let look = move || this.errand.run(|| this.look());
        if !self.calls_block {
            if self.errand.is_to_be_run() {
                look();
            }
            return;
        }
        if let Err(look) = Background::of_process().call(&self.errand, look) {
            // This thread is held up, rather than the memory lost.
            look();
        }
    }

    /// Releases if everything is complete, else watches an event that is not.
    fn look(self: &plain::Arc<Self>) {
        let Some(mut assets) = self.assets.lock().take() else {
            return;
        };
        assets.watch = None;
        let progress = assets.lanes.iter().map(|lane| self.progress_of(lane));
        let unfinished = progress
            .into_iter()
            .find(|progress| !matches!(progress, TeardownProgress::Complete));
        match unfinished {
            None => self.release(&assets),
            Some(TeardownProgress::Running(marker)) => {
                // The watch may call at once: no lock is held here.
                let waker = Waker::from(self.clone());
                assets.watch = Some(Watch::new(marker, &waker));
                *self.assets.lock() = Some(assets);
            }
            Some(_) => leak(self.has_source, &self.source, &assets.segments),
        }
    }

    /// Asks how far a stream is, from its newest event on. An event that reports an error proves nothing: the next
    /// older one is asked. Work behind such an event cannot be seen to end.
    fn progress_of(&self, lane: &Lane) -> TeardownProgress {
        let markers = lane.timeline.incomplete();
        for (newer, marker) in markers.iter().rev().enumerate() {
            match marker.event().is_complete() {
                Ok(true) if newer == 0 => return TeardownProgress::Complete,
                Ok(true) => return TeardownProgress::Unknown,
                Ok(false) => return TeardownProgress::Running(marker.clone()),
                Err(error) if error.is_sticky() => return TeardownProgress::Unknown,
                Err(_) => {}
            }
        }
        if markers.is_empty() {
            TeardownProgress::Complete
        } else {
            TeardownProgress::Unknown
        }
    }

    /// Gives everything back. What the device refuses is leaked: no caller is left to be told. A lease on it lasts then
    /// as long as the process.
    fn release(&self, Assets { held, segments, .. }: &Assets) {
        // SAFETY: no block exists any more, and all work that was submitted before the frees is complete (invariant
        // `safe-teardown`).
        let refused = unsafe { held.release(segments, self.ends_access) };
        if refused.segments {
            leak(self.has_source, &self.source, segments);
        }
        if let Some(lender) = self
            .lender
            .as_ref()
            .filter(|_| refused == Refused::default())
        {
            lender.end();
        }
    }
}

impl Wake for DeferredRelease {
    fn wake(self: plain::Arc<Self>) {
        self.start();
    }
}
