//! Random operations against an oracle that knows the contents.

use crate::site::{MIB, Site, poll, work};
use fastrand::Rng;
use std::time::Duration;
use weirpool::{Block, Stream};
use weirpool_tiers::{Fetched, IntoSpillable, Spillable};

const STEPS: usize = 150;

struct Run {
    site: Site,
    streams: Vec<Stream>,
    /// With what it has everywhere.
    memory: Vec<(Spillable, u8)>,
    used: Vec<(Fetched, u8)>,
    blocks: Vec<Block>,
    random: Rng,
    failed: usize,
}

/// In any order of calls, within a device and a host that are too small, contents are kept, no work meets memory too
/// early, and the figures add up.
#[test]
fn random_calls_keep_contents() {
    let (mut spills, mut parked, mut refused, mut failed) = (0, 0, 0, 0);
    for seed in 0..60 {
        let mut random = Rng::with_seed(seed);
        let host = [2, 6, 24][random.usize(0..3)] * MIB;
        let site = Site::new(8 * MIB, host);
        let streams = (0..3).map(|_| site.pool.create_stream().unwrap());
        let mut run = Run {
            streams: streams.collect(),
            site,
            memory: Vec::new(),
            used: Vec::new(),
            blocks: Vec::new(),
            random,
            failed: 0,
        };
        for step in 0..STEPS {
            run.step(seed);
            let figures = run.site.tier.figures();
            let kept: u64 = run.memory.iter().map(|(memory, _)| memory.bytes()).sum();
            assert_eq!(
                figures.resident + figures.spilled,
                kept,
                "seed {seed}, step {step}"
            );
            assert!(figures.evictable + figures.spilled <= host);
            assert!(figures.evictable <= figures.resident);
            let evictable = run.site.pool.inspect().statistics().evictable;
            // A block that is fetched into may be an eighth larger.
            let sizes = figures.evictable..=figures.evictable * 9 / 8;
            assert!(sizes.contains(&evictable), "seed {seed}, step {step}");
            parked += usize::from(figures.evictable < figures.resident && run.used.is_empty());
        }
        spills += run.site.tier.figures().spills;
        refused += run.site.tier.figures().refusals;
        failed += run.failed;
        run.end(seed);
    }
    assert!(
        spills > 500 && parked > 100 && failed > 20,
        "{spills} {parked} {failed}"
    );
    assert!(refused > 0, "memory of the host in pieces");
}

impl Run {
    fn stream(&mut self) -> Stream {
        let at = self.random.usize(0..self.streams.len());
        self.streams[at].clone()
    }

    fn step(&mut self, seed: u64) {
        let stream = self.stream();
        let device = self.site.device.clone();
        match self.random.u8(0..16) {
            0..3 => {
                let bytes = self.random.u64(1..3 * MIB);
                let request = self.site.pool.allocate(&stream, bytes);
                let request = request.timeout(Duration::from_millis(3));
                match device.block_on(request) {
                    Ok(mut block) => {
                        let value = self.random.u8(..);
                        block.fill(&stream, value).unwrap();
                        let memory = block.into_spillable(&self.site.tier);
                        self.memory.push((memory, value));
                    }
                    Err(_) => self.failed += 1,
                }
            }
            3..5 => {
                let bytes = self.random.u64(1..5 * MIB);
                if let Ok(mut block) = self.site.pool.try_allocate(&stream, bytes) {
                    block.fill(&stream, 0xee).unwrap();
                    self.blocks.push(block);
                }
            }
            5..7 if !self.blocks.is_empty() => {
                let at = self.random.usize(0..self.blocks.len());
                drop(self.blocks.swap_remove(at));
            }
            7..11 if !self.memory.is_empty() => self.fetch(&stream, seed),
            11 if !self.memory.is_empty() => {
                let at = self.random.usize(0..self.memory.len());
                drop(self.memory.swap_remove(at));
            }
            12 if !self.used.is_empty() => {
                let at = self.random.usize(0..self.used.len());
                let (used, value) = self.used.swap_remove(at);
                work(&stream, &used, Duration::from_micros(400));
                self.site.assert_is(&used, value);
            }
            13 if !self.memory.is_empty() => {
                // Written anew, if nothing uses it.
                let at = self.random.usize(0..self.memory.len());
                let (memory, value) = self.memory.swap_remove(at);
                let changed = match memory.into_block() {
                    Ok(mut block) => {
                        self.site.assert_is(&block, value);
                        block.fill(&stream, value ^ 1).unwrap();
                        (block.into_spillable(&self.site.tier), value ^ 1)
                    }
                    Err(memory) => (memory, value),
                };
                self.memory.push(changed);
            }
            14 => {
                let bytes = self.random.u64(1..4 * MIB);
                self.site.pool.maintain().evict(bytes);
            }
            _ => device.advance(Duration::from_micros(self.random.u64(1..500))),
        }
    }

    fn fetch(&mut self, stream: &Stream, seed: u64) {
        let (memory, value) = &self.memory[self.random.usize(0..self.memory.len())];
        let mut fetch = Box::pin(memory.fetch(stream).timeout(Duration::from_millis(3)));
        // Some are dropped on the way.
        for _ in 0..self.random.u8(0..3) {
            if self.random.u8(0..4) == 0 {
                let _ = poll(fetch.as_mut());
                return;
            }
        }
        match self.site.device.block_on(fetch) {
            Ok(fetched) => {
                let bytes = fetched.download(stream, 0..memory.bytes()).unwrap();
                let bytes = self.site.device.block_on(bytes).unwrap();
                let is_kept = bytes.iter().all(|byte| byte == value);
                assert!(is_kept, "seed {seed}: {value} is lost");
                if self.random.bool() && self.used.len() < 2 {
                    self.used.push((fetched, *value));
                }
            }
            Err(_) => self.failed += 1,
        }
    }

    fn end(self, seed: u64) {
        let Self {
            site,
            streams,
            memory,
            used,
            blocks,
            ..
        } = self;
        drop((used, blocks));
        for (memory, value) in memory {
            // It needs room on the host for what it displaces.
            if let Ok(fetched) = site.fetch(&memory) {
                let bytes = fetched.download(&site.stream, 0..memory.bytes()).unwrap();
                let bytes = site.device.block_on(bytes).unwrap();
                assert!(bytes.iter().all(|byte| *byte == value), "seed {seed}");
            }
        }
        drop(streams);
        site.end();
    }
}
