//! Holds: when they begin and end, and how long other clients wait because of them.

use super::*;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How long it takes to give a byte back in these tests.
const COST: Duration = Duration::from_millis(1);

const MILLISECOND: Duration = Duration::from_millis(1);

/// Client 0 holds all that is free, and does not use it.
fn world(shares: &[(u64, u32)]) -> World {
    let mut world = World::new(100, shares);
    world.cost = COST;
    world.need(0, world.ledger.free());
    world
}

/// Client 1 takes 20 bytes, which client 0 gives back: its hold is 320 ms.
fn moved(shares: &[(u64, u32)]) -> World {
    let mut world = world(shares);
    world.need(1, 20);
    world.answer(0);
    assert_eq!(world.lease(1), 20 + shares[1].0);
    world
}

fn holds(world: &World) -> Vec<bool> {
    let figures = world.ledger.figures();
    figures.clients.iter().map(|client| client.holds).collect()
}

#[test]
fn moved_lease_stays_for_16_times_what_moving_it_took() {
    let mut world = moved(&[(0, 1), (0, 1)]);
    assert_eq!(holds(&world), [false, true]);
    assert_eq!(world.ledger.next_time(), None, "no client waits");
    world.need(0, 15);
    let mut passed = Duration::ZERO;
    while world.clients[1].terms.recalled == 0 {
        world.clients[1].blocks += 1;
        world.pass(MILLISECOND);
        passed += MILLISECOND;
    }
    assert_eq!(passed, Duration::from_millis(320));
    world.answer(1);
    assert_eq!((world.lease(0), world.lease(1)), (95, 5));
}

#[test]
fn hold_is_no_longer_than_the_longest() {
    let mut world = world(&[(0, 1), (0, 1)]);
    world.need(1, 90);
    world.answer(0);
    world.clients[1].used = 90;
    world.need(0, 50);
    world.pass(HOLD - MILLISECOND);
    assert_eq!(holds(&world), [false, true]);
    world.pass(MILLISECOND);
    assert_eq!(holds(&world), [false, false]);
}

#[test]
fn client_that_does_nothing_loses_its_hold_after_a_sixteenth() {
    let mut world = moved(&[(0, 1), (0, 1)]);
    world.need(0, 15);
    world.answer(1);
    world.pass(Duration::from_millis(19));
    assert_eq!(world.lease(0), 80);
    world.pass(MILLISECOND);
    world.answer(1);
    assert_eq!((world.lease(0), world.lease(1)), (95, 5));
}

#[test]
fn memory_in_use_is_kept_though_no_block_is_granted() {
    let mut world = moved(&[(0, 1), (0, 1)]);
    world.clients[1].used = 20;
    world.need(0, 15);
    world.answer(1);
    world.pass(Duration::from_millis(319));
    assert_eq!(holds(&world), [false, true]);
}

#[test]
fn memory_that_was_free_is_not_held() {
    let mut world = World::new(100, &[(0, 1), (0, 1)]);
    world.cost = COST;
    world.need(0, 60);
    world.need(1, 40);
    assert_eq!(holds(&world), [false, false]);
}

#[test]
fn further_needs_of_a_holder_come_first() {
    let mut world = moved(&[(0, 1), (0, 1), (0, 1)]);
    // For client 2 the hold would have to end; for client 1 it has not.
    world.need(2, 90);
    world.need(1, 30);
    world.answer(0);
    assert_eq!([0, 1, 2].map(|at| world.lease(at)), [50, 50, 0]);
}

#[test]
fn others_keep_their_memory_while_a_need_waits_for_a_hold() {
    let mut world = moved(&[(0, 1), (0, 1), (0, 1)]);
    world.need(2, 90);
    world.answer(0);
    assert_eq!(world.lease(0), 80, "it can use the memory meanwhile");
    world.clients[1].used = 20;
    world.need(2, 70);
    world.answer(0);
    assert_eq!(world.lease(2), 70, "no hold is in the way");
}

#[test]
fn holders_that_need_memory_of_each_other_do_not_block_each_other() {
    let mut world = World::new(100, &[(0, 1), (0, 1), (0, 1)]);
    world.cost = COST;
    world.need(2, 100);
    world.need(0, 50);
    world.answer(2);
    world.need(1, 50);
    world.answer(2);
    assert_eq!(holds(&world), [true, true, false]);
    world.clients[0].used = 50;
    world.clients[1].used = 50;
    world.need(0, 10);
    assert_eq!(holds(&world), [false, true, false]);
    world.clients[0].used = 0;
    world.need(1, 10);
    world.answer(0);
    assert_eq!(world.lease(1), 60, "the other one goes on");
}

#[test]
fn need_within_a_guarantee_ignores_holds_and_begins_none() {
    let mut world = moved(&[(0, 1), (0, 1), (30, 1)]);
    world.clients[2].returned = 30;
    world.state(2);
    // All that is left is in the hold of client 1.
    world.need(1, 80);
    world.answer(0);
    assert_eq!((world.lease(1), world.ledger.free()), (100, 0));
    world.clients[1].blocks += 1;
    world.need(2, 30);
    assert_eq!(holds(&world), [false, true, false]);
    world.answer(1);
    assert_eq!(world.lease(2), 30);
    assert_eq!(holds(&world), [false, true, false]);
}

#[test]
fn lie_about_the_cost_holds_for_the_longest_hold_at_most() {
    let mut world = world(&[(0, 1), (0, 1)]);
    world.clients[0].returning = Duration::from_secs(1 << 30);
    world.need(1, 20);
    world.answer(0);
    world.clients[1].used = 20;
    world.need(0, 20);
    assert_eq!(holds(&world), [false, true]);
    world.pass(HOLD);
    assert_eq!(holds(&world), [false, false]);
}

/// A client of the simulation: it serves one request after the other, of any size, without a pause.
struct Busy {
    wants: u64,
    since: Duration,
    is_running: bool,
    /// Bytes on their way back.
    leaving: u64,
    /// The terms that it acted on.
    acted: Option<(u64, bool, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Finished,
    Returned,
}

struct Simulation {
    world: World,
    busy: Vec<Busy>,
    events: BinaryHeap<Reverse<(Duration, usize, Happening)>>,
    random: fastrand::Rng,
    work: Duration,
    peak: u64,
    served: u64,
    moved: u64,
    longest: Duration,
}

impl Simulation {
    fn new(shares: &[(u64, u32)], peak: u64, longest_hold: Duration, seed: u64) -> Self {
        let mut world = World::new(100, shares);
        world.cost = COST;
        world.ledger.longest_hold = longest_hold;
        let busy = shares.iter().map(|_| Busy {
            wants: 0,
            since: START,
            is_running: false,
            leaving: 0,
            acted: None,
        });
        Self {
            busy: busy.collect(),
            world,
            events: BinaryHeap::new(),
            random: fastrand::Rng::with_seed(seed),
            work: Duration::from_millis(3),
            peak,
            served: 0,
            moved: 0,
            longest: Duration::ZERO,
        }
    }

    /// Runs until this time.
    fn run(mut self, end: Duration) -> Self {
        for at in 0..self.busy.len() {
            self.begin(at);
        }
        self.settle();
        loop {
            let event = self.events.peek().map(|Reverse((time, ..))| *time);
            let times = [event, self.world.ledger.next_time()];
            let now = times.into_iter().flatten().min();
            let now = now.expect("a client works, or waits for a time");
            if now > end {
                // Those that wait still count.
                for busy in self.busy.iter().filter(|busy| !busy.is_running) {
                    self.longest = self.longest.max(end - busy.since);
                }
                return self;
            }
            self.world.now = now.max(self.world.now);
            if event == Some(now) {
                let Reverse((_, at, happening)) = self.events.pop().unwrap();
                self.handle(at, happening);
            } else {
                self.world.ledger.pass_time(now);
                self.world.deliver();
            }
            self.settle();
            self.world.ledger.check().unwrap();
            assert!(self.world.total() <= 100);
        }
    }

    fn begin(&mut self, at: usize) {
        self.busy[at].wants = self.random.u64(1..=self.peak);
        self.busy[at].since = self.world.now;
    }

    fn handle(&mut self, at: usize, happening: Happening) {
        self.busy[at].acted = None;
        match happening {
            Happening::Finished => {
                self.served += 1;
                self.world.clients[at].used = 0;
                self.busy[at].is_running = false;
                self.begin(at);
            }
            Happening::Returned => {
                let bytes = std::mem::take(&mut self.busy[at].leaving);
                self.moved += bytes;
                self.world.clients[at].returned += bytes;
                self.world.clients[at].returning += COST * bytes as u32;
            }
        }
    }

    /// Each client acts on its terms, until none has news.
    fn settle(&mut self) {
        let mut is_done = false;
        while !is_done {
            is_done = true;
            for at in 0..self.busy.len() {
                let Terms {
                    number, is_binding, ..
                } = self.world.clients[at].terms;
                let news = Some((number, is_binding, self.busy[at].leaving));
                if self.busy[at].acted != news {
                    self.busy[at].acted = news;
                    self.act(at);
                    is_done = false;
                }
            }
        }
    }

    fn act(&mut self, at: usize) {
        let lease = self.world.lease(at) - self.busy[at].leaving;
        // Granted bytes serve the request before they are recalled.
        if !self.busy[at].is_running && self.busy[at].wants <= lease {
            let busy = &mut self.busy[at];
            busy.is_running = true;
            self.longest = self.longest.max(self.world.now - busy.since);
            self.world.clients[at].used = busy.wants;
            self.world.clients[at].blocks += 1;
            let end = self.world.now + self.work;
            self.events.push(Reverse((end, at, Happening::Finished)));
        }
        let client = &self.world.clients[at];
        let owed = client.terms.recalled.saturating_sub(client.returned);
        let leaves = owed.min(lease - client.used.min(lease));
        if self.busy[at].leaving > 0 {
            // It answers once the memory is back.
            return;
        }
        if leaves > 0 {
            self.busy[at].leaving = leaves;
            let back = self.world.now + COST * leaves as u32;
            self.events.push(Reverse((back, at, Happening::Returned)));
            return;
        }
        let kept = lease - owed.min(lease);
        let lacks = match self.busy[at].is_running {
            true => 0,
            false => self.busy[at].wants.saturating_sub(kept),
        };
        self.world.clients[at].needs = self.world.clients[at].terms.granted + lacks;
        self.world.state(at);
    }
}

#[test]
fn holds_turn_moving_into_work() {
    let run = |longest_hold| {
        let simulation = Simulation::new(&[(5, 1); 3], 60, longest_hold, 7);
        simulation.run(Duration::from_secs(60))
    };
    let (without, with) = (run(Duration::ZERO), run(Duration::from_secs(1)));
    let counts = (without.served, without.moved, with.served, with.moved);
    assert!(with.served > 2 * without.served, "{counts:?}");
    // One client alone would serve as many as fit into the time.
    assert!(with.served * 10 > 8 * 60_000 / 3, "{counts:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The bound that the ledger's documentation states.
    #[test]
    fn every_waiter_is_granted_within_the_bound(
        shares in prop::collection::vec((0..15_u64, 1..5_u32), 2..5),
        longest_hold in 0..1000_u64,
        seed: u64,
    ) {
        let promised: u64 = shares.iter().map(|(guaranteed, _)| guaranteed).sum();
        let least = shares.iter().map(|(guaranteed, _)| guaranteed).min().unwrap();
        let longest_hold = Duration::from_millis(longest_hold);
        let peak = 100 - (promised - least);
        let simulation = Simulation::new(&shares, peak, longest_hold, seed);
        let simulation = simulation.run(Duration::from_secs(20));
        let ends_and_returns = simulation.work + COST * 100;
        let bound = (longest_hold + ends_and_returns) * shares.len() as u32;
        prop_assert!(simulation.longest <= bound, "{:?} of {bound:?}", simulation.longest);
        prop_assert!(simulation.served > 0);
    }
}
