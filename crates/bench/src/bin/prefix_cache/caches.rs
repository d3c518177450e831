//! What caches have in common.

use crate::trace::Trace;

/// The bytes of a block: 16 share a chunk of the pool.
pub(crate) const BLOCK: u64 = 128 << 10;
/// The bytes of a chunk.
pub(crate) const CHUNK: u64 = 2 << 20;

/// A cache of blocks.
pub(crate) trait Cache {
    /// Runs a request over these blocks, and keeps them for later ones. Returns for each of them whether the cache had it.
    ///
    /// # Errors
    /// Returns an error if memory that is expected to be there is not.
    fn request(&mut self, blocks: &[u64]) -> anyhow::Result<Vec<bool>>;
}

/// Returns the number of blocks that a cache has, together with all before them.
///
/// # Errors
/// Returns the cache's error.
pub(crate) fn hits_of(cache: &mut impl Cache, trace: &Trace) -> anyhow::Result<usize> {
    let mut hits = 0;
    for blocks in &trace.requests {
        let found = cache.request(blocks)?;
        hits += found.iter().take_while(|is_hit| **is_hit).count();
    }
    Ok(hits)
}
