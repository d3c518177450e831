use super::*;
use crate::trace::steps;
use crate::trace::{Kind, Trace};
use serde_json::{Value, json};
use std::time::Duration;

fn pickled(snapshot: &Value) -> Vec<u8> {
    serde_pickle::to_vec(snapshot, Default::default()).unwrap()
}

fn read(snapshot: &Value, device: Option<usize>) -> Result<Recording, AtLocation> {
    super::super::parse(&pickled(snapshot)[..], "snapshot", request(device))
}

fn request(device: Option<usize>) -> Request {
    Request {
        device,
        ..Request::default()
    }
}

fn event(action: &str, addr: u64, size: u64, stream: u64, time_us: u64) -> Value {
    json!({"action": action, "addr": addr, "size": size, "stream": stream, "time_us": time_us})
}

fn of_one_device(events: &[Value]) -> Value {
    json!({"segments": [], "device_traces": [events]})
}

fn trace(events: &[Value]) -> Trace {
    let recording = read(&of_one_device(events), None).unwrap();
    assert_eq!(recording.notes, []);
    recording.trace
}

#[test]
fn only_allocations_and_requests_to_free_are_replayed() {
    let trace = trace(&[
        event("segment_alloc", 0x1000, 4096, 7, 100),
        event("alloc", 0x1000, 512, 7, 101),
        event("alloc", 0x1200, 700, 5, 103),
        event("free_requested", 0x1000, 512, 7, 110),
        event("free_completed", 0x1000, 512, 7, 150),
        json!({"action": "oom", "device_free": 5, "size": 9, "stream": 5, "time_us": 151}),
        event("alloc", 0x1000, 600, 7, 161),
        event("snapshot", 0, 0, 0, 170),
        event("of a later version", 0, 0, 0, 171),
    ]);
    assert_eq!((trace.streams, trace.allocations), (2, 3));
    let kinds: Vec<_> = trace.events.iter().map(|event| event.kind).collect();
    assert_eq!(
        kinds,
        [
            Kind::Allocate { id: 0, bytes: 512 },
            Kind::Allocate { id: 1, bytes: 700 },
            Kind::Free { id: 0 },
            Kind::Allocate { id: 2, bytes: 600 },
        ]
    );
    assert_eq!(trace.events[2].time, Duration::from_micros(9));
    assert_eq!(trace.duration, Duration::from_micros(60));
    assert_eq!(trace.events[0].stream, 1);
}

#[test]
fn events_without_times_are_spaced_evenly() {
    let untimed = |mut event: Value| {
        event.as_object_mut().unwrap().remove("time_us");
        event
    };
    let recording = read(
        &of_one_device(&[
            untimed(event("alloc", 0x1000, 512, 0, 0)),
            untimed(event("free_completed", 0x9000, 512, 0, 0)),
            untimed(event("free_requested", 0x1000, 512, 0, 0)),
            event("alloc", 0x1000, 512, 0, 90_000),
        ]),
        None,
    )
    .unwrap();
    assert_eq!(recording.notes, [Note::NoTimes { apart_us: 10 }]);
    let times: Vec<_> = recording
        .trace
        .events
        .iter()
        .map(|event| event.time)
        .collect();
    assert_eq!(times, [0, 10, 20].map(Duration::from_micros));
}

#[test]
fn blocks_from_before_the_recording_are_counted() {
    let block = |size: u64, state: &str| json!({"size": size, "state": state});
    let of = |device: u64| {
        json!({"device": device, "address": 0x1000, "blocks": [
            block(512, "active_allocated"),
            block(512, "inactive"),
            block(1024, "active_allocated"),
            block(2048, "active_pending_free"),
        ]})
    };
    let events = [
        event("free_requested", 0x9000, 512, 0, 1),
        event("alloc", 0x1000, 500, 0, 2),
        event("alloc", 0, 0, 0, 3),
    ];
    let snapshot = json!({"segments": [of(0), of(1)], "device_traces": [events]});
    assert_eq!(
        read(&snapshot, None).unwrap().notes,
        [
            Note::UnknownFrees(1),
            Note::EarlierBlocks {
                blocks: 1,
                bytes: 1024
            },
            Note::Empty(1),
        ]
    );
}

#[test]
fn device_is_the_first_that_allocates_or_the_requested_one() {
    let alloc = |size| event("alloc", 0x1000, size, 0, 1);
    let snapshot = json!({"device_traces": [
        [event("snapshot", 0, 0, 0, 1)],
        [alloc(100)],
        [],
        [alloc(300)],
    ]});
    for (device, peak, shown, other) in [(None, 100, 1, "3"), (Some(3), 300, 3, "1")] {
        let recording = read(&snapshot, device).unwrap();
        assert_eq!(recording.trace.requested_peak, peak);
        let (device, others) = (shown, other.to_owned());
        assert_eq!(recording.notes, [Note::OneDevice { device, others }]);
    }
    for device in [0, 2, 9] {
        let (location, fault) = read(&snapshot, Some(device)).unwrap_err();
        assert_eq!(location, Location::File);
        let message = fault.to_string();
        assert!(
            message.contains("expected one of the devices 1, 3"),
            "{message}"
        );
    }
    let nothing = of_one_device(&[event("snapshot", 0, 0, 0, 1)]);
    assert_eq!(
        read(&nothing, None).unwrap_err(),
        (Location::File, Fault::NoRecording)
    );
}

#[test]
fn malformed_event_is_named_as_python_indexes_it() {
    let sound = event("alloc", 0x1000, 512, 0, 2_000_000);
    for (wrong, message) in [
        (
            event("alloc", 0x1000, 512, 0, 2_000_001),
            "0x1000 is allocated again",
        ),
        (
            event("alloc", 0x2000, 1 << 49, 0, 2_000_001),
            "size is 562949953421312",
        ),
        (event("alloc", 0x2000, 512, 0, 1), "time goes back to 1 us"),
        (
            json!({"action": "alloc", "size": 1, "stream": 0, "time_us": 2_000_001}),
            "addr is missing",
        ),
        (
            json!({"action": "alloc", "addr": 1, "stream": 0, "time_us": 2_000_001}),
            "size is missing",
        ),
        (
            json!({"action": "alloc", "addr": "here", "stream": 0, "time_us": 2_000_001}),
            "addr is of another type",
        ),
        (json!({"addr": 7}), "an event has no `action`"),
        (json!(7), "an event has no `action`"),
        (
            json!({"action": "alloc", "addr": 1, "size": -1, "stream": 0, "time_us": 2_000_001}),
            "size is -1",
        ),
    ] {
        let (location, fault) = read(&of_one_device(&[sound.clone(), wrong]), None).unwrap_err();
        assert_eq!(location.to_string(), "device_traces[0][1]");
        let shown = fault.to_string();
        assert!(shown.contains(message), "{shown}");
        assert!(shown.contains("expected"), "{shown}");
    }
}

#[test]
fn pickle_of_something_else_is_refused() {
    for other in [
        json!([1, 2]),
        json!("snapshot"),
        json!({"segments": []}),
        json!({"device_traces": 7}),
        json!({"device_traces": [7]}),
    ] {
        let (location, fault) = read(&other, None).unwrap_err();
        assert!(matches!(location, Location::File | Location::Event { .. }));
        assert!(matches!(fault, Fault::Snapshot { .. }), "{other}: {fault}");
        assert!(fault.to_string().contains("_dump_snapshot"), "{fault}");
    }
}

/// One snapshot of two events with a shared stack, as `pickle.dumps` of Python 3.11 writes it.
const PROTOCOLS: [(u8, &[u8]); 4] = [
    (
        2,
        b"\
        \x80\x02}q\x00(X\x08\x00\x00\x00segmentsq\x01]q\x02X\x0d\x00\x00\x00device_tracesq\x03]q\
        \x04]q\x05(}q\x06(X\x06\x00\x00\x00actionq\x07X\x05\x00\x00\x00allocq\x08X\x04\x00\x00\
        \x00addrq\x09\x8a\x06\x00\x00\x00@\x8a\x7fX\x04\x00\x00\x00sizeq\x0aJp\x11\x01\x00X\x06\
        \x00\x00\x00streamq\x0bK\x00X\x07\x00\x00\x00time_usq\x0c\x8a\x07\x00@\x1e\x18$\x0a\x06X\
        \x06\x00\x00\x00framesq\x0d]q\x0e}q\x0f(X\x04\x00\x00\x00nameq\x10X\x05\x00\x00\x00serve\
        q\x11X\x08\x00\x00\x00filenameq\x12X\x04\x00\x00\x00a.pyq\x13X\x04\x00\x00\x00lineq\x14K\
        \x03uau}q\x15(h\x07X\x0e\x00\x00\x00free_requestedq\x16h\x09\x8a\x06\x00\x00\x00@\x8a\
        \x7fh\x0aJp\x11\x01\x00h\x0bK\x00h\x0c\x8a\x07\x07@\x1e\x18$\x0a\x06h\x0dh\x0eueau.",
    ),
    (
        3,
        b"\
        \x80\x03}q\x00(X\x08\x00\x00\x00segmentsq\x01]q\x02X\x0d\x00\x00\x00device_tracesq\x03]q\
        \x04]q\x05(}q\x06(X\x06\x00\x00\x00actionq\x07X\x05\x00\x00\x00allocq\x08X\x04\x00\x00\
        \x00addrq\x09\x8a\x06\x00\x00\x00@\x8a\x7fX\x04\x00\x00\x00sizeq\x0aJp\x11\x01\x00X\x06\
        \x00\x00\x00streamq\x0bK\x00X\x07\x00\x00\x00time_usq\x0c\x8a\x07\x00@\x1e\x18$\x0a\x06X\
        \x06\x00\x00\x00framesq\x0d]q\x0e}q\x0f(X\x04\x00\x00\x00nameq\x10X\x05\x00\x00\x00serve\
        q\x11X\x08\x00\x00\x00filenameq\x12X\x04\x00\x00\x00a.pyq\x13X\x04\x00\x00\x00lineq\x14K\
        \x03uau}q\x15(h\x07X\x0e\x00\x00\x00free_requestedq\x16h\x09\x8a\x06\x00\x00\x00@\x8a\
        \x7fh\x0aJp\x11\x01\x00h\x0bK\x00h\x0c\x8a\x07\x07@\x1e\x18$\x0a\x06h\x0dh\x0eueau.",
    ),
    (
        4,
        b"\
        \x80\x04\x95\xec\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x08segments\x94]\x94\x8c\x0ddevic\
        e_traces\x94]\x94]\x94(}\x94(\x8c\x06action\x94\x8c\x05alloc\x94\x8c\x04addr\x94\x8a\x06\
        \x00\x00\x00@\x8a\x7f\x8c\x04size\x94Jp\x11\x01\x00\x8c\x06stream\x94K\x00\x8c\x07time_u\
        s\x94\x8a\x07\x00@\x1e\x18$\x0a\x06\x8c\x06frames\x94]\x94}\x94(\x8c\x04name\x94\x8c\x05\
        serve\x94\x8c\x08filename\x94\x8c\x04a.py\x94\x8c\x04line\x94K\x03uau}\x94(h\x07\x8c\x0e\
        free_requested\x94h\x09\x8a\x06\x00\x00\x00@\x8a\x7fh\x0aJp\x11\x01\x00h\x0bK\x00h\x0c\
        \x8a\x07\x07@\x1e\x18$\x0a\x06h\x0dh\x0eueau.",
    ),
    (
        5,
        b"\
        \x80\x05\x95\xec\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x08segments\x94]\x94\x8c\x0ddevic\
        e_traces\x94]\x94]\x94(}\x94(\x8c\x06action\x94\x8c\x05alloc\x94\x8c\x04addr\x94\x8a\x06\
        \x00\x00\x00@\x8a\x7f\x8c\x04size\x94Jp\x11\x01\x00\x8c\x06stream\x94K\x00\x8c\x07time_u\
        s\x94\x8a\x07\x00@\x1e\x18$\x0a\x06\x8c\x06frames\x94]\x94}\x94(\x8c\x04name\x94\x8c\x05\
        serve\x94\x8c\x08filename\x94\x8c\x04a.py\x94\x8c\x04line\x94K\x03uau}\x94(h\x07\x8c\x0e\
        free_requested\x94h\x09\x8a\x06\x00\x00\x00@\x8a\x7fh\x0aJp\x11\x01\x00h\x0bK\x00h\x0c\
        \x8a\x07\x07@\x1e\x18$\x0a\x06h\x0dh\x0eueau.",
    ),
];

#[test]
fn every_protocol_from_two_on_is_read() {
    for (protocol, pickle) in PROTOCOLS {
        assert_eq!(pickle[..2], [pickle::MAGIC, protocol]);
        let recording = super::super::parse(pickle, "snapshot", Request::default()).unwrap();
        assert_eq!(recording.notes, []);
        assert_eq!(recording.trace.requested_peak, 70_000);
        assert_eq!(recording.trace.duration, Duration::from_micros(7));
    }
}

#[test]
fn pickle_that_is_cut_anywhere_is_refused() {
    for (_, pickle) in PROTOCOLS {
        for length in 1..pickle.len() {
            let cut = super::super::parse(&pickle[..length], "snapshot", Request::default());
            let (location, fault) = cut.unwrap_err();
            assert_eq!(location, Location::Byte(length as u64));
            assert!(matches!(fault, Fault::Pickle { .. }), "{length}: {fault}");
            assert!(fault.to_string().len() < 200, "{fault}");
        }
    }
}

#[test]
fn pickle_with_a_changed_byte_is_read_or_refused_with_a_reason() {
    let mut refused = 0;
    for (_, pickle) in PROTOCOLS {
        for at in 1..pickle.len() {
            for change in [0x01, 0x10, 0x80, 0xff] {
                let mut changed = pickle.to_vec();
                changed[at] ^= change;
                if let Err((_, fault)) =
                    super::super::parse(&changed[..], "snapshot", Request::default())
                {
                    assert!(fault.to_string().contains("expected"), "{fault}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}

/// Returns a text, as a pickle of protocol 2 writes it.
fn text(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap().to_le_bytes();
    [&b"X"[..], &length, text.as_bytes()].concat()
}

/// Returns a snapshot whose events repeat one dictionary `m` times, in which one key is set `n` times.
fn shared_event(n: usize, m: usize) -> Vec<u8> {
    [
        &b"\x80\x02}q\x20("[..],
        &text("action"),
        &text("segment_map"),
        &[&text("size")[..], b"K\x01"].concat().repeat(n),
        b"u0}(",
        &text("device_traces"),
        b"](](",
        &b"h\x20".repeat(m),
        b"eeu.",
    ]
    .concat()
}

/// Returns a snapshot of one allocation, with `m` segments of the same list of `n` blocks.
fn shared_blocks(n: usize, m: usize) -> Vec<u8> {
    let event = [
        &b"}("[..],
        &text("action"),
        &text("alloc"),
        &text("addr"),
        b"K\x01",
        &text("size"),
        b"K\x08",
        &text("stream"),
        b"K\0u",
    ];
    [
        &b"\x80\x02}q\x20("[..],
        &text("size"),
        b"K\x01u0]q\x21(",
        &b"h\x20".repeat(n),
        b"e0}q\x22(",
        &text("address"),
        b"K\x01",
        &text("blocks"),
        b"h\x21u0}(",
        &text("segments"),
        b"](",
        &b"h\x22".repeat(m),
        b"e",
        &text("device_traces"),
        b"](](",
        &event.concat(),
        b"eeu.",
    ]
    .concat()
}

/// Returns a snapshot of `m` devices with the same list of `n` events, none of which is replayed.
fn shared_trace(n: usize, m: usize) -> Vec<u8> {
    [
        &b"\x80\x02}("[..],
        &text("action"),
        &text("snapshot"),
        b"uq\x200](",
        &b"h\x20".repeat(n),
        b"eq\x210}(",
        &text("device_traces"),
        b"](",
        &b"h\x21".repeat(m),
        b"eu.",
    ]
    .concat()
}

#[test]
fn steps_are_in_proportion_to_the_length_whatever_is_shared() {
    const MANY: usize = 100_000;
    let read = |pickle: &[u8]| {
        let before = steps::counts();
        let read = super::super::parse(pickle, "snapshot", Request::default());
        let counts = steps::counts().since(before);
        assert_eq!(counts.bytes, pickle.len() as u64);
        assert!(counts.are_linear(), "{counts:?}");
        read
    };
    let (location, fault) = read(&shared_event(MANY, MANY)).unwrap_err();
    assert_eq!((location, fault), (Location::File, Fault::NoRecording));
    for pickle in [shared_blocks(MANY, MANY), shared_trace(MANY, MANY)] {
        let (location, fault) = read(&pickle).unwrap_err();
        assert_eq!(location, Location::File);
        let reason = fault.to_string();
        assert!(reason.contains("more items than bytes"), "{reason}");
    }
    // A list that is shared a few times is read.
    let recording = read(&shared_blocks(3, 3)).unwrap();
    assert_eq!(recording.trace.allocations, 1);
    assert_eq!(read(&shared_trace(3, 3)).unwrap_err().1, Fault::NoRecording);
}
