//! A violation: a use of memory without the necessary order, and the remedy.

use super::shadow::{Life, Work};
use crate::label::StreamLabel;
use crate::operation::AccessKind;
use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use weirpool_device::DeviceAddress;
use weirpool_device::plain::Arc;

/// The kind of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ViolationKind {
    /// An operation was submitted that uses memory after its block was freed.
    UseAfterFree,
    /// An operation was submitted that uses a block whose memory is not there: its owner has suspended it.
    Suspended,
    /// An operation was submitted that uses bytes beside a block, which were never allocated.
    NotAllocated,
    /// A block was freed, and no order puts a use of it before the free.
    FreedWhileUsed,
    /// An operation uses a block, and no order puts it after the use of the same memory before the block was granted.
    UsedBeforeGrant,
    /// Two operations use the same bytes of a block, at least one of them writes, and they are not ordered.
    Race,
    /// Memory was granted while its earlier use may not be complete: a bug of the pool.
    GrantedWhileUsed,
    /// Memory was granted that is part of another block: a bug of the pool.
    GrantedTwice,
    /// Memory was unmapped or returned to the device while work may use it.
    UnmappedWhileUsed,
    /// An operation reads memory that was allocated in a capture, before the first launch of its graph: the bytes are
    /// undefined, because the captured work did not run.
    ReadBeforeLaunch,
    /// An operation uses memory of another device, to which its own device has no access.
    NoAccess,
    /// A block was freed that was exported by pointer, while an importer has it. Importers in other processes are not
    /// seen.
    FreedWhileImported,
}

/// A device, by its number on its host, that uses memory of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Strangers {
    /// The device of the memory.
    pub owner: u32,
    /// The device of the stream.
    pub device: u32,
}

/// One operation's use of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The name of the operation, if it has one.
    pub operation: Option<Cow<'static, str>>,
    /// The location in the source where the operation was created.
    pub place: &'static Location<'static>,
    /// The location of the call that submitted it with its memory: `submit` of a stream of a pool. `None` if it was
    /// submitted to the device's stream alone.
    pub submitted: Option<&'static Location<'static>>,
    /// The stream to which it was submitted.
    pub stream: StreamLabel,
    /// Whether it read or wrote.
    pub kind: AccessKind,
}

/// The life of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Allocation {
    /// The first address.
    pub address: DeviceAddress,
    /// The number of bytes.
    pub bytes: u64,
    /// The stream on which it was allocated.
    pub stream: StreamLabel,
    /// The location in the source of the allocation.
    pub allocated: &'static Location<'static>,
    /// The location of the explicit deallocation, if there was one. A drop has no location.
    pub freed: Option<&'static Location<'static>>,
    /// The streams in whose order it was freed, if it was freed.
    pub freed_on: Vec<StreamLabel>,
}

/// A use of memory without the necessary order, found by the
/// [ordering checker](https://docs.rs/weirpool/latest/weirpool/guide/testing/).
///
/// Its [`Display`](fmt::Display) includes the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The kind of the violation.
    pub kind: ViolationKind,
    /// The first of the affected bytes.
    pub address: DeviceAddress,
    /// The number of affected bytes.
    pub bytes: u64,
    /// The use that came first: of a pair, the one that the other is not ordered after; of freed memory, the last.
    pub earlier: Option<Usage>,
    /// The use that was submitted at the time of the report, if there was one.
    pub later: Option<Usage>,
    /// The block of the earlier use. Without an earlier use, the block that last had the bytes, or that lies beside
    /// them.
    pub memory: Option<Allocation>,
    /// The block that has the bytes now, if it is another one.
    pub next: Option<Allocation>,
    /// For [`NoAccess`](ViolationKind::NoAccess): the two devices.
    pub strangers: Option<Strangers>,
}

impl Usage {
    pub(super) fn new(work: &Work, kind: AccessKind) -> Self {
        Self {
            operation: work.name.clone(),
            place: work.place,
            submitted: work.submitted,
            stream: work.stream.clone(),
            kind,
        }
    }
}

impl Allocation {
    pub(super) fn new(life: &Arc<Life>) -> Self {
        let freed = life.freed.get();
        Self {
            address: life.address.into(),
            bytes: life.bytes,
            stream: life.stream.clone(),
            allocated: life.allocated,
            freed: freed.and_then(|freed| freed.place),
            freed_on: freed.map_or_else(Vec::new, |freed| freed.streams.to_vec()),
        }
    }
}

impl ViolationKind {
    fn headline(self) -> &'static str {
        match self {
            Self::UseAfterFree => "memory is used after its block was freed",
            Self::Suspended => "memory is used while it is suspended",
            Self::NotAllocated => "memory is used that was never allocated",
            Self::FreedWhileUsed => {
                "a block was freed, and nothing orders a use of it before the free"
            }
            Self::UsedBeforeGrant => {
                "a block is used, and nothing orders the use after the memory's earlier life"
            }
            Self::Race => "two operations use the same bytes, and nothing orders them",
            Self::GrantedWhileUsed => "memory was granted, and its earlier use may not be complete",
            Self::GrantedTwice => "memory was granted that is part of another block",
            Self::UnmappedWhileUsed => "memory was unmapped, and a use of it may not be complete",
            Self::ReadBeforeLaunch => {
                "memory of a graph is read before the first launch, and its contents are undefined"
            }
            Self::NoAccess => "memory of another device is used without access",
            Self::FreedWhileImported => "a block was freed before an importer has freed it",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::UseAfterFree => {
                "submit the operation before the block is dropped or deallocated, and keep the block \
                 until then"
            }
            Self::Suspended => {
                "resume the region first, and hold it resident (`enter`) until the operation is submitted"
            }
            Self::NotAllocated => {
                "compare the range that the operation declares with the block's size"
            }
            Self::FreedWhileUsed => {
                "submit the use with its block (`stream.submit`), or call `stream.record_use(&block)` before it; \
                 or make a stream that the block is freed on wait for an event behind the use"
            }
            Self::UsedBeforeGrant => {
                "submit the use with its block (`stream.submit`), or call `stream.record_use(&block)` before it; \
                 or make the stream wait for an event of the block's own stream that was recorded after the grant"
            }
            Self::Race => {
                "submit both with the memory that they use (`stream.submit`), `&mut` what they write; or make the \
                 later one's stream wait for an event behind the earlier one (`stream.wait(&event)`), or await that on \
                 the host"
            }
            Self::GrantedWhileUsed | Self::GrantedTwice => {
                "this is a bug of the pool: please report it"
            }
            Self::UnmappedWhileUsed => "await the use before the memory is unmapped",
            Self::ReadBeforeLaunch => {
                "launch the graph first: captured work runs at each launch, and not in the capture"
            }
            Self::NoAccess => {
                "enable it with `pool.peers().enable(&device)` of the memory's pool, or copy with `copy_to`"
            }
            Self::FreedWhileImported => {
                "drop the imported block, await its end (`Freed`), and free the exported block after that"
            }
        }
    }
}

impl Violation {
    /// Returns what to do: for the kind, or for the mistake that the uses tell of.
    fn advice(&self) -> &'static str {
        let usages = [&self.earlier, &self.later].map(Option::as_ref);
        match (self.kind, usages) {
            (ViolationKind::Race, [Some(earlier), Some(later)])
                if earlier.submitted.is_some() && later.submitted.is_some() =>
            {
                "pass each `submit` all of the memory that its operations use, and as `&mut` what they write"
            }
            (ViolationKind::FreedWhileUsed, [Some(earlier), _]) if self.was_moved_from(earlier) => {
                "submit the use before `move_to`, after which the block is freed in the order of its new stream alone; \
                 or submit it with its block (`stream.submit`)"
            }
            _ => self.kind.advice(),
        }
    }

    /// Returns whether the block was freed in the order of other streams alone than that of its allocation, to which the
    /// use was submitted.
    fn was_moved_from(&self, usage: &Usage) -> bool {
        self.memory.as_ref().is_some_and(|memory| {
            let is_home = usage.stream == memory.stream;
            is_home && !memory.freed_on.is_empty() && !memory.freed_on.contains(&memory.stream)
        })
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, bytes) = (self.address, self.bytes);
        writeln!(f, "{}: {bytes} bytes at {address:#x}", self.kind.headline())?;
        let usages = [("earlier use:", &self.earlier), ("this use:", &self.later)];
        for (role, usage) in usages {
            if let Some(usage) = usage {
                writeln!(f, "  {role:<13} {usage}")?;
            }
        }
        for (role, memory) in [("the block:", &self.memory), ("now:", &self.next)] {
            if let Some(memory) = memory {
                writeln!(f, "  {role:<13} {memory}")?;
            }
        }
        if let Some(Strangers { owner, device }) = self.strangers {
            let role = "devices:";
            writeln!(
                f,
                "  {role:<13} device {device} uses memory of device {owner}"
            )?;
        }
        write!(f, "  {:<13} {}", "what to do:", self.advice())
    }
}

impl std::error::Error for Violation {}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.operation.as_deref().unwrap_or("operation");
        let verb = match self.kind {
            AccessKind::Read => "reads",
            AccessKind::Write => "writes",
        };
        let (place, stream) = (self.place, &self.stream);
        write!(f, "{name} ({place}")?;
        let is_elsewhere =
            |at: &&Location<'_>| (at.file(), at.line()) != (place.file(), place.line());
        if let Some(at) = self.submitted.filter(is_elsewhere) {
            write!(f, ", submitted at {at}")?;
        }
        write!(f, ") {verb} on {stream}")
    }
}

impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, stream, allocated) = (self.bytes, &self.stream, self.allocated);
        write!(f, "{bytes} bytes, allocated at {allocated} on {stream}")?;
        if self.freed_on.is_empty() {
            return Ok(());
        }
        match self.freed {
            Some(place) => write!(f, ", freed at {place} in the order of")?,
            None => write!(f, ", dropped in the order of")?,
        }
        for (index, stream) in self.freed_on.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma} {stream}")?;
        }
        Ok(())
    }
}
