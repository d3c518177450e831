//! Tensors as blocks.

use super::*;

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
    consumer
        .record_use(Unordered::UntilFreed(producer.block()))
        .unwrap();
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
    other
        .record_use(Unordered::UntilFreed(producer.block()))
        .unwrap();
    let mut bytes = foreign.bytes_mut().unwrap();
    let task = other.submit(&mut bytes, kernel).unwrap();
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
    let argument = other.record_use(Unordered::Once(foreign.block())).unwrap();
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
    use_on
        .1
        .record_use(Unordered::UntilFreed(foreign.block()))
        .unwrap();
    use_block(&use_on.0, foreign.block(), us(100));
    site.device.faults().break_device("test");
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
    assert!(foreign.is_read_only() && foreign.bytes_mut().is_none());
}
