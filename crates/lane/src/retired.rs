//! The counts of streams that are gone.

use crate::heap::Mark;
use crate::{Lane, LaneFigures};

/// The counts of retired lanes, and the marks that every lane keeps.
#[derive(Debug)]
pub struct Retired {
    figures: LaneFigures,
    /// The marks, each with the sum of the high-water marks of lanes that retired since.
    marks: Vec<(Mark, u64)>,
    next: Mark,
}

impl Default for Retired {
    fn default() -> Self {
        Self {
            figures: LaneFigures::default(),
            marks: vec![(Mark::RESET, 0)],
            next: Mark::RESET.next(),
        }
    }
}

impl Retired {
    /// Makes a new lane keep the marks.
    pub fn introduce(&self, lane: &Lane) {
        let marks = self.marks.iter().map(|(mark, _)| *mark);
        marks.filter(|mark| *mark != Mark::RESET).for_each(|mark| {
            lane.cache
                .with_marks(|counters, shards| counters.begin(mark, shards))
        });
    }

    /// Takes over the counts of a lane that retires.
    pub fn absorb(&mut self, lane: &Lane) {
        for (mark, high) in &mut self.marks {
            let figures = lane.figures(*mark);
            *high = high.saturating_add(figures.bound);
            if *mark == Mark::RESET {
                self.figures.counts.add(&figures.counts);
            }
        }
    }

    /// Makes a mark, which a figure is counted from.
    pub fn begin(&mut self) -> Mark {
        let mark = self.next;
        self.next = mark.next();
        self.marks.push((mark, 0));
        mark
    }

    /// Forgets a mark.
    pub fn end(&mut self, mark: Mark) {
        self.marks.retain(|(known, _)| *known != mark);
    }

    /// Returns the counts of retired lanes, and the high-water mark since a mark.
    pub fn figures(&self, since: Mark) -> LaneFigures {
        let found = self.marks.iter().find(|(mark, _)| *mark == since);
        LaneFigures {
            bound: found.map_or(0, |(_, high)| *high),
            ..self.figures
        }
    }

    /// Counts high-water marks anew.
    pub fn reset_high(&mut self) {
        let mut marks = self.marks.iter_mut();
        let reset = marks.find(|(mark, _)| *mark == Mark::RESET);
        reset.into_iter().for_each(|(_, high)| *high = 0);
    }
}
