//! The positions of labels beside their points, so that no label covers another.

/// A position in pixels.
pub(super) type Pixel = (i32, i32);

const HEIGHT: i32 = 18;
const DIGIT: i32 = 10;

/// The areas that marks and labels cover.
#[derive(Debug, Default)]
pub(super) struct Labels {
    covered: Vec<Area>,
}

#[derive(Clone, Copy, Debug)]
struct Area {
    from: Pixel,
    to: Pixel,
}

impl Labels {
    /// Covers the area of a mark of this radius.
    pub(super) fn mark(&mut self, (x, y): Pixel, radius: i32) {
        self.covered.push(Area {
            from: (x - radius, y - radius),
            to: (x + radius, y + radius),
        });
    }

    /// Covers free room for a label near a mark, and returns its upper left corner; `None` without room.
    pub(super) fn find(&mut self, mark: Pixel, characters: usize) -> Option<Pixel> {
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

/// Returns corners around a mark, the best first: lines fall from left to right.
fn around((x, y): Pixel, width: i32) -> [Pixel; 4] {
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
