//! Sequences of operations of a pool on the simulated device: each byte pair of the input is one operation.
//!
//! The ordering checker of the device panics if memory is reused too early. At the end all blocks are freed; then every
//! request that still waits must be served, and the pool must hold no used bytes.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;
use weirpool::device::sim::{Clock, Operation, SimDevice, SimStream};
use weirpool::{AllocateOwned, Block, Pool, Stream, Unordered};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 32 * MIB;
const STREAMS: usize = 3;
/// The most requests that wait at one time.
const WAITING: usize = 16;
/// The most operations of a sequence.
const LONGEST: usize = 2000;

/// From blocks of a lane to blocks larger than the capacity.
const SIZES: [u64; 8] = [
    1,
    512,
    64 * KIB,
    MIB,
    3 * MIB,
    9 * MIB,
    CAPACITY,
    CAPACITY + 1,
];

/// A stream, as the device and as the pool know it.
struct Lane {
    work: SimStream,
    stream: Stream,
}

/// A pool with what a sequence of operations made.
struct Machine {
    device: SimDevice,
    pool: Pool,
    lanes: Vec<Lane>,
    blocks: Vec<Block>,
    waiting: Vec<Pin<Box<AllocateOwned>>>,
}

/// Runs the sequence of operations that `data` stands for. Returns their number.
///
/// # Panics
/// When the pool breaks a promise.
pub fn run(data: &[u8]) -> usize {
    let mut machine = Machine::new();
    let operations = data.chunks_exact(2).take(LONGEST);
    let count = operations.len();
    for pair in operations {
        machine.step(pair[0], pair[1]);
    }
    machine.end();
    count
}

impl Machine {
    fn new() -> Self {
        let device = SimDevice::builder()
            .memory(2 * CAPACITY)
            .clock(Clock::Manual)
            .build();
        let pool = Pool::builder(device.clone()).capacity(CAPACITY);
        let pool = pool.build().expect("a pool");
        let lane = |_| {
            let work = device.create_stream();
            let stream = pool.register(&work).expect("a stream");
            Lane { work, stream }
        };
        Self {
            lanes: (0..STREAMS).map(lane).collect(),
            device,
            pool,
            blocks: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// Runs one operation with a stream and an argument.
    fn step(&mut self, operation: u8, argument: u8) {
        let stream = usize::from(operation >> 4) % STREAMS;
        let argument = usize::from(argument);
        match operation & 15 {
            0..=2 => self.try_allocate(stream, argument),
            3 => self.allocate(stream, argument),
            4..=6 => self.free(argument),
            7 => self.free_on(stream, argument),
            8 => self.use_block(stream, argument),
            9 => self.order(stream, argument % STREAMS),
            10 => self
                .device
                .advance(Duration::from_micros(argument as u64 * 10)),
            11 => drop(self.take_waiting(argument)),
            12 => drop(self.lanes[stream].stream.seal()),
            13 => self.grow(argument),
            14 => drop(self.pool.trim_to(SIZES[argument % SIZES.len()])),
            _ => self.reserve(stream, argument),
        }
        self.poll();
    }

    fn try_allocate(&mut self, stream: usize, argument: usize) {
        let bytes = SIZES[argument % SIZES.len()] + argument as u64;
        let block = self.pool.try_allocate(&self.lanes[stream].stream, bytes);
        assert!(block.is_err() || bytes <= CAPACITY, "{bytes} bytes");
        self.blocks.extend(block);
    }

    fn allocate(&mut self, stream: usize, argument: usize) {
        let bytes = SIZES[argument % SIZES.len()];
        let allocation = self.pool.allocate_owned(&self.lanes[stream].stream, bytes);
        if self.waiting.len() < WAITING {
            self.waiting.push(Box::pin(allocation));
        }
    }

    fn take_waiting(&mut self, argument: usize) -> Option<Pin<Box<AllocateOwned>>> {
        let any = !self.waiting.is_empty();
        any.then(|| self.waiting.swap_remove(argument % self.waiting.len()))
    }

    fn take_block(&mut self, argument: usize) -> Option<Block> {
        let any = !self.blocks.is_empty();
        any.then(|| self.blocks.swap_remove(argument % self.blocks.len()))
    }

    fn free(&mut self, argument: usize) {
        drop(self.take_block(argument));
    }

    fn free_on(&mut self, stream: usize, argument: usize) {
        let Some(mut block) = self.take_block(argument) else {
            return;
        };
        let stream = &self.lanes[stream].stream;
        if argument & 1 == 0 {
            block.move_to(stream).expect("a move");
            return;
        }
        let made = block.stream().event().expect("an event");
        stream.wait(&made).expect("an order");
        stream
            .record_use(Unordered::UntilFreed(&block))
            .expect("a use");
        drop(block.deallocate_on(stream).expect("a deallocation"));
    }

    /// Submits work of the stream that writes a block.
    fn use_block(&mut self, stream: usize, argument: usize) {
        let Some(block) = self.take_block(argument) else {
            return;
        };
        let lane = &self.lanes[stream];
        if block.stream().id() != lane.stream.id() {
            let made = block.stream().event().expect("an event");
            lane.stream.wait(&made).expect("an order");
            lane.stream
                .record_use(Unordered::UntilFreed(&block))
                .expect("a use");
        }
        let time = Duration::from_micros(argument as u64 * 7);
        let work = Operation::new(time).writes(block.address(), block.requested().max(1));
        lane.work.submit(work);
        // A later use on the block's own stream comes after this one.
        let used = lane.stream.event().expect("an event");
        block.stream().wait(&used).expect("an order");
        self.blocks.push(block);
    }

    fn order(&mut self, stream: usize, before: usize) {
        let event = self.lanes[before].stream.event().expect("an event");
        self.lanes[stream].stream.wait(&event).expect("an order");
    }

    fn grow(&mut self, argument: usize) {
        if let Some(mut block) = self.take_block(argument) {
            let _ = block.grow(64 * KIB).try_now();
            self.blocks.push(block);
        }
    }

    fn reserve(&mut self, stream: usize, argument: usize) {
        let bytes = SIZES[argument % SIZES.len()];
        let Ok(reservation) = self.pool.reserve(bytes).try_now() else {
            return;
        };
        let block = reservation.allocate(&self.lanes[stream].stream, bytes / 2 + 1);
        self.blocks.push(block.expect("memory of the reservation"));
    }

    /// Polls every request that waits.
    fn poll(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting = Vec::new();
        for mut request in self.waiting.drain(..) {
            match request.as_mut().poll(&mut context) {
                std::task::Poll::Ready(block) => self.blocks.extend(block),
                std::task::Poll::Pending => waiting.push(request),
            }
        }
        self.waiting = waiting;
    }

    fn end(mut self) {
        self.pool.inspect().check().expect("the invariants");
        let mut rounds = 0;
        while !self.waiting.is_empty() || rounds == 0 {
            self.blocks.clear();
            self.device.advance_to_end();
            self.poll();
            rounds += 1;
            assert!(rounds < 10 * WAITING, "requests wait with all memory free");
        }
        self.blocks.clear();
        self.device.advance_to_end();
        self.pool
            .inspect()
            .check_conserved()
            .expect("all memory given back");
        self.device.assert_ordered();
    }
}
