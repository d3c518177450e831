//! The construction of reports from the known facts about the bytes.
//!
//! This module does not know the rules.

use super::shadow::{Cell, Life, Touch};
use super::violation::{Allocation, Strangers, Usage, Violation, ViolationKind};
use weirpool_device::plain::Arc;

/// Returns a violation in something that comes after an access.
fn after(kind: ViolationKind, start: u64, end: u64, earlier: &Touch) -> Violation {
    Violation {
        kind,
        address: start.into(),
        bytes: end - start,
        earlier: Some(Usage::new(&earlier.work, earlier.kind)),
        later: None,
        memory: earlier.life.as_ref().map(Allocation::new),
        next: None,
        strangers: None,
    }
}

pub(super) fn granted_while_used(
    start: u64,
    end: u64,
    earlier: &Touch,
    next: &Arc<Life>,
) -> Violation {
    Violation {
        next: Some(Allocation::new(next)),
        ..after(ViolationKind::GrantedWhileUsed, start, end, earlier)
    }
}

pub(super) fn freed_while_used(
    start: u64,
    end: u64,
    earlier: &Touch,
    life: &Arc<Life>,
) -> Violation {
    Violation {
        memory: Some(Allocation::new(life)),
        ..after(ViolationKind::FreedWhileUsed, start, end, earlier)
    }
}

pub(super) fn unmapped_while_used(start: u64, end: u64, earlier: &Touch) -> Violation {
    after(ViolationKind::UnmappedWhileUsed, start, end, earlier)
}

pub(super) fn granted_twice(start: u64, cell: &Cell, next: &Arc<Life>) -> Violation {
    Violation {
        kind: ViolationKind::GrantedTwice,
        address: start.into(),
        bytes: cell.end - start,
        earlier: last_use(cell),
        later: None,
        memory: cell.owner.as_ref().map(Allocation::new),
        next: Some(Allocation::new(next)),
        strangers: None,
    }
}

/// Returns the violation of an access outside live blocks, or to one without memory. `owner` has, or had, some of its
/// bytes.
pub(super) fn outside(start: u64, cell: &Cell, owner: &Arc<Life>, usage: Usage) -> Violation {
    let (kind, memory) = match &cell.owner {
        Some(owner) if cell.is_live() => (ViolationKind::Suspended, owner),
        Some(former) => (ViolationKind::UseAfterFree, former),
        None => (ViolationKind::NotAllocated, owner),
    };
    Violation {
        kind,
        address: start.into(),
        bytes: cell.end - start,
        earlier: last_use(cell),
        later: Some(usage),
        memory: Some(Allocation::new(memory)),
        next: None,
        strangers: None,
    }
}

/// Returns the violation of an access without access rights.
pub(super) fn without_access(
    (start, end): (u64, u64),
    usage: Usage,
    owner: Option<&Arc<Life>>,
    strangers: Strangers,
) -> Violation {
    Violation {
        kind: ViolationKind::NoAccess,
        address: start.into(),
        bytes: end - start,
        earlier: None,
        later: Some(usage),
        memory: owner.map(Allocation::new),
        next: None,
        strangers: Some(strangers),
    }
}

/// Returns the violation of a read of memory of a graph that was not launched.
pub(super) fn before_launch(
    (start, end): (u64, u64),
    usage: Usage,
    owner: Option<&Arc<Life>>,
) -> Violation {
    Violation {
        kind: ViolationKind::ReadBeforeLaunch,
        address: start.into(),
        bytes: end - start,
        earlier: None,
        later: Some(usage),
        memory: owner.map(Allocation::new),
        next: None,
        strangers: None,
    }
}

/// Returns the violation of a free of a block that is imported.
pub(super) fn freed_while_imported(
    (start, end): (u64, u64),
    owner: Option<&Arc<Life>>,
) -> Violation {
    Violation {
        kind: ViolationKind::FreedWhileImported,
        address: start.into(),
        bytes: end - start,
        earlier: None,
        later: None,
        memory: owner.map(Allocation::new),
        next: None,
        strangers: None,
    }
}

fn last_use(cell: &Cell) -> Option<Usage> {
    let last = cell.last.as_ref()?;
    Some(Usage::new(&last.work, last.kind))
}

/// Returns the violation of an access in one cell and an earlier one.
pub(super) fn unordered(
    kind: ViolationKind,
    start: u64,
    end: u64,
    earlier: &Touch,
    later: &Touch,
) -> Violation {
    let is_of_another_life = kind == ViolationKind::UsedBeforeGrant;
    let next = later.life.as_ref().filter(|_| is_of_another_life);
    Violation {
        later: Some(Usage::new(&later.work, later.kind)),
        next: next.map(Allocation::new),
        ..after(kind, start, end, earlier)
    }
}
