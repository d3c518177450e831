//! What two processes say to each other, as a state machine without sockets.
//!
//! | message | from | with | meaning |
//! |---|---|---|---|
//! | `hello` | both, first | | the protocol's name and version |
//! | `offer` | exporter | one descriptor | a block: its id on this connection, sizes, device and label |
//! | `release` | importer | | the importer's work is complete, and it has unmapped the block |
//! | `refuse` | importer | | the importer did not map the block |
//!
//! Each side may export and import. Whatever a peer sends, the answer is an event or a [`Violation`], which ends the
//! connection.

use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// The version of the protocol. Both sides must have the same.
pub const VERSION: u32 = 1;

/// The most blocks that a peer may hold of one connection.
pub const MOST_OUTSTANDING: usize = 256;

/// The longest label of a block, in bytes.
pub const MOST_LABEL: usize = 1024;

/// The longest reason of a refusal that is kept, in characters.
const MOST_REASON: usize = 1024;

const NAME: &str = "weirpool ipc";

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// The first message of each side.
    Hello {
        /// The name of the protocol.
        protocol: String,
        /// Its version.
        version: u32,
    },
    /// A block.
    Offer {
        /// Its id, which the exporter never uses again on this connection.
        id: u64,
        /// The size of its chunk in bytes.
        bytes: u64,
        /// The part of it that is the block.
        length: u64,
        /// The id of the device.
        device: String,
        /// The exporter's name for it.
        label: String,
    },
    /// The end of a block.
    Release {
        /// Its id.
        id: u64,
    },
    /// A block that was not mapped.
    Refuse {
        /// Its id.
        id: u64,
        /// Why.
        reason: String,
    },
}

/// The facts of a pool that a peer's messages are checked against.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The id of the device.
    pub device: String,
    /// The step of its sizes in bytes.
    pub granularity: u64,
    /// The memory of the device in bytes.
    pub memory: u64,
}

/// What a peer's message means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer speaks the same version.
    Greeted,
    /// The peer offers a block: import it, and [release](Exchange::release) or [refuse](Exchange::refuse) it.
    Offered {
        /// The block's id.
        id: u64,
        /// The size of its chunk in bytes.
        bytes: u64,
        /// The part of it that is the block.
        length: u64,
        /// The exporter's name for it.
        label: String,
    },
    /// The peer offers a block of another device: answer with the message.
    Misplaced {
        /// The device of the block.
        device: String,
        /// The refusal.
        answer: Message,
    },
    /// The peer does not hold a block any more.
    Ended {
        /// The block's id.
        id: u64,
        /// Why the peer refused it, if it did.
        refused: Option<String>,
    },
}

/// How a peer broke the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The first message is no greeting.
    #[error("the peer did not greet; it is not a process of this library")]
    NotGreeted,
    /// A second greeting.
    #[error("the peer greeted twice; check that only one process writes to its socket")]
    GreetedTwice,
    /// Another protocol, or another version of it.
    #[error(
        "the peer speaks {protocol:?} {version}, and this process {NAME:?} {VERSION}; use the same version of the library"
    )]
    WrongVersion {
        /// The peer's protocol.
        protocol: String,
        /// Its version.
        version: u32,
    },
    /// A message with the wrong number of descriptors.
    #[error(
        "the peer sent {sent} descriptors with a message that has {expected}; use the same version of the library on \
         both sides"
    )]
    Descriptors {
        /// The descriptors that came.
        sent: usize,
        /// The descriptors that belong to the message.
        expected: usize,
    },
    /// An end of a block that the peer does not hold.
    #[error(
        "the peer ended block {id}, which it does not hold; check that only one process writes to its socket"
    )]
    NotHeld {
        /// The id.
        id: u64,
    },
    /// An offer with an id that was used before.
    #[error("the peer offered block {id} twice; check that only one process writes to its socket")]
    OfferedTwice {
        /// The id.
        id: u64,
    },
    /// An offer of an impossible size.
    #[error(
        "the peer offered a block of {length} bytes in a chunk of {bytes} bytes, which this device cannot have; \
         use one device in both processes"
    )]
    Size {
        /// The size of the chunk in bytes.
        bytes: u64,
        /// The part of it that is the block.
        length: u64,
    },
    /// A label that is too long.
    #[error("the peer's label has {bytes} bytes, more than {MOST_LABEL}; shorten it there")]
    Label {
        /// Its length in bytes.
        bytes: usize,
    },
    /// More offers than were released.
    #[error(
        "the peer offered more than {MOST_OUTSTANDING} blocks at a time; offer the others after some are released, or \
         on another connection"
    )]
    TooMany,
}

/// One side of a connection.
#[derive(Debug)]
pub struct Exchange {
    limits: Limits,
    is_greeted: bool,
    next: u64,
    /// Blocks that the peer holds.
    sent: HashSet<u64>,
    /// Blocks of the peer.
    held: HashSet<u64>,
    /// The peer's ids rise: a lower one was used.
    last: Option<u64>,
}

impl Exchange {
    /// Begins a connection.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            is_greeted: false,
            next: 0,
            sent: HashSet::new(),
            held: HashSet::new(),
            last: None,
        }
    }

    /// Returns the message to send first.
    pub fn greeting() -> Message {
        Message::Hello {
            protocol: NAME.into(),
            version: VERSION,
        }
    }

    /// Returns the id and the message of a new offer; `None` if the peer holds as many blocks as it may.
    pub fn offer(&mut self, bytes: u64, length: u64, label: &str) -> Option<(u64, Message)> {
        if self.sent.len() >= MOST_OUTSTANDING {
            return None;
        }
        let id = self.next;
        self.next += 1;
        self.sent.insert(id);
        let device = self.limits.device.clone();
        let message = Message::Offer {
            id,
            bytes,
            length,
            device,
            label: label.into(),
        };
        Some((id, message))
    }

    /// Takes an offer back that was not sent.
    pub fn withdraw(&mut self, id: u64) {
        self.sent.remove(&id);
    }

    /// Ends a block of the peer; returns the message that tells it. `None` if the block has ended.
    pub fn release(&mut self, id: u64) -> Option<Message> {
        self.held.remove(&id).then_some(Message::Release { id })
    }

    /// Refuses a block of the peer; returns the message that tells it. `None` if the block has ended.
    pub fn refuse(&mut self, id: u64, reason: String) -> Option<Message> {
        self.held
            .remove(&id)
            .then_some(Message::Refuse { id, reason })
    }

    /// Returns how many blocks the peer holds, and how many of its blocks are held here.
    pub fn outstanding(&self) -> (usize, usize) {
        (self.sent.len(), self.held.len())
    }

    /// Takes a message of the peer, which came with this many descriptors.
    ///
    /// # Errors
    /// Returns how the peer broke the protocol. Nothing changes then.
    pub fn receive(&mut self, message: Message, descriptors: usize) -> Result<Event, Violation> {
        let expected = usize::from(matches!(message, Message::Offer { .. }));
        if descriptors != expected {
            return Err(Violation::Descriptors {
                sent: descriptors,
                expected,
            });
        }
        match message {
            Message::Hello { protocol, version } => self.greet(protocol, version),
            _ if !self.is_greeted => Err(Violation::NotGreeted),
            Message::Offer {
                id,
                bytes,
                length,
                device,
                label,
            } => {
                self.check_offer(id, (bytes, length), label.len())?;
                self.last = Some(id);
                if device != self.limits.device {
                    let reason = format!("it is on another device than {}", self.limits.device);
                    let answer = Message::Refuse { id, reason };
                    return Ok(Event::Misplaced { device, answer });
                }
                self.held.insert(id);
                Ok(Event::Offered {
                    id,
                    bytes,
                    length,
                    label,
                })
            }
            Message::Release { id } => self.end(id, None),
            Message::Refuse { id, reason } => {
                let reason = reason.chars().take(MOST_REASON).collect();
                self.end(id, Some(reason))
            }
        }
    }

    fn greet(&mut self, protocol: String, version: u32) -> Result<Event, Violation> {
        if protocol != NAME || version != VERSION {
            let protocol = protocol.chars().take(NAME.len() * 2).collect();
            return Err(Violation::WrongVersion { protocol, version });
        }
        if std::mem::replace(&mut self.is_greeted, true) {
            return Err(Violation::GreetedTwice);
        }
        Ok(Event::Greeted)
    }

    fn check_offer(
        &self,
        id: u64,
        (bytes, length): (u64, u64),
        label: usize,
    ) -> Result<(), Violation> {
        let Limits {
            granularity,
            memory,
            ..
        } = self.limits;
        if self.last.is_some_and(|last| id <= last) {
            return Err(Violation::OfferedTwice { id });
        }
        let is_whole = bytes > 0 && bytes.is_multiple_of(granularity) && bytes <= memory;
        if !is_whole || length == 0 || length > bytes {
            return Err(Violation::Size { bytes, length });
        }
        if label > MOST_LABEL {
            return Err(Violation::Label { bytes: label });
        }
        if self.held.len() >= MOST_OUTSTANDING {
            return Err(Violation::TooMany);
        }
        Ok(())
    }

    fn end(&mut self, id: u64, refused: Option<String>) -> Result<Event, Violation> {
        match self.sent.remove(&id) {
            true => Ok(Event::Ended { id, refused }),
            false => Err(Violation::NotHeld { id }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn exchange() -> Exchange {
        Exchange::new(Limits {
            device: "d0".into(),
            granularity: 2 * MIB,
            memory: 64 * MIB,
        })
    }

    fn greeted() -> Exchange {
        let mut exchange = exchange();
        assert_eq!(
            exchange.receive(Exchange::greeting(), 0),
            Ok(Event::Greeted)
        );
        exchange
    }

    fn offer(id: u64, bytes: u64, length: u64) -> Message {
        Message::Offer {
            id,
            bytes,
            length,
            device: "d0".into(),
            label: "block".into(),
        }
    }

    #[test]
    fn offers_end_once() {
        let (mut exporter, mut importer) = (greeted(), greeted());
        let (id, message) = exporter.offer(2 * MIB, 5, "block").unwrap();
        let event = importer.receive(message.clone(), 1);
        let offered = Event::Offered {
            id,
            bytes: 2 * MIB,
            length: 5,
            label: "block".into(),
        };
        assert_eq!(event, Ok(offered));
        assert_eq!(exporter.outstanding(), (1, 0));
        assert_eq!(importer.outstanding(), (0, 1));
        let release = importer.release(id).unwrap();
        assert_eq!(importer.release(id), None);
        assert_eq!(importer.refuse(id, "late".into()), None);
        let ended = Event::Ended { id, refused: None };
        assert_eq!(exporter.receive(release.clone(), 0), Ok(ended));
        assert_eq!(exporter.receive(release, 0), Err(Violation::NotHeld { id }));
        let again = importer.receive(message, 1);
        assert_eq!(again, Err(Violation::OfferedTwice { id }));
    }

    #[test]
    fn refused_block_carries_its_reason() {
        let mut exporter = greeted();
        let (id, _) = exporter.offer(2 * MIB, 5, "block").unwrap();
        let refuse = Message::Refuse {
            id,
            reason: "x".repeat(5000),
        };
        let event = exporter.receive(refuse, 0);
        let Ok(Event::Ended {
            refused: Some(reason),
            ..
        }) = event
        else {
            panic!("{event:?}")
        };
        assert_eq!(reason.len(), MOST_REASON);
        assert_eq!(exporter.outstanding(), (0, 0));
    }

    #[test]
    fn each_violation_is_told_and_changes_nothing() {
        let hello = |version| Message::Hello {
            protocol: NAME.into(),
            version,
        };
        let release = Message::Release { id: 0 };
        let other = Message::Hello {
            protocol: "http".into(),
            version: VERSION,
        };
        let mut stranger = exchange();
        for (message, descriptors) in [
            (release.clone(), 0),
            (offer(0, 2 * MIB, 1), 1),
            (hello(VERSION + 1), 0),
            (hello(VERSION), 1),
            (other, 0),
        ] {
            assert!(stranger.receive(message, descriptors).is_err());
            assert!(!stranger.is_greeted);
        }
        let size = |bytes, length| Violation::Size { bytes, length };
        let long = Message::Offer {
            id: 9,
            bytes: 2 * MIB,
            length: 1,
            device: "d0".into(),
            label: "l".repeat(MOST_LABEL + 1),
        };
        let refuse = Message::Refuse {
            id: 3,
            reason: String::new(),
        };
        let label = Violation::Label {
            bytes: MOST_LABEL + 1,
        };
        let none = Violation::Descriptors {
            sent: 0,
            expected: 1,
        };
        let two = Violation::Descriptors {
            sent: 2,
            expected: 1,
        };
        for (message, descriptors, violation) in [
            (hello(VERSION), 0, Violation::GreetedTwice),
            (release, 0, Violation::NotHeld { id: 0 }),
            (refuse, 0, Violation::NotHeld { id: 3 }),
            (offer(1, 2 * MIB, 1), 0, none),
            (offer(1, 2 * MIB, 1), 2, two),
            (offer(1, 0, 0), 1, size(0, 0)),
            (offer(1, 2 * MIB, 0), 1, size(2 * MIB, 0)),
            (offer(1, 2 * MIB, 3 * MIB), 1, size(2 * MIB, 3 * MIB)),
            (offer(1, MIB, 1), 1, size(MIB, 1)),
            (offer(1, 66 * MIB, 1), 1, size(66 * MIB, 1)),
            (offer(1, u64::MAX, 1), 1, size(u64::MAX, 1)),
            (long, 1, label),
        ] {
            let mut exchange = greeted();
            assert_eq!(exchange.receive(message, descriptors), Err(violation));
            assert_eq!(exchange.outstanding(), (0, 0));
            assert_eq!(exchange.last, None);
        }
    }

    #[test]
    fn block_of_another_device_is_refused() {
        let mut importer = greeted();
        let message = Message::Offer {
            id: 4,
            bytes: 2 * MIB,
            length: 1,
            device: "d1".into(),
            label: String::new(),
        };
        let event = importer.receive(message, 1);
        assert!(
            matches!(&event, Ok(Event::Misplaced { device, answer: Message::Refuse { id: 4, .. } }) if device == "d1"),
            "{event:?}"
        );
        assert_eq!(importer.outstanding(), (0, 0));
    }

    #[test]
    fn number_of_blocks_is_bounded_on_both_sides() {
        let (mut exporter, mut importer) = (greeted(), greeted());
        for _ in 0..MOST_OUTSTANDING {
            let (_, message) = exporter.offer(2 * MIB, 1, "").unwrap();
            importer.receive(message, 1).unwrap();
        }
        assert!(exporter.offer(2 * MIB, 1, "").is_none());
        let next = MOST_OUTSTANDING as u64;
        assert_eq!(
            importer.receive(offer(next, 2 * MIB, 1), 1),
            Err(Violation::TooMany)
        );
        let release = importer.release(7).unwrap();
        exporter.receive(release, 0).unwrap();
        let (id, message) = exporter.offer(2 * MIB, 1, "").unwrap();
        assert_eq!(id, next);
        importer.receive(message, 1).unwrap();
        exporter.withdraw(id);
        assert_eq!(exporter.outstanding().0, MOST_OUTSTANDING - 1);
    }
}
