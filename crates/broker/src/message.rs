//! The messages between broker and clients, and their frames: 4 bytes of length, least significant first, and that many
//! bytes of JSON.

use crate::ledger::{Figures, Joining, Refused};
use crate::share::{Statement, Terms};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The version of the protocol. A client of another version is refused.
pub const VERSION: u32 = 1;

/// The longest message of a client, in bytes.
pub const LONGEST_REQUEST: usize = 4 << 10;

/// The longest message of a broker, in bytes.
pub const LONGEST_REPLY: usize = 4 << 20;

/// A message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The first message of a client that wants a lease.
    Join {
        /// [`VERSION`].
        version: u32,
        /// The client.
        client: Joining,
    },
    /// How the client stands. The latest one counts.
    State(Statement),
    /// The client holds nothing any more.
    Leave,
    /// Asks for the figures once their version is not this one. Needs no lease.
    Watch {
        /// [`VERSION`].
        version: u32,
        /// The version of the figures that the watcher has; `None` for none.
        seen: Option<u64>,
    },
}

/// A message of the broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// The client is admitted.
    Welcome {
        /// [`VERSION`].
        version: u32,
        /// The capacity that is leased, in bytes.
        capacity: u64,
        /// The first terms.
        terms: Terms,
    },
    /// The client is not admitted, or stated what cannot be; the connection ends.
    Refused(Refused),
    /// Other terms.
    Terms(Terms),
    /// The figures, for a watcher.
    Figures {
        /// Their version.
        version: u64,
        /// The figures.
        figures: Figures,
    },
}

/// A frame that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// It is too long.
    #[error("a message of {bytes} bytes exceeds the limit of {limit} bytes")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The most that is accepted.
        limit: usize,
    },
    /// It is no message of this protocol.
    #[error("{0}")]
    Invalid(String),
}

/// Returns a message as a frame.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)
        .expect("messages have string keys and write to memory");
    let length = (frame.len() - 4) as u32;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    frame
}

/// Takes frames out of a stream of bytes.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    bytes: Vec<u8>,
}

impl Decoder {
    /// Creates a decoder for messages of up to `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            bytes: Vec::new(),
        }
    }

    /// Adds bytes that were received.
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next message, if all of it is there.
    ///
    /// # Errors
    /// If it is too long, or not valid. The stream cannot be read on then.
    pub fn next<M: DeserializeOwned>(&mut self) -> Result<Option<M>, FrameError> {
        let Some((length, rest)) = self.bytes.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let bytes = u32::from_le_bytes(*length) as usize;
        if bytes > self.limit {
            let limit = self.limit;
            return Err(FrameError::TooLong { bytes, limit });
        }
        let Some(message) = rest.get(..bytes) else {
            return Ok(None);
        };
        let message = serde_json::from_slice(message);
        self.bytes.drain(..4 + bytes);
        message
            .map(Some)
            .map_err(|error| FrameError::Invalid(error.to_string()))
    }
}
