//! What was found: a use of memory without the order that it needs, and what to do about it.

use super::shadow::{Life, Work};
use crate::label::StreamLabel;
use crate::operation::AccessKind;
use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use weirpool_device::DeviceAddress;
use weirpool_device::plain::Arc;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ViolationKind {
    /// An operation was submitted that uses memory after its block was freed.
    UseAfterFree,
    /// An operation was submitted that uses bytes beside a block, which were never allocated.
    NotAllocated,
    /// A block was freed, and nothing orders a use of it before the free.
    FreedWhileUsed,
    /// An operation uses a block, and nothing orders it after what the memory was used for before
    /// the block was granted.
    UsedBeforeGrant,
    /// Two operations use the same bytes of a block, at least one of them writes, and nothing orders
    /// them.
    Race,
    /// Memory was granted whose earlier use need not be over: the pool is wrong.
    GrantedWhileUsed,
    /// Memory was granted that is part of another block: the pool is wrong.
    GrantedTwice,
    /// Memory was unmapped or given back to the device while work may use it.
    UnmappedWhileUsed,
}

/// One operation's use of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The operation's name, where it has one.
    pub operation: Option<Cow<'static, str>>,
    /// Where in the source the operation was made.
    pub place: &'static Location<'static>,
    /// The stream that it was submitted to.
    pub stream: StreamLabel,
    /// Whether it reads or writes.
    pub kind: AccessKind,
}

/// The life of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Allocation {
    /// The first address.
    pub address: DeviceAddress,
    /// How many bytes.
    pub bytes: u64,
    /// The stream that it was allocated on.
    pub stream: StreamLabel,
    /// Where in the source it was allocated.
    pub allocated: &'static Location<'static>,
    /// Where it was freed, if it was, and by a call; a drop has no place.
    pub freed: Option<&'static Location<'static>>,
    /// The streams in whose order it was freed, if it was.
    pub freed_on: Vec<StreamLabel>,
}

/// A use of memory that is not ordered as it must be, found by the
/// [ordering checker](https://docs.rs/weirpool/latest/weirpool/guide/testing/).
///
/// Its [`Display`](fmt::Display) says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// What is wrong.
    pub kind: ViolationKind,
    /// The first of the bytes in question.
    pub address: DeviceAddress,
    /// How many bytes are in question.
    pub bytes: u64,
    /// The use that came first: of a pair, the one that the other is not ordered after; of memory that
    /// was freed, the last.
    pub earlier: Option<Usage>,
    /// The use that was submitted now, where one was.
    pub later: Option<Usage>,
    /// The block that the earlier use was in; without one, that had the bytes last, or lies beside
    /// them.
    pub memory: Option<Allocation>,
    /// The block that has the bytes now, where it is another one.
    pub next: Option<Allocation>,
}

impl Usage {
    pub(super) fn new(work: &Work, kind: AccessKind) -> Self {
        Self {
            operation: work.name.clone(),
            place: work.place,
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
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::UseAfterFree => {
                "submit the operation before the block is dropped or deallocated, and keep the block \
                 until then"
            }
            Self::NotAllocated => {
                "compare the range that the operation declares with the block's size"
            }
            Self::FreedWhileUsed => {
                "say `block.used_on(&stream)` before submitting to a further stream; or make a stream \
                 that the block is freed on wait for an event behind the use"
            }
            Self::UsedBeforeGrant => {
                "say `block.used_on(&stream)` before submitting, or make the stream wait for an event \
                 of the block's own stream that was recorded after the grant"
            }
            Self::Race => {
                "make the later one's stream wait for an event behind the earlier one \
                 (`stream.wait(&event)`), or await it on the host before submitting"
            }
            Self::GrantedWhileUsed | Self::GrantedTwice => {
                "this is a bug of the pool: please report it"
            }
            Self::UnmappedWhileUsed => "await the use before the memory is unmapped",
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, bytes) = (self.address, self.bytes);
        writeln!(
            f,
            "{}: {bytes} byte(s) at {address:#x}",
            self.kind.headline()
        )?;
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
        write!(f, "  {:<13} {}", "what to do:", self.kind.advice())
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
        write!(f, "{name} ({place}) {verb} on {stream}")
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
