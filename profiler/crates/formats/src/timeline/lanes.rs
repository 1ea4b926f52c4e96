//! Lanes: rows in which spans lie beside or inside each other. What overlaps otherwise
//! goes to another lane of its track.

/// Most lanes of one track.
const MAX_LANES: usize = 64;

/// The open spans of a lane, outermost first: the end of each, and its value.
#[derive(Debug)]
pub(crate) struct Nest<E, T> {
    open: Vec<(E, T)>,
}

impl<E, T> Default for Nest<E, T> {
    fn default() -> Self {
        Self { open: Vec::new() }
    }
}

impl<E: Copy + Ord, T> Nest<E, T> {
    /// Ends the innermost span, if it ends by then.
    pub(crate) fn end(&mut self, by: E) -> Option<(E, T)> {
        self.open.pop_if(|(end, _)| *end <= by)
    }

    /// When the innermost span ends.
    pub(crate) fn around(&self) -> Option<E> {
        self.open.last().map(|(end, _)| *end)
    }

    /// Whether what ends then fits into the innermost span.
    pub(crate) fn holds(&self, end: E) -> bool {
        self.around().is_none_or(|around| end <= around)
    }

    /// Begins a span inside of all others.
    pub(crate) fn begin(&mut self, end: E, what: T) {
        self.open.push((end, what));
    }

    /// The open spans, innermost first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(E, T)> {
        self.open.iter().rev()
    }
}

/// The first lane in which a span has its place, which `take` gives it.
pub(crate) fn first<L, P>(
    lanes: &mut [L],
    mut take: impl FnMut(&mut L) -> Option<P>,
) -> Option<(usize, P)> {
    let mut lanes = lanes.iter_mut().enumerate();
    lanes.find_map(|(index, lane)| Some((index, take(lane)?)))
}

/// Whether a track may have another lane.
pub(crate) fn has_room<L>(lanes: &[L]) -> bool {
    lanes.len() < MAX_LANES
}
