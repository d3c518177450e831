//! The messages between broker and clients: each is one frame of a private socket, see the crate `weirpool-wire`.

use crate::ledger::{Figures, Joining, Refused};
use crate::share::{Statement, Terms};
use serde::{Deserialize, Serialize};

/// The version of the protocol. A client of another version is refused.
pub const VERSION: u32 = 1;

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
    /// The client holds nothing any more, and takes nothing that was granted meanwhile.
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
    /// The client has left; the connection ends.
    Left,
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
