//! Turns of tenants in the steps of a batch, by weight.
//!
//! A step has a number of rows, each of one token, and a number of places, each for one sequence. A sequence in a step
//! costs its part of the rows or its place, whichever is the larger part of the step. The tenant that has paid least
//! over its weight is next (start-time fair queueing); a turn is a place and as many rows as a place has on average, or
//! as many further rows for the same sequence. Within a tenant, first come is first served.
//!
//! **Bound.** Let W be the sum of the weights of the tenants that have sequences during an interval of steps, n the number
//! of these tenants, and *turn* the largest cost of a turn, which is a place and a row. While a tenant of weight w asks
//! for more than it gets in each of k steps, it is served at least w / W of k steps, less n turns, and less one turn:
//! w / W * (k * step - n * turn) - turn. So a tenant that asks for no more than that of each step is served in full,
//! whatever others send, and a sequence of a tenant that has no other is served after at most
//! (n + W / w) * turn / step steps.
//!
//! Rows that are left once all places are taken go to sequences that have places; they cost nothing, because no other
//! tenant could use them. A tenant that gets all it asks for saves nothing up for later, and a step in which all tenants
//! do settles what any of them has paid. So no more is kept than a number for each tenant that is ahead of another one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use weirpool::Tag;

/// The virtual time of a unit of cost at weight 1 is 2 to the power of this.
const STEPS: u32 = 40;

/// What a sequence could use of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) tenant: Tag,
    pub(super) weight: u32,
    pub(super) rows: usize,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Turns {
    rows: usize,
    places: usize,
    /// The virtual time: the least of the tenants that asked for more than they got.
    now: u128,
    /// The virtual times of the tenants that are ahead of that.
    ahead: HashMap<Tag, u128>,
}

/// A tenant in one step.
struct Flow {
    tenant: Tag,
    weight: u32,
    /// The asks that are not served in full, the first one last.
    waiting: Vec<usize>,
    /// The virtual time up to which it has paid.
    paid: u128,
}

impl Turns {
    /// Returns turns for steps of as many rows, and as many places for sequences.
    pub(super) fn new(rows: usize, places: usize) -> Self {
        let (rows, places) = (rows.max(1), places.max(1));
        Self {
            rows,
            places,
            now: 0,
            ahead: HashMap::new(),
        }
    }

    /// Returns the cost of a sequence's first turn with this many rows, in units of which a step has rows times places.
    fn first_cost(&self, rows: usize) -> u128 {
        self.further_cost(rows).max(self.rows as u128)
    }

    fn further_cost(&self, rows: usize) -> u128 {
        rows as u128 * self.places as u128
    }

    /// Returns the most rows of a turn.
    fn turn(&self) -> usize {
        self.rows.div_ceil(self.places)
    }

    /// Returns the rows of the next step for each of `asks`, which are in the order of arrival.
    pub(super) fn deal(&mut self, asks: &[Ask]) -> Vec<usize> {
        let mut flows = self.flows(asks);
        let mut dealt = vec![0; asks.len()];
        let (mut rows, mut places) = (self.rows, self.places);
        let mut is_paid = true;
        let starts = flows.iter().enumerate();
        let mut order: BinaryHeap<_> = starts.map(|(flow, of)| Reverse((of.paid, flow))).collect();
        while rows > 0
            && let Some(Reverse((at, flow))) = order.pop()
        {
            let of = &mut flows[flow];
            let Some(&ask) = of.waiting.last() else {
                continue;
            };
            let left = asks[ask].rows - dealt[ask];
            let turn = left.min(self.turn()).min(rows);
            let cost = match dealt[ask] {
                0 if places == 0 => {
                    is_paid = false;
                    continue;
                }
                0 => {
                    places -= 1;
                    self.first_cost(turn)
                }
                _ => self.further_cost(turn),
            };
            dealt[ask] += turn;
            rows -= turn;
            if turn == left {
                of.waiting.pop();
            }
            let at = at.saturating_add((cost << STEPS) / u128::from(of.weight));
            if is_paid {
                of.paid = at;
            }
            order.push(Reverse((at, flow)));
        }
        self.settle(flows);
        dealt
    }

    fn flows(&self, asks: &[Ask]) -> Vec<Flow> {
        let mut flows: Vec<Flow> = Vec::new();
        let mut of_tenant = HashMap::new();
        // Backwards, so that the first ask of each tenant is the last of its list.
        for (index, ask) in asks
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, ask)| ask.rows > 0)
        {
            let flow = *of_tenant.entry(ask.tenant).or_insert_with(|| {
                flows.push(Flow {
                    tenant: ask.tenant,
                    weight: ask.weight.max(1),
                    waiting: Vec::new(),
                    paid: self.ahead.get(&ask.tenant).copied().unwrap_or(self.now),
                });
                flows.len() - 1
            });
            flows[flow].waiting.push(index);
        }
        flows
    }

    /// Keeps the payments that matter to later steps.
    fn settle(&mut self, flows: Vec<Flow>) {
        let cut_short = flows.iter().filter(|flow| !flow.waiting.is_empty());
        let Some(least) = cut_short.map(|flow| flow.paid).min() else {
            self.ahead.clear();
            return;
        };
        self.now = least;
        let paid = flows.into_iter().map(|flow| (flow.tenant, flow.paid));
        self.ahead.extend(paid);
        self.ahead.retain(|_, paid| *paid > least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use std::ops::Range;

    /// A sequence: rows of its prompt, and then one row for each token of its answer.
    #[derive(Clone, Copy)]
    struct Sequence {
        tenant: usize,
        prompt: usize,
        answer: usize,
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Kind {
        /// Always has far more sequences than there are places.
        Greedy,
        /// Sends many sequences at once, and nothing for a while.
        Bursty,
        /// Sends one short sequence after the other, with pauses.
        Quiet,
    }

    struct Tenant {
        kind: Kind,
        weight: u32,
        prompt: Range<usize>,
        answer: Range<usize>,
    }

    /// The part of a tenant in a step.
    #[derive(Clone, Copy, Default)]
    struct Served {
        /// It had sequences.
        asks: bool,
        /// It got less than it asked for.
        is_cut: bool,
        /// In units of which a step has rows times places.
        cost: f64,
    }

    impl Tenant {
        fn random(random: &mut Rng) -> Self {
            let kind = [Kind::Greedy, Kind::Bursty, Kind::Quiet][random.usize(..3)];
            let longest = match kind {
                Kind::Quiet => 8,
                _ => [2, 20, 300][random.usize(..3)],
            };
            Self {
                kind,
                weight: [1, 1, 2, 5][random.usize(..4)],
                prompt: 1..longest + 1,
                answer: 1..[2, 40][random.usize(..2)],
            }
        }

        /// Returns the number of sequences that come before a step, if it has `present` ones.
        fn come(&self, present: usize, places: usize, random: &mut Rng) -> usize {
            match self.kind {
                Kind::Greedy => (3 * places).saturating_sub(present),
                Kind::Bursty if random.usize(..60) == 0 => random.usize(..4 * places),
                Kind::Quiet if present == 0 && random.usize(..4) == 0 => 1,
                Kind::Bursty | Kind::Quiet => 0,
            }
        }
    }

    /// Runs steps, and checks each of them by itself. Returns what each step was to each tenant.
    fn steps(turns: &mut Turns, tenants: &[Tenant], random: &mut Rng) -> Vec<Vec<Served>> {
        let tags: Vec<_> = (0..tenants.len())
            .map(|tenant| Tag::new(&format!("tenant {tenant}")))
            .collect();
        let (rows, places) = (turns.rows, turns.places);
        let mut batch: Vec<Sequence> = Vec::new();
        let mut steps = Vec::new();
        for _ in 0..300 {
            for (index, tenant) in tenants.iter().enumerate() {
                let present = batch.iter().filter(|one| one.tenant == index).count();
                for _ in 0..tenant.come(present, places, random) {
                    batch.push(Sequence {
                        tenant: index,
                        prompt: random.usize(tenant.prompt.clone()),
                        answer: random.usize(tenant.answer.clone()),
                    });
                }
            }
            let asks: Vec<_> = batch
                .iter()
                .map(|one| Ask {
                    tenant: tags[one.tenant],
                    weight: tenants[one.tenant].weight,
                    rows: one.prompt.max(1),
                })
                .collect();
            let dealt = turns.deal(&asks);
            let (mut left, mut free) = (rows, places);
            let mut served = vec![Served::default(); tenants.len()];
            for ((one, ask), dealt) in batch.iter_mut().zip(&asks).zip(&dealt) {
                let served = &mut served[one.tenant];
                assert!(!served.is_cut || *dealt == 0, "a later sequence overtakes");
                served.asks = true;
                served.is_cut |= *dealt < ask.rows;
                if *dealt > 0 {
                    left = left.checked_sub(*dealt).expect("rows of a step");
                    free = free.checked_sub(1).expect("places of a step");
                    served.cost += (dealt * places).max(rows) as f64;
                }
                match one.prompt {
                    0 => one.answer -= dealt,
                    _ => one.prompt -= dealt,
                }
            }
            for (ask, dealt) in asks.iter().zip(&dealt) {
                let could_more = match dealt {
                    0 => left > 0 && free > 0,
                    _ => left > 0 && *dealt < ask.rows,
                };
                assert!(!could_more, "{left} rows and {free} places are idle");
            }
            assert!(turns.ahead.len() <= tenants.len());
            batch.retain(|one| one.prompt + one.answer > 0);
            steps.push(served);
        }
        steps
    }

    /// Checks the bound in each interval in which a tenant gets less than it asks for in each step. Returns the number of
    /// intervals in which the bound is more than nothing.
    fn check_bound(turns: &Turns, tenants: &[Tenant], steps: &[Vec<Served>]) -> usize {
        let step = (turns.rows * turns.places) as f64;
        let turn = turns.first_cost(turns.turn()) as f64;
        assert!(turn < (turns.rows + turns.places) as f64);
        let mut checked = 0;
        for (tenant, of) in tenants.iter().enumerate() {
            for begin in 0..steps.len() {
                let mut present = vec![false; tenants.len()];
                let mut cost = 0.0;
                for (index, served) in steps[begin..].iter().enumerate() {
                    if !served[tenant].is_cut {
                        break;
                    }
                    cost += served[tenant].cost;
                    for (present, served) in present.iter_mut().zip(served) {
                        *present |= served.asks;
                    }
                    let among = tenants.iter().zip(&present).filter(|(_, is)| **is);
                    let weights = among.clone().map(|(of, _)| f64::from(of.weight));
                    let (sum, count) = (weights.sum::<f64>(), among.count() as f64);
                    let all = (index + 1) as f64 * step;
                    let least = f64::from(of.weight) / sum * (all - count * turn) - turn;
                    checked += usize::from(least > 0.0);
                    assert!(
                        cost >= least - 1e-6,
                        "{:?} of weight {} of {sum} got {cost} of {all} in {} steps, and is due {least}",
                        of.kind,
                        of.weight,
                        index + 1
                    );
                }
            }
        }
        checked
    }

    #[test]
    fn tenant_that_asks_for_more_is_served_its_share_of_any_interval() {
        let mut checked = [0; 3];
        for seed in 0..300 {
            let mut random = Rng::with_seed(seed);
            let places = random.usize(1..24);
            let rows = places * random.usize(1..6) + random.usize(..places);
            let mut turns = Turns::new(rows, places);
            let count = random.usize(2..7);
            let tenants: Vec<_> = (0..count).map(|_| Tenant::random(&mut random)).collect();
            let steps = steps(&mut turns, &tenants, &mut random);
            let intervals = check_bound(&turns, &tenants, &steps);
            for tenant in &tenants {
                checked[tenant.kind as usize] += intervals;
            }
        }
        assert!(checked.iter().all(|count| *count > 100_000), "{checked:?}");
    }

    /// The tenant with one sequence is within its share, and others have far more than there are places.
    #[test]
    fn tenant_within_its_share_takes_part_in_each_step() {
        let [quiet, greedy, other] = ["quiet", "greedy", "other"].map(Tag::new);
        let mut turns = Turns::new(64, 16);
        let ask = |tenant, rows| Ask {
            tenant,
            weight: 1,
            rows,
        };
        let mut asks = vec![ask(greedy, 1); 100];
        asks.extend([ask(other, 500); 100]);
        asks.push(ask(quiet, 1));
        for step in 0..100 {
            let dealt = turns.deal(&asks);
            assert_eq!(dealt.last(), Some(&1), "step {step}");
            assert_eq!(dealt.iter().sum::<usize>(), 64, "step {step}");
        }
    }

    /// One tenant after the other has the batch for itself.
    #[test]
    fn tenant_that_was_alone_owes_nothing_and_one_that_was_away_saved_nothing() {
        let [first, second] = ["first", "second"].map(Tag::new);
        let mut turns = Turns::new(16, 16);
        let ask = |tenant| Ask {
            tenant,
            weight: 1,
            rows: 1,
        };
        for _ in 0..100 {
            turns.deal(&[ask(first); 50]);
        }
        let both = [[ask(first); 50], [ask(second); 50]].concat();
        for step in 0..10 {
            let dealt = turns.deal(&both);
            assert_eq!(dealt[..50].iter().sum::<usize>(), 8, "step {step}");
        }
    }

    #[test]
    fn weights_of_any_size_share_a_step() {
        let [heavy, light] = ["heavy", "light"].map(Tag::new);
        let mut turns = Turns::new(usize::from(u16::MAX), 1000);
        let ask = |tenant, weight| Ask {
            tenant,
            weight,
            rows: 1,
        };
        let asks = [[ask(heavy, u32::MAX); 1200], [ask(light, 0); 1200]].concat();
        let dealt = turns.deal(&asks);
        assert_eq!(dealt[..1200].iter().sum::<usize>(), 999);
        assert_eq!(dealt.iter().sum::<usize>(), 1000);
    }
}
