//! Blocks that were allocated while a stream was captured.
//!
//! Each launch of the graph uses them, also those that were freed in the capture. So for the checker their bytes live
//! as long as the graph, and as long as the block itself: a grant of the bytes to another block before that is a grant
//! of bytes that are live, unless the pool says that the block shares them with graphs. Within the graph, the checker
//! judges the accesses of each launch by the order of its operations.

use super::Judge;
use crate::checker::clock::Stamp;
use crate::checker::report;
use crate::checker::shadow::{Life, Work};
use crate::checker::violation::Usage;
use crate::label::StreamLabel;
use crate::operation::AccessKind;
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};
use std::panic::Location;
use weirpool_device::RawStream;
use weirpool_device::plain::Arc;

/// A graph, or the capture that it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GraphId(pub(crate) u64);

/// A reason for which bytes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Graph(GraphId),
    /// The live block at this address.
    Block(u64),
}

/// Bytes with the same owners. They are one life.
#[derive(Clone, Debug)]
struct Piece {
    end: u64,
    owners: SmallVec<[Owner; 2]>,
    /// The streams in whose order the blocks of these bytes were freed.
    streams: SmallVec<[RawStream; 2]>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct GraphBlocks {
    pieces: BTreeMap<u64, Piece>,
    /// The live blocks, with their sizes.
    blocks: HashMap<u64, u64>,
    /// Bytes that were allocated in a capture, and that only a launch of the graph writes, by their start.
    unlaunched: BTreeMap<u64, Unlaunched>,
}

/// Bytes with undefined contents until the first launch of a graph.
#[derive(Clone, Debug)]
struct Unlaunched {
    end: u64,
    graph: GraphId,
    /// A read of the host. The host reads bytes before it changes some of them, so that only the absence of a write shows
    /// that it was a read.
    seen_by: Option<Usage>,
}

impl GraphBlocks {
    /// Returns the first piece that ends behind `at` and begins before `end`.
    fn next(&self, at: u64, end: u64) -> Option<(u64, u64)> {
        let before = self.pieces.range(..=at).next_back();
        let before = before.filter(|(_, piece)| piece.end > at);
        let next = before.or_else(|| self.pieces.range(at..end).next());
        next.map(|(start, piece)| (*start, piece.end))
    }

    /// Notes that bytes have contents, or another owner. Returns those of them that only a launch was to write.
    fn define(&mut self, start: u64, end: u64) -> SmallVec<[(u64, Unlaunched); 1]> {
        let mut defined = SmallVec::new();
        loop {
            let last = self.unlaunched.range(..end).next_back();
            let last = last.filter(|(_, bytes)| bytes.end > start);
            let Some((from, bytes)) = last.map(|(from, bytes)| (*from, bytes.clone())) else {
                return defined;
            };
            self.unlaunched.remove(&from);
            if from < start {
                let end = start;
                self.unlaunched.insert(
                    from,
                    Unlaunched {
                        end,
                        ..bytes.clone()
                    },
                );
            }
            if bytes.end > end {
                self.unlaunched.insert(end, bytes.clone());
            }
            let end = bytes.end.min(end);
            defined.push((from.max(start), Unlaunched { end, ..bytes }));
        }
    }
}

impl Judge {
    /// Notes a launch: what the graph's memory holds is defined from then on.
    pub(crate) fn launched(&mut self, graph: GraphId) {
        if self.graphs.unlaunched.is_empty() {
            return;
        }
        let mut seen = SmallVec::<[_; 1]>::new();
        self.graphs.unlaunched.retain(|start, bytes| {
            let is_other = bytes.graph != graph;
            if !is_other {
                seen.extend(bytes.seen_by.take().map(|by| (*start, bytes.end, by)));
            }
            is_other
        });
        for (start, end, by) in seen {
            self.report_unlaunched((start, end), by);
        }
    }

    fn report_unlaunched(&mut self, (start, end): (u64, u64), by: Usage) {
        let owner = self.shadow.all(start, end).next();
        let owner = owner.and_then(|(_, cell)| cell.owner.clone());
        let report = report::before_launch((start, end), by, owner.as_ref());
        self.findings.report(report);
    }

    /// Reports a read of memory whose contents only a launch defines, before there is one.
    pub(super) fn judge_unlaunched(
        &mut self,
        work: &Work,
        kind: AccessKind,
        (start, end): (u64, u64),
    ) {
        if self.graphs.unlaunched.is_empty() {
            return;
        }
        let is_host = work.stream == StreamLabel::HOST;
        for (start, mut bytes) in self.graphs.define(start, end) {
            let usage = Usage::new(work, kind);
            match (kind, bytes.seen_by.take()) {
                (AccessKind::Read, None) if is_host => {
                    bytes.seen_by = Some(usage);
                    self.graphs.unlaunched.insert(start, bytes);
                }
                (AccessKind::Write, None) => {}
                (AccessKind::Write, Some(_)) if is_host => {}
                (AccessKind::Write, Some(usage)) => {
                    self.report_unlaunched((start, bytes.end), usage)
                }
                (AccessKind::Read, _) => self.report_unlaunched((start, bytes.end), usage),
            }
        }
    }
    /// Notes that a block was granted to a captured stream, or, without a graph, of bytes that graphs may use as well.
    pub(crate) fn granted_of_graphs(
        &mut self,
        graph: Option<GraphId>,
        (address, bytes): (u64, u64),
        stream: RawStream,
        place: &'static Location<'static>,
    ) {
        let end = address + bytes;
        self.graphs.define(address, end);
        if let Some(graph) = graph {
            let seen_by = None;
            let bytes = Unlaunched {
                end,
                graph,
                seen_by,
            };
            self.graphs.unlaunched.insert(address, bytes);
        }
        self.divide_at(address);
        self.divide_at(end);
        self.graphs.blocks.insert(address, bytes);
        let mut at = address;
        while at < end {
            let (start, next) = self.graphs.next(at, end).unwrap_or((end, end));
            if at < start {
                self.granted(at, start - at, stream, place);
                let piece = Piece {
                    end: start,
                    owners: SmallVec::new(),
                    streams: SmallVec::new(),
                };
                self.graphs.pieces.insert(at, piece);
            }
            at = next;
        }
        for (_, piece) in self.graphs.pieces.range_mut(address..end) {
            let owners = graph.map(Owner::Graph).into_iter();
            for owner in owners.chain([Owner::Block(address)]) {
                if !piece.owners.contains(&owner) {
                    piece.owners.push(owner);
                }
            }
        }
    }

    /// Notes that a block was freed, if it was granted to a captured stream or of memory of graphs. Returns whether it
    /// was.
    pub(super) fn freed_in_graph(&mut self, address: u64, streams: &[RawStream]) -> bool {
        let Some(bytes) = self.graphs.blocks.remove(&address) else {
            return false;
        };
        for (_, piece) in self.graphs.pieces.range_mut(address..address + bytes) {
            let new = streams
                .iter()
                .filter(|stream| !piece.streams.contains(stream));
            let new: SmallVec<[_; 2]> = new.copied().collect();
            piece.streams.extend(new);
        }
        self.disown(Owner::Block(address));
        true
    }

    /// Notes that a graph is gone, or that its capture ended without one. `last` is the end of its last launch, which
    /// is complete.
    pub(crate) fn graph_ended(&mut self, graph: GraphId, last: Option<&Stamp>) {
        if let Some(stamp) = last {
            self.order.reached(stamp);
        }
        self.launched(graph);
        self.disown(Owner::Graph(graph));
    }

    /// Removes an owner, and ends the lives that have no other.
    fn disown(&mut self, owner: Owner) {
        let mut ended = Vec::new();
        self.graphs.pieces.retain(|start, piece| {
            piece.owners.retain(|known| *known != owner);
            let is_owned = !piece.owners.is_empty();
            if !is_owned {
                ended.push((*start, std::mem::take(&mut piece.streams)));
            }
            is_owned
        });
        for (start, streams) in ended {
            if let Some(life) = self.lives.get(&start) {
                self.graphs.define(start, start + life.bytes);
            }
            self.end(start, &streams, None);
        }
    }

    /// Makes `at` a boundary between lives of graphs.
    fn divide_at(&mut self, at: u64) {
        let before = self.graphs.pieces.range_mut(..at).next_back();
        let Some((&start, piece)) = before.filter(|(_, piece)| piece.end > at) else {
            return;
        };
        let right = piece.clone();
        piece.end = at;
        let end = right.end;
        self.graphs.pieces.insert(at, right);
        let Some(whole) = self.lives.remove(&start) else {
            return;
        };
        for (start, end) in [(start, at), (at, end)] {
            let stream = whole.stream.clone();
            let life = Arc::new(Life::new(start, end - start, stream, whole.allocated));
            for (_, cell) in self.shadow.all(start, end) {
                let touches = cell.touches.iter_mut().chain(&mut cell.last);
                for touch in touches.filter(|touch| touch.is_of(&whole)) {
                    touch.life = Some(life.clone());
                }
                cell.owner = Some(life.clone());
            }
            self.lives.insert(start, life);
        }
    }
}
