//! Fills that a request or the owner of a block asks for.

use super::*;
use weirpool::device::DeviceErrorKind::{Other, Unsupported};

/// Pools over virtual and over plain memory, that fill nothing by themselves.
fn places() -> [Place; 2] {
    [true, false].map(|is_virtual| {
        let device = manual_builder().virtual_memory(is_virtual).build();
        Place::on(device, |builder| builder)
    })
}

/// Leaves memory that is full of sevens: in the stream's cache, and in the heap.
fn leave_sevens(place: &Place) {
    for bytes in [64 * MIB, MIB, 4096] {
        let block = place.take(bytes);
        write_after(&place.work, &block, 5, 7);
        drop(block);
    }
}

#[track_caller]
fn assert_full_of(place: &Place, block: &Block, byte: u8) {
    let seen = contents(place, &place.stream, block);
    assert!(seen.iter().all(|seen| *seen == byte));
}

#[test]
fn request_fills_its_block_and_no_other_block() {
    for place in places() {
        leave_sevens(&place);
        for bytes in [4096, MIB, 5 * MIB] {
            let zeros = place.pool.allocate(&place.stream, bytes).zeroed();
            let zeros = zeros.try_now().unwrap();
            assert_full_of(&place, &zeros, 0);
            let threes = place.pool.allocate(&place.stream, bytes).filled(3);
            let threes = place.finish(threes).unwrap();
            assert_full_of(&place, &threes, 3);
        }
        assert_eq!(place.fills(), 6);
        drop(place.take(MIB));
        assert_eq!(place.fills(), 6);
        place.assert_sound();
    }
}

#[test]
fn waiting_request_fills_what_it_is_granted() {
    for place in places() {
        let all = place.take(64 * MIB);
        write_after(&place.work, &all, 5, 7);
        let mut one = place.pool.allocate(&place.stream, MIB).zeroed();
        let mut owned = place.pool.allocate_owned(&place.stream, MIB).filled(4);
        let layouts = [MIB, 4096];
        let mut many = place.pool.allocate_many(&place.stream, layouts).zeroed();
        assert!(poll(&mut one).is_pending() && poll(&mut owned).is_pending());
        assert!(poll(&mut many).is_pending());
        drop(all);
        assert_full_of(&place, &place.finish(one).unwrap(), 0);
        assert_full_of(&place, &place.finish(owned).unwrap(), 4);
        for block in place.finish(many).unwrap() {
            assert_full_of(&place, &block, 0);
        }
        assert_eq!(place.fills(), 4);
        place.assert_sound();
    }
}

#[test]
fn request_in_the_scope_of_a_reservation_is_filled() {
    for place in places() {
        leave_sevens(&place);
        let reservation = place.finish(place.pool.reserve(4 * MIB)).unwrap();
        let request = place.pool.allocate(&place.stream, MIB).zeroed();
        let block = place.finish(Box::pin(reservation.scope(request))).unwrap();
        assert_eq!(reservation.left(), 3 * MIB);
        assert_full_of(&place, &block, 0);
        place.device.fail_next(Call::Fill, Other);
        let request = place.pool.allocate(&place.stream, MIB).zeroed();
        let refused = place.finish(Box::pin(reservation.scope(request)));
        assert!(matches!(refused, Err(AllocError::Device(_))));
        assert_eq!(reservation.left(), 3 * MIB);
        drop((block, reservation));
        place.assert_sound();
    }
}

#[test]
fn request_fills_instead_of_its_pool() {
    let place = Place::new(poison_on_allocate);
    let zeros = place.pool.allocate(&place.stream, MIB).zeroed();
    assert_full_of(&place, &zeros.try_now().unwrap(), 0);
    assert_eq!(place.fills(), 1);
    place.assert_sound();
}

fn poison_on_allocate(builder: PoolBuilder) -> PoolBuilder {
    builder.fill_on_allocate(Fill::Poison)
}

#[test]
fn growth_fills_the_added_bytes_alone() {
    let place = Place::new(|builder| builder);
    leave_sevens(&place);
    place.device.advance_to_end();
    let request = place.pool.allocate(&place.stream, CHUNK).room(8 * MIB);
    let mut block = request.try_now().unwrap();
    write_after(&place.work, &block, 5, 9);
    place.finish(block.grow(2 * MIB).zeroed()).unwrap();
    let seen = contents(&place, &place.stream, &block);
    let (old, new) = seen.split_at(CHUNK as usize);
    assert!(old.iter().all(|byte| *byte == 9) && new.iter().all(|byte| *byte == 0));
    drop(block);
    place.assert_sound();
}

#[test]
fn further_stream_comes_after_a_requested_fill() {
    for place in places() {
        let (other, further) = stream(&place.device, &place.pool);
        let block = place.pool.allocate(&place.stream, 32 * MIB).zeroed();
        let block = block.try_now().unwrap();
        block.used_on(&further).unwrap();
        write_after(&other, &block, 0, 7); // the fill takes some 13 us
        assert_eq!(place.byte_at(block.address(), block.size()), 7);
        drop(block);
        place.assert_sound();
    }
}

/// Unlike a fill of the pool's own, which is left out on a stream that is being captured.
#[test]
fn request_fails_if_its_fill_is_refused_and_loses_nothing() {
    let tag = Tag::new("requested fill");
    for place in places() {
        place.pool.tag(tag).set_limit(Some(MIB));
        for kind in [Other, Unsupported] {
            for bytes in [4096, MIB] {
                let request = || place.pool.allocate(&place.stream, bytes).tag(tag).zeroed();
                place.device.fail_next(Call::Fill, kind);
                let refused = request().try_now().unwrap_err();
                assert!(matches!(&refused, AllocError::Device(error) if error.kind() == kind));
                place.device.fail_next(Call::Fill, kind);
                let refused = now(request()).unwrap_err();
                assert!(matches!(&refused, AllocError::Device(error) if error.kind() == kind));
                assert_eq!(place.pool.tag(tag).statistics().used.current, 0);
                assert_full_of(&place, &request().try_now().unwrap(), 0);
            }
        }
        place.assert_sound();
    }
}

#[test]
fn owner_fills_a_block_behind_all_its_earlier_uses() {
    for place in places() {
        let (other, further) = stream(&place.device, &place.pool);
        let mut block = place.take(MIB);
        block.used_on(&further).unwrap();
        write_after(&place.work, &block, 300, 7);
        further.wait(&place.stream.event().unwrap()).unwrap();
        write_after(&other, &block, 500, 8);
        block.fill(&place.stream, 0x5a).unwrap();
        assert_eq!(place.byte_at(block.address(), MIB), 0x5a);
        assert!(place.device.now() >= us(800));
        write_after(&place.work, &block, 5, 7);
        block.zero(&further).unwrap();
        assert_eq!(place.byte_at(block.address(), MIB), 0);
        drop(block);
        place.assert_sound();
    }
}

#[test]
fn buffer_is_filled_with_elements() {
    for place in places() {
        let mut buffer = Buffer::<i32>::try_allocate(&place.pool, &place.stream, 100).unwrap();
        buffer.fill(&place.stream, Fill::Poison).unwrap();
        assert_eq!(
            place.finish(Box::pin(buffer.read(&place.stream))),
            Ok(vec![-1; 100])
        );
        buffer.zero(&place.stream).unwrap();
        assert_eq!(
            place.finish(Box::pin(buffer.read(&place.stream))),
            Ok(vec![0; 100])
        );
        drop(buffer);
        place.assert_sound();
    }
}

#[test]
fn refused_fill_leaves_the_block_as_it_is() {
    for place in places() {
        let elsewhere = Place::new(|builder| builder);
        let mut block = place.take(4096);
        write_after(&place.work, &block, 5, 7);
        let refused = block.zero(&elsewhere.stream).unwrap_err();
        assert_eq!(refused, CopyError::Stream(StreamError::ForeignDevice));
        place.device.fail_next(Call::Fill, Unsupported);
        let refused = block.zero(&place.stream).unwrap_err();
        assert!(matches!(&refused, CopyError::Device(error) if error.kind() == Unsupported));
        assert_full_of(&place, &block, 7);
        drop(block);
        place.assert_sound();
    }
}
