//! What only tests do to a pool.

use crate::stream::Stream;

/// Gives each thread that uses the stream a cache of its own, as threads get once they have met at the stream often enough.
pub fn give_threads_caches(stream: &Stream) {
    stream.registration.lane.cache.share();
}
