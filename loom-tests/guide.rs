//! The model of the testing guide, as users write it, and the same model with a mistake.

use weirpool::Pool;
use weirpool::device::sim::{Backing, Clock, SimDevice};

#[rustfmt::skip] // as in the guide
#[test]
fn free_wakes_a_waiter_under_every_schedule() {
    loom::model(|| {
        let device = SimDevice::builder().memory(64 << 20).backing(Backing::AddressesOnly).clock(Clock::Manual).build();
        let pool = Pool::builder(device.clone()).capacity(8 << 20).build().unwrap();
        let stream = pool.register(&device.create_stream()).unwrap();
        let held = pool.try_allocate(&stream, 8 << 20).unwrap();
        let free = loom::thread::spawn(move || drop(held));
        let block = loom::future::block_on(pool.allocate(&stream, 4 << 20)).unwrap();
        drop(block);
        free.join().unwrap();
    });
}

/// The mistake: nothing waits for the free. Some schedules go well.
#[test]
#[should_panic(expected = "the block is not free yet")]
fn model_that_does_not_wait_for_a_free_fails() {
    loom::model(|| {
        let device = SimDevice::builder()
            .memory(64 << 20)
            .backing(Backing::AddressesOnly)
            .clock(Clock::Manual)
            .build();
        let pool = Pool::builder(device.clone()).capacity(8 << 20);
        let pool = pool.build().unwrap();
        let stream = pool.register(&device.create_stream()).unwrap();
        let held = pool.try_allocate(&stream, 8 << 20).unwrap();
        let free = loom::thread::spawn(move || drop(held));
        let block = pool.try_allocate(&stream, 4 << 20);
        free.join().unwrap();
        drop(block.expect("the block is not free yet"));
    });
}

#[test]
fn guide_shows_the_first_model() {
    let model = |text: &str| {
        let begin = text.find("fn free_wakes").expect("the model");
        let end = text[begin..].find("\n}\n").expect("its end");
        text[begin..][..end].to_owned()
    };
    let guide = include_str!("../docs/guide/testing.md");
    assert_eq!(model(guide), model(include_str!("guide.rs")));
}
