//! Serializing figures and settings.

use crate::common::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use weirpool::device::{Device, HandleType, HandleTypes, MemoryKind, Pooling};
use weirpool::*;

/// Serializes and deserializes a value. Returns its serialized form.
fn round_trip<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) -> Value {
    let text = serde_json::to_string(value).unwrap();
    let back: T = serde_json::from_str(&text).unwrap();
    assert_eq!(&back, value);
    serde_json::from_str(&text).unwrap()
}

#[test]
fn figures_are_data() {
    let device = manual();
    let pool = pool(&device, 8 * MIB);
    let (_, stream) = stream(&device, &pool);
    let tag = Tag::new("serialized");
    let scope = pool.inspect().statistics_scope();
    let full = pool.allocate(&stream, 8 * MIB).tag(tag).try_now().unwrap();
    let waiting = not_ready(pool.allocate(&stream, MIB));
    device.advance(us(20));
    drop(full);
    drop(now(waiting).unwrap());

    let figures = round_trip(&pool.inspect().statistics());
    assert_eq!(figures["reserved"]["high"], 8 * MIB);
    assert_eq!(figures["hits"]["grown"], 1);
    assert_eq!(figures["waits"]["times"]["longest"]["nanos"], 20_000);
    for turned_away in ["refused", "shed", "deadlocked"] {
        assert_eq!(figures["waits"][turned_away], 0);
    }
    let of_tag = round_trip(&pool.tag(tag).statistics());
    assert_eq!(
        (&of_tag["tag"], &of_tag["frees"]),
        (&json!("serialized"), &json!(1))
    );
    let of_stream = round_trip(&stream.statistics());
    assert_eq!(of_stream["allocations"], 2);
    assert_eq!(round_trip(&scope.end())["frees"], 2);
    let Err(AllocError::Exhausted(shortfall)) = ({
        let _full = pool.try_allocate(&stream, 8 * MIB).unwrap();
        pool.try_allocate(&stream, MIB)
    }) else {
        panic!("it is full");
    };
    assert_eq!(round_trip(&shortfall)["used"], 8 * MIB);
    round_trip(&device.counters());
    let capabilities = round_trip(&device.capabilities());
    assert_eq!(capabilities["memory_kinds"][3], "host");
    let block = pool.try_allocate(&stream, MIB).unwrap();
    let found = round_trip(&pool.inspect().block_at(block.address()).unwrap());
    assert_eq!(found["state"], "used");
}

#[test]
fn settings_are_data() {
    assert_eq!(round_trip(&WhenShort::WaitFirst), json!("wait_first"));
    assert_eq!(round_trip(&Remapping::Never), json!("never"));
    let share = Remapping::Share(0.5);
    assert_eq!(round_trip(&share), json!({ "share": 0.5 }));
    assert_eq!(
        round_trip(&Sealing::Spaced(4096)),
        json!({ "spaced": 4096 })
    );
    assert_eq!(round_trip(&Sealing::OnDemand), json!("on_demand"));
    assert_eq!(round_trip(&Reuse::NONE)["opportunistic"], json!(false));
    let half = ReleaseThreshold::Fraction(0.5);
    assert_eq!(round_trip(&half), json!({ "fraction": 0.5 }));
    assert_eq!(round_trip(&Upstream::Managed), json!("managed"));
    let through = weirpool_driver_pool::DriverPoolUse::PassedThrough;
    assert_eq!(round_trip(&through), json!("passed_through"));
    let handles = HandleTypes::POSIX_FD.with(HandleType::Win32);
    assert_eq!(round_trip(&handles), json!(["posix_fd", "win32"]));
    let by = GrowBy::AtLeast(4096);
    assert_eq!(round_trip(&by), json!({ "at_least": 4096 }));
    assert_eq!(round_trip(&Pooling::Disabled), json!("disabled"));
    assert_eq!(round_trip(&MemoryKind::Pinned), json!("pinned"));
    for source in Source::ALL {
        round_trip(&source);
    }
    let wrong = serde_json::from_str::<Sealing>("\"sometimes\"");
    assert!(wrong.is_err());
}
