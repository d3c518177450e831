//! A block of device memory, owned.
//!
//! | file | about |
//! |---|---|
//! | `begin` | its beginning: a loan becomes one |
//! | `end` | its end: dropped, or deallocated and awaited |
//! | `charge` | to whom it is charged |
//! | `order` | its use as an argument of work, and what that comes after |
//! | `further` | on which further streams it was used, and for what |
//! | `hold` | its count of its stream's owners |
//! | `leave` | its end in the order of another stream |
//! | `extend` | growing in place |
//! | `copies` | copies between host and device |
//! | `host` | the host's own use of memory that it sees |

mod begin;
mod charge;
mod copies;
mod end;
mod extend;
mod further;
mod hold;
mod host;
mod leave;
mod order;

pub use end::{DeallocateError, Deallocation};
pub(crate) use further::Access;
pub use host::HostGuard;
#[cfg(feature = "cuda")]
pub(crate) use order::Point;

use crate::device::DeviceAddress;
use crate::driver::{Allocation, Source};
use crate::id::Ticket;
use crate::measure::Tag;
use crate::queue::{Registration, Reserved};
use crate::rare::Rare;
use crate::stream::Stream;
use crate::sync::{Arc, Mutex};
use charge::Charge;
use further::FurtherStreams;
use hold::Hold;
use std::fmt;

/// Device memory, owned: for use in the order of the stream that it was allocated on, and of those it
/// was [used on](Self::used_on) since.
///
/// Dropped, it is freed in the order of those streams: work submitted before the drop may still use
/// it. A drop never blocks and never panics. It makes at most the one event record for each of those
/// streams that the [sealing policy](crate::Sealing) asks for, and once in a while a few queries to have
/// events back. Where the pool [fills](crate::PoolBuilder::fill_on_free) what is freed, it makes the calls for
/// that as well.
#[must_use = "a block is freed when it is dropped"]
pub struct Block {
    registration: Hold,
    allocation: Option<Allocation>,
    charge: Charge,
    /// Further streams that it was used on.
    further: Mutex<Rare<Extra>>,
}

/// What few blocks have.
#[derive(Default)]
struct Extra {
    streams: FurtherStreams,
    /// Whose it is again when it is freed.
    reserved: Option<Arc<Reserved>>,
    /// Addresses above it are kept for it.
    has_room: bool,
    /// It is freed in the order of those streams alone, and not of its own, which may be gone: with the point of
    /// its own behind which the memory's earlier life lies.
    left_at: Option<Ticket>,
}

impl Extra {
    #[cold]
    fn note_freed(&self, bytes: u64) {
        if let Some(reserved) = &self.reserved {
            reserved.note_freed(bytes);
        }
    }
}

impl Block {
    pub(crate) fn registration(&self) -> &Arc<Registration> {
        &self.registration
    }

    pub(crate) fn is_reserved(&self) -> bool {
        let extra = self.further.lock();
        extra.as_ref().is_some_and(|extra| extra.reserved.is_some())
    }

    #[inline]
    fn allocation(&self) -> &Allocation {
        self.allocation
            .as_ref()
            .expect("taken only when the block ends")
    }

    /// The device address of the first byte.
    ///
    /// For other libraries, and for people. Work on another stream than the block's own that is given it is not
    /// known to the pool: call [`used_on`](Self::used_on) first, or give it [`on`](Self::on) instead, which does.
    #[inline]
    pub fn address(&self) -> DeviceAddress {
        DeviceAddress::from_bits(self.allocation().address)
    }

    /// The bytes that may be used: what was requested, rounded up; or up to an eighth more, where the stream had freed
    /// a block of that size.
    #[inline]
    pub fn size(&self) -> u64 {
        self.allocation().bytes
    }

    /// The bytes that were requested.
    #[inline]
    pub fn requested(&self) -> u64 {
        self.size() - u64::from(self.charge.rounding())
    }

    /// To whose account it goes, if it was allocated with a [tag](crate::Allocate::tag).
    #[inline]
    pub fn tag(&self) -> Option<Tag> {
        self.charge.tag().or_else(|| {
            let extra = self.further.lock();
            extra.as_ref()?.reserved.as_ref()?.tag()
        })
    }

    /// Where the memory came from.
    pub fn source(&self) -> Source {
        self.allocation().source
    }

    /// The stream that it was allocated on.
    pub fn stream(&self) -> Stream {
        Stream::from_registration(Arc::clone(&self.registration))
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("address", &self.address())
            .field("size", &self.size())
            .field("stream", &self.registration.lane.id)
            .field("rung", &self.source())
            .finish_non_exhaustive()
    }
}
