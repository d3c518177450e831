//! Where labels go beside their points, so that none covers another.

/// In pixels.
pub(super) type Place = (i32, i32);

const HEIGHT: i32 = 18;
const DIGIT: i32 = 10;

/// What is covered already.
#[derive(Debug, Default)]
pub(super) struct Labels {
    covered: Vec<Area>,
}

#[derive(Clone, Copy, Debug)]
struct Area {
    from: Place,
    to: Place,
}

impl Labels {
    /// A mark of this radius is there: labels stay off it.
    pub(super) fn mark(&mut self, (x, y): Place, radius: i32) {
        self.covered.push(Area {
            from: (x - radius, y - radius),
            to: (x + radius, y + radius),
        });
    }

    /// Where a label of so many characters finds room near a mark: its upper left corner.
    pub(super) fn find(&mut self, mark: Place, characters: usize) -> Option<Place> {
        let width = DIGIT * characters as i32;
        let area = around(mark, width)
            .map(|(x, y)| Area {
                from: (x, y),
                to: (x + width, y + HEIGHT),
            })
            .into_iter()
            .find(|area| !self.covered.iter().any(|other| area.meets(other)))?;
        self.covered.push(area);
        Some(area.from)
    }
}

/// The best first: lines fall from left to right.
fn around((x, y): Place, width: i32) -> [Place; 4] {
    const GAP: i32 = 10;
    [
        (x + GAP, y - GAP - HEIGHT / 2),
        (x - GAP - width, y + GAP - HEIGHT / 2),
        (x - width / 2, y + GAP),
        (x - width / 2, y - GAP - HEIGHT),
    ]
}

impl Area {
    fn meets(&self, other: &Self) -> bool {
        self.from.0 < other.to.0
            && other.from.0 < self.to.0
            && self.from.1 < other.to.1
            && other.from.1 < self.to.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cover_neither_each_other_nor_marks() {
        let mut labels = Labels::default();
        labels.mark((100, 100), 5);
        let places: Vec<_> = (0..6).filter_map(|_| labels.find((100, 100), 2)).collect();
        assert_eq!(places.len(), 4, "and then there is no room: {places:?}");
        let areas = labels.covered;
        for (index, area) in areas.iter().enumerate() {
            let others = &areas[index + 1..];
            assert!(!others.iter().any(|other| area.meets(other)), "{areas:?}");
        }
    }
}
