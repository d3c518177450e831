//! The bytes of one physical chunk, taken from the host when they are first written. The bytes of a chunk that can be
//! shared are a file without a name, which other processes read and write too.
//!
//! They belong to the chunk, so they move with it when it is mapped elsewhere. This module does not know addresses.

use std::collections::BTreeMap;

/// The size of the pieces in which bytes are taken from the host.
const CHUNK: u64 = 64 << 10;

/// Bytes by offset. Bytes that were never written are zero.
#[derive(Debug, Default)]
pub(crate) struct Bytes {
    chunks: BTreeMap<u64, Box<[u8]>>,
    #[cfg(target_os = "linux")]
    pub(super) shared: Option<super::shared_bytes::SharedBytes>,
}

impl Bytes {
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        #[cfg(target_os = "linux")]
        if let Some(shared) = &self.shared {
            return shared.read(offset, into);
        }
        for_each_chunk(offset, into.len(), |chunk, within, span| {
            match self.chunks.get(&chunk) {
                Some(bytes) => into[span].copy_from_slice(&bytes[within]),
                None => into[span].fill(0),
            }
        });
    }

    pub(super) fn write(&mut self, offset: u64, from: &[u8]) {
        #[cfg(target_os = "linux")]
        if let Some(shared) = &self.shared {
            return shared.write(offset, from);
        }
        for_each_chunk(offset, from.len(), |chunk, within, span| {
            self.chunk(chunk)[within].copy_from_slice(&from[span]);
        });
    }

    pub(super) fn fill(&mut self, offset: u64, bytes: usize, value: u8) {
        #[cfg(target_os = "linux")]
        if let Some(shared) = &self.shared {
            return shared.fill(offset, bytes as u64, value);
        }
        for_each_chunk(offset, bytes, |chunk, within, _| {
            self.chunk(chunk)[within].fill(value);
        });
    }

    fn chunk(&mut self, chunk: u64) -> &mut [u8] {
        self.chunks
            .entry(chunk)
            .or_insert_with(|| vec![0; CHUNK as usize].into_boxed_slice())
    }
}

type Span = std::ops::Range<usize>;

/// Calls `visit` with each chunk that the range touches, the part of the chunk, and the part of the
/// range.
fn for_each_chunk(offset: u64, bytes: usize, mut visit: impl FnMut(u64, Span, Span)) {
    let mut at = 0;
    while at < bytes {
        let position = offset + at as u64;
        let within = (position % CHUNK) as usize;
        let length = (CHUNK as usize - within).min(bytes - at);
        visit(position / CHUNK, within..within + length, at..at + length);
        at += length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_across_chunks_are_read_back_and_the_rest_is_zero() {
        let mut bytes = Bytes::default();
        bytes.write(CHUNK - 2, &[1, 2, 3, 4]);
        bytes.fill(3 * CHUNK, 2, 9);
        let mut seen = [7; 6];
        bytes.read(CHUNK - 3, &mut seen);
        assert_eq!(seen, [0, 1, 2, 3, 4, 0]);
        bytes.read(3 * CHUNK - 1, &mut seen[..3]);
        assert_eq!(seen[..3], [0, 9, 9]);
        assert_eq!(bytes.chunks.len(), 3);
    }
}
