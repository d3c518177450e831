//! Decompression with an end: gzip members up to the end of the file, and a bound on the bytes that a file gives.

use crate::trace::fault::Fault;
use crate::trace::steps;
use flate2::bufread::GzDecoder;
use std::io::{self, BufRead, Read};

/// The first bytes of a gzip member.
pub(super) const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Reads the contents of the gzip members of `source`, and refuses other bytes behind them.
pub(super) struct Inflated<R> {
    /// `None` after the last member and after an error.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Inflated<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            member: Some(GzDecoder::new(source)),
        }
    }

    /// Goes from a member that has ended to the next one, if there is one.
    fn next_member(&mut self) -> io::Result<()> {
        let Some(ended) = self.member.take() else {
            return Ok(());
        };
        let mut source = ended.into_inner();
        let rest = source.fill_buf()?;
        // A buffer may end within the magic bytes; a single one of them is enough to try.
        if MAGIC.starts_with(&rest[..rest.len().min(MAGIC.len())]) && !rest.is_empty() {
            self.member = Some(GzDecoder::new(source));
        } else if !rest.is_empty() {
            return Err(io::Error::other(Fault::TrailingBytes));
        }
        Ok(())
    }
}

impl<R: BufRead> Read for Inflated<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        while let Some(member) = &mut self.member {
            let read = member.read(into);
            match read {
                Ok(0) => self.next_member()?,
                Ok(read) => return Ok(read),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
                Err(error) => {
                    self.member = None;
                    return Err(error);
                }
            }
        }
        Ok(0)
    }
}

/// A reader that fails after `most` bytes.
pub(super) struct Bounded<R> {
    source: R,
    most: u64,
    read: u64,
}

impl<R: Read> Bounded<R> {
    pub(super) fn new(source: R, most: u64) -> Self {
        Self {
            source,
            most,
            read: 0,
        }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(into)?;
        self.read += read as u64;
        steps::read(read);
        if self.read > self.most {
            let (what, most) = ("bytes", self.most);
            return Err(io::Error::other(Fault::TooMany { what, most }));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    fn inflated(compressed: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        Inflated::new(compressed).read_to_end(&mut content)?;
        Ok(content)
    }

    #[test]
    fn members_of_a_file_are_read_in_order() {
        let members = [gzip(b"one "), gzip(b""), gzip(b"two")].concat();
        assert_eq!(inflated(&members).unwrap(), b"one two");
    }

    #[test]
    fn bytes_behind_the_last_member_are_refused() {
        for behind in [&b"junk"[..], b"\0", b"\x1fx"] {
            let file = [&gzip(b"one"), behind].concat();
            let error = inflated(&file).unwrap_err();
            let fault = error.get_ref().and_then(|fault| fault.downcast_ref());
            let is_named = fault == Some(&Fault::TrailingBytes);
            assert!(
                is_named || error.kind() == io::ErrorKind::InvalidInput,
                "{error}"
            );
        }
    }

    #[test]
    fn reader_ends_with_an_error_at_its_bound() {
        let read = |most| Bounded::new(&b"12345"[..], most).read_to_end(&mut Vec::new());
        assert!(read(4).is_err());
        assert_eq!(read(5).unwrap(), 5);
    }
}
