//! The bytes of a chunk that several processes share: a part of a file without a name.
//!
//! They are read and written by calls rather than mapped. So a process that shortens the file, or writes at the same
//! time, can change the bytes that are read here, and nothing else.

use std::fs::File;
use std::os::unix::fs::FileExt;
use weirpool_device::plain::Arc;

/// Bytes that are written at once by a fill.
const STEP: u64 = 1 << 20;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct SharedBytes {
    pub(super) file: Arc<File>,
    pub(super) begin: u64,
}

impl SharedBytes {
    /// Bytes that the file lacks are zero.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        into.fill(0);
        let mut at = 0;
        while at < into.len() {
            match self
                .file
                .read_at(&mut into[at..], self.begin + offset + at as u64)
            {
                Ok(0) | Err(_) => return,
                Ok(bytes) => at += bytes,
            }
        }
    }

    /// Writes that the file refuses have no effect.
    pub(super) fn write(&self, offset: u64, from: &[u8]) {
        let _ = self.file.write_all_at(from, self.begin + offset);
    }

    pub(super) fn fill(&self, offset: u64, bytes: u64, value: u8) {
        let piece = vec![value; bytes.min(STEP) as usize];
        let mut at = 0;
        while at < bytes {
            let now = (bytes - at).min(STEP);
            self.write(offset + at, &piece[..now as usize]);
            at += now;
        }
    }
}
