//! The device's streams that are used with a pool, each registered when it is first seen and found again.
//!
//! A stream that is kept from being destroyed while it is registered is found by its name, and let go once
//! nobody else holds it. An external one is found by its number, since its name may be another's by now. Whether
//! it lives nobody knows: it is let go once nothing of it is in use, and nobody came for it while many others
//! came.

use super::Pool;
use crate::device::{DeviceStream, RawStream};
use crate::error::StreamError;
use crate::stream::Stream;
use crate::sync::plain::Mutex;
use std::collections::HashMap;

/// Fewer external streams than this are not looked through: a program has a few dozen.
const FEWEST_WORTH_LOOKING: usize = 64;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct KnownStreams(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    streams: HashMap<Name, Known>,
    /// Streams that came since the external ones were last looked through.
    came: usize,
}

/// What no two streams have at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Name {
    Kept(RawStream),
    External(u64),
}

#[derive(Debug)]
struct Known {
    stream: Stream,
    /// Since the external ones were last looked through.
    was_asked_for: bool,
}

impl Name {
    fn of(work: &impl DeviceStream) -> Self {
        match work.external_id() {
            Some(id) => Self::External(id),
            None => Self::Kept(work.raw()),
        }
    }

    fn is_external(self) -> bool {
        matches!(self, Self::External(_))
    }
}

impl KnownStreams {
    /// The stream's registration with the pool; made if it is the first use.
    ///
    /// # Errors
    /// As [`Pool::register`].
    pub(crate) fn stream<W: DeviceStream>(
        &self,
        pool: &Pool,
        work: &W,
    ) -> Result<Stream, StreamError> {
        if work.device_id() != pool.device_id() {
            return Err(StreamError::ForeignDevice);
        }
        let name = Name::of(work);
        if let Some(known) = self.0.lock().streams.get_mut(&name) {
            known.was_asked_for = true;
            return Ok(known.stream.clone());
        }
        let stream = pool.register(work)?;
        let (kept, gone) = self.0.lock().add(name, &stream);
        // Outside the lock: the driver may be called.
        drop((gone, stream));
        Ok(kept)
    }
}

impl Book {
    /// What is registered under the name from now on, and what is let go for it.
    fn add(&mut self, name: Name, stream: &Stream) -> (Stream, Vec<Known>) {
        // Another thread may have been faster: its registration is used, and this one is let go.
        let known = self.streams.entry(name).or_insert_with(|| Known {
            stream: stream.clone(),
            was_asked_for: true,
        });
        let kept = known.stream.clone();
        self.came += 1;
        (kept, self.let_go())
    }

    fn let_go(&mut self) -> Vec<Known> {
        let looks = self.came > self.streams.len().max(FEWEST_WORTH_LOOKING) / 2;
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
            self.came = 0;
        }
        let gone = names.iter().filter_map(|name| self.streams.remove(name));
        gone.collect()
    }
}
