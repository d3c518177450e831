//! A service that forgets something once in a while.

use super::*;

/// What a request forgets.
#[derive(Clone, Copy, PartialEq)]
enum Forgets {
    Nothing,
    UsedOn,
    Wait,
}

/// A service that decodes on its stream and copies out on another.
async fn request(pool: &Pool, work: &[SimStream; 2], stream: &[Stream; 2], forgets: Forgets) {
    let block = pool.allocate(&stream[0], 4 * MIB).await.unwrap();
    let (address, size) = (block.address(), block.size());
    let decode = Operation::new(us(80)).named("decode");
    work[0].submit(decode.writes(address, size));
    if forgets != Forgets::Wait {
        stream[1].wait(&stream[0].event().unwrap()).unwrap();
    }
    if forgets != Forgets::UsedOn {
        stream[1].record_use(Unordered::UntilFreed(&block)).unwrap();
    }
    let copy_out = Operation::new(us(30)).named("copy out");
    work[1].submit(copy_out.reads(address, size));
}

fn serve(forgets: Forgets) {
    let world = World::over(SimDevice::builder().build());
    let requests = (0..20).map(|n| {
        let forgets = if n == 13 { forgets } else { Forgets::Nothing };
        request(&world.pool, &world.work, &world.stream, forgets)
    });
    world.device.block_on(futures::future::join_all(requests));
    world.device.assert_ordered();
}

#[test]
fn a_careful_service_passes() {
    serve(Forgets::Nothing);
}

#[test]
#[should_panic(expected = "nothing orders a use of it before the free")]
fn a_service_with_a_missing_used_on_is_caught() {
    serve(Forgets::UsedOn);
}

#[test]
#[should_panic(expected = "two operations use the same bytes, and nothing orders them")]
fn a_service_with_a_missing_wait_is_caught() {
    serve(Forgets::Wait);
}
