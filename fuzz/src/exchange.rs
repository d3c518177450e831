//! The protocol between processes, as a state machine: two honest sides whose messages arrive late, and messages of a
//! hostile one.

use std::collections::{HashSet, VecDeque};
use weirpool_share::ipc::{Event, Exchange, Limits, MOST_OUTSTANDING, Message};

const STEP: u64 = 1 << 21;

fn side() -> Exchange {
    Exchange::new(Limits {
        device: "device".into(),
        granularity: STEP,
        memory: 64 * STEP,
    })
}

/// Interprets `data` as actions of two honest sides, and panics unless each block that was offered ends once, in the
/// state that both agree on. Returns how many ended.
pub fn honest(data: &[u8]) -> usize {
    let (mut exporter, mut importer) = (side(), side());
    let mut there = VecDeque::from([Exchange::greeting()]);
    let mut back = VecDeque::from([Exchange::greeting()]);
    let mut held: Vec<u64> = Vec::new();
    let (mut offered, mut ended) = (HashSet::new(), HashSet::new());
    for byte in data {
        match byte % 5 {
            0 => {
                let bytes = (u64::from(byte / 5) % 64 + 1) * STEP;
                let full = exporter.outstanding().0 == MOST_OUTSTANDING;
                let offer = exporter.offer(bytes, bytes - 1, "label");
                assert_eq!(offer.is_none(), full);
                if let Some((id, message)) = offer {
                    assert!(offered.insert(id));
                    there.push_back(message);
                }
            }
            1 => {
                let Some(message) = there.pop_front() else {
                    continue;
                };
                let descriptors = usize::from(matches!(message, Message::Offer { .. }));
                match importer.receive(message, descriptors) {
                    Ok(Event::Greeted) => {}
                    Ok(Event::Offered { id, .. }) => held.push(id),
                    event => panic!("{event:?}"),
                }
            }
            2 => {
                let Some(message) = back.pop_front() else {
                    continue;
                };
                match exporter.receive(message, 0) {
                    Ok(Event::Greeted) => {}
                    Ok(Event::Ended { id, .. }) => {
                        assert!(offered.contains(&id) && ended.insert(id))
                    }
                    event => panic!("{event:?}"),
                }
            }
            kind => {
                if held.is_empty() {
                    continue;
                }
                let id = held.swap_remove(usize::from(byte / 5) % held.len());
                let message = match kind {
                    3 => importer.release(id),
                    _ => importer.refuse(id, "reason".into()),
                };
                back.push_back(message.expect("it is held"));
                assert_eq!(importer.release(id), None, "it has ended");
            }
        }
        assert_eq!(exporter.outstanding().0, offered.len() - ended.len());
        assert_eq!(importer.outstanding().1, held.len());
    }
    ended.len()
}

/// Hands lines of `data`, as frames, to a side that has offered two blocks. Returns how many were events. Panics if a
/// refused frame changes anything, or if an end is reported of a block that was not offered.
pub fn hostile(data: &[u8]) -> usize {
    let mut victim = side();
    let greeted = victim.receive(Exchange::greeting(), 0);
    assert_eq!(greeted, Ok(Event::Greeted));
    let own: HashSet<u64> = (0..2)
        .map(|_| victim.offer(STEP, 1, "").expect("room").0)
        .collect();
    let mut ended = HashSet::new();
    let mut events = 0;
    for (number, line) in data.split(|byte| *byte == b'\n').enumerate() {
        let Ok(message) = serde_json::from_slice::<Message>(line) else {
            continue;
        };
        let before = victim.outstanding();
        match victim.receive(message, number % 3) {
            Ok(Event::Ended { id, .. }) => assert!(own.contains(&id) && ended.insert(id)),
            Ok(Event::Offered { bytes, length, .. }) => {
                assert!(bytes.is_multiple_of(STEP) && length <= bytes && length > 0);
            }
            Ok(_) => {}
            Err(_) => {
                assert_eq!(victim.outstanding(), before);
                continue;
            }
        }
        events += 1;
        assert!(victim.outstanding().1 <= MOST_OUTSTANDING);
    }
    events
}
