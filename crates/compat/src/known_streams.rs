//! The device's streams, which are registered when they are first seen.
//!
//! [`KnownStreams`] finds a registered stream again. A stream that cannot be destroyed while it is registered is found
//! by its name, and released once the pool is its only owner. An external stream is found by its number, because its
//! name may belong to another stream by now. The pool cannot tell whether an external stream still lives: it is
//! released once it is idle, and was not asked for while many others came.

use crate::mutex::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use weirpool::device::{DeviceStream, RawStream, StreamProperties};
use weirpool::{Pool, Stream, StreamError};

/// The least number of external streams at which they are looked through: a program has a few dozen.
const FEWEST_WORTH_LOOKING: usize = 64;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct KnownStreams(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    streams: FxHashMap<Name, Known>,
    /// Streams added since the external ones were last looked through.
    added: usize,
}

/// A name that no two streams have at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Name {
    Kept(RawStream),
    External(u64),
}

#[derive(Debug)]
struct Known {
    /// Callers share it, which takes one count. A clone of the handle takes two.
    stream: Arc<Stream>,
    /// Whether it was asked for since the external ones were last looked through.
    was_asked_for: bool,
}

impl Name {
    fn of(work: &StreamProperties) -> Self {
        match work.external_id {
            Some(id) => Self::External(id),
            None => Self::Kept(work.raw),
        }
    }

    fn is_external(self) -> bool {
        matches!(self, Self::External(_))
    }
}

impl KnownStreams {
    /// Returns the stream's registration with the pool, which is made at the first use.
    ///
    /// # Errors
    /// Returns the errors of [`Pool::register`].
    pub(crate) fn stream<W: DeviceStream>(
        &self,
        pool: &Pool,
        work: &W,
    ) -> Result<Arc<Stream>, StreamError> {
        let properties = work.properties()?;
        if properties.device != pool.device().id() {
            return Err(StreamError::ForeignDevice);
        }
        let name = Name::of(&properties);
        if let Some(known) = self.0.lock().streams.get_mut(&name) {
            known.was_asked_for = true;
            return Ok(known.stream.clone());
        }
        let stream = Arc::new(pool.register(work)?);
        let (kept, gone) = self.0.lock().add(name, &stream);
        // Outside the lock: the driver may be called.
        drop((gone, stream));
        Ok(kept)
    }
}

impl Table {
    /// Adds a registration. Returns the stream that is registered under the name from now on, and the streams to
    /// release.
    fn add(&mut self, name: Name, stream: &Arc<Stream>) -> (Arc<Stream>, Vec<Known>) {
        // Another thread may have been faster: then its registration is used, and this one released.
        let known = self.streams.entry(name).or_insert_with(|| Known {
            stream: stream.clone(),
            was_asked_for: true,
        });
        let kept = known.stream.clone();
        self.added += 1;
        (kept, self.release())
    }

    /// Takes out the streams that are not needed any more.
    fn release(&mut self) -> Vec<Known> {
        let looks = self.added > self.streams.len().max(FEWEST_WORTH_LOOKING) / 2;
        let mut names: Vec<_> = self.streams.keys().copied().collect();
        names.retain(|name| {
            let known = self.streams.get_mut(name).expect("a name of those");
            if !name.is_external() {
                return known.stream.is_abandoned();
            }
            let was_asked_for = known.was_asked_for;
            known.was_asked_for &= !looks;
            looks && !was_asked_for && known.stream.is_idle()
        });
        if looks {
            self.added = 0;
        }
        let gone = names.iter().filter_map(|name| self.streams.remove(name));
        gone.collect()
    }
}
