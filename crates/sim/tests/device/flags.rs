//! Flags that streams signal and wait for.

use super::*;

#[test]
fn streams_handshake_on_a_flag() {
    let (sim, log) = (manual(), Log::default());
    let (a, b) = (sim.create_stream(), sim.create_stream());
    let flag = sim.flag();
    b.wait_until(&flag, 2);
    b.submit(log.entry("b", operation(1)));
    a.submit(log.entry("a1", operation(10)));
    a.signal(&flag, 1);
    a.submit(log.entry("a2", operation(10)));
    a.signal(&flag, 2);
    sim.advance(us(20));
    assert_eq!(flag.value(), 2);
    sim.advance_to_end();
    assert_eq!(log.text(), "a1 a2 b");
    assert_eq!(sim.counters().stall, us(20));
}

#[test]
fn host_can_set_a_flag() {
    let sim = manual();
    let (stream, flag) = (sim.create_stream(), sim.flag());
    stream.wait_until(&flag, 3);
    assert!(!sim.advance_to_next());
    flag.set(2);
    assert_eq!(stream.backlog(), 1);
    flag.set(5);
    assert_eq!(stream.backlog(), 0);
}

#[test]
#[should_panic(expected = "the flag belongs to another device")]
fn foreign_flag_is_refused() {
    manual().create_stream().signal(&manual().flag(), 1);
}
