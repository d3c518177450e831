//! Blocks as tensors.

use super::*;

#[test]
fn tensor_describes_the_memory_in_place() {
    let site = Site::new();
    let [(_, stream), (_, consumer), _] = &site.streams;
    let buffer = site.pool.buffer::<f32>(stream, 24).try_now().unwrap();
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
    assert!(matches!(
        refused,
        DlpackError::Stream(StreamError::ForeignPool(_))
    ));
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
        assert_eq!(
            site.pool.inspect().statistics().used.current,
            8 * MIB,
            "one is left"
        );
        ((*versioned).deleter.unwrap())(versioned);
    }
    assert_eq!(site.pool.inspect().statistics().used.current, 0);
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
    site.device.faults().break_device("test");
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
                site.device.faults().script(call, nth, Fault::Fails(kind));
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

/// The tensor is dropped while its external stream exists, as that stream's owner has promised.
#[test]
fn external_stream_of_the_consumer_is_named_only_in_calls() {
    let site = Site::new();
    let block = site.written();
    let work = site.device.create_stream();
    let external = External::of(&work);
    assert!(external.properties().unwrap().external_id.is_some());
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
    let next = wait_for(&site.device, &site.pool, stream, 8 * MIB);
    use_block(work, &next, us(1));
    drop(next);
    site.settle();
}

/// The host would wait for a task of the thread that waits.
#[test]
fn export_refuses_to_block_a_current_thread_runtime() {
    for memory in devices() {
        let is_virtual = weirpool::device::Device::capabilities(&memory).virtual_memory;
        let device = SimDevice::builder()
            .memory(64 * MIB)
            .virtual_memory(is_virtual)
            .clock(weirpool::device::sim::Clock::Wall)
            .device_side_waits(false)
            .build();
        let pool = pool(&device, 8 * MIB);
        let [(_, home), (_, consumer)] = streams(&device, &pool);
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let block = pool.try_allocate(&home, 4096).unwrap();
            let task = home.spawn(tokio::task::yield_now()).unwrap();
            let block = block.share();
            let _ = home.record_use(&block).unwrap();
            let ended = tokio::spawn(task);
            let export =
                || block.to_dlpack::<DLManagedTensorVersioned>(DLDataType::U8, &[4096], &consumer);
            let refused = export().err();
            let blocks = DlpackError::Stream(StreamError::BlocksRuntime);
            assert_eq!(refused, Some(blocks));
            ended.await.unwrap().unwrap();
            home.synchronize().await.unwrap();
            assert!(export().is_ok());
        });
    }
}
