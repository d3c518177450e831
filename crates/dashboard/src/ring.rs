//! The last ten minutes of a pool: a row of figures for each second, of the pool and of its tags.
//!
//! The size is bounded, whatever the pool holds: 600 rows for the pool, for 40 tags, and for the sum of all other tags, at
//! most 1.3 MiB. The figures come from counters that the pool keeps anyway.

use crate::{Counter, clip};
use serde::Serialize;
use std::array::from_fn;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet, VecDeque};
use weirpool::{Statistics, Tag, TagStatistics};

/// The rows: ten minutes of seconds.
pub(super) const ROWS: usize = 600;
/// The most tags with rows of their own.
pub(super) const TAGS: usize = 40;
/// The most counters of the service.
const COUNTERS: usize = 4;

/// The columns of the pool: levels, and behind them counts since the row before. Those of the service follow.
const POOL: [&str; 11] = [
    "used",
    "evictable",
    "pending",
    "reserved",
    "requested",
    "limit",
    "waiting",
    "allocated",
    "refused",
    "unserved",
    "evicted",
];
const POOL_LEVELS: usize = 7;
const POOL_COLUMNS: usize = POOL.len() + COUNTERS;

/// The columns of a tag: two levels, and counts since the row before.
const TAG: [&str; 6] = [
    "used",
    "waiting",
    "granted",
    "served",
    "waited_us",
    "refused",
];
const TAG_LEVELS: usize = 2;

/// A tag outside of the ring takes the rows of another one if its share is that many times larger.
const LARGER: f64 = 2.0;
/// What a share loses with each sample: half of it in two minutes.
const DECAY: f64 = 0.994;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// In milliseconds since 1970; each is later than the one before.
    times: VecDeque<u64>,
    pool: Series<POOL_COLUMNS>,
    /// The names of the service's counters.
    counters: Vec<String>,
    tags: Vec<Tagged>,
    /// The sum of all tags, whose counts the next sample subtracts.
    sum: Series<{ TAG.len() }>,
    others: Series<{ TAG.len() }>,
}

/// Rows of figures, one for each time.
#[derive(Debug)]
struct Series<const N: usize> {
    rows: VecDeque<[u64; N]>,
    /// The counts so far.
    last: Option<[u64; N]>,
}

#[derive(Debug)]
struct Tagged {
    tag: Tag,
    /// The tag's share of the memory in use, and that of the waiting requests, added: lately.
    share: f64,
    series: Series<{ TAG.len() }>,
}

type Columns = BTreeMap<&'static str, Vec<i64>>;

/// The rows as the page gets them. Numbers are differences: each is to be added to the one before.
#[derive(Serialize)]
struct Rows<'a> {
    /// The page forgets what it has.
    is_whole: bool,
    times: Vec<i64>,
    pool: Columns,
    counters: Vec<(&'a str, Vec<i64>)>,
    tags: Vec<(Cow<'static, str>, Columns)>,
    others: Columns,
}

impl<const N: usize> Default for Series<N> {
    fn default() -> Self {
        Self {
            rows: VecDeque::new(),
            last: None,
        }
    }
}

impl<const N: usize> Series<N> {
    /// Returns the row of these figures: the levels, and the counts since the last figures.
    fn row(&mut self, figures: [u64; N], levels: usize) -> [u64; N] {
        let last = self.last.replace(figures).unwrap_or(figures);
        from_fn(|column| match column < levels {
            true => figures[column],
            false => figures[column].saturating_sub(last[column]),
        })
    }

    fn push(&mut self, row: [u64; N]) {
        if self.rows.len() == ROWS {
            self.rows.pop_front();
        }
        self.rows.push_back(row);
    }

    /// Returns a column of the rows from `first` on.
    fn column(&self, column: usize, first: usize) -> Vec<i64> {
        differences(self.rows.iter().skip(first).map(|row| row[column]))
    }

    /// Returns the columns with these names, the first ones.
    fn columns(&self, names: &[&'static str], first: usize) -> Columns {
        let names = names.iter().enumerate();
        names
            .map(|(at, name)| (*name, self.column(at, first)))
            .collect()
    }
}

fn differences(values: impl Iterator<Item = u64>) -> Vec<i64> {
    let mut last = 0;
    values
        .map(|value| {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            value - std::mem::replace(&mut last, value)
        })
        .collect()
}

fn figures_of_pool(statistics: &Statistics, counters: &[Counter]) -> [u64; POOL_COLUMNS] {
    let waits = &statistics.waits;
    let used = statistics.used.current;
    let spare = statistics.set_aside + statistics.lost_to_rounding;
    let own = [
        used,
        statistics.evictable,
        statistics.pending.current,
        statistics.reserved.current,
        used.saturating_sub(spare),
        statistics.leased,
        waits.waiting as u64,
        statistics.allocations,
        waits.refused + waits.shed,
        waits.unserved(),
        statistics.evictions,
    ];
    let count = |column: usize| counters.get(column).map_or(0, Counter::count);
    from_fn(|column| match own.get(column) {
        Some(figure) => *figure,
        None => count(column - own.len()),
    })
}

fn figures_of(tag: &TagStatistics) -> [u64; TAG.len()] {
    let waits = &tag.waits;
    let waited = waits.times.total().as_micros();
    [
        tag.used.current,
        waits.waiting as u64,
        tag.allocations,
        waits.served,
        u64::try_from(waited).unwrap_or(u64::MAX),
        waits.refused + waits.shed + waits.unserved(),
    ]
}

impl Ring {
    /// Adds a row. `now` is in milliseconds since 1970.
    pub(super) fn push(
        &mut self,
        now: u64,
        statistics: &Statistics,
        tags: &[TagStatistics],
        counters: &[Counter],
    ) {
        let row = self
            .pool
            .row(figures_of_pool(statistics, counters), POOL_LEVELS);
        self.pool.push(row);
        let shown = counters.iter().take(COUNTERS).skip(self.counters.len());
        self.counters
            .extend(shown.map(|counter| clip(counter.name()).into_owned()));
        self.push_tags(tags);
        if self.times.len() == ROWS {
            self.times.pop_front();
        }
        let earliest = self.times.back().map_or(0, |last| last + 1);
        self.times.push_back(now.max(earliest));
    }

    fn push_tags(&mut self, tags: &[TagStatistics]) {
        let all: Vec<_> = tags.iter().map(figures_of).collect();
        let sum = all.iter().fold([0_u64; TAG.len()], |sum, figures| {
            from_fn(|column| sum[column].saturating_add(figures[column]))
        });
        let share = |figures: &[u64; TAG.len()]| {
            (0..TAG_LEVELS)
                .map(|level| figures[level] as f64 / sum[level].max(1) as f64)
                .sum::<f64>()
        };
        let find = |tag: Tag| tags.binary_search_by_key(&tag, |tag| tag.tag).ok();
        for tagged in &mut self.tags {
            let now = find(tagged.tag).map_or(0.0, |at| share(&all[at]));
            tagged.share = now.max(tagged.share * DECAY);
        }
        self.admit(tags, &all, share);
        let mut rest = self.sum.row(sum, TAG_LEVELS);
        for tagged in &mut self.tags {
            let figures = find(tagged.tag).map_or([0; TAG.len()], |at| all[at]);
            let row = tagged.series.row(figures, TAG_LEVELS);
            tagged.series.push(row);
            rest = from_fn(|column| rest[column].saturating_sub(row[column]));
        }
        self.others.push(rest);
    }

    /// Gives rows to tags that have none: free ones, or those of a tag with a much smaller share, whose rows the sum of the
    /// others takes.
    fn admit(
        &mut self,
        tags: &[TagStatistics],
        all: &[[u64; TAG.len()]],
        share: impl Fn(&[u64; TAG.len()]) -> f64,
    ) {
        let known: HashSet<_> = self.tags.iter().map(|tagged| tagged.tag).collect();
        let is_new = |tag: &TagStatistics| !known.contains(&tag.tag);
        let is_active = |figures: &[u64; TAG.len()]| figures.iter().any(|figure| *figure > 0);
        // No row becomes free below that: each tag that takes the rows of another one has a larger share than it.
        let shares = self.tags.iter().map(|tagged| tagged.share);
        let least = match self.tags.len() < TAGS {
            true => f64::NEG_INFINITY,
            false => LARGER * shares.fold(f64::INFINITY, f64::min),
        };
        let new = tags
            .iter()
            .zip(all)
            .filter(|(_, figures)| is_active(figures));
        let mut new: Vec<_> = new
            .map(|(tag, figures)| (share(figures), tag))
            .filter(|(share, tag)| *share > least && is_new(tag))
            .map(|(share, tag)| (share, tag.tag))
            .collect();
        // The largest first; of equal ones, the earliest.
        new.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (share, tag) in new {
            let mut series = Series::default();
            if self.tags.len() < TAGS && !self.others.rows.is_empty() {
                // It was not active before.
                series.last = Some([0; TAG.len()]);
            }
            if self.tags.len() == TAGS {
                let shares = self.tags.iter().enumerate();
                let least = shares.min_by(|a, b| a.1.share.total_cmp(&b.1.share));
                let Some((least, _)) = least.filter(|(_, least)| share > LARGER * least.share)
                else {
                    return;
                };
                let given = self.tags.remove(least).series.rows;
                for (other, row) in self.others.rows.iter_mut().zip(given) {
                    *other = from_fn(|column| other[column].saturating_add(row[column]));
                }
            }
            series.rows.resize(self.others.rows.len(), [0; TAG.len()]);
            self.tags.push(Tagged { tag, share, series });
        }
    }

    /// Returns the last rows as a server-sent event: all of them to a page that has none.
    pub(super) fn event(&self, rows: usize) -> String {
        let first = self.len().saturating_sub(rows);
        let counters = self.counters.iter().zip(POOL.len()..);
        let tags = self.tags.iter();
        let rows = Rows {
            is_whole: first == 0,
            times: differences(self.times.iter().copied().skip(first)),
            pool: self.pool.columns(&POOL, first),
            counters: counters
                .map(|(name, at)| (name.as_str(), self.pool.column(at, first)))
                .collect(),
            tags: tags
                .map(|tagged| (clip(tagged.tag.name()), tagged.series.columns(&TAG, first)))
                .collect(),
            others: self.others.columns(&TAG, first),
        };
        let json = serde_json::to_string(&rows).expect("plain data, with names as keys");
        format!("event: rows\ndata: {json}\n\n")
    }

    /// Returns the number of rows.
    pub(super) fn len(&self) -> usize {
        self.times.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(name: &str, used: u64, granted: u64) -> TagStatistics {
        let mut figures = TagStatistics::of(Tag::new(name));
        figures.used.current = used;
        figures.allocations = granted;
        figures
    }

    /// Returns the sum of a column over all tags, for each row.
    fn sums(ring: &Ring, column: usize) -> Vec<u64> {
        let tags = ring.tags.iter().map(|tagged| &tagged.series);
        let all: Vec<_> = tags.chain([&ring.others]).collect();
        (0..ring.len())
            .map(|row| all.iter().map(|series| series.rows[row][column]).sum())
            .collect()
    }

    #[test]
    fn large_tag_takes_the_rows_of_a_small_one_and_no_figure_is_lost() {
        let mut ring = Ring::default();
        let statistics = Statistics::default();
        let mut random = fastrand::Rng::with_seed(3);
        let (mut used, mut granted) = (Vec::new(), Vec::new());
        let mut counts = vec![0; TAGS + 30];
        for second in 0..400_u64 {
            let known = if second < 100 { TAGS } else { TAGS + 30 };
            let tags: Vec<_> = (0..known)
                .map(|number| {
                    let more = random.u64(0..5);
                    counts[number] += more;
                    let size = if number >= TAGS + 20 { 100_000 } else { 100 };
                    figures(
                        &format!("ring {number}"),
                        random.u64(1..size),
                        counts[number],
                    )
                })
                .collect();
            used.push(tags.iter().map(|tag| tag.used.current).sum::<u64>());
            granted.push(counts.iter().sum::<u64>());
            ring.push(second * 1000, &statistics, &tags, &[]);
        }
        assert_eq!(ring.tags.len(), TAGS);
        let names: Vec<_> = ring.tags.iter().map(|tagged| tagged.tag.name()).collect();
        for large in TAGS + 20..TAGS + 30 {
            assert!(
                names.contains(&&*format!("ring {large}")),
                "{large}: {names:?}"
            );
        }
        assert_eq!(sums(&ring, 0), used);
        // The first row counts nothing.
        let since: Vec<_> = granted.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(sums(&ring, 2)[1..], since);
    }

    #[test]
    fn times_increase_whatever_the_clock_does() {
        let mut ring = Ring::default();
        for now in [5000, 4000, 4000, 9000] {
            ring.push(now, &Statistics::default(), &[], &[]);
        }
        assert_eq!(ring.times, [5000, 5001, 5002, 9000]);
        assert!(ring.event(ROWS).contains("\"times\":[5000,1,1,3998]"));
    }
}
