use super::*;
use crate::ledger::Joining;
use crate::share::{Share, Statement};

const SECOND: Duration = Duration::from_secs(1);

fn desk() -> Desk {
    Desk::new(Ledger::new(1 << 20, SECOND, SECOND), MOST_OF_A_PROCESS)
}

fn process(id: u32) -> Process {
    Process { id, started: 1 }
}

fn join(key: u64) -> Request {
    let client = Joining {
        key,
        name: "client".into(),
        share: Share::default(),
        granted: 0,
        returned: 0,
    };
    Request::Join {
        version: VERSION,
        client,
    }
}

/// Connects and joins. Returns the answer.
fn joined(desk: &mut Desk, number: u64, process: Process, now: Duration) -> Reply {
    desk.connect(number, process, now);
    desk.receive(number, join(number), Descriptors::default(), now);
    let actions = desk.actions();
    let mut answers = actions.into_iter().filter_map(|action| match action {
        Action::Send(to, reply) if to == number => Some(reply),
        _ => None,
    });
    answers.next().expect("an answer")
}

fn is_welcome(reply: &Reply) -> bool {
    matches!(reply, Reply::Welcome { .. })
}

#[test]
fn silent_connections_end_and_others_stay() {
    let mut desk = desk();
    assert_eq!(desk.next_time(), None);
    desk.connect(0, process(1), Duration::ZERO);
    desk.connect(1, process(1), SECOND);
    assert!(is_welcome(&joined(&mut desk, 2, process(2), SECOND)));
    let watch = Request::Watch {
        version: VERSION,
        seen: Some(desk.ledger.version()),
    };
    desk.connect(3, process(2), SECOND);
    desk.receive(3, watch, Descriptors::default(), SECOND);
    assert_eq!(desk.next_time(), Some(FIRST_MESSAGE));
    desk.pass_time(FIRST_MESSAGE - Duration::from_nanos(1));
    assert_eq!(desk.actions(), []);
    desk.pass_time(FIRST_MESSAGE);
    assert_eq!(desk.actions(), [Action::Close(0)]);
    desk.pass_time(Duration::MAX);
    assert_eq!(desk.actions(), [Action::Close(1)]);
    assert!(desk.is_connected(2) && desk.is_connected(3));
    assert_eq!(desk.next_time(), None);
}

#[test]
fn silent_connections_keep_no_client_out() {
    let mut desk = desk();
    let now = Duration::ZERO;
    // As many as are served, of as few processes as can have them; and more of one of them.
    for number in 0..4 * MOST_CONNECTIONS as u64 {
        desk.connect(number, process(1 + number as u32 % 4), now);
    }
    let count = desk.connections.len();
    assert_eq!(count, MOST_CONNECTIONS);
    for number in 1000..1010 {
        assert!(is_welcome(&joined(&mut desk, number, process(9), now)));
        // Another one that is about to speak stays: the process with the most silent connections makes room.
        desk.connect(number + 100, process(10), now);
    }
    assert!((1000..1010).all(|number| desk.is_connected(number)));
    assert!((1100..1110).all(|number| desk.is_connected(number)));
    assert_eq!(desk.connections.len(), MOST_CONNECTIONS);
}

#[test]
fn process_has_a_share_of_the_connections_and_leases() {
    let mut desk = desk();
    let now = Duration::ZERO;
    let most = MOST_OF_A_PROCESS as u64;
    for number in 0..most {
        assert!(is_welcome(&joined(&mut desk, number, process(1), now)));
    }
    let crowded = Reply::Refused(Refused::Crowded {
        process: 1,
        most: MOST_OF_A_PROCESS,
    });
    let actions = |desk: &mut Desk, number| {
        desk.connect(number, process(1), now);
        desk.actions()
    };
    let refused = [Action::Send(most, crowded.clone()), Action::Close(most)];
    assert_eq!(actions(&mut desk, most), refused);
    // A lease counts without its connection, because its memory may be in use.
    for number in 0..most {
        let needs = Statement {
            needs: 1,
            ..Statement::default()
        };
        desk.receive(number, Request::State(needs), Descriptors::default(), now);
        desk.disconnect(number, now);
    }
    desk.actions();
    assert_eq!(joined(&mut desk, most + 1, process(1), now), crowded);
    assert!(is_welcome(&joined(&mut desk, most + 2, process(2), now)));
}

/// With the longest names and numbers. A frame that does not fit would end the connection of each watcher.
#[cfg(target_os = "linux")]
#[test]
fn figures_of_as_many_as_are_served_fit_into_a_frame() {
    use crate::ledger::{ClientFigures, Figures, Standing};
    use crate::names::{LONGEST_NAME, NameFigures, NameLimits, NameStanding};
    let most = u64::MAX;
    let client = ClientFigures {
        id: ClientId(most),
        name: "\"".repeat(LONGEST_NAME),
        process: u32::MAX,
        share: Share {
            guaranteed: most,
            limit: most,
            weight: u32::MAX,
        },
        lease: most,
        needs: most,
        recalled: most,
        used: most,
        reserved: most,
        waiting: most,
        standing: Standing::Present,
        holds: false,
    };
    let name = NameFigures {
        name: "\"".repeat(LONGEST_NAME),
        version: most,
        bytes: most,
        blocks: 64,
        is_writable: false,
        clients: MOST_CONNECTIONS,
        standing: NameStanding::Withdrawn,
    };
    let figures = Figures {
        capacity: most,
        free: most,
        clients: vec![client; MOST_CONNECTIONS],
        names: vec![name; NameLimits::default().versions],
    };
    let version = most;
    let frame = serde_json::to_vec(&Reply::Figures { version, figures }).unwrap();
    let bytes = frame.len();
    assert!(bytes <= weirpool_wire::MAX_FRAME, "{bytes} bytes");
    println!("{bytes} bytes");
}

#[test]
fn client_beyond_the_last_place_is_refused() {
    let mut desk = desk();
    let now = Duration::ZERO;
    let number = MOST_CONNECTIONS as u64;
    for number in 0..number {
        let process = process(number as u32 / MOST_OF_A_PROCESS as u32);
        assert!(is_welcome(&joined(&mut desk, number, process, now)));
    }
    desk.connect(number, process(9), now);
    let clients = MOST_CONNECTIONS;
    let refused = Action::Send(number, Reply::Refused(Refused::Full { clients }));
    assert_eq!(desk.actions(), [refused, Action::Close(number)]);
}
