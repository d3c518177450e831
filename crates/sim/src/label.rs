//! How reports name a stream.

use std::fmt;
use weirpool_device::RawStream;
use weirpool_device::plain::Arc;

/// A stream as reports name it: by the name that it was created with, or that a pool's user gave it, or else by its number on the device, which no
/// other stream of the device has. Printed: `stream "decode"`, `stream 3`, `the host`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamLabel {
    raw: RawStream,
    number: u64,
    name: Option<Arc<str>>,
}

impl StreamLabel {
    pub(crate) const HOST: Self = Self {
        raw: RawStream::HOST,
        number: 0,
        name: None,
    };

    pub(crate) fn new(raw: RawStream, number: u64, name: Option<Arc<str>>) -> Self {
        Self { raw, number, name }
    }

    pub(crate) fn set_name(&mut self, name: &str) {
        self.name.get_or_insert_with(|| name.into());
    }

    /// Returns the device's name of the stream, which may belong to another stream by now.
    pub fn raw(&self) -> RawStream {
        self.raw
    }

    /// Returns the number of the stream: the first that the device made is 1. The host is 0.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the name of the stream, if it was given one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

impl fmt::Display for StreamLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.raw) {
            (_, RawStream::HOST) => f.write_str("the host"),
            (Some(name), _) => write!(f, "stream {name:?}"),
            (None, _) => write!(f, "stream {}", self.number),
        }
    }
}
