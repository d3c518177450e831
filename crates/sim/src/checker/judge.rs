//! The rules: which uses of memory must be ordered before or after which others.
//!
//! - A use of memory that a pool manages lies in a live block.
//! - A use comes after all uses of the same bytes in earlier blocks, and after conflicting uses in its own block.
//! - When a block ends, each of its uses comes before the present point of one of the streams in whose order the block
//!   ends, or is known to be complete.
//! - When a block begins, all uses of its bytes come before the present point of its stream.
//! - When memory is unmapped, all uses of it are known to be complete. A live block without memory is not used.
//!
//! A use is reported once and then dropped, so that one mistake gives one report. This module does not know how reports
//! are raised.

mod graphs;

use super::clock::Stamp;
use super::findings::Findings;
use super::order::Order;
use super::report;
use super::scene::Scene;
use super::shadow::{Life, Shadow, Touch, Work};
use super::violation::{Strangers, Usage, Violation};
use crate::label::StreamLabel;
use crate::operation::{Access, Operation};
use crate::schedule::{Item, News};
use graphs::GraphBlocks;
pub(crate) use graphs::GraphId;
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write;
use std::panic::Location;
use weirpool_device::RawStream;
use weirpool_device::plain::Arc;

/// How many locations a report of live blocks lists.
const NAMED: usize = 16;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Judge {
    pub(crate) order: Order,
    shadow: Shadow,
    /// Live blocks by address.
    lives: HashMap<u64, Arc<Life>>,
    graphs: GraphBlocks,
    findings: Findings,
}

impl Judge {
    pub(crate) fn new() -> Self {
        let mut judge = Self::default();
        judge.order.open(RawStream::HOST, StreamLabel::HOST);
        judge
    }

    // ---- findings --------------------------------------------------------------------------

    /// Returns the first violation that was not raised. It counts as raised from now on.
    pub(crate) fn raise_first(&mut self) -> Option<Violation> {
        self.findings.raise_first()
    }

    /// Returns how many violations were raised and not taken since.
    pub(crate) fn raised(&self) -> usize {
        self.findings.raised()
    }

    pub(crate) fn take_all(&mut self) -> Vec<Violation> {
        self.findings.take_all()
    }

    /// Returns where the live block at an address was allocated.
    pub(crate) fn allocated_at(&self, address: u64) -> Option<&'static Location<'static>> {
        self.lives.get(&address).map(|life| life.allocated)
    }

    /// Describes the live blocks by the location of their allocation, those with the most bytes first.
    pub(crate) fn describe_held(&self, out: &mut String) {
        let mut held = HashMap::<_, (u64, usize)>::new();
        for life in self.lives.values() {
            let (bytes, blocks) = held.entry(life.allocated).or_default();
            *bytes += life.bytes;
            *blocks += 1;
        }
        let mut held: Vec<_> = held.into_iter().collect();
        held.sort_by_key(|(place, (bytes, _))| (Reverse(*bytes), place.to_string()));
        for (place, (bytes, blocks)) in held.iter().take(NAMED) {
            let _ = write!(
                out,
                "\n  {blocks} live block(s) of {bytes} bytes, allocated at {place}"
            );
        }
    }

    // ---- what the device is given to do ------------------------------------------------------

    /// Takes note of an item. Every item passes here, in the order of submission. For a record of an event, or a wait
    /// for one, a separate call gives the event's name.
    pub(crate) fn submitted(&mut self, stream: RawStream, item: &Item) {
        match item {
            Item::Operation(operation) if !operation.accesses().is_empty() => {
                self.used(stream, operation);
            }
            Item::Signal(..) => self.order.signal(stream),
            Item::WaitUntil(..) => self.order.wait_for_flag(stream),
            Item::Operation(_) | Item::Record | Item::Wait(_) | Item::Release(_) => {}
        }
        self.order.pass(stream);
    }

    /// Takes note of a use by the host itself: an item of the host's own stream that is complete when the call returns.
    pub(crate) fn used_by_host(&mut self, operation: &Operation) {
        self.used(RawStream::HOST, operation);
        self.order.pass(RawStream::HOST);
        self.order.host_is_through();
    }

    pub(crate) fn hear(&mut self, news: impl IntoIterator<Item = News>) {
        for news in news {
            if self.order.hear(news) {
                self.findings.reconsider(self.order.known());
            }
        }
    }

    /// Reports an access of an operation that is about to be submitted, to memory that its device may not use.
    pub(crate) fn used_without_access(
        &mut self,
        stream: RawStream,
        operation: &Operation,
        access: &Access,
        strangers: Strangers,
    ) {
        let work = Work {
            stream: self.order.label(stream),
            name: operation.name.clone(),
            place: operation.place(),
            submitted: operation.submitted(),
            behind: None,
        };
        let start = access.address.to_bits();
        let end = start.saturating_add(access.bytes);
        let mut cells = self.shadow.all(start, end);
        let owner = cells.find_map(|(_, cell)| cell.owner.clone());
        drop(cells);
        self.shadow.mend(start, end);
        let usage = Usage::new(&work, access.kind);
        let report = report::without_access((start, end), usage, owner.as_ref(), strangers);
        self.findings.report(report);
    }

    fn used(&mut self, stream: RawStream, operation: &Operation) {
        let now = self.order.now(stream);
        let work = Arc::new(Work {
            stream: self.order.label(stream),
            name: operation.name.clone(),
            place: operation.place(),
            submitted: operation.submitted(),
            behind: now.clock.has_open().then(|| now.clone()),
        });
        let accesses = operation.accesses().iter();
        accesses
            .filter(|access| access.bytes > 0)
            .for_each(|access| self.touch(&now, &work, access));
    }

    fn touch(&mut self, now: &Stamp, work: &Arc<Work>, access: &Access) {
        let start = access.address.to_bits();
        let end = start.saturating_add(access.bytes);
        if let Some(outside) = self.outside(start, end, Usage::new(work, access.kind)) {
            return self.findings.report(outside);
        }
        self.judge_unlaunched(work, access.kind, (start, end));
        for (start, cell) in self.shadow.all(start, end) {
            let scene = Scene {
                start,
                end: cell.end,
                touch: Touch::new(now, work, access.kind, cell),
                now,
                order: &self.order,
                findings: &mut self.findings,
            };
            scene.play(cell);
        }
        self.shadow.mend(start, end);
    }

    /// Returns the violation of an access to memory that a pool manages, if part of it is not in live blocks.
    fn outside(&mut self, start: u64, end: u64, usage: Usage) -> Option<Violation> {
        let (mut owner, mut outside) = (None, None);
        for (start, cell) in self.shadow.all(start, end) {
            owner = owner.or_else(|| cell.owner.clone());
            if (!cell.is_live() || cell.is_absent) && outside.is_none() {
                outside = Some((start, cell.clone()));
            }
        }
        let (start, cell) = outside?;
        Some(report::outside(start, &cell, &owner?, usage))
    }

    // ---- what a pool grants and frees ----------------------------------------------------------

    pub(crate) fn name(&mut self, stream: RawStream, name: &str) {
        self.order.name(stream, name);
    }

    pub(crate) fn granted(
        &mut self,
        address: u64,
        bytes: u64,
        stream: RawStream,
        place: &'static Location<'static>,
    ) {
        let label = self.order.label(stream);
        let life = Arc::new(Life::new(address, bytes, label, place));
        self.begin(&life, address, address + bytes, stream);
        self.lives.insert(address, life);
    }

    /// A block grows by the bytes behind it, which may have been a block of their own until now. From here on it counts
    /// as another life.
    pub(crate) fn grown(
        &mut self,
        address: u64,
        bytes: u64,
        stream: RawStream,
        location: &'static Location<'static>,
    ) {
        let Some(old) = self.lives.remove(&address) else {
            return;
        };
        let (middle, end) = (address + old.bytes, address + old.bytes + bytes);
        let added = self.lives.remove(&middle);
        let life = Arc::new(Life::new(
            address,
            end - address,
            old.stream.clone(),
            location,
        ));
        let known_until = if added.is_some() { end } else { middle };
        for (_, cell) in self.shadow.known(address, known_until) {
            let touches = cell.touches.iter_mut().chain(&mut cell.last);
            let is_inside = |touch: &Touch| {
                touch.is_of(&old) || added.as_ref().is_some_and(|added| touch.is_of(added))
            };
            for touch in touches.filter(|touch| is_inside(touch)) {
                touch.life = Some(life.clone());
            }
            cell.owner = Some(life.clone());
        }
        if added.is_none() {
            self.begin(&life, middle, end, stream);
        }
        self.lives.insert(address, life);
    }

    /// Gives bytes to a life.
    fn begin(&mut self, life: &Arc<Life>, start: u64, end: u64, stream: RawStream) {
        let now = self.order.now(stream);
        for (start, cell) in self.shadow.all(start, end) {
            if cell.is_live() {
                self.findings
                    .report(report::granted_twice(start, cell, life));
            }
            cell.owner = Some(life.clone());
            cell.last = None;
            cell.is_absent = false;
            let (end, order, findings) = (cell.end, &self.order, &mut self.findings);
            cell.touches.retain(|touch| {
                let report = || report::granted_while_used(start, end, touch, life);
                let now = std::slice::from_ref(&now);
                !order.is_known(touch.moment)
                    && findings.may_be_before(now, touch.moment, order.known(), report)
            });
        }
        self.shadow.mend(start, end);
    }

    pub(crate) fn freed(
        &mut self,
        address: u64,
        streams: &[RawStream],
        place: Option<&'static Location<'static>>,
    ) {
        if self.freed_in_graph(address, streams) {
            return;
        }
        self.end(address, streams, place);
    }

    /// Ends the life that begins at an address.
    fn end(
        &mut self,
        address: u64,
        streams: &[RawStream],
        place: Option<&'static Location<'static>>,
    ) {
        let Some(life) = self.lives.remove(&address) else {
            return;
        };
        let labels = streams.iter().map(|stream| self.order.label(*stream));
        life.end(place, labels.collect());
        let now = |stream: &RawStream| self.order.now(*stream);
        let points: SmallVec<[Stamp; 2]> = streams.iter().map(now).collect();
        for (start, cell) in self.shadow.known(address, address + life.bytes) {
            let (end, order, findings) = (cell.end, &self.order, &mut self.findings);
            cell.touches.retain(|touch| {
                let report = || report::freed_while_used(start, end, touch, &life);
                !order.is_known(touch.moment)
                    && (!touch.is_of(&life)
                        || findings.may_be_before(&points, touch.moment, order.known(), report))
            });
        }
        self.shadow.mend(address, address + life.bytes);
    }

    /// Reports the free of a block that an importer has not freed.
    #[cfg(target_os = "linux")]
    pub(crate) fn freed_while_imported(&mut self, address: u64, bytes: u64) {
        let (start, end) = (address, address + bytes);
        let mut cells = self.shadow.known(start, end);
        let owner = cells.find_map(|(_, cell)| cell.owner.clone());
        drop(cells);
        let report = report::freed_while_imported((start, end), owner.as_ref());
        self.findings.report(report);
    }

    // ---- mappings --------------------------------------------------------------------------------

    /// From now on the range has no memory behind it, or other memory.
    pub(crate) fn unmapped(&mut self, address: u64, bytes: u64) {
        for (start, cell) in self.shadow.known(address, address.saturating_add(bytes)) {
            for touch in std::mem::take(&mut cell.touches) {
                if !self.order.is_known(touch.moment) {
                    let report = report::unmapped_while_used(start, cell.end, &touch);
                    self.findings.report(report);
                }
            }
            cell.is_absent = cell.is_live();
        }
    }

    /// From now on the range has memory behind it.
    pub(crate) fn mapped(&mut self, address: u64, bytes: u64) {
        for (_, cell) in self.shadow.known(address, address.saturating_add(bytes)) {
            cell.is_absent = false;
        }
    }

    /// From now on the range has no owner, and any owner may get it.
    pub(crate) fn returned(&mut self, address: u64, bytes: u64) {
        self.unmapped(address, bytes);
        self.shadow.forget(address, address.saturating_add(bytes));
    }
}
