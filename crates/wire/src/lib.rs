//! Private Unix sockets: whole frames of JSON, file descriptors beside them, and checked credentials of peers.
//!
//! - A [`Listener`] creates its socket in a directory that no other user can change, with mode 0600. It refuses to
//!   replace the socket of a live process, replaces that of a dead one, and removes its own when it is dropped.
//! - [`private`] reads and replaces files beside the socket, which no other user can plant.
//! - A [`Connection`] sends and receives values as frames of up to [`MAX_FRAME`] bytes, each with up to
//!   [`MAX_DESCRIPTORS`] file descriptors. It blocks, and [`Connection::shutdown`] ends the waits of other threads.
//! - Both check the user id of the peer ([`Allowed`]) before a byte is read.
//!
//! # Sockets of type `SEQPACKET`
//! The kernel keeps frames whole and keeps descriptors with their frame. A peer cannot hold a receiver by sending half
//! a frame, a frame that does not fit into the peer's queue is refused whole ([`Connection::try_send`]), and a frame
//! that is too long is discarded whole. On a stream socket each of these would need a length, a timeout and a state.
//!
//! # Hostile peers
//! A frame that is too long, empty, malformed, or that has too many descriptors is a typed [`Error`]. Descriptors of a
//! frame that is refused are closed. Received descriptors are close-on-exec. Receiving allocates once per connection.
//!
//! Linux only. Elsewhere this crate is empty.
#![cfg(target_os = "linux")]

mod allowed;
mod connection;
mod error;
mod listener;
mod peer;
pub mod private;

pub use allowed::Allowed;
pub use connection::Connection;
pub use error::Error;
pub use listener::Listener;
pub use peer::Peer;

/// The largest frame in bytes: 96 KiB.
pub const MAX_FRAME: usize = 96 << 10;

/// The most file descriptors of one frame. Linux allows 253.
pub const MAX_DESCRIPTORS: usize = 64;
