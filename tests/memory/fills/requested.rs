//! Fills that a request or the owner of a block asks for.

use super::*;
use weirpool::Unordered;
use weirpool::device::DeviceErrorKind::{Other, Unsupported};

/// Pools over virtual and over plain memory, that fill nothing by themselves.
fn setups() -> [Setup; 2] {
    [true, false].map(|is_virtual| {
        let device = manual_builder().virtual_memory(is_virtual).build();
        Setup::on(device, |builder| builder)
    })
}

/// Leaves memory that is full of sevens: in the stream's cache, and in the heap.
fn leave_sevens(setup: &Setup) {
    for bytes in [64 * MIB, MIB, 4096] {
        let block = setup.take(bytes);
        write_after(&setup.work, &block, 5, 7);
        drop(block);
    }
}

#[track_caller]
fn assert_full_of(setup: &Setup, block: &Block, byte: u8) {
    let seen = contents(setup, &setup.stream, block);
    assert!(seen.iter().all(|seen| *seen == byte));
}

#[test]
fn request_fills_its_block_and_no_other_block() {
    for setup in setups() {
        leave_sevens(&setup);
        for bytes in [4096, MIB, 5 * MIB] {
            let zeros = setup.pool.allocate(&setup.stream, bytes).zeroed();
            let zeros = zeros.try_now().unwrap();
            assert_full_of(&setup, &zeros, 0);
            let threes = setup.pool.allocate(&setup.stream, bytes).filled(3);
            let threes = setup.finish(threes).unwrap();
            assert_full_of(&setup, &threes, 3);
        }
        assert_eq!(setup.fills(), 6);
        drop(setup.take(MIB));
        assert_eq!(setup.fills(), 6);
    }
}

#[test]
fn waiting_request_fills_what_it_is_granted() {
    for setup in setups() {
        let all = setup.take(64 * MIB);
        write_after(&setup.work, &all, 5, 7);
        let mut one = setup.pool.allocate(&setup.stream, MIB).zeroed();
        let mut owned = setup.pool.allocate_owned(&setup.stream, MIB).filled(4);
        let layouts = [MIB, 4096];
        let mut many = setup.pool.allocate_many(&setup.stream, layouts).zeroed();
        assert!(poll(&mut one).is_pending() && poll(&mut owned).is_pending());
        assert!(poll(&mut many).is_pending());
        drop(all);
        assert_full_of(&setup, &setup.finish(one).unwrap(), 0);
        assert_full_of(&setup, &setup.finish(owned).unwrap(), 4);
        for block in setup.finish(many).unwrap() {
            assert_full_of(&setup, &block, 0);
        }
        assert_eq!(setup.fills(), 4);
    }
}

#[test]
fn request_in_the_scope_of_a_reservation_is_filled() {
    for setup in setups() {
        leave_sevens(&setup);
        let reservation = setup.finish(setup.pool.reserve(4 * MIB)).unwrap();
        let request = setup.pool.allocate(&setup.stream, MIB).zeroed();
        let block = setup.finish(Box::pin(reservation.scope(request))).unwrap();
        assert_eq!(reservation.left(), 3 * MIB);
        assert_full_of(&setup, &block, 0);
        setup.device.faults().fail_next(Call::Fill, Other);
        let request = setup.pool.allocate(&setup.stream, MIB).zeroed();
        let refused = setup.finish(Box::pin(reservation.scope(request)));
        assert_matches!(refused, Err(AllocError::Device(_)));
        assert_eq!(reservation.left(), 3 * MIB);
    }
}

#[test]
fn request_fills_instead_of_its_pool() {
    let setup = Setup::new(poison_on_allocate);
    let zeros = setup.pool.allocate(&setup.stream, MIB).zeroed();
    assert_full_of(&setup, &zeros.try_now().unwrap(), 0);
    assert_eq!(setup.fills(), 1);
}

fn poison_on_allocate(builder: PoolBuilder) -> PoolBuilder {
    builder.fill(FillAt::Allocation, Fill::Poison)
}

#[test]
fn growth_fills_the_added_bytes_alone() {
    let setup = Setup::new(|builder| builder);
    leave_sevens(&setup);
    setup.device.advance_to_end();
    let request = setup.pool.allocate(&setup.stream, CHUNK).room(8 * MIB);
    let mut block = request.try_now().unwrap();
    write_after(&setup.work, &block, 5, 9);
    setup.finish(block.grow(2 * MIB).zeroed()).unwrap();
    let seen = contents(&setup, &setup.stream, &block);
    let (old, new) = seen.split_at(CHUNK as usize);
    assert!(old.iter().all(|byte| *byte == 9) && new.iter().all(|byte| *byte == 0));
}

#[test]
fn further_stream_comes_after_a_requested_fill() {
    for setup in setups() {
        let (other, further) = stream(&setup.device, &setup.pool);
        let block = setup.pool.allocate(&setup.stream, 32 * MIB).zeroed();
        let block = block.try_now().unwrap();
        further.record_use(Unordered::UntilFreed(&block)).unwrap();
        write_after(&other, &block, 0, 7); // the fill takes some 13 us
        assert_eq!(setup.byte_at(block.address(), block.size()), 7);
    }
}

/// Unlike a fill of the pool's own, which is left out on a stream that is being captured.
#[test]
fn request_fails_if_its_fill_is_refused_and_loses_nothing() {
    let tag = Tag::new("requested fill");
    for setup in setups() {
        setup.pool.tag(tag).set_limit(Some(MIB));
        for kind in [Other, Unsupported] {
            for bytes in [4096, MIB] {
                let request = || setup.pool.allocate(&setup.stream, bytes).tag(tag).zeroed();
                setup.device.faults().fail_next(Call::Fill, kind);
                let refused = request().try_now().unwrap_err();
                assert_matches!(refused, AllocError::Device(error) if error.kind() == kind);
                setup.device.faults().fail_next(Call::Fill, kind);
                let refused = now(request()).unwrap_err();
                assert_matches!(refused, AllocError::Device(error) if error.kind() == kind);
                assert_eq!(setup.pool.tag(tag).statistics().used.current, 0);
                assert_full_of(&setup, &request().try_now().unwrap(), 0);
            }
        }
    }
}

#[test]
fn owner_fills_a_block_behind_all_its_earlier_uses() {
    for setup in setups() {
        let (other, further) = stream(&setup.device, &setup.pool);
        let mut block = setup.take(MIB);
        further.record_use(Unordered::UntilFreed(&block)).unwrap();
        write_after(&setup.work, &block, 300, 7);
        further.wait(&setup.stream.event().unwrap()).unwrap();
        write_after(&other, &block, 500, 8);
        block.fill(&setup.stream, 0x5a).unwrap();
        assert_eq!(setup.byte_at(block.address(), MIB), 0x5a);
        assert!(setup.device.now() >= us(800));
        write_after(&setup.work, &block, 5, 7);
        block.zero(&further).unwrap();
        assert_eq!(setup.byte_at(block.address(), MIB), 0);
    }
}

#[test]
fn buffer_is_filled_with_elements() {
    for setup in setups() {
        let mut buffer = setup
            .pool
            .buffer::<i32>(&setup.stream, 100)
            .try_now()
            .unwrap();
        buffer
            .as_slice_mut()
            .fill(&setup.stream, Fill::Poison)
            .unwrap();
        let found = setup.finish(Box::pin(buffer.read(&setup.stream)));
        assert_eq!(found, Ok(vec![-1; 100]));
        buffer.as_slice_mut().zero(&setup.stream).unwrap();
        let found = setup.finish(Box::pin(buffer.read(&setup.stream)));
        assert_eq!(found, Ok(vec![0; 100]));
    }
}

#[test]
fn refused_fill_leaves_the_block_as_it_is() {
    for setup in setups() {
        let elsewhere = Setup::new(|builder| builder);
        let mut block = setup.take(4096);
        write_after(&setup.work, &block, 5, 7);
        let refused = block.zero(&elsewhere.stream).unwrap_err();
        assert_eq!(refused, CopyError::Stream(StreamError::ForeignDevice));
        setup.device.faults().fail_next(Call::Fill, Unsupported);
        let refused = block.zero(&setup.stream).unwrap_err();
        assert_matches!(refused, CopyError::Device(error) if error.kind() == Unsupported);
        assert_full_of(&setup, &block, 7);
    }
}
