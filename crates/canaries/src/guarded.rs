//! A block with a guard before and a guard behind its middle, and the middle as a block of its own.
#![allow(unsafe_code, reason = "the middle is memory of the block around it")]

use crate::overrun::{Found, Overrun, Side};
use std::ops::Range;
use std::panic::Location;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use weirpool::device::DeviceAddress;
use weirpool::extend::{ForeignMemory, Passages};
use weirpool::{Block, CopyError, Stream};

/// The bytes of a guard; the one behind a block has the bytes of its rounding as well.
pub(crate) const GUARD: u64 = 512;

/// The value of each byte of a guard.
const CANARY: u8 = 0xb5;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Guarded {
    whole: Block,
    allocated: &'static Location<'static>,
    /// The sides of which a report was made.
    reported: Mutex<Vec<Side>>,
}

impl Guarded {
    /// Writes the guards of a block in the order of its stream.
    pub(crate) fn new(
        mut whole: Block,
        allocated: &'static Location<'static>,
    ) -> Result<Self, CopyError> {
        let (stream, guards) = (whole.stream(), guards(&whole)?);
        // An event of a capture cannot be asked.
        let _ = stream.event()?.is_complete()?;
        for (_, range) in guards {
            let canary = vec![CANARY; (range.end - range.start) as usize];
            drop(whole.upload(&stream, range.start, &canary)?);
        }
        Ok(Self {
            whole,
            allocated,
            reported: Mutex::default(),
        })
    }

    /// Makes the middle a block. Its guards are compared by the receiver of `ended`.
    pub(crate) fn middle(self: &Arc<Self>, ended: Sender<Ended>) -> Block {
        let (guarded, location) = (self.clone(), self.allocated);
        let middle = Middle {
            guarded,
            ended,
            location,
        };
        // SAFETY: the memory is of a block of the stream's pool.
        unsafe { self.whole.stream().adopt(Box::new(middle)) }
    }

    fn bytes(&self) -> u64 {
        self.whole.requested() - 2 * GUARD
    }

    pub(crate) fn address(&self) -> DeviceAddress {
        self.whole.address() + GUARD
    }

    /// Reads the guards on a stream, behind their writing. Returns the damage of which no report was made.
    pub(crate) async fn compare(
        &self,
        reader: &Stream,
        found: Found,
    ) -> Result<Vec<Overrun>, CopyError> {
        let mut overruns = Vec::new();
        for (side, range) in guards(&self.whole)? {
            let bytes = self.whole.download(reader, range)?.await?;
            let written = || {
                bytes
                    .iter()
                    .enumerate()
                    .filter(|(_, byte)| **byte != CANARY)
            };
            let nearest = match side {
                Side::Before => written().map(|(at, _)| bytes.len() - 1 - at).min(),
                Side::Behind => written().map(|(at, _)| at).min(),
            };
            let Some(distance) = nearest else {
                continue;
            };
            let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
            if reported.contains(&side) {
                continue;
            }
            reported.push(side);
            overruns.push(Overrun {
                address: self.address(),
                bytes: self.bytes(),
                side,
                distance: distance as u64,
                written: written().count() as u64,
                allocated: self.allocated,
                found,
            });
        }
        Ok(overruns)
    }
}

/// Returns the guards of a block, from its beginning.
fn guards(whole: &Block) -> Result<[(Side, Range<u64>); 2], CopyError> {
    let (requested, size) = (whole.requested(), whole.size());
    if requested <= 2 * GUARD {
        let (start, end) = (0, 2 * GUARD + 1);
        let size = requested;
        return Err(CopyError::OutOfBounds { start, end, size });
    }
    Ok([
        (Side::Before, 0..GUARD),
        (Side::Behind, requested - GUARD..size),
    ])
}

/// A guarded block that has ended, and whose work is complete.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) guarded: Arc<Guarded>,
    pub(crate) location: Option<&'static Location<'static>>,
}

/// The memory between two guards.
#[derive(Debug)]
struct Middle {
    guarded: Arc<Guarded>,
    ended: Sender<Ended>,
    location: &'static Location<'static>,
}

// SAFETY: the block around the memory is not used while this lives but for its guards, and lives until they were compared.
unsafe impl ForeignMemory for Middle {
    fn range(&self) -> (DeviceAddress, u64) {
        (self.guarded.address(), self.guarded.bytes())
    }

    /// The device knows the block around it.
    fn is_checked(&self) -> bool {
        false
    }

    fn location(&self) -> Option<&'static Location<'static>> {
        Some(self.location)
    }

    fn release(self: Box<Self>, after: Passages) {
        let Self { guarded, ended, .. } = *self;
        let location = after.location();
        after.then(move || {
            // Without a receiver there is no one to report to.
            let _ = ended.send(Ended { guarded, location });
        });
    }
}
