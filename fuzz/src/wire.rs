//! Frames of a hostile peer, as a receiver of `weirpool-wire` sees them.

use serde_json::Value;
use std::os::fd::AsFd;
use weirpool_wire::{Connection, Error, MAX_DESCRIPTORS, MAX_FRAME};

/// Sends `data` behind its first byte as one frame, with as many descriptors as the first byte says, and panics unless
/// the receiver gets that value, or an error and no descriptor. Returns whether it got a value.
pub fn run(data: &[u8]) -> bool {
    let Some((count, frame)) = data.split_first() else {
        return false;
    };
    let count = usize::from(*count) % (MAX_DESCRIPTORS + 8);
    let (one, other) = Connection::pair().expect("a pair of sockets");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let descriptors = vec![writer.as_fd(); count];
    match one.send_raw(frame, &descriptors) {
        Ok(()) => {}
        Err(Error::TooLong { bytes }) => {
            assert!(bytes > MAX_FRAME);
            return false;
        }
        Err(Error::TooManyDescriptors) => {
            assert!(count > MAX_DESCRIPTORS);
            return false;
        }
        Err(error) => panic!("the frame is not sent: {error}"),
    }
    let received = other.receive::<Value>();
    let is_value = received.is_ok();
    match (received, serde_json::from_slice::<Value>(frame)) {
        (Ok((value, descriptors)), Ok(expected)) => {
            assert_eq!(value, expected);
            assert_eq!(descriptors.len(), count);
        }
        (Err(Error::Malformed(_)), Err(_)) => {}
        (Err(Error::Closed), Err(_)) => assert!(frame.is_empty()),
        (received, expected) => panic!("{received:?} for {expected:?}"),
    }
    drop(descriptors);
    drop(writer);
    let mut end = Vec::new();
    // Returns once every copy of the writing end is closed, and hangs if one is not.
    std::io::Read::read_to_end(&mut { reader }, &mut end).expect("the end of the pipe");
    is_value
}
