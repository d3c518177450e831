//! Captures in progress: the operations that a graph will run, and their order.
//!
//! A *branch* is a captured stream. Its *frontier* is the operations that the next one comes after. An event that is
//! recorded in a capture holds a frontier, and a stream that waits for it joins the capture. This module knows neither
//! memory nor time.

use super::checker::GraphId;
use super::operation::{Operation, Repeatable};
use std::collections::HashMap;
use weirpool_device::{Kept, RawEvent, RawStream};

/// The operations that the next one comes after, by their numbers.
type Frontier = Vec<usize>;

/// A captured operation.
pub(super) struct Node {
    pub(super) branch: usize,
    pub(super) operation: Repeatable,
    pub(super) after: Frontier,
}

/// What a graph runs: operations, each after all those it comes after. Branch 0 is the stream that the capture began
/// on.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) nodes: Vec<Node>,
    branches: usize,
}

impl Plan {
    /// Returns whether every operation comes before the end of a frontier.
    fn is_joined_by(&self, frontier: &Frontier) -> bool {
        let mut is_before = vec![false; self.nodes.len()];
        frontier.iter().for_each(|at| is_before[*at] = true);
        for at in (0..self.nodes.len()).rev() {
            if is_before[at] {
                let after = self.nodes[at].after.iter();
                after.for_each(|earlier| is_before[*earlier] = true);
            }
        }
        is_before.iter().all(|is_before| *is_before)
    }
}

#[derive(Debug)]
struct Branch {
    number: usize,
    frontier: Frontier,
}

/// A capture in progress.
struct Recording {
    origin: RawStream,
    branches: HashMap<RawStream, Branch>,
    plan: Plan,
    kept: Vec<Kept>,
    /// Why the capture was invalidated, if it was.
    flaw: Option<&'static str>,
    /// The id under which the streams are captured now. The body of a loop has one of its own.
    id: u64,
    /// The loops whose bodies are being captured, outermost first.
    loops: Vec<Loop>,
}

/// A loop whose body is being captured.
struct Loop {
    stream: RawStream,
    times: usize,
    /// The number of its first operation.
    from: usize,
}

/// A capture that ended: its plan, or the reason why there is none, and the values to keep with the graph.
pub(super) struct Ended {
    pub(super) graph: GraphId,
    pub(super) plan: Result<Plan, &'static str>,
    pub(super) kept: Vec<Kept>,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Recordings {
    begun: u64,
    streams: HashMap<RawStream, GraphId>,
    open: HashMap<GraphId, Recording>,
    /// The events whose last record was captured.
    events: HashMap<RawEvent, (GraphId, Frontier)>,
}

impl Recordings {
    /// Begins a capture on a stream. Returns whether the stream was not being captured.
    pub(super) fn begin(&mut self, origin: RawStream) -> bool {
        if self.streams.contains_key(&origin) {
            return false;
        }
        self.begun += 1;
        let graph = GraphId(self.begun);
        let branch = Branch {
            number: 0,
            frontier: Frontier::new(),
        };
        let recording = Recording {
            origin,
            branches: HashMap::from([(origin, branch)]),
            plan: Plan {
                branches: 1,
                ..Plan::default()
            },
            kept: Vec::new(),
            flaw: None,
            id: self.begun,
            loops: Vec::new(),
        };
        self.open.insert(graph, recording);
        self.streams.insert(origin, graph);
        true
    }

    /// Returns the capture that a stream is part of.
    pub(super) fn of(&self, stream: RawStream) -> Option<GraphId> {
        self.streams.get(&stream).copied()
    }

    /// Returns the id under which a stream is captured now, unless the capture was invalidated.
    pub(super) fn id(&self, stream: RawStream) -> Option<u64> {
        let recording = self.open.get(&self.of(stream)?)?;
        recording.flaw.is_none().then_some(recording.id)
    }

    /// Begins the body of a loop on a captured stream. Returns whether the stream is captured.
    pub(super) fn begin_loop(&mut self, stream: RawStream, times: usize) -> bool {
        self.begun += 1;
        let id = self.begun;
        let Some(recording) = self.recording(stream) else {
            return false;
        };
        recording.id = id;
        recording.loops.push(Loop {
            stream,
            times,
            from: recording.plan.nodes.len(),
        });
        true
    }

    /// Ends the body of the innermost loop, which began on this stream: the operations since then run as often as the
    /// loop. Returns whether there is such a loop.
    pub(super) fn end_loop(&mut self, stream: RawStream) -> bool {
        self.begun += 1;
        let id = self.begun;
        let Some(recording) = self.recording(stream) else {
            return false;
        };
        let Some(ended) = recording.loops.pop_if(|last| last.stream == stream) else {
            return false;
        };
        recording.id = id;
        let Recording { branches, plan, .. } = recording;
        let Some(branch) = branches.get_mut(&stream) else {
            return false;
        };
        let length = plan.nodes.len() - ended.from;
        let is_of_others = |node: &Node| node.branch != branch.number;
        if plan.nodes[ended.from..].iter().any(is_of_others) {
            self.invalidate(stream, "another stream was captured in the body of a loop");
            return true;
        }
        for _ in 1..ended.times {
            for at in plan.nodes.len() - length..plan.nodes.len() {
                let operation = plan.nodes[at].operation.clone();
                let after = std::mem::replace(&mut branch.frontier, vec![plan.nodes.len()]);
                plan.nodes.push(Node {
                    branch: branch.number,
                    operation,
                    after,
                });
            }
        }
        true
    }

    fn recording(&mut self, stream: RawStream) -> Option<&mut Recording> {
        let graph = self.of(stream)?;
        self.open.get_mut(&graph)
    }

    /// Invalidates the capture that a stream is part of.
    pub(super) fn invalidate(&mut self, stream: RawStream, flaw: &'static str) {
        if let Some(recording) = self.recording(stream) {
            recording.flaw.get_or_insert(flaw);
        }
    }

    /// Adds an operation of a captured stream.
    pub(super) fn add(&mut self, stream: RawStream, operation: Operation) {
        let Some(operation) = operation.repeatable() else {
            let flaw =
                "the body of a captured operation runs only once; give it one with `run_each`";
            return self.invalidate(stream, flaw);
        };
        let Some(recording) = self.recording(stream) else {
            return;
        };
        let Recording { branches, plan, .. } = recording;
        let Some(branch) = branches.get_mut(&stream) else {
            return;
        };
        let after = std::mem::replace(&mut branch.frontier, vec![plan.nodes.len()]);
        plan.nodes.push(Node {
            branch: branch.number,
            operation,
            after,
        });
    }

    /// Keeps a value with the graph of a captured stream.
    ///
    /// # Errors
    /// Returns the value if the capture was invalidated, or the stream is not being captured.
    pub(super) fn keep(&mut self, stream: RawStream, kept: Kept) -> Result<(), Kept> {
        match self.recording(stream) {
            Some(recording) if recording.flaw.is_none() => {
                recording.kept.push(kept);
                Ok(())
            }
            _ => Err(kept),
        }
    }

    /// Records an event in a captured stream.
    pub(super) fn record(&mut self, event: RawEvent, stream: RawStream) {
        let Some(graph) = self.of(stream) else {
            return;
        };
        let branch = self
            .open
            .get(&graph)
            .and_then(|all| all.branches.get(&stream));
        if let Some(branch) = branch {
            self.events.insert(event, (graph, branch.frontier.clone()));
        }
    }

    /// Returns whether the last record of an event was captured.
    pub(super) fn has_captured(&self, event: RawEvent) -> bool {
        self.events.contains_key(&event)
    }

    /// Notes that an event was recorded outside a capture, or destroyed.
    pub(super) fn forget(&mut self, event: RawEvent) {
        // A removal hashes the key even if the map is empty, as it nearly always is.
        if !self.events.is_empty() {
            self.events.remove(&event);
        }
    }

    /// Makes a stream wait for an event that was recorded in a capture. The stream joins the capture.
    ///
    /// # Errors
    /// Returns an error if the capture is over, or the stream is part of another one.
    pub(super) fn wait(&mut self, stream: RawStream, event: RawEvent) -> Result<(), &'static str> {
        let Some((graph, frontier)) = self.events.get(&event) else {
            return Err("the event was not recorded in a capture");
        };
        let (graph, frontier) = (*graph, frontier.clone());
        if !self.open.contains_key(&graph) {
            return Err("the event was recorded in a capture that is over; record it again");
        }
        self.join(stream, graph, &frontier)
    }

    /// Returns the id under which a stream is captured, and what its next operation comes after, unless the capture was
    /// invalidated.
    pub(super) fn frontier(&self, stream: RawStream) -> Option<(u64, Frontier)> {
        let recording = self.open.get(&self.of(stream)?)?;
        let branch = recording.branches.get(&stream)?;
        let is_valid = recording.flaw.is_none();
        is_valid.then(|| (recording.id, branch.frontier.clone()))
    }

    /// Returns what an operation comes after, in the capture that a stream is part of.
    pub(super) fn before(&self, stream: RawStream, at: usize) -> Option<Frontier> {
        let recording = self.open.get(&self.of(stream)?)?;
        Some(recording.plan.nodes.get(at)?.after.clone())
    }

    /// Makes a stream come after operations of the capture that another one is part of, which it joins.
    ///
    /// # Errors
    /// Returns an error if the other stream is not being captured, or the stream is part of another capture.
    pub(super) fn come_after(
        &mut self,
        stream: RawStream,
        captured: RawStream,
        frontier: &[usize],
    ) -> Result<(), &'static str> {
        let graph = self
            .of(captured)
            .filter(|graph| self.open.contains_key(graph));
        let graph = graph.ok_or("the stream to come after is not being captured")?;
        self.join(stream, graph, frontier)
    }

    fn join(
        &mut self,
        stream: RawStream,
        graph: GraphId,
        frontier: &[usize],
    ) -> Result<(), &'static str> {
        let own = *self.streams.entry(stream).or_insert(graph);
        if own != graph {
            let flaw = "streams of two captures were made to wait for each other";
            self.invalidate(stream, flaw);
            if let Some(recording) = self.open.get_mut(&graph) {
                recording.flaw.get_or_insert(flaw);
            }
            return Err(flaw);
        }
        let Some(recording) = self.open.get_mut(&graph) else {
            return Ok(());
        };
        let Recording { branches, plan, .. } = recording;
        let branch = branches.entry(stream).or_insert_with(|| {
            plan.branches += 1;
            Branch {
                number: plan.branches - 1,
                frontier: Frontier::new(),
            }
        });
        let new = frontier.iter().filter(|at| !branch.frontier.contains(at));
        let new: Vec<_> = new.copied().collect();
        branch.frontier.extend(new);
        Ok(())
    }

    /// Ends the capture that began on a stream; `None` if none did.
    pub(super) fn end(&mut self, origin: RawStream) -> Option<Ended> {
        let graph = self.of(origin)?;
        if self.open.get(&graph)?.origin != origin {
            return None;
        }
        let recording = self.open.remove(&graph)?;
        self.streams.retain(|_, captured| *captured != graph);
        let Recording {
            branches,
            plan,
            kept,
            flaw,
            ..
        } = recording;
        let unjoined = "a stream that joined the capture was not joined again: make the first stream wait for it";
        let is_joined = plan.is_joined_by(&branches[&origin].frontier);
        let flaw = flaw.or((!is_joined).then_some(unjoined));
        Some(Ended {
            graph,
            plan: flaw.map_or(Ok(plan), Err),
            kept,
        })
    }
}
