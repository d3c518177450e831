//! The rules as a table of cases, and as invariants over random events. Holds are in a file of their own.

mod holds;

use super::*;
use proptest::prelude::*;

const GRACE: Duration = Duration::from_secs(1);
const HOLD: Duration = Duration::from_millis(400);
const START: Duration = Duration::ZERO;

/// A client that obeys each recall: it uses some bytes, and gives back all others.
struct Honest {
    key: u64,
    id: ClientId,
    terms: Terms,
    returned: u64,
    needs: u64,
    used: u64,
    blocks: u64,
    returning: Duration,
}

struct World {
    ledger: Ledger,
    clients: Vec<Honest>,
    now: Duration,
    /// How long it takes to give a byte back.
    cost: Duration,
}

fn process(number: u32) -> Process {
    Process {
        id: number,
        started: 7,
    }
}

fn joining(key: u64, guaranteed: u64, weight: u32) -> Joining {
    let share = Share {
        guaranteed,
        weight,
        ..Share::default()
    };
    Joining {
        key,
        name: format!("client {key}"),
        share,
        granted: 0,
        returned: 0,
    }
}

impl World {
    fn new(capacity: u64, shares: &[(u64, u32)]) -> Self {
        let mut world = Self {
            ledger: Ledger::new(capacity, GRACE, HOLD),
            clients: Vec::new(),
            now: START,
            cost: Duration::ZERO,
        };
        for (at, (guaranteed, weight)) in shares.iter().enumerate() {
            let joining = joining(at as u64, *guaranteed, *weight);
            let id = world
                .ledger
                .join(process(at as u32 + 1), &joining, START)
                .unwrap();
            let terms = Terms::default();
            world.clients.push(Honest {
                key: at as u64,
                id,
                terms,
                returned: 0,
                needs: 0,
                used: 0,
                blocks: 0,
                returning: Duration::ZERO,
            });
        }
        world.deliver();
        world
    }

    fn deliver(&mut self) {
        for (id, terms) in self.ledger.take_news() {
            if let Some(client) = self.clients.iter_mut().find(|client| client.id == id) {
                client.terms = terms;
            }
        }
    }

    fn lease(&self, at: usize) -> u64 {
        self.clients[at].terms.granted - self.clients[at].returned
    }

    fn state(&mut self, at: usize) {
        let client = &self.clients[at];
        let statement = Statement {
            returned: client.returned,
            needs: client.needs,
            answered: client.terms.number,
            used: client.used,
            blocks: client.blocks,
            returning: client.returning.as_nanos() as u64,
            ..Statement::default()
        };
        self.ledger.state(client.id, statement, self.now).unwrap();
        self.ledger.check().unwrap();
        self.deliver();
    }

    fn need(&mut self, at: usize, bytes: u64) {
        self.clients[at].needs = self.clients[at].terms.granted + bytes;
        self.state(at);
    }

    /// The client gives back the recalled bytes that it does not use.
    fn answer(&mut self, at: usize) {
        let client = &mut self.clients[at];
        let idle = client.terms.granted
            - client.returned
            - client.used.min(client.terms.granted - client.returned);
        let owed = client.terms.recalled.saturating_sub(client.returned);
        client.returned += owed.min(idle);
        client.returning += self.cost * owed.min(idle) as u32;
        self.state(at);
    }

    /// Lets time pass, and tells the ledger when it wants to know.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.ledger.next_time().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.ledger.pass_time(self.now);
            self.deliver();
            for at in 0..self.clients.len() {
                self.answer(at);
            }
        }
        self.now = end;
    }

    /// All clients but these answer until nothing changes.
    fn settle(&mut self, without: &[usize]) {
        for _ in 0..4 * self.clients.len() + 4 {
            for at in 0..self.clients.len() {
                if !without.contains(&at) {
                    self.answer(at);
                }
            }
        }
    }

    fn total(&self) -> u64 {
        self.ledger
            .figures()
            .clients
            .iter()
            .map(|client| client.lease)
            .sum()
    }
}

#[test]
fn free_memory_is_granted_at_once() {
    let mut world = World::new(100, &[(0, 1), (0, 1)]);
    world.need(0, 60);
    assert_eq!((world.lease(0), world.ledger.free()), (60, 40));
    world.need(1, 50);
    assert_eq!(world.lease(1), 0, "it waits");
}

#[test]
fn guarantee_is_granted_on_arrival() {
    let world = World::new(100, &[(30, 1), (20, 1)]);
    assert_eq!(
        (world.lease(0), world.lease(1), world.ledger.free()),
        (30, 20, 50)
    );
}

#[test]
fn free_memory_above_the_guarantee_is_taken_back() {
    let mut world = World::new(100, &[(10, 1), (0, 1)]);
    world.need(0, 90);
    world.clients[0].used = 5;
    world.need(1, 40);
    assert_eq!(world.clients[0].terms.recalled, 40);
    world.answer(0);
    assert_eq!((world.lease(0), world.lease(1)), (60, 40));
    world.need(1, 60);
    world.settle(&[]);
    assert_eq!(
        (world.lease(0), world.lease(1)),
        (60, 40),
        "the guarantee of 10 is kept, so 60 more are not to be had"
    );
    world.need(1, 50);
    world.settle(&[]);
    assert_eq!((world.lease(0), world.lease(1)), (10, 90));
}

#[test]
fn rest_is_equal_by_weight() {
    let mut world = World::new(100, &[(0, 1), (0, 3), (0, 1)]);
    world.need(0, 50);
    world.need(1, 50);
    world.need(2, 20);
    let asked = [0, 1].map(|at| world.clients[at].terms.recalled);
    assert_eq!(asked, [20, 0], "50 over 3 is less than 30");
    world.settle(&[]);
    world.need(2, 40);
    // Left: 10 and 30 of weights 1 and 3.
    world.settle(&[]);
    assert_eq!([0, 1, 2].map(|at| world.lease(at)), [10, 30, 60]);
}

#[test]
fn memory_in_use_is_awaited_once_no_free_memory_is_left() {
    let mut world = World::new(100, &[(0, 1), (0, 1)]);
    world.need(0, 100);
    world.clients[0].used = 90;
    world.need(1, 30);
    assert!(
        !world.clients[0].terms.is_binding,
        "free memory is asked for first"
    );
    world.answer(0);
    assert_eq!(world.lease(0), 90);
    assert!(
        world.clients[0].terms.is_binding,
        "now its requests are held back"
    );
    assert_eq!(world.lease(1), 0);
    world.clients[0].used = 70;
    world.answer(0);
    assert_eq!((world.lease(0), world.lease(1)), (70, 30));
    assert!(!world.clients[0].terms.is_binding);
}

#[test]
fn older_need_comes_first_and_need_within_a_guarantee_before_it() {
    let mut world = World::new(100, &[(0, 1), (0, 1), (0, 1), (20, 1)]);
    world.clients[3].returned = 20;
    world.state(3);
    world.need(0, 100);
    world.clients[0].used = 100;
    world.need(1, 50);
    world.need(2, 10);
    world.clients[3].needs = 40;
    world.state(3);
    world.settle(&[]);
    world.clients[0].used = 80;
    world.settle(&[]);
    assert_eq!([1, 2, 3].map(|at| world.lease(at)), [0, 0, 20]);
    world.clients[0].used = 65;
    world.settle(&[]);
    assert_eq!(
        [1, 2, 3].map(|at| world.lease(at)),
        [0, 0, 20],
        "15 are free, and the older need is for 50"
    );
    world.clients[0].used = 0;
    world.clients[1].used = 50;
    world.settle(&[]);
    assert_eq!([1, 2, 3].map(|at| world.lease(at)), [50, 10, 20]);
}

#[test]
fn silent_client_costs_what_it_holds() {
    let mut world = World::new(100, &[(0, 1), (0, 1), (0, 1)]);
    world.need(0, 60);
    world.need(1, 40);
    world.need(2, 30);
    world.settle(&[0]);
    assert_eq!(world.lease(2), 0, "client 0 was asked for a part");
    world.now += GRACE;
    world.ledger.pass_time(world.now);
    world.deliver();
    world.settle(&[0]);
    assert_eq!(
        (world.lease(1), world.lease(2)),
        (10, 30),
        "client 1 gave it instead"
    );
    // More than the others have is not waited for in front of others.
    world.need(2, 50);
    world.need(1, 5);
    world.settle(&[0]);
    assert_eq!(world.lease(1), 15);
    world.answer(0);
    world.settle(&[]);
    assert_eq!(
        world.lease(2),
        75,
        "client 0 speaks again; 5 of 30 went to client 1"
    );
    assert_eq!(world.ledger.next_time(), None);
}

#[test]
fn lease_of_a_dead_client_is_free_once_its_process_has_ended() {
    let mut world = World::new(100, &[(0, 1), (0, 1)]);
    world.need(0, 80);
    world.need(1, 90);
    let dead = world.clients[0].id;
    world.ledger.part(dead, START);
    world.deliver();
    assert_eq!(world.lease(1), 0, "its memory may exist");
    world.ledger.exit(process(1), START);
    world.deliver();
    assert_eq!(world.lease(1), 90);
}

#[test]
fn repeated_statement_changes_nothing() {
    let mut world = World::new(100, &[(0, 1), (0, 1)]);
    world.need(0, 60);
    world.clients[0].returned = 30;
    for _ in 0..3 {
        world.state(0);
        assert_eq!((world.lease(0), world.ledger.free()), (30, 70));
    }
}

#[test]
fn lies_are_refused() {
    let mut world = World::new(100, &[(0, 1)]);
    world.need(0, 60);
    let id = world.clients[0].id;
    let number = world.clients[0].terms.number;
    let before = world.ledger.figures();
    let honest = Statement {
        needs: 60,
        answered: number,
        ..Statement::default()
    };
    let lies = [
        Statement {
            returned: 61,
            ..honest
        },
        Statement {
            returned: u64::MAX,
            ..honest
        },
        Statement {
            answered: number + 1,
            ..honest
        },
    ];
    for lie in lies {
        assert!(world.ledger.state(id, lie, START).is_err());
        assert_eq!(world.ledger.figures(), before);
    }
    world.clients[0].returned = 20;
    world.state(0);
    assert!(
        world.ledger.state(id, honest, START).is_err(),
        "less returned than before"
    );
    let greedy = Statement {
        returned: 20,
        needs: u64::MAX,
        answered: number,
        ..Statement::default()
    };
    world.ledger.state(id, greedy, START).unwrap();
    world.deliver();
    assert_eq!(world.lease(0), 100, "no more than the capacity");
}

#[test]
fn returning_client_has_its_lease_again() {
    let mut world = World::new(100, &[(10, 1)]);
    world.need(0, 50);
    world.clients[0].returned = 5;
    world.state(0);
    let id = world.clients[0].id;
    world.ledger.part(id, START);
    let back = |granted| Joining {
        granted,
        returned: 5,
        ..joining(0, 10, 1)
    };
    let refused = world.ledger.join(process(1), &back(61), START);
    assert_eq!(
        refused,
        Err(Refused::Claim {
            claimed: 56,
            known: 55
        })
    );
    let refused = world.ledger.join(process(2), &back(60), START);
    assert_eq!(refused, Err(Refused::Key { process: 1 }));
    assert_eq!(world.ledger.join(process(1), &back(60), START), Ok(id));
    assert_eq!(world.total(), 55);

    // A new broker knows the lease from its record, and counts it before the client is back.
    let mut ledger = Ledger::new(100, GRACE, HOLD);
    ledger.restore(0, "client 0".into(), process(1), Share::default(), (55, 0));
    let other = ledger.join(process(2), &joining(1, 0, 1), START).unwrap();
    assert_eq!(ledger.free(), 45);
    ledger
        .state(
            other,
            Statement {
                needs: 45,
                ..Statement::default()
            },
            START,
        )
        .unwrap();
    assert_eq!(
        ledger
            .join(process(1), &back(60), START)
            .map(|_| ledger.free()),
        Ok(0)
    );
    let liar = Joining {
        granted: 1,
        ..joining(9, 0, 1)
    };
    assert_eq!(
        ledger.join(process(3), &liar, START),
        Err(Refused::Claim {
            claimed: 1,
            known: 0
        })
    );
}

#[test]
fn guarantees_fit_the_capacity_together() {
    let mut ledger = Ledger::new(100, GRACE, HOLD);
    ledger.join(process(1), &joining(1, 60, 1), START).unwrap();
    let refused = ledger.join(process(2), &joining(2, 50, 1), START);
    assert!(matches!(
        refused,
        Err(Refused::Guarantees { promised: 60, .. })
    ));
    ledger.join(process(2), &joining(2, 40, 1), START).unwrap();
    let no_weight = Share {
        weight: 0,
        ..Share::default()
    };
    let refused = ledger.join(
        process(3),
        &Joining {
            share: no_weight,
            ..joining(3, 0, 1)
        },
        START,
    );
    assert!(matches!(refused, Err(Refused::Share(_))));
}

#[test]
fn lowered_capacity_is_reached_before_anything_is_granted() {
    let mut ledger = Ledger::new(50, GRACE, HOLD);
    let share = Share {
        guaranteed: 10,
        ..Share::default()
    };
    ledger.restore(0, "client 0".into(), process(1), share, (80, 0));
    let back = Joining {
        granted: 80,
        ..joining(0, 10, 1)
    };
    let id = ledger.join(process(1), &back, START).unwrap();
    let terms = ledger.terms(id).unwrap();
    assert_eq!(terms.recalled, 30);
    let other = ledger.join(process(2), &joining(1, 0, 1), START).unwrap();
    ledger
        .state(
            other,
            Statement {
                needs: 10,
                ..Statement::default()
            },
            START,
        )
        .unwrap();
    let statement = Statement {
        returned: 30,
        answered: 1,
        ..Statement::default()
    };
    ledger.state(id, statement, START).unwrap();
    assert_eq!(ledger.terms(other).unwrap().granted, 0);
    ledger
        .state(
            id,
            Statement {
                returned: 40,
                ..statement
            },
            START,
        )
        .unwrap();
    assert_eq!(ledger.terms(other).unwrap().granted, 10);
}

#[derive(Clone, Debug)]
enum Event {
    Need(usize, u64),
    Use(usize, u64),
    Answer(usize),
    Part(usize),
    Return(usize),
    Exit(usize),
    Time(u64),
    Work(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let at = 0..4_usize;
    prop_oneof![
        4 => (at.clone(), 1..120_u64).prop_map(|(at, bytes)| Event::Need(at, bytes)),
        3 => (at.clone(), 0..100_u64).prop_map(|(at, bytes)| Event::Use(at, bytes)),
        6 => at.clone().prop_map(Event::Answer),
        1 => at.clone().prop_map(Event::Part),
        1 => at.clone().prop_map(Event::Return),
        1 => at.prop_map(Event::Exit),
        1 => (0..1500_u64).prop_map(Event::Time),
        2 => (0..20_u64).prop_map(Event::Time),
        2 => (0..4_usize).prop_map(Event::Work),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Leases are within the capacity after every event. Once clients use nothing and answer, every need that lies
    /// within the capacity less the guarantees of the others is met.
    #[test]
    fn random_events_keep_every_invariant(
        shares in prop::collection::vec((0..25_u64, 1..5_u32), 4),
        events in prop::collection::vec(event(), 0..80),
        cost in prop_oneof![Just(0), 1..5_000_u64],
    ) {
        let mut world = World::new(100, &shares);
        world.cost = Duration::from_micros(cost);
        let mut is_here = [true; 4];
        let mut generation = 0;
        for event in events {
            match event {
                Event::Need(at, bytes) if is_here[at] => world.need(at, bytes),
                Event::Work(at) => world.clients[at].blocks += 1,
                Event::Use(at, bytes) => world.clients[at].used = bytes.min(world.lease(at)),
                Event::Answer(at) if is_here[at] => world.answer(at),
                Event::Part(at) if is_here[at] => {
                    let id = world.clients[at].id;
                    world.ledger.part(id, world.now);
                    is_here[at] = false;
                }
                Event::Return(at) if !is_here[at] => {
                    let client = &world.clients[at];
                    let joining = Joining {
                        granted: client.terms.granted,
                        returned: client.returned,
                        ..joining(client.key, shares[at].0, shares[at].1)
                    };
                    let key_is_known = world.ledger.leases().any(|(key, ..)| key == joining.key);
                    let joined = world.ledger.join(process(at as u32 + 1), &joining, world.now);
                    // A client that held nothing is forgotten, and may be new.
                    if let Ok(id) = joined {
                        world.clients[at].id = id;
                        world.clients[at].needs = 0;
                        is_here[at] = true;
                    } else {
                        prop_assert!(!key_is_known);
                    }
                }
                Event::Exit(at) => {
                    world.ledger.exit(process(at as u32 + 1), world.now);
                    generation += 100;
                    let joining = joining(at as u64 + generation, shares[at].0, shares[at].1);
                    let id = world.ledger.join(process(at as u32 + 1), &joining, world.now).unwrap();
                    world.clients[at] = Honest { key: at as u64 + generation, id, terms: Terms::default(), returned: 0, needs: 0, used: 0, blocks: 0, returning: Duration::ZERO };
                    is_here[at] = true;
                }
                Event::Time(milliseconds) => {
                    world.now += Duration::from_millis(milliseconds);
                    world.ledger.pass_time(world.now);
                }
                _ => {}
            }
            world.deliver();
            prop_assert!(world.total() <= 100, "{:?}", world.ledger.figures());
            prop_assert_eq!(world.ledger.check(), Ok(()));
            for client in world.ledger.figures().clients {
                prop_assert!(client.lease - client.recalled >= client.share.guaranteed.min(client.lease));
            }
        }
        // Every process that is away ends; the others end their requests, and answer.
        for (at, is_here) in is_here.iter().enumerate() {
            if !is_here {
                world.ledger.exit(process(at as u32 + 1), world.now);
            }
            world.clients[at].used = 0;
        }
        world.deliver();
        let away: Vec<_> = (0..4).filter(|at| !is_here[*at]).collect();
        for _ in 0..12 {
            world.settle(&away);
            // Holds end.
            world.now += HOLD;
            world.ledger.pass_time(world.now);
            world.deliver();
        }
        let promised: u64 = (0..4).filter(|at| is_here[*at]).map(|at| shares[at].0).sum();
        for client in world.ledger.figures().clients {
            let firm = 100 - (promised - client.share.guaranteed);
            prop_assert!(client.needs == 0 || client.lease + client.needs > firm, "{:?} of {:?}", client, world.ledger.figures());
        }
    }
}

/// The capacity was lowered below the guarantees of the clients of an earlier broker.
#[test]
fn client_without_a_guarantee_is_admitted_beside_guarantees_that_exceed_the_capacity() {
    let mut ledger = Ledger::new(50, GRACE, HOLD);
    for key in 0..2 {
        let share = Share {
            guaranteed: 40,
            ..Share::default()
        };
        ledger.restore(key, "earlier".into(), process(1), share, (20, 0));
    }
    let guaranteed = ledger.join(process(2), &joining(2, 1, 1), START);
    assert!(matches!(guaranteed, Err(Refused::Guarantees { .. })));
    let other = ledger.join(process(2), &joining(3, 0, 1), START).unwrap();
    let needs = Statement {
        needs: 10,
        ..Statement::default()
    };
    ledger.state(other, needs, START).unwrap();
    assert_eq!(ledger.terms(other).unwrap().granted, 10);
    ledger.check().unwrap();
}
