//! Figures, and the rows of the table that they are in.

/// The allocator that a figure belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allocator {
    Weirpool,
    /// The lower bound: the calls that no allocator can avoid. Each row says which they are.
    Floor,
    /// The driver's own pool.
    Driver,
}

/// The median of several turns, with their minimum and maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// # Panics
    /// Panics if there are no turns.
    pub(crate) fn of(mut turns: Vec<f64>) -> Self {
        turns.sort_by(f64::total_cmp);
        let (least, most) = (turns[0], turns[turns.len() - 1]);
        Self {
            median: turns[(turns.len() - 1) / 2],
            least,
            most,
        }
    }

    pub(crate) fn exactly(figure: f64) -> Self {
        Self::of(vec![figure])
    }
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) name: &'static str,
    /// Whether larger figures are better.
    pub(crate) is_rate: bool,
}

impl Unit {
    /// Creates a unit of which less is better.
    pub(crate) const fn cost(name: &'static str) -> Self {
        Self {
            name,
            is_rate: false,
        }
    }

    /// Creates a unit of which more is better.
    pub(crate) const fn rate(name: &'static str) -> Self {
        Self {
            name,
            is_rate: true,
        }
    }
}

/// A line of the table.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) label: String,
    pub(crate) unit: Unit,
    pub(crate) figures: Vec<(Allocator, Spread)>,
    /// The name under which the programs of the peers report the same figure.
    pub(crate) peer: Option<String>,
}

impl Row {
    pub(crate) fn new(
        label: impl Into<String>,
        unit: Unit,
        figures: Vec<(Allocator, Spread)>,
    ) -> Self {
        Self {
            label: label.into(),
            unit,
            figures,
            peer: None,
        }
    }

    pub(crate) fn beside(mut self, peer: impl Into<String>) -> Self {
        self.peer = Some(peer.into());
        self
    }

    pub(crate) fn of(&self, who: Allocator) -> Option<Spread> {
        let mut figures = self.figures.iter();
        figures
            .find(|(whose, _)| *whose == who)
            .map(|(_, spread)| *spread)
    }
}

/// Returns the quotient `over / under` of two rows, for each allocator that is in both.
pub(crate) fn quotient(label: impl Into<String>, unit: Unit, over: &Row, under: &Row) -> Row {
    let figures = over.figures.iter().filter_map(|(who, spread)| {
        let quotient = spread.median / under.of(*who)?.median;
        Some((*who, Spread::exactly(quotient)))
    });
    Row::new(label, unit, figures.collect())
}

/// Formats bytes: `256 B`, `64 KiB`, `8 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        ..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}
