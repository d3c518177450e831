//! Values that streams signal and wait on.

use super::*;

#[test]
fn streams_shake_hands_on_a_value() {
    let (sim, journal) = (manual(), Journal::default());
    let (a, b) = (sim.create_stream(), sim.create_stream());
    let flag = sim.flag();
    b.wait_until(&flag, 2);
    b.submit(journal.entry("b", operation(1)));
    a.submit(journal.entry("a1", operation(10)));
    a.signal(&flag, 1);
    a.submit(journal.entry("a2", operation(10)));
    a.signal(&flag, 2);
    sim.advance(us(20));
    assert_eq!(flag.value(), 2);
    sim.advance_to_end();
    assert_eq!(journal.text(), "a1 a2 b");
    assert_eq!(sim.counters().stall, us(20));
}

#[test]
fn the_host_can_set_a_value() {
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
fn a_foreign_flag_is_refused() {
    manual().create_stream().signal(&manual().flag(), 1);
}
