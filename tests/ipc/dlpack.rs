//! Blocks as tensors of other libraries, whose consumers are written here, and tensors of other producers as blocks.

use crate::common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use weirpool::device::sim::{Call, Fault, Operation, SimDevice, SimStream};
use weirpool::device::{DeviceErrorKind, DeviceStream};
use weirpool::dlpack::dlpark::ffi::{
    DLDataType, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned,
};
use weirpool::dlpack::dlpark::metadata::Dynamic;
use weirpool::dlpack::dlpark::{DlpackFlags, Managed, ManagedTensorBase};
use weirpool::dlpack::{DlpackError, Foreign};
use weirpool::testing::Invariants;
use weirpool::*;

static_assertions::assert_impl_all!(Foreign: Send, Sync);

type Versioned = Managed<DLManagedTensorVersioned>;

struct Site {
    device: SimDevice,
    pool: Pool,
    /// The producer's stream, the consumer's, and another one.
    streams: [(SimStream, Stream); 3],
}

impl Site {
    fn new() -> Self {
        let device = manual();
        let pool = pool(&device, 8 * MIB);
        let streams = [0, 1, 2].map(|_| stream(&device, &pool));
        Self {
            device,
            pool,
            streams,
        }
    }

    /// A block of all memory, written by work of the producer's stream that takes a while.
    fn written(&self) -> SharedBlock {
        let (work, stream) = &self.streams[0];
        let block = self.pool.try_allocate(stream, 8 * MIB).unwrap();
        use_block(work, &block, us(500));
        block.share()
    }

    fn exported(&self) -> Versioned {
        let block = self.written();
        let consumer = &self.streams[1].1;
        block
            .to_dlpack(DLDataType::U8, &[8 * MIB as i64], consumer)
            .unwrap()
    }

    /// All memory is free again, once all work is complete.
    fn settle(&self) {
        eventually(|| {
            self.device.advance(us(1000));
            self.pool.statistics().used.current == 0
        });
        drop(self.pool.try_allocate(&self.streams[2].1, 8 * MIB).unwrap());
        self.device.advance_to_end();
        self.device.assert_ordered();
        self.pool.check_conserved().unwrap();
    }
}

/// Submits a read of a tensor, as a library does that knows only the tensor.
fn read<M: ManagedTensorBase>(work: &SimStream, tensor: &Managed<M>, took: u64) {
    let tensor = tensor.validate().unwrap();
    let address = tensor.data_ptr().addr() as u64;
    let read = Operation::new(us(took)).named("read");
    work.submit(read.reads(address, tensor.num_bytes() as u64));
}

#[test]
fn tensor_describes_the_memory_in_place() {
    let site = Site::new();
    let [(_, stream), (_, consumer), _] = &site.streams;
    let buffer = Buffer::<f32>::try_allocate(&site.pool, stream, 24).unwrap();
    let buffer = buffer.share();
    let tensor: Versioned = buffer.to_dlpack(&[2, 3, 4], consumer).unwrap();
    let valid = tensor.validate_export().unwrap();
    let ordinal = weirpool::device::Device::ordinal(&site.device) as i32;
    let extension = DLDevice {
        device_type: DLDeviceType(12),
        device_id: ordinal,
    };
    assert_eq!(valid.data_ptr().addr() as u64, buffer.address().to_bits());
    assert_eq!(
        (valid.device(), valid.dtype()),
        (extension, DLDataType::F32)
    );
    assert_eq!(
        (valid.shape(), valid.strides()),
        (&[2, 3, 4][..], Some(&[12, 4, 1][..]))
    );
    assert_eq!(
        (valid.byte_offset(), tensor.flags()),
        (0, DlpackFlags::empty())
    );
    let part = buffer.view(4..10).unwrap();
    let legacy: Managed<DLManagedTensor> = part.to_dlpack(&[6], consumer).unwrap();
    let legacy_address = legacy.validate_export().unwrap().data_ptr().addr() as u64;
    assert_eq!(legacy_address, buffer.address().to_bits() + 16);
    let scalar: Versioned = buffer.view(0..1).unwrap().to_dlpack(&[], consumer).unwrap();
    assert_eq!(scalar.validate_export().unwrap().ndim(), 0);
    let empty: Versioned = buffer
        .view(0..0)
        .unwrap()
        .to_dlpack(&[0, 5], consumer)
        .unwrap();
    assert!(empty.validate_export().unwrap().data_ptr().is_null());
}

#[test]
fn wrong_shape_exports_nothing() {
    let site = Site::new();
    let [(_, home), (_, consumer), _] = &site.streams;
    let block = site.pool.try_allocate(home, 4096).unwrap().share();
    let export = |shape: &[i64]| {
        let tensor = block.to_dlpack::<DLManagedTensorVersioned>(DLDataType::F32, shape, consumer);
        tensor.map(drop).unwrap_err()
    };
    let wrong = |needed| DlpackError::WrongSize { needed, size: 4096 };
    assert_eq!(export(&[1023]), wrong(4092));
    assert_eq!(export(&[1025]), wrong(4100));
    assert_eq!(export(&[]), wrong(4));
    for shape in [
        &[-1024_i64][..],
        &[-32, -32],
        &[i64::MAX, 8],
        &[i64::MIN],
        &[1 << 62, 4],
    ] {
        let error = export(shape);
        assert!(
            matches!(&error, DlpackError::InvalidShape { .. }),
            "{error}"
        );
    }
    let other = pool(&site.device, 2 * MIB);
    let (_, foreign) = stream(&site.device, &other);
    let refused = block.to_dlpack::<DLManagedTensor>(DLDataType::F32, &[1024], &foreign);
    let refused = refused.map(drop).unwrap_err();
    assert_eq!(refused, DlpackError::Stream(StreamError::ForeignPool));
    drop(block);
    site.settle();
}

#[test]
fn consumer_reads_after_the_producers_work() {
    let site = Site::new();
    let tensor = site.exported();
    read(&site.streams[1].0, &tensor, 10);
    site.device.advance_to_end();
    site.device.assert_ordered();
    drop(tensor);
    site.settle();
}

/// The consumer drops the tensor on a thread of its own, before its work has begun. The next owner comes after that
/// work.
#[test]
fn memory_is_reused_after_the_work_that_the_consumer_had_submitted_when_it_dropped_the_tensor() {
    for is_on_a_thread in [false, true] {
        let site = Site::new();
        let tensor = site.exported();
        read(&site.streams[1].0, &tensor, 2000);
        match is_on_a_thread {
            true => std::thread::spawn(move || drop(tensor)).join().unwrap(),
            false => drop(tensor),
        }
        let (work, stream) = &site.streams[2];
        let next = site.pool.try_allocate(stream, 8 * MIB).unwrap();
        assert_eq!(next.source(), Source::DeviceWait);
        use_block(work, &next, us(1));
        drop(next);
        site.device.advance_to_end();
        assert!(site.device.now() >= us(2500), "after both");
        site.settle();
    }
}

/// As a library in C does, which calls the function that the tensor brings.
#[test]
fn deleter_that_is_called_from_c_frees_the_block_once() {
    let site = Site::new();
    let block = site.written();
    let bytes = [8 * MIB as i64];
    let consumer = &site.streams[1].1;
    let legacy = block.to_dlpack::<DLManagedTensor>(DLDataType::U8, &bytes, consumer);
    let legacy = legacy.unwrap().into_raw();
    let versioned = block.to_dlpack::<DLManagedTensorVersioned>(DLDataType::U8, &bytes, consumer);
    let versioned = versioned.unwrap().into_raw();
    drop(block);
    site.device.advance_to_end();
    // SAFETY: each deleter is called once, with its tensor.
    unsafe {
        ((*legacy).deleter.unwrap())(legacy);
        assert_eq!(site.pool.statistics().used.current, 8 * MIB, "one is left");
        ((*versioned).deleter.unwrap())(versioned);
    }
    assert_eq!(site.pool.statistics().used.current, 0);
    site.settle();
}

#[test]
fn tensor_outlives_its_pool() {
    for closes in [true, false] {
        let site = Site::new();
        let tensor = site.exported();
        read(&site.streams[1].0, &tensor, 100);
        if closes {
            site.pool.close();
        }
        let Site {
            device,
            pool,
            streams,
        } = site;
        drop(pool);
        let works = streams.map(|(work, stream)| {
            drop(stream);
            work
        });
        read(&works[1], &tensor, 100);
        drop(tensor);
        device.advance_to_end();
        eventually(|| {
            device.advance(us(1000));
            device.counters().physical_in_use == 0
        });
        device.assert_ordered();
    }
}

#[test]
fn broken_device_and_a_dropped_tensor_do_not_panic() {
    let site = Site::new();
    let tensor = site.exported();
    read(&site.streams[1].0, &tensor, 100);
    site.device.break_device("test");
    drop(tensor);
    assert!(site.pool.try_allocate(&site.streams[2].1, 8 * MIB).is_err());
}

/// Each call of the device fails once. The export fails as a whole, or is in order.
#[test]
fn failing_calls_export_nothing_or_in_order() {
    for call in [Call::Record, Call::Wait, Call::CreateEvent, Call::Query] {
        for nth in 1..=4 {
            for kind in [DeviceErrorKind::Other, DeviceErrorKind::Unsupported] {
                let site = Site::new();
                let block = site.written();
                site.device.script(call, nth, Fault::Fails(kind));
                let consumer = &site.streams[1].1;
                let bytes = [8 * MIB as i64];
                let device = site.device.clone();
                // Where the stream takes no wait, the host waits.
                let clock = std::thread::spawn(move || {
                    for _ in 0..20 {
                        device.advance(us(100));
                        std::thread::yield_now();
                    }
                });
                match block.to_dlpack::<DLManagedTensor>(DLDataType::U8, &bytes, consumer) {
                    Ok(tensor) => read(&site.streams[1].0, &tensor, 10),
                    Err(DlpackError::Stream(StreamError::Device(_)) | DlpackError::Device(_)) => {}
                    Err(error) => panic!("{error}"),
                }
                clock.join().unwrap();
                drop(block);
                site.settle();
            }
        }
    }
}

/// A consumer's stream that is being captured takes no wait; a tensor dropped in a capture is freed after it.
#[test]
fn tensor_is_dropped_while_the_consumers_stream_is_captured() {
    let site = Site::new();
    let tensor = site.exported();
    site.device.advance_to_end();
    let (_, consumer) = &site.streams[1];
    let capture = site.pool.capture(consumer).unwrap();
    drop(tensor);
    assert!(site.pool.try_allocate(&site.streams[2].1, 8 * MIB).is_err());
    drop(capture.end().unwrap());
    consumer.seal().unwrap();
    site.settle();
}

/// The tensor of a producer that counts how often it is released.
fn produced<M: ManagedTensorBase>(
    (address, bytes): (u64, u64),
    device: DLDevice,
    flags: DlpackFlags,
    released: &Arc<AtomicUsize>,
) -> Managed<M> {
    struct Owner(Arc<AtomicUsize>);
    impl Drop for Owner {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let shape = [bytes as i64 / 2, 2];
    let prepared = Dynamic::compact(&shape[..]).prepare_as::<M>().unwrap();
    let mut tensor = prepared.initialize(Box::new(Owner(released.clone())));
    tensor.set_data(address as *mut std::ffi::c_void);
    tensor.set_device(device).set_dtype(DLDataType::U8);
    // SAFETY: no flag promises a copy; the tests use the memory only in a simulated device, which checks addresses.
    unsafe {
        tensor.set_flags_unchecked(flags);
        tensor.finish()
    }
}

const EXTENSION: DLDevice = DLDevice {
    device_type: DLDeviceType(12),
    device_id: 0,
};

/// A tensor in memory of another pool, which is written on a stream of that one. The consumer's stream comes after.
fn import(site: &Site, producer: &SharedBlock, released: &Arc<AtomicUsize>) -> Foreign {
    let range = (producer.address().to_bits(), producer.size());
    let device = DLDevice {
        device_id: weirpool::device::Device::ordinal(&site.device) as i32,
        ..EXTENSION
    };
    let tensor =
        produced::<DLManagedTensorVersioned>(range, device, DlpackFlags::empty(), released);
    let consumer = &site.streams[1].1;
    producer.used_on(consumer).unwrap();
    consumer.wait(&site.streams[0].1.event().unwrap()).unwrap();
    // SAFETY: the consumer's stream waits for the producer's.
    unsafe { consumer.import_dlpack(tensor) }.unwrap()
}

#[test]
fn tensor_is_released_once_all_work_on_it_is_complete() {
    let site = Site::new();
    let producer = site.written();
    let released = Arc::new(AtomicUsize::new(0));
    let mut foreign = import(&site, &producer, &released);
    assert_eq!(foreign.block().address(), producer.address());
    assert_eq!(
        (foreign.shape(), foreign.dtype()),
        (&[4 * MIB as i64, 2][..], DLDataType::U8)
    );
    let kernel = |work: &SimStream, block: weirpool::device::Argument<'_>| {
        work.submit(Operation::new(us(1000)).writes(block.address(), block.size()));
    };
    // On a further stream, which comes after the point at which the data was ready.
    let other = &site.streams[2].1;
    producer.used_on(other).unwrap();
    let task = other.submit(foreign.block_mut().unwrap(), kernel).unwrap();
    drop(foreign);
    site.device.advance(us(1400));
    assert!(!task.is_complete().unwrap());
    assert_eq!(released.load(Ordering::SeqCst), 0);
    eventually(|| {
        site.device.advance(us(100));
        released.load(Ordering::SeqCst) > 0
    });
    assert!(task.is_complete().unwrap());
    assert_eq!(released.load(Ordering::SeqCst), 1);
    drop(producer);
    site.settle();
}

/// A use that is ordered by nothing else comes after the point of its stream at which the tensor was imported.
#[test]
fn further_stream_comes_after_the_import() {
    let site = Site::new();
    // SAFETY: the tensor is exported to this stream.
    let foreign = unsafe { site.streams[1].1.import_dlpack(site.exported()) }.unwrap();
    let (work, other) = &site.streams[2];
    let argument = foreign.block().on(other).unwrap();
    let read = Operation::new(us(10)).named("read");
    work.submit(read.reads(argument.address(), argument.size()));
    site.device.advance_to_end();
    site.device.assert_ordered();
    drop(foreign);
    site.settle();
}

#[test]
fn tensor_of_a_broken_device_is_never_released() {
    let site = Site::new();
    let producer = site.written();
    let released = Arc::new(AtomicUsize::new(0));
    let foreign = import(&site, &producer, &released);
    let use_on = &site.streams[1];
    foreign.block().used_on(&use_on.1).unwrap();
    use_block(&use_on.0, foreign.block(), us(100));
    site.device.break_device("test");
    drop(foreign);
    // The worker runs one job after the other: this one is behind.
    let healthy = Site::new();
    let after = Arc::new(AtomicUsize::new(0));
    let other = healthy.written();
    drop(import(&healthy, &other, &after));
    eventually(|| {
        healthy.device.advance(us(100));
        after.load(Ordering::SeqCst) == 1
    });
    assert_eq!(released.load(Ordering::SeqCst), 0);
}

#[test]
fn unsuitable_tensor_is_given_back() {
    let site = Site::new();
    let consumer = &site.streams[1].1;
    let own = DLDevice {
        device_id: weirpool::device::Device::ordinal(&site.device) as i32,
        ..EXTENSION
    };
    let next = DLDevice {
        device_id: own.device_id + 1,
        ..own
    };
    let released = Arc::new(AtomicUsize::new(0));
    let none = DlpackFlags::empty();
    type Is = fn(&DlpackError) -> bool;
    let cases: [((u64, u64), DLDevice, Is); 6] = [
        ((4096, 64), DLDevice::CPU, |error| {
            matches!(error, DlpackError::OtherDevice { .. })
        }),
        ((4096, 64), DLDevice::cuda(0), |error| {
            matches!(error, DlpackError::OtherDevice { .. })
        }),
        ((4096, 64), next, |error| {
            matches!(error, DlpackError::OtherDevice { .. })
        }),
        ((4096, 0), own, |error| {
            matches!(error, DlpackError::NoMemory { .. })
        }),
        ((0, 64), own, |error| {
            matches!(error, DlpackError::NoMemory { .. })
        }),
        ((u64::MAX - 8, 64), own, |error| {
            matches!(error, DlpackError::Malformed { .. })
        }),
    ];
    for (number, (range, device, is)) in cases.into_iter().enumerate() {
        let tensor = produced::<DLManagedTensor>(range, device, none, &released);
        // SAFETY: no memory is used.
        let error = unsafe { consumer.import_dlpack(tensor) }.unwrap_err();
        assert!(is(&error.reason), "{}", error.reason);
        assert_eq!(
            released.load(Ordering::SeqCst),
            number,
            "the error holds it"
        );
        drop(error.tensor);
        assert_eq!(released.load(Ordering::SeqCst), number + 1);
    }
    let columns = produced::<DLManagedTensor>((4096, 64), own, none, &released).into_raw();
    // SAFETY: a tensor has as many strides as dimensions; it stays one of 64 bytes.
    let columns = unsafe {
        (*columns).dl_tensor.strides.write(1);
        (*columns).dl_tensor.strides.add(1).write(32);
        Managed::from_raw(columns).unwrap()
    };
    // SAFETY: as above.
    let error = unsafe { consumer.import_dlpack(columns) }.unwrap_err();
    assert!(matches!(error.reason, DlpackError::NotContiguous { .. }));
    let read_only =
        produced::<DLManagedTensorVersioned>((4096, 64), own, DlpackFlags::READ_ONLY, &released);
    // SAFETY: as above.
    let mut foreign = unsafe { consumer.import_dlpack(read_only) }.unwrap();
    assert!(foreign.is_read_only() && foreign.block_mut().is_none());
}

/// Streams write, export, read, import and drop at random, on this thread and on others. The checker finds each use of
/// memory that another owner has.
#[test]
fn random_exports_and_imports_keep_order() {
    for seed in 0..if cfg!(miri) { 1 } else { 12 } {
        let mut random = fastrand_of(seed);
        let device = manual();
        let pool = builder(&device, 8 * MIB).build().unwrap();
        let streams = [0, 1, 2, 3].map(|_| stream(&device, &pool));
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
                    let mut granted = None;
                    eventually(|| {
                        granted = pool.try_allocate(&streams[home].1, MIB).ok();
                        if granted.is_none() {
                            device.advance(us(100));
                        }
                        granted.is_some()
                    });
                    let mut block = granted.unwrap();
                    let write = Operation::new(us(random(60) as u64 + 1));
                    let writer = &streams[random(4)];
                    let argument = block.write_on(&writer.1).unwrap();
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
                    let argument = foreign.block().read_on(other).unwrap();
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
            pool.statistics().used.current == 0
        });
        device.assert_ordered();
        pool.check_conserved().unwrap();
        assert!(exports > 60, "{exports}");
    }
}

/// Returns numbers below the argument.
fn fastrand_of(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    }
}

/// The tensor is dropped while its external stream exists, as that stream's owner has promised.
#[test]
fn external_stream_of_the_consumer_is_named_only_in_calls() {
    let site = Site::new();
    let block = site.written();
    let work = site.device.create_stream();
    let external = External::of(&work);
    assert!(external.external_id().is_some());
    let consumer = site.pool.register(&external).unwrap();
    let bytes = [8 * MIB as i64];
    let tensor = block.to_dlpack::<DLManagedTensor>(DLDataType::U8, &bytes, &consumer);
    let tensor = tensor.unwrap();
    drop(block);
    read(&work, &tensor, 700);
    drop(tensor);
    drop(consumer);
    // Nothing names it any more, though its work is pending.
    drop(work);
    let (work, stream) = &site.streams[2];
    let next = now_or_wait(&site, stream);
    use_block(work, &next, us(1));
    drop(next);
    site.settle();
}

fn now_or_wait(site: &Site, stream: &Stream) -> Block {
    let mut allocated = None;
    eventually(|| {
        site.device.advance(us(100));
        allocated = site.pool.try_allocate(stream, 8 * MIB).ok();
        allocated.is_some()
    });
    allocated.unwrap()
}
