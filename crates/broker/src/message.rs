//! The messages between broker and clients: each is one frame of a private socket, see the crate `weirpool-wire`.

use crate::ledger::{Figures, Joining, Publication, Refused};
use crate::names::{Memory, NameError, NameFigures, Restored};
use crate::share::{Statement, Terms};
use serde::{Deserialize, Serialize};

/// The version of the protocol. A client of another version is refused.
pub const VERSION: u32 = 2;

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
    /// Publishes memory, with a descriptor for each block beside the message.
    Publish {
        /// A number that the client chooses, and uses again only to repeat the request on another connection.
        request: u64,
        /// The memory.
        publication: Publication,
    },
    /// Asks for the memory of a name.
    Attach {
        /// A number that the client chooses.
        request: u64,
        /// The name.
        name: String,
        /// The version, if it has to be that one.
        version: Option<u64>,
        /// Whether the client writes the memory.
        writes: bool,
    },
    /// The client has unmapped a version that it attached or published, once.
    Detach {
        /// The version.
        version: u64,
    },
    /// A client that came back holds these versions, each so many times, and those of its unanswered publications.
    Holds {
        /// The versions.
        versions: Vec<(u64, u32)>,
        /// The numbers of the publications that it will repeat.
        unanswered: Vec<u64>,
    },
    /// One of these versions, for a broker that may not have it, with a descriptor for each block.
    Restore(Restored),
    /// Makes a name lead to nothing. Needs no lease.
    Withdraw {
        /// [`VERSION`].
        version: u32,
        /// The name.
        name: String,
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
    /// The answer to a publication: its version. Terms that recall its bytes from the client precede it.
    Published {
        /// The number of the request.
        request: u64,
        /// The version.
        version: Result<u64, NameError>,
    },
    /// The memory of a name, with a descriptor for each block beside the message.
    Attached {
        /// The number of the request.
        request: u64,
        /// The version, and its memory.
        memory: Result<(u64, Memory), NameError>,
    },
    /// A version that the client brought back was taken, or is known.
    Restored {
        /// The version.
        version: u64,
    },
    /// The name leads to nothing; the connection ends.
    Withdrawn(Result<NameFigures, NameError>),
}
