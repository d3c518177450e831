//! Unit tests of the heap as a whole, and their helpers.

mod checking;
mod granting;
mod model;
mod planning;
mod releasing;
mod reserving;
mod windows;

use super::*;
use crate::id::ReservationId;

pub(super) const MIB: u64 = 1 << 20;
pub(super) const CHUNK: u64 = 2 * MIB;
pub(super) const BASE: u64 = 1 << 40;
pub(super) const CAPACITY: u64 = 32 * MIB;
pub(super) const A: StreamId = StreamId(1);
pub(super) const B: StreamId = StreamId(2);
pub(super) const C: StreamId = StreamId(3);
pub(super) const D: StreamId = StreamId(4);

pub(super) fn heap(virtual_memory: bool) -> Heap {
    heap_with(virtual_memory, GrowBy::default())
}

pub(super) fn heap_with(virtual_memory: bool, growth: GrowBy) -> Heap {
    let mut heap = Heap::new(Geometry {
        capacity: CAPACITY,
        chunk_bytes: CHUNK,
        granularity: CHUNK,
        virtual_memory,
        growth,
    });
    if virtual_memory {
        heap.add_range(BASE, 256 * MIB);
    }
    [A, B, C, D]
        .into_iter()
        .for_each(|stream| heap.register(stream, Ticket::ZERO));
    heap
}

pub(super) fn request(bytes: u64) -> Request {
    Request {
        bytes,
        alignment: GRANULE,
    }
}

pub(super) fn view<'a>(stream: StreamId, after: &'a Clock) -> View<'a> {
    View {
        stream,
        after,
        waits: None,
        placement: Placement::Anywhere,
    }
}

/// Grants what the stream may take as it is.
pub(super) fn take(heap: &mut Heap, stream: StreamId, bytes: u64) -> Option<Grant> {
    heap.take(request(bytes), &view(stream, &Clock::default()))
}

/// Plans with this growth, as the stream without any order.
fn plan(heap: &mut Heap, bytes: u64, growth: Growth) -> Option<Plan> {
    heap.plan(request(bytes), &view(A, &Clock::default()), growth)
}

fn mapping(plan: Option<Plan>) -> Mapping {
    match plan {
        Some(Plan::Map(mapping)) => mapping,
        other => panic!("not a mapping: {other:?}"),
    }
}

/// Carries out a plan as a device without faults does.
fn carry_out(heap: &mut Heap, plan: Plan) -> Option<Grant> {
    match plan {
        Plan::Map(mapping) => {
            let done = mapping.steps.len();
            mapping.commit(heap, Outcome { done, lost: false })
        }
        Plan::Memory(segment) => {
            let ends = heap
                .map
                .segments()
                .map(|(start, segment)| start + segment.bytes);
            // Segments of plain memory do not touch.
            let address = ends.max().map_or(BASE, |end| end + CHUNK);
            segment.commit(heap, Some(address), Fences::default())
        }
    }
}

/// Grants by joining, moving or taking memory.
pub(super) fn grow(heap: &mut Heap, stream: StreamId, bytes: u64) -> Option<Grant> {
    let plan = heap.plan(
        request(bytes),
        &view(stream, &Clock::default()),
        Growth::Allowed,
    )?;
    carry_out(heap, plan)
}

pub(super) fn get(heap: &mut Heap, stream: StreamId, bytes: u64) -> Option<Grant> {
    take(heap, stream, bytes).or_else(|| grow(heap, stream, bytes))
}

/// Grants blocks of these sizes from new memory.
fn grow_each<const N: usize>(heap: &mut Heap, sizes: [u64; N]) -> [Grant; N] {
    sizes.map(|bytes| grow(heap, A, bytes).expect("within the capacity"))
}

fn free(heap: &mut Heap, grant: &Grant) {
    heap.give_back(grant.id, Fences::default());
}

fn free_behind(heap: &mut Heap, grant: &Grant, stream: StreamId, ticket: u64) {
    heap.give_back(grant.id, Fences::one(stream, Ticket(ticket)));
}

/// Releases with this target, all of it. Returns the bytes released.
pub(super) fn release(heap: &mut Heap, target: Target) -> u64 {
    let release = heap.plan_release(target);
    let done = release.spans.len();
    heap.commit_release(release, done)
}

fn reserved(heap: &Heap) -> u64 {
    heap.totals().reserved.current
}

fn check(heap: &Heap) {
    check::invariants(heap).unwrap();
}

/// Every block, from the lowest address on: its kind, and its bytes in chunks.
fn layout(heap: &Heap) -> Vec<(&'static str, u64)> {
    let kind = |state: &State| match state {
        State::Free => "free",
        State::Pending(_) => "pending",
        State::Used(_) => "used",
        State::Reserved(..) => "reserved",
        State::Claimed(_) => "claimed",
        State::Hole => "hole",
        State::Room => "room",
    };
    let segments = heap.map.segments();
    let blocks = segments.flat_map(|(_, segment)| heap.map.blocks().from(segment.first));
    blocks
        .map(|(_, block)| (kind(&block.state), block.bytes / CHUNK))
        .collect()
}
