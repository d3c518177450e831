//! Guards around blocks, and the thread that compares them when the blocks have ended.

use crate::guarded::{Ended, GUARD, Guarded};
use crate::overrun::{Found, Overrun};
use futures::executor::block_on;
use std::collections::HashMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use weirpool::device::DeviceAddress;
use weirpool::{Block, CopyError, Pool, Stream, StreamError};

/// Guards the blocks of a pool, and finds writes before and behind them. It keeps the pool alive.
#[derive(Debug)]
pub struct Canaries {
    /// The guards are read on a stream of their own, which nothing captures.
    reader: Stream,
    ended: Sender<Ended>,
    live: Mutex<HashMap<DeviceAddress, Weak<Guarded>>>,
}

impl Canaries {
    /// Begins to guard blocks of a pool. A thread compares the guards of each block that has ended, and calls `report` with
    /// what it finds, or with the reason why it cannot read them.
    ///
    /// # Errors
    /// Returns an error if the device has no further stream.
    ///
    /// # Panics
    /// Panics if no thread can be started.
    pub fn new(
        pool: &Pool,
        report: impl Fn(Result<Overrun, CopyError>) + Send + 'static,
    ) -> Result<Self, StreamError> {
        let reader = pool.create_stream()?.named("canaries");
        let (ended, receiver) = channel();
        let of_thread = reader.clone();
        thread::spawn(move || compare_all(&receiver, &of_thread, report));
        Ok(Self {
            reader,
            ended,
            live: Mutex::default(),
        })
    }

    /// Returns the size to request for a block of `bytes` bytes with its guards.
    pub fn around(bytes: u64) -> u64 {
        bytes.saturating_add(2 * GUARD)
    }

    /// Writes the guards of a block, and returns the memory between them as a block: 1,024 bytes less than were requested. Its
    /// reports give the caller's location as that of the allocation.
    ///
    /// # Errors
    /// Returns an error if too little was requested for two guards and a byte, if the block's stream is being captured, or if
    /// the device fails. The block is freed then.
    #[track_caller]
    pub fn guard(&self, block: Block) -> Result<Block, CopyError> {
        let guarded = Arc::new(Guarded::new(block, Location::caller())?);
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.insert(guarded.address(), Arc::downgrade(&guarded));
        Ok(guarded.middle(self.ended.clone()))
    }

    /// Compares the guards of all blocks that have not ended, behind the work that was submitted to their streams before they
    /// were guarded. Work that is not complete may damage them later. Returns the damage that was not reported yet.
    ///
    /// # Errors
    /// When awaited, returns an error if the device fails.
    #[track_caller]
    pub fn check(&self) -> impl Future<Output = Result<Vec<Overrun>, CopyError>> + Send + '_ {
        let found = Found::Checked(Location::caller());
        let guarded: Vec<Arc<Guarded>> = {
            let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
            live.retain(|_, guarded| guarded.strong_count() > 0);
            live.values().filter_map(Weak::upgrade).collect()
        };
        async move {
            let mut overruns = Vec::new();
            for guarded in guarded {
                overruns.extend(guarded.compare(&self.reader, found).await?);
            }
            Ok(overruns)
        }
    }
}

/// Compares the guards of each block that has ended, and frees it.
fn compare_all(
    ended: &Receiver<Ended>,
    reader: &Stream,
    report: impl Fn(Result<Overrun, CopyError>),
) {
    while let Ok(Ended { guarded, location }) = ended.recv() {
        let compared = block_on(guarded.compare(reader, Found::Freed(location)));
        let outcomes = match compared {
            Ok(overruns) => overruns.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        };
        for outcome in outcomes {
            // A report that panics keeps no other from being made.
            let _ = catch_unwind(AssertUnwindSafe(|| report(outcome)));
        }
    }
}
