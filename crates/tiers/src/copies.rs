//! The contents of suspended memory, on the host.
#![allow(unsafe_code, reason = "copies memory of a region as blocks")]

use crate::error::RegionError;
use futures::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::task::Poll;
use weirpool::device::DeviceAddress;
use weirpool::extend::{ForeignMemory, Passages};
use weirpool::{Block, Download, Pool, Stream, Upload};

/// The largest piece that is copied at a time: pieces of memory that is freed are reused one by one.
const PIECE: u64 = 256 << 20;

/// Where contents are kept while their memory is suspended.
#[derive(Debug)]
pub(crate) enum Host {
    /// In blocks of a pool of pinned memory, with a stream of that pool.
    Pinned(Pool, Stream),
    /// In memory of the process.
    Pageable,
    /// Nowhere.
    Nowhere,
}

/// A part of a segment, from its address on, and its bytes.
#[derive(Debug)]
struct Piece {
    range: Range<u64>,
    bytes: Held,
}

#[derive(Debug)]
enum Held {
    Pinned(Block),
    /// By where they are in the segment.
    Pageable(Vec<(Range<u64>, Vec<u8>)>),
}

/// The contents of the used parts of a segment.
#[derive(Debug, Default)]
pub(crate) struct Copies(Vec<Piece>);

/// Returns the parts of a range of a segment that live blocks have.
pub(crate) type Live<'a> = dyn Fn(&Range<u64>) -> Vec<Range<u64>> + Send + Sync + 'a;

/// The contents of a segment. A block may end at any time, and its bytes are not copied from then on.
pub(crate) struct Contents<'a> {
    pub(crate) address: u64,
    /// The stream of the copies.
    pub(crate) on: &'a Stream,
    /// Returns the parts of a range that live blocks have.
    pub(crate) live: Box<Live<'a>>,
}

impl Contents<'_> {
    /// Returns the live parts of a range, with each of them as a block for a copy.
    fn parts(&self, range: &Range<u64>) -> impl Iterator<Item = (Range<u64>, Block)> {
        (self.live)(range).into_iter().map(|part| {
            let block = part_of(self.address, &part, self.on);
            (part, block)
        })
    }
}

impl Copies {
    /// Takes memory of the host for the copies of these parts, without copying yet.
    ///
    /// # Errors
    /// Returns an error if the host has too little, of which `bytes` are wanted in all.
    pub(crate) async fn prepare(
        host: &Host,
        parts: &[Range<u64>],
        bytes: u64,
    ) -> Result<Self, RegionError> {
        let mut pieces = Vec::new();
        for part in parts {
            for start in part.clone().step_by(PIECE as usize) {
                let range = start..part.end.min(start + PIECE);
                let size = range.end - range.start;
                let held = match host {
                    Host::Nowhere => continue,
                    Host::Pageable => Held::Pageable(Vec::new()),
                    Host::Pinned(pool, stream) => {
                        Held::Pinned(allocate(pool, stream, size, bytes).await?)
                    }
                };
                pieces.push(Piece { range, bytes: held });
            }
        }
        Ok(Self(pieces))
    }

    /// Begins to copy the contents to the host. Uses of the memory are complete.
    ///
    /// # Errors
    /// Returns the error of a copy. Others may be running then.
    pub(crate) fn save(&mut self, contents: &Contents<'_>) -> Result<Saving<'_>, RegionError> {
        let on = contents.on;
        let (mut copies, mut downloads) = (Vec::new(), Vec::new());
        for Piece { range, bytes } in &mut self.0 {
            for (part, block) in contents.parts(range) {
                match bytes {
                    Held::Pinned(host) => {
                        let offset = part.start - range.start;
                        copies.push(block.copy_to(0..block.size(), host, offset, on)?);
                    }
                    Held::Pageable(parts) => {
                        downloads.push(block.download(on, 0..block.size())?);
                        parts.push((part, Vec::new()));
                    }
                }
            }
        }
        let held = self.0.iter_mut().flat_map(|piece| match &mut piece.bytes {
            Held::Pinned(_) => [].iter_mut(),
            Held::Pageable(parts) => parts.iter_mut(),
        });
        let downloads = downloads.into_iter().zip(held);
        let downloads = downloads.map(|(download, (_, bytes))| (download, bytes));
        Ok(Saving {
            copies,
            downloads: downloads.collect(),
        })
    }

    /// Begins to copy the contents back.
    ///
    /// # Errors
    /// Returns the error of a copy. Others may be running then.
    pub(crate) fn restore(&self, contents: &Contents<'_>) -> Result<Vec<Upload>, RegionError> {
        let on = contents.on;
        let mut copies = Vec::new();
        for Piece { range, bytes } in &self.0 {
            match bytes {
                Held::Pinned(host) => {
                    for (part, mut block) in contents.parts(range) {
                        let from = part.start - range.start..part.end - range.start;
                        copies.push(host.copy_to(from, &mut block, 0, on)?);
                    }
                }
                Held::Pageable(parts) => {
                    for (whole, bytes) in parts {
                        for (part, mut block) in contents.parts(whole) {
                            let [start, end] =
                                [part.start, part.end].map(|at| (at - whole.start) as usize);
                            copies.push(block.upload(on, 0, &bytes[start..end])?);
                        }
                    }
                }
            }
        }
        Ok(copies)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0
            .iter()
            .map(|piece| piece.range.end - piece.range.start)
            .sum()
    }
}

/// Copies to the host that are under way.
pub(crate) struct Saving<'a> {
    copies: Vec<Upload>,
    downloads: Vec<(Download, &'a mut Vec<u8>)>,
}

impl Saving<'_> {
    /// Waits for the copies.
    ///
    /// # Errors
    /// Returns the error of a copy. Others may be running then.
    pub(crate) async fn ended(self) -> Result<(), RegionError> {
        for copy in self.copies {
            copy.await?;
        }
        for (download, bytes) in self.downloads {
            *bytes = download.await?;
        }
        Ok(())
    }
}

/// Expects that the process gets room for copies in its own memory, before any of them is made.
///
/// # Errors
/// Returns an error if it does not, which says how many `bytes` are to be copied in all.
pub(crate) fn expect_room(size: u64, bytes: u64) -> Result<(), RegionError> {
    let refused = Vec::<u8>::new().try_reserve_exact(size as usize);
    refused.map_err(|_| RegionError::HostFull {
        bytes,
        shortfall: None,
    })
}

/// Allocates memory of the host tier, and fails where it would wait for others to free some.
async fn allocate(
    pool: &Pool,
    stream: &Stream,
    size: u64,
    bytes: u64,
) -> Result<Block, RegionError> {
    let mut request = pin!(pool.allocate(stream, size));
    poll_fn(|context| {
        if let Poll::Ready(block) = request.as_mut().poll(context) {
            return Poll::Ready(block.map_err(RegionError::from));
        }
        request.as_mut().poll_stalled(context).map(|shortfall| {
            Err(RegionError::HostFull {
                bytes,
                shortfall: Some(Box::new(shortfall)),
            })
        })
    })
    .await
}

/// Returns a part of a segment as a block, for copies.
fn part_of(address: u64, range: &Range<u64>, on: &Stream) -> Block {
    let part = Part {
        address: DeviceAddress::from_bits(address + range.start),
        bytes: range.end - range.start,
    };
    // SAFETY: the segment is mapped, and memory of the stream's device. It stays so until the copy has been awaited.
    unsafe { on.adopt(Box::new(part)) }
}

/// A part of a segment whose blocks' uses are complete, and that the copies alone use.
#[derive(Debug)]
struct Part {
    address: DeviceAddress,
    bytes: u64,
}

// SAFETY: the segment has an owner that waits for the copies before it lets go of the memory.
unsafe impl ForeignMemory for Part {
    fn range(&self) -> (DeviceAddress, u64) {
        (self.address, self.bytes)
    }

    fn is_ready(&self) -> bool {
        true
    }

    /// The device knows the blocks of the region.
    fn is_checked(&self) -> bool {
        false
    }

    fn release(self: Box<Self>, _: Passages) {}
}
