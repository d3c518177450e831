//! The entry point of the fuzz target: any messages, from several connections of two processes.

use crate::desk::{Action, Descriptors, Desk, MOST_OF_A_PROCESS};
use crate::ledger::{Ledger, Process};
use crate::message::{Reply, Request};
use std::time::Duration;

const CAPACITY: u64 = 1 << 20;

/// Runs lines: the first byte chooses a connection and an event, the rest is a message. Returns how many clients were
/// admitted, and how many terms were sent to them afterwards.
///
/// # Panics
/// If an invariant of the ledger does not hold, or a client is granted more than the capacity.
pub fn run(data: &[u8]) -> (usize, usize) {
    let ledger = Ledger::new(CAPACITY, Duration::from_millis(9), Duration::from_millis(5));
    let mut desk = Desk::new(ledger, MOST_OF_A_PROCESS);
    let (mut admitted, mut terms) = (0, 0);
    let mut now = Duration::ZERO;
    let process = |number: u64| Process {
        id: 1 + (number % 2) as u32,
        started: 0,
    };
    for line in data.split(|byte| *byte == b'\n').take(256) {
        let Some((first, message)) = line.split_first() else {
            continue;
        };
        let number = u64::from(first & 3);
        now += Duration::from_millis(1);
        match first >> 4 & 7 {
            0 => desk.disconnect(number, now),
            1 => desk.ledger.exit(process(number), now),
            2 => desk.pass_time(now),
            _ => {
                if !desk.is_connected(number) {
                    desk.connect(number, process(number), now);
                }
                match serde_json::from_slice::<Request>(message) {
                    Ok(request) => {
                        let blocks = match &request {
                            Request::Publish { publication, .. } => publication.memory.blocks.len(),
                            Request::Restore(held) => held.memory.blocks.len(),
                            _ => 0,
                        };
                        let descriptors = Descriptors {
                            count: blocks + usize::from(first & 12 == 12),
                            are_foreign: first & 12 == 8,
                        };
                        desk.receive(number, request, descriptors, now);
                    }
                    Err(error) => desk.refuse_malformed(number, error.to_string(), now),
                }
            }
        }
        let actions = desk.actions();
        let is_welcome =
            |action: &&Action| matches!(action, Action::Send(_, Reply::Welcome { .. }));
        admitted += actions.iter().filter(is_welcome).count();
        let is_terms = |action: &&Action| matches!(action, Action::Send(_, Reply::Terms(_)));
        terms += actions.iter().filter(is_terms).count();
        desk.ledger.check().expect("the invariants");
        let figures = desk.ledger.figures();
        let leased: u64 = figures.clients.iter().map(|client| client.lease).sum();
        let leased = leased + figures.names.iter().map(|name| name.bytes).sum::<u64>();
        assert!(leased <= CAPACITY, "{figures:?}");
    }
    (admitted, terms)
}
