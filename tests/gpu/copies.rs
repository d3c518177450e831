//! Copies between host and device, in the order of streams, whatever memory they are from and to.

use crate::bench::Bench;
use crate::common::{MIB, poll};
use crate::cuda::{Cuda, Setting};
use crate::site::{Site, Worker, settle_all};
use cudarc::driver::{LaunchConfig, PushKernelArg};
use futures::executor::block_on;
use futures::future::try_join_all;
use weirpool::{Block, Unordered};

/// The value of the bytes around the copied ones.
const AROUND: u8 = 0xEE;

fn random_bytes(random: &mut fastrand::Rng, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    random.fill(&mut bytes);
    bytes
}

/// All of a block, after what its stream was given so far.
fn all_of<S: Setting>(worker: &Worker<Cuda<S>>, block: &Block) -> Vec<u8> {
    let download = block.download(&worker.stream, 0..block.size()).unwrap();
    block_on(download).unwrap()
}

/// Whatever the size and the place; and nothing else is written.
pub(crate) fn bytes_survive_a_round_trip<S: Setting>() {
    const SIZES: [usize; 9] = [0, 1, 3, 511, 512, 4096, 65_537, (4 << 20) + 3, 16 << 20];
    const OFFSETS: [u64; 3] = [0, 1, 1000];
    let site = Site::<Cuda<S>>::new(64 * MIB);
    let worker = site.worker();
    let mut random = fastrand::Rng::with_seed(1);
    for (size, offset) in SIZES.into_iter().flat_map(|s| OFFSETS.map(|o| (s, o))) {
        let mut block = worker.take(offset + size as u64 + 100);
        worker.fill(&block, AROUND);
        let bytes = random_bytes(&mut random, size);
        let upload = block.upload(&worker.stream, offset, &bytes).unwrap();
        let range = offset..offset + size as u64;
        let download = block.download(&worker.stream, range.clone()).unwrap();
        let back = block_on(download).unwrap();
        assert!(back == bytes, "{size} bytes at {offset}");
        block_on(upload).unwrap();
        let mut expected = vec![AROUND; block.size() as usize];
        expected[range.start as usize..range.end as usize].copy_from_slice(&bytes);
        let is_right = all_of(&worker, &block) == expected;
        assert!(is_right, "around {size} bytes at {offset}");
    }
    worker.settle();
    site.assert_conserved();
}

/// The host's memory may change as soon as the call has returned, however long the copy has to wait.
pub(crate) fn bytes_are_taken_when_the_copy_is_submitted<S: Setting>() {
    let site = Site::<Cuda<S>>::new(8 * MIB);
    let worker = site.worker();
    let mut block = worker.take(MIB);
    let mut bytes = vec![1; MIB as usize];
    let gate = worker.bench.hold(&worker.work);
    let mut upload = block.upload(&worker.stream, 0, &bytes).unwrap();
    assert!(poll(&mut upload).is_pending());
    bytes.fill(2);
    worker.expect(&block, 1);
    gate.open();
    block_on(upload).unwrap();
    worker.free_and_settle(block);
    site.assert_sound();
}

/// A kernel with a block for an argument comes between the copies that it was given between.
pub(crate) fn copies_keep_the_order_of_their_stream<S: Setting>() {
    let site = Site::<Cuda<S>>::new(8 * MIB);
    let worker = site.worker();
    let mut block = worker.take(MIB);
    let gate = worker.bench.hold(&worker.work);
    let numbers: Vec<u32> = (0..MIB as u32 / 4).collect();
    let bytes = |numbers: &[u32]| -> Vec<u8> {
        numbers
            .iter()
            .flat_map(|number| number.to_ne_bytes())
            .collect()
    };
    let _upload = block.upload(&worker.stream, 0, &bytes(&numbers)).unwrap();
    let before = block.download(&worker.stream, 0..MIB).unwrap();
    add(&worker, &block, 5);
    let after = block.download(&worker.stream, 0..MIB).unwrap();
    add(&worker, &block, 1);
    gate.open();
    let more: Vec<_> = numbers.iter().map(|number| number + 5).collect();
    assert!(
        block_on(before).unwrap() == bytes(&numbers),
        "a kernel came first"
    );
    assert!(
        block_on(after).unwrap() == bytes(&more),
        "a kernel came too late, or too early"
    );
    worker.free_and_settle(block);
    site.assert_conserved();
}

/// By the block's own way of being a kernel's argument.
fn add<S: Setting>(worker: &Worker<Cuda<S>>, block: &Block, amount: u64) {
    let argument = worker.stream.record_use(Unordered::Once(block)).unwrap();
    let words = block.requested() / 4;
    let mut launch = worker.work.launch_builder(worker.bench.gpu.kernel("add"));
    launch.arg(&argument).arg(&words).arg(&amount);
    // SAFETY: the kernel touches so many words from the argument on, all of the block's.
    unsafe { launch.launch(LaunchConfig::for_num_elems(words as u32)) }.unwrap();
}

/// On another stream a copy comes after what that stream waited for.
pub(crate) fn copies_come_after_what_their_stream_waited_for<S: Setting>() {
    let site = Site::<Cuda<S>>::new(8 * MIB);
    let [kernels, up, down] = site.workers();
    let mut block = kernels.take(MIB);
    let gate = site.bench.hold(&up.work);
    let zeros = vec![0; MIB as usize];
    let _upload = block.upload(&up.stream, 0, &zeros).unwrap();
    kernels.come_after(&up);
    add(&kernels, &block, 3);
    down.come_after(&kernels);
    let mut download = block.download(&down.stream, 0..MIB).unwrap();
    site.bench.let_run();
    assert!(
        poll(&mut download).is_pending(),
        "the first of the streams is held"
    );
    gate.open();
    let expected: Vec<u8> = 3u32.to_ne_bytes().repeat(MIB as usize / 4);
    assert!(block_on(download).unwrap() == expected);
    drop(block);
    settle_all(&[&kernels, &up, &down]);
    site.assert_conserved();
}

/// The copy goes on: the host memory that it writes to is not reused until it is over.
pub(crate) fn dropped_download_has_no_effect<S: Setting>() {
    let site = Site::<Cuda<S>>::new(8 * MIB);
    let [dropped, kept] = site.workers();
    let blocks = [dropped.take(MIB), kept.take(MIB)];
    dropped.fill(&blocks[0], 1);
    kept.fill(&blocks[1], 2);
    settle_all(&[&dropped, &kept]);
    let first = site.bench.hold(&dropped.work);
    let second = site.bench.hold(&kept.work);
    for _ in 0..4 {
        let mut download = blocks[0].download(&dropped.stream, 0..MIB).unwrap();
        assert!(poll(&mut download).is_pending());
        drop(download);
    }
    let download = blocks[1].download(&kept.stream, 0..MIB).unwrap();
    second.open();
    kept.settle();
    // Now those that were dropped write.
    first.open();
    dropped.settle();
    let bytes = block_on(download).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 2), "another owner's bytes");
    // And their memory on the host can be used again.
    for (worker, block, value) in [(&dropped, &blocks[0], 1), (&kept, &blocks[1], 2)] {
        assert!(
            all_of(worker, block)[..MIB as usize]
                .iter()
                .all(|byte| *byte == value)
        );
    }
    drop(blocks);
    site.assert_conserved();
}

/// Many blocks, on several streams, each with bytes of its own.
pub(crate) fn many_copies_are_under_way_at_once<S: Setting>() {
    let site = Site::<Cuda<S>>::new(64 * MIB);
    let workers = site.workers::<4>();
    let mut random = fastrand::Rng::with_seed(2);
    let gates = workers
        .each_ref()
        .map(|worker| worker.bench.hold(&worker.work));
    let (mut blocks, mut all) = (Vec::new(), Vec::new());
    let mut downloads = Vec::new();
    for turn in 0..128 {
        let worker = &workers[turn % workers.len()];
        let count = random.usize(1..400_000);
        let bytes = random_bytes(&mut random, count);
        let mut block = worker.take(count as u64);
        let _upload = block.upload(&worker.stream, 0, &bytes).unwrap();
        downloads.push(block.download(&worker.stream, 0..count as u64).unwrap());
        blocks.push(block);
        all.push(bytes);
    }
    drop(gates);
    let back = block_on(try_join_all(downloads)).unwrap();
    assert!(back == all);
    drop(blocks);
    workers.iter().for_each(Worker::settle);
    site.assert_conserved();
}
