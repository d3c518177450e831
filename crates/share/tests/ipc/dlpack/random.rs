//! Tensors and blocks at random.

use super::*;

/// Streams write, export, read, import and drop at random, on this thread and on others. The checker finds each use of
/// memory that another owner has.
#[test]
fn random_exports_and_imports_keep_order() {
    for seed in 0..if cfg!(miri) { 1 } else { 12 } {
        let mut generator = fastrand::Rng::with_seed(seed);
        let mut random = |below: usize| generator.usize(..below);
        let device = manual();
        let pool = builder(&device, 8 * MIB).build().unwrap();
        let streams: [_; 4] = streams(&device, &pool);
        let mut tensors: Vec<(usize, Versioned)> = Vec::new();
        let mut threads = Vec::new();
        let mut exports = 0;
        for _ in 0..400 {
            let (home, consumer) = (random(4), random(4));
            match random(6) {
                0 | 1 => {
                    if tensors.len() == 8 {
                        device.advance(us(500));
                        continue;
                    }
                    // Imported tensors are released on a thread of their own.
                    let mut block = wait_for(&device, &pool, &streams[home].1, MIB);
                    let write = Operation::new(us(random(60) as u64 + 1));
                    let writer = &streams[random(4)];
                    let argument = writer.1.record_use(&mut block).unwrap();
                    writer
                        .0
                        .submit(write.writes(argument.address(), argument.size()));
                    let shape = [MIB as i64];
                    let tensor = block.share();
                    let tensor = tensor.to_dlpack(DLDataType::U8, &shape, &streams[consumer].1);
                    tensors.push((consumer, tensor.unwrap()));
                    exports += 1;
                }
                2 if !tensors.is_empty() => {
                    let (consumer, tensor) = &tensors[random(tensors.len())];
                    read(&streams[*consumer].0, tensor, random(100) as u64 + 1);
                }
                3 | 4 if !tensors.is_empty() => {
                    let (_, tensor) = tensors.swap_remove(random(tensors.len()));
                    match random(3) {
                        0 => threads.push(std::thread::spawn(move || drop(tensor))),
                        _ => drop(tensor),
                    }
                }
                5 if !tensors.is_empty() => {
                    let (consumer, tensor) = tensors.swap_remove(random(tensors.len()));
                    // SAFETY: the tensor was exported to this stream.
                    let foreign = unsafe { streams[consumer].1.import_dlpack(tensor) }.unwrap();
                    let other = &streams[home].1;
                    let argument = other.record_use(foreign.block()).unwrap();
                    let read = Operation::new(us(random(100) as u64 + 1));
                    let work = &streams[home].0;
                    work.submit(read.reads(argument.address(), argument.size()));
                }
                _ => device.advance(us(random(40) as u64)),
            }
        }
        drop(tensors);
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        eventually(|| {
            device.advance(us(1000));
            pool.inspect().statistics().used.current == 0
        });
        device.assert_ordered();
        pool.inspect().check_conserved().unwrap();
        assert!(exports > 60, "{exports}");
    }
}
