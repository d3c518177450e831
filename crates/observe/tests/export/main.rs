//! Snapshots and histories as files, read by the programs that they are for.

#[path = "../../../../tests/common/mod.rs"]
mod common;

use crate::common::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;
use weirpool::device::sim::SimDevice;
use weirpool::*;
use weirpool_observe::*;

/// Runs a varied program: streams, tags, waits, growth, remapping, trims, exhaustion, and blocks of every state at the
/// end. Returns the blocks in use.
fn live(device: &SimDevice, pool: &Pool) -> Vec<Block> {
    let (work, first) = stream(device, pool);
    let (_, second) = stream(device, pool);
    let weights = Tag::new("weights");
    let small: Vec<_> = (0..6)
        .map(|_| pool.try_allocate(&first, 3000).unwrap())
        .collect();
    let large: Vec<_> = (0..4)
        .map(|_| {
            let large = pool.allocate(&first, 2 * MIB + 5000).tag(weights);
            large.try_now().unwrap()
        })
        .collect();
    device.advance(us(10));
    // Every other block is free, and the next request is larger than each.
    let mut kept: Vec<_> = large.into_iter().step_by(2).collect();
    now(first.synchronize()).unwrap();
    kept.push(pool.try_allocate(&second, 4 * MIB).unwrap());
    drop(small);
    assert!(pool.try_allocate(&second, 15 * MIB).is_err());
    let waiting = not_ready(pool.allocate(&second, 10 * MIB));
    device.advance(us(25));
    drop(kept.remove(0));
    second
        .record_use(Unordered::UntilFreed(&kept.remove(0)))
        .unwrap();
    device.advance(us(25));
    drop(now(waiting).unwrap().deallocate());
    now(second.synchronize()).unwrap();
    let _ = pool.trim_to(0).unwrap();
    // At the end: in use, kept by a lane, pending, two of them adjacent, and free.
    let blocks: Vec<_> = (0..3)
        .map(|_| pool.try_allocate(&first, 3 * MIB).unwrap())
        .collect();
    blocks
        .iter()
        .for_each(|block| use_block(&work, block, us(100)));
    kept.extend(blocks.into_iter().take(1));
    drop(pool.try_allocate(&first, 1000).unwrap());
    drop(pool.try_allocate(&second, 1000).unwrap().deallocate());
    kept.push(pool.try_allocate(&second, 0).unwrap());
    kept
}

fn written(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes).unwrap();
    bytes
}

/// A file that is deleted when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, content: &[u8]) -> Self {
        let name = format!("weirpool-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, content).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns what Python finds in a snapshot; `None`, with a message, if there is no Python.
fn python(name: &str, (snapshot, history): &(Snapshot, History)) -> Option<Value> {
    if Command::new("python3").arg("--version").output().is_err() {
        let line = format!("test {name} ... ignored, python3 is not installed\n");
        // Written directly, so that the harness does not capture it.
        io::stderr().write_all(line.as_bytes()).unwrap();
        return None;
    }
    let pickle = written(|file| write_memory_viz(snapshot, history, file));
    let file = Scratch::new(name, &pickle);
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/export/check_memory_viz.py"
    );
    let output = Command::new("python3").arg(script).arg(&file.0).output();
    let output = output.unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn snapshot_is_read_by_pytorchs_viewer() {
    let device = manual();
    let pool = builder(&device, 16 * MIB).history(1000).build().unwrap();
    let kept = live(&device, &pool);
    let recorded = pool.recorded();
    let (snapshot, history) = &recorded;
    let Some(found) = python("snapshot_is_read_by_pytorchs_viewer", &recorded) else {
        return;
    };
    assert_eq!(found["reserved"], snapshot.reserved());
    assert_eq!(found["states"]["active_allocated"], kept.len());
    for state in ["active_pending_free", "inactive"] {
        assert!(found["states"][state].as_u64().unwrap() > 0, "{found}");
    }
    let count = |is_it: fn(&HistoryEvent) -> bool| {
        let entries = history.entries.iter();
        entries.filter(|entry| is_it(&entry.event)).count()
    };
    let actions = &found["actions"];
    let allocated = count(|event| matches!(event, HistoryEvent::Allocated { .. }));
    assert_eq!(actions["alloc"], allocated);
    assert_eq!(
        actions["free_requested"],
        count(|event| matches!(event, HistoryEvent::Freed { .. }))
    );
    assert!(actions["free_completed"].as_u64() < actions["free_requested"].as_u64());
    assert_eq!(actions["oom"], 1);
    let remapped = count(|event| matches!(event, HistoryEvent::Remapped { .. }));
    assert!(remapped > 0, "{found}");
    let released = count(|event| matches!(event, HistoryEvent::Released { .. }));
    assert_eq!(actions["segment_unmap"], released + remapped);
    let place = |name: &str| {
        let places = found["places"].as_array().unwrap().iter();
        let mut places = places.map(|place| place.as_str().unwrap());
        places.any(|place| {
            place.starts_with("crates/observe/tests/export/main.rs:") && place.ends_with(name)
        })
    };
    assert!([":weights", ":allocate", ":deallocate"].map(place) == [true; 3]);
    // The trace is complete: when it is undone, nothing is left.
    let nothing = serde_json::json!({ "segments": 0, "blocks": 0 });
    assert_eq!(found["left"], nothing);
    assert_eq!(found["expandable"], serde_json::json!([true]));
}

#[test]
fn snapshot_without_full_history_or_virtual_memory_is_readable() {
    let name = "snapshot_without_full_history_or_virtual_memory_is_readable";
    for (virtual_memory, entries) in [(false, 1000), (true, 5), (false, 5), (true, 0)] {
        let device = SimDevice::builder()
            .memory(1 << 30)
            .virtual_memory(virtual_memory)
            .clock(weirpool::device::sim::Clock::Manual);
        let device = device.build();
        let pool = builder(&device, 48 * MIB).history(entries).build().unwrap();
        let (_, first) = stream(&device, &pool);
        let blocks: Vec<_> = (0..8)
            .map(|_| pool.try_allocate(&first, 3 * MIB).unwrap())
            .collect();
        let kept: Vec<_> = blocks.into_iter().step_by(3).collect();
        now(first.synchronize()).unwrap();
        let _ = pool.trim_to(0).unwrap();
        drop(pool.try_allocate(&first, 5 * MIB).unwrap());
        let recorded = pool.recorded();
        let snapshot = &recorded.0;
        let Some(found) = python(name, &recorded) else {
            return;
        };
        assert_eq!(found["states"]["active_allocated"], kept.len());
        assert_eq!(found["reserved"], snapshot.reserved());
        assert_eq!(found["expandable"], serde_json::json!([virtual_memory]));
        let has_grown = !found["actions"]["segment_alloc"].is_null();
        assert_eq!(has_grown, !virtual_memory && entries > 0, "{found}");
    }
}

/// Checks what the format requires of an event of each phase, besides a name and a time.
fn check_phase(event: &Value) {
    let text = |key: &str| {
        event[key]
            .as_str()
            .unwrap_or_else(|| panic!("no {key}: {event}"))
    };
    assert!(!text("name").is_empty());
    for key in ["pid", "tid"] {
        assert!(event[key].is_u64(), "no {key}: {event}");
    }
    assert!(event["ts"].as_f64().is_some_and(|ts| ts >= 0.0), "{event}");
    match text("ph") {
        "M" => assert!(event["args"]["name"].is_string(), "{event}"),
        "C" => {
            let args = event["args"].as_object().unwrap();
            assert!(
                !args.is_empty() && args.values().all(Value::is_u64),
                "{event}"
            );
        }
        "b" | "e" => assert!(!text("cat").is_empty() && !text("id").is_empty()),
        "i" => assert!(["g", "p", "t"].contains(&text("s")), "{event}"),
        other => panic!("a phase of {other}"),
    }
}

#[test]
fn history_is_read_by_perfetto() {
    let device = manual();
    let pool = builder(&device, 16 * MIB).history(1000).build().unwrap();
    let kept = live(&device, &pool);
    let history = pool.history();
    let file = written(|file| write_chrome_trace(&history, file));
    let file: Value = serde_json::from_slice(&file).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    events.iter().for_each(check_phase);

    let of_phase = |phase: &'static str| events.iter().filter(move |event| event["ph"] == phase);
    let names: BTreeMap<_, _> = of_phase("M")
        .map(|event| {
            (
                event["pid"].as_u64().unwrap(),
                event["args"]["name"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        names,
        BTreeMap::from([(0, "pool"), (1, "stream S1"), (2, "stream S2")])
    );
    // Each slice ends once, after it began, on the track on which it began; those of live blocks do not.
    let mut begun = BTreeMap::new();
    let mut ended = BTreeSet::new();
    for event in events {
        let id = event["id"].as_str().unwrap_or_default();
        let end = (&event["pid"], &event["cat"], &event["name"]);
        match event["ph"].as_str().unwrap() {
            "b" => assert!(begun.insert(id, (end, event["ts"].as_f64())).is_none()),
            "e" => {
                let (beginning, time) = begun[id];
                assert!(beginning == end && time <= event["ts"].as_f64());
                assert!(ended.insert(id));
            }
            _ => {}
        }
    }
    assert_eq!(begun.len() - ended.len(), kept.len());
    assert!(ended.iter().any(|id| id.starts_with("wait ")));
    let instants: String = of_phase("i")
        .map(|event| event["name"].as_str().unwrap())
        .collect();
    for name in ["grown by", "remapped", "released", "out of memory"] {
        assert!(instants.contains(name), "{name} in {instants}");
    }
    // The last counters match the pool's figures, except for the state after the last free.
    let last = of_phase("C").next_back().unwrap();
    assert_eq!(
        last["args"]["used"],
        pool.inspect().statistics().used.current
    );
    assert_eq!(
        last["args"]["reserved"],
        pool.inspect().statistics().reserved.current
    );
}

/// A reservation belongs to no stream, so its waits and failures are on the pool's track. Blocks from it are on the
/// track of their stream.
#[test]
fn reservation_is_on_the_pools_track() {
    let device = manual();
    let pool = builder(&device, 16 * MIB).history(1000).build().unwrap();
    let (_, stream) = stream(&device, &pool);
    let all = pool.try_allocate(&stream, 16 * MIB).unwrap();
    assert!(pool.reserve(MIB).try_now().is_err());
    let reserving = not_ready(pool.reserve(8 * MIB).tag(Tag::new("export: reserved")));
    device.advance(us(5));
    drop(all);
    let reservation = now(reserving).unwrap();
    let drawn = reservation.allocate(&stream, MIB).unwrap();
    let file = written(|file| write_chrome_trace(&pool.history(), file));
    let text = String::from_utf8_lossy(&file);
    assert!(!text.contains("4294967295"), "{text}");
    let file: Value = serde_json::from_slice(&file).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    events.iter().for_each(check_phase);
    let process_of = |name: &str| {
        let mut events = events.iter();
        let named = |event: &&Value| event["name"].as_str().unwrap().starts_with(name);
        let found = events.find(named);
        found.unwrap_or_else(|| panic!("no {name}: {text}"))["pid"].clone()
    };
    for of_pool in ["out of memory to reserve", "waiting for 8.0 MiB to reserve"] {
        assert_eq!(process_of(of_pool), 0);
    }
    assert_eq!(process_of("1.0 MiB for export: reserved"), 1);
    let found = python("reservation_is_on_the_pools_track", &pool.recorded());
    if let Some(found) = found {
        assert_eq!(found["actions"]["oom"], 1);
        // The block that was allocated from it, and the rest of the reservation.
        assert_eq!(found["states"]["active_allocated"], 2);
        let nothing = serde_json::json!({ "segments": 0, "blocks": 0 });
        assert_eq!(found["left"], nothing);
        let places = found["places"].to_string();
        assert!(
            !places.contains(":reserve\"") && places.contains(":export: reserved"),
            "{places}"
        );
    }
    drop((drawn, reservation));
}

#[test]
fn named_work_is_on_the_track_of_its_stream() {
    let device = manual();
    let pool = builder(&device, 16 * MIB).history(5).build().unwrap();
    let (_, stream) = stream(&device, &pool);
    drop(stream.task("decode").run(|| ()).unwrap());
    let file = written(|file| write_chrome_trace(&pool.history(), file));
    let file: Value = serde_json::from_slice(&file).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    events.iter().for_each(check_phase);
    let named = events.iter().find(|event| event["name"] == "decode");
    let named = named.expect("an event with the name");
    assert_eq!((&named["ph"], &named["pid"]), (&"i".into(), &1.into()));
}

/// A viewer finds the end of a slice by its process and number, and a process stands for a stream.
#[test]
fn slice_of_a_moved_block_ends_on_the_stream_that_it_began_on() {
    let device = manual();
    let pool = builder(&device, 16 * MIB).history(9).build().unwrap();
    let [(_, first), (_, second)] = streams(&device, &pool);
    let mut block = pool.try_allocate(&first, 1000).unwrap();
    block.move_to(&second).unwrap();
    drop(block);
    let file = written(|file| write_chrome_trace(&pool.history(), file));
    let file: Value = serde_json::from_slice(&file).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    let ends = |phase: &str| {
        let mut events = events.iter().filter(|event| event["ph"] == phase);
        let event = events.next().expect("one");
        (event["pid"].clone(), event["id"].clone())
    };
    assert_eq!(ends("b"), ends("e"));
}

#[test]
fn trace_has_the_recorded_allocations_and_frees() {
    let device = manual();
    let pool = builder(&device, 16 * MIB).history(5).build().unwrap();
    let [(_, first), (_, second)] = streams(&device, &pool);
    let forgotten = pool.try_allocate(&first, 100).unwrap();
    let [a, b] = [1000, 0].map(|bytes| {
        device.advance(us(3));
        pool.try_allocate(&first, bytes).unwrap()
    });
    drop(forgotten);
    device.advance(us(4));
    drop(a.deallocate_on(&second).unwrap());
    let c = pool.try_allocate(&second, 7).unwrap();
    let text = String::from_utf8(written(|file| write_trace(&pool.history(), file))).unwrap();
    let times: Vec<_> = pool
        .history()
        .entries
        .iter()
        .map(|entry| entry.time)
        .collect();
    let time = |at: usize| times[at].as_micros();
    let expected = format!(
        "time_us,op,id,bytes,stream\n{},a,2,1000,1\n{},a,3,1,1\n{},f,2,0,2\n{},a,4,7,2\n",
        time(0),
        time(1),
        time(3),
        time(4)
    );
    assert_eq!(text, expected);
    drop((b, c));
    let none = builder(&device, 16 * MIB).build().unwrap().history();
    let text = written(|file| write_trace(&none, file));
    assert_eq!(text, b"time_us,op,id,bytes,stream\n");
}

/// The caller gets the error of the writer.
#[test]
fn full_disk_is_an_error() {
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    let device = manual();
    let pool = builder(&device, 16 * MIB).history(5).build().unwrap();
    let (snapshot, history) = pool.recorded();
    for answer in [
        write_memory_viz(&snapshot, &history, Full),
        write_chrome_trace(&history, Full),
        write_trace(&history, Full),
    ] {
        assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}

/// Serializes and deserializes a value. Returns its serialized form.
fn round_trip<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) -> Value {
    let text = serde_json::to_string(value).unwrap();
    let back: T = serde_json::from_str(&text).unwrap();
    assert_eq!(&back, value);
    serde_json::from_str(&text).unwrap()
}

#[test]
fn snapshots_and_histories_are_data() {
    let device = manual();
    let pool = builder(&device, 8 * MIB).history(100).build().unwrap();
    let (_, stream) = stream(&device, &pool);
    let tag = Tag::new("snapshot as data");
    let block = pool.allocate(&stream, 1000).tag(tag).try_now().unwrap();
    drop(pool.try_allocate(&stream, MIB).unwrap().deallocate());
    assert!(pool.try_allocate(&stream, 8 * MIB).is_err());
    let snapshot = round_trip(&pool.inspect().snapshot());
    let used = &snapshot["segments"][0]["blocks"][0];
    assert_eq!(used["origin"]["tag"], "snapshot as data");
    assert_eq!(
        used["origin"]["site"]["file"],
        "crates/observe/tests/export/main.rs"
    );
    assert_eq!(used["origin"]["source"], "grown");
    let history = round_trip(&pool.history());
    let events: Vec<_> = history["entries"].as_array().unwrap().iter().collect();
    let allocated = &events[1]["event"]["allocated"];
    assert_eq!(allocated["origin"]["requested"], 1000);
    assert_eq!(events[1]["occupancy"]["used"], 1024);
    let last = &events.last().unwrap()["event"];
    assert_eq!(last["out_of_memory"]["shortfall"]["requested"], 8 * MIB);
    let reservation = pool.reserve(MIB).tag(tag).try_now().unwrap();
    assert!(pool.reserve(8 * MIB).try_now().is_err());
    let leaks = round_trip(&pool.leaks());
    assert_eq!(leaks["blocks"][0], *used);
    let reserved = &leaks["reservations"][0];
    assert_eq!(
        (&reserved["left"], &reserved["origin"]["tag"]),
        (&json!(MIB), &json!("snapshot as data"))
    );
    let history = round_trip(&pool.history());
    let last = history["entries"].as_array().unwrap().last().unwrap();
    assert_eq!(last["event"]["out_of_memory"]["stream"], json!(null));
    drop((block, reservation));
}
