//! Random work of three devices, on streams of each, in pools of each. Bytes and the ordering checker find mistakes.

use super::*;
use std::collections::VecDeque;

const SIZE: u64 = 64 << 10;

/// A block, the pool that it is of, and the value that its bytes have behind all work so far.
struct Live {
    block: Block,
    pool: usize,
    value: u8,
}

struct World {
    devices: [SimDevice; 3],
    pools: Vec<TestPool>,
    /// For each pool, streams of each device that has access; the pool's own come first.
    streams: Vec<Vec<Stream>>,
    blocks: Vec<Live>,
    reads: VecDeque<(Download, u8)>,
    random: fastrand::Rng,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let devices: [SimDevice; 3] = settings().seed(seed).build_host();
        let pool = |device: &SimDevice| pool(device, 4 * MIB);
        let pools: Vec<_> = devices.iter().map(pool).collect();
        let mut streams = Vec::new();
        for (at, pool) in pools.iter().enumerate() {
            let mut own: Vec<_> = (0..2).map(|_| pool.create_stream().unwrap()).collect();
            for other in devices.iter().enumerate().filter(|(other, _)| *other != at) {
                if random.bool() {
                    pool.peers().enable(other.1).unwrap();
                    own.push(pool.register(&other.1.create_stream()).unwrap());
                }
            }
            streams.push(own);
        }
        Self {
            devices,
            pools,
            streams,
            blocks: Vec::new(),
            reads: VecDeque::new(),
            random,
        }
    }

    fn stream_of(&mut self, pool: usize) -> Stream {
        let at = self.random.usize(..self.streams[pool].len());
        self.streams[pool][at].clone()
    }

    fn any(&mut self) -> Option<usize> {
        (!self.blocks.is_empty()).then(|| self.random.usize(..self.blocks.len()))
    }

    fn allocate(&mut self) {
        let pool = self.random.usize(..self.pools.len());
        let stream = self.stream_of(pool);
        if let Ok(block) = self.pools[pool].try_allocate(&stream, SIZE) {
            let value = self.random.u8(..);
            let mut live = Live { block, pool, value };
            live.block.fill(&stream, value).unwrap();
            self.blocks.push(live);
        }
    }

    fn write(&mut self, at: usize) {
        let stream = self.stream_of(self.blocks[at].pool);
        let (value, time) = (self.random.u8(..), us(self.random.u64(1..50)));
        let submit = |work: &SimStream, block: device::Argument<'_>| {
            let (address, bytes) = (block.address(), block.size());
            let write = Operation::new(time).named("write").writes(address, bytes);
            work.submit(write.run(move |memory| memory.fill(address, bytes, value)));
        };
        let live = &mut self.blocks[at];
        drop(stream.submit(&mut live.block, submit).unwrap());
        live.value = value;
    }

    fn copy(&mut self, from: usize, to: usize) {
        let of = if self.random.bool() { from } else { to };
        let stream = self.stream_of(self.blocks[of].pool);
        let [source, target] = self.blocks.get_disjoint_mut([from, to]).unwrap();
        let copied = source.block.copy_to(0..SIZE, &mut target.block, 0, &stream);
        drop(copied.unwrap());
        target.value = source.value;
    }

    fn read(&mut self, at: usize) {
        let stream = self.stream_of(self.blocks[at].pool);
        let live = &self.blocks[at];
        let download = live.block.download(&stream, 0..SIZE).unwrap();
        self.reads.push_back((download, live.value));
    }

    fn step(&mut self) {
        match (self.random.u32(..10), self.any(), self.any()) {
            (0..2, ..) | (_, None, _) => self.allocate(),
            (2..4, Some(at), _) => self.write(at),
            (4..7, Some(from), Some(to)) if from != to => self.copy(from, to),
            (7, Some(at), _) => self.read(at),
            (8, Some(at), _) => drop(self.blocks.swap_remove(at)),
            _ => {
                let by = us(self.random.u64(..40));
                self.devices[0].advance(by);
            }
        }
    }

    fn check(&mut self) {
        self.devices[0].advance_to_end();
        for (download, value) in self.reads.drain(..) {
            let seen = now(download).unwrap();
            assert!(seen.iter().all(|byte| *byte == value));
        }
        self.devices[0].assert_ordered();
    }
}

#[test]
fn random_work_of_three_devices_keeps_bytes_and_order() {
    for seed in 0..60 {
        let mut world = World::new(seed);
        for _ in 0..150 {
            world.step();
        }
        world.check();
        world.blocks.clear();
        world.devices[0].advance_to_end();
        for pool in &world.pools {
            pool.maintain().reap().unwrap();
            pool.inspect().check_conserved().unwrap();
        }
    }
}
