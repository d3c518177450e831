use super::*;
use crate::read::Request;
use crate::trace::{Kind, Trace};
use std::time::Duration;

fn read(rows: &str) -> Result<Recording, AtLocation> {
    let text = format!("{HEADER}\n{rows}");
    super::super::parse(text.as_bytes(), "log", Request::default())
}

fn trace(rows: &str) -> Trace {
    let recording = read(rows).unwrap();
    assert_eq!(recording.notes, []);
    recording.trace
}

#[test]
fn log_is_read_with_its_streams_and_times() {
    let trace = trace(
        "140573,11:53:05.642000,allocate,0x7f8a40000000,1024,0x2\n\
         140574,11:53:05.642500,allocate,0x7f8a40000400,2048,0\n\
         140573,11:53:06.000000,free,0x7f8a40000000,1024,0\n",
    );
    assert_eq!((trace.streams, trace.allocations), (2, 2));
    assert_eq!(trace.requested_peak, 3072);
    assert_eq!(trace.duration, Duration::from_micros(358_000));
    assert_eq!(trace.events[0].stream, 1);
    assert_eq!(trace.events[1].time, Duration::from_micros(500));
    assert_eq!(trace.events[2].kind, Kind::Free { id: 0 });
    assert_eq!(trace.handed_over(), [true, false]);
}

#[test]
fn pointer_that_is_used_again_is_another_allocation() {
    let trace = trace("1,5,allocate,7f00,8,0\n1,6,free,7f00,8,0\n1,7,allocate,0x7f00,16,0\n");
    assert_eq!(trace.allocations, 2);
    assert_eq!(trace.events[2].kind, Kind::Allocate { id: 1, bytes: 16 });
}

#[test]
fn midnight_and_late_lines_are_passed() {
    let trace = trace(
        "1,23:59:59:999990,allocate,0x10,8,0\n\
         1,00:00:00:000010,free,0x10,8,0\n\
         2,23:59:59:999999,allocate,0x20,8,0\n",
    );
    assert_eq!(trace.duration, Duration::from_micros(20));
    assert!(trace.events.windows(2).all(|two| two[0].time < two[1].time));
}

#[test]
fn lines_that_cannot_be_replayed_are_counted() {
    let recording = read(
        "1,1,free,0x10,8,0\n\
         1,2,free,0x20,8,0\n\
         1,3,allocate failure,(nil),99999,0\n\
         1,4,allocate,(nil),0,0\n\
         1,5,free,(nil),0,0\n\
         1,6,allocate,0x10,8,0\n",
    )
    .unwrap();
    assert_eq!(recording.trace.events.len(), 1);
    assert_eq!(
        recording.notes,
        [
            Note::UnknownFrees(2),
            Note::FailedAllocations(1),
            Note::Empty(2)
        ]
    );
}

#[test]
fn log_without_replayable_lines_is_refused() {
    for rows in ["", "1,1,free,0x10,8,0\n1,2,free,0x20,8,0\n"] {
        assert_eq!(read(rows).unwrap_err(), (Location::Line(1), Fault::Empty));
    }
}

#[test]
fn every_malformed_line_is_named() {
    for (row, wrong) in [
        ("1,9,allocate,0x10,8,0", "0x10 is allocated again"),
        ("1,9,free,0x10,9,0", "0x10 is freed with 9 bytes"),
        ("1,9,grab,0x20,8,0", "Action is `grab`"),
        ("1,9,allocate,here,8,0", "Pointer is `here`"),
        ("1,9,allocate,0xgg,8,0", "Pointer is `0xgg`"),
        ("1,9,allocate,0x20,8,main", "Stream is `main`"),
        ("1,9,allocate,0x20,many,0", "Size is `many`"),
        ("1,9,allocate,0x20,281474976710657,0", "to 281474976710656"),
        ("1,noon,allocate,0x20,8,0", "Time is `noon`"),
        ("1,25:00:00.0,allocate,0x20,8,0", "Time is `25:00:00.0`"),
        (
            "1,12:00:00.0,allocate,0x20,8,0",
            "time is `of another form`",
        ),
        ("1,9,allocate,0x20,8", "5 fields, expected the 6"),
        ("1,9,allocate,0x20,8,0,7", "7 fields, expected the 6"),
    ] {
        let (location, fault) = read(&format!("1,8,allocate,0x10,8,0\n{row}\n")).unwrap_err();
        assert_eq!(location, Location::Line(3), "{row}");
        let message = fault.to_string();
        assert!(message.contains(wrong), "{row}: {message}");
        assert!(message.contains("expected"), "{message}");
    }
    let rows = "1,9000000,allocate,0x10,8,0\n1,10,free,0x10,8,0\n";
    let (location, fault) = read(rows).unwrap_err();
    assert_eq!(location, Location::Line(3));
    assert!(matches!(fault, Fault::TimeWentBack { .. }));
}
