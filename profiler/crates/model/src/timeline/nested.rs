//! Slices of a row that are in each other.

use super::Time;

/// How many slices before a moment are looked at for one around it.
const MOST_NESTED: usize = 64;

/// The slice of a row around a moment that begins last. `row` has begin, end and what is known of
/// each slice, in the order of begin; of several with one begin the last in it counts.
pub fn slice_around<T: Copy>(row: &[(Time, Time, T)], at: Time) -> Option<T> {
    let behind = row.partition_point(|(begin, ..)| *begin <= at);
    let mut before = row.get(..behind)?.iter().rev().take(MOST_NESTED);
    let around = before.find(|(_, end, _)| at <= *end);
    around.map(|(.., known)| *known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slice_that_begins_last_is_found() {
        let us = |us: i64| Time::from_micros(us as f64);
        let row = [(0, 10, 'a'), (2, 4, 'b'), (2, 3, 'c'), (20, 21, 'd')];
        let row = row.map(|(from, to, name)| (us(from), us(to), name));
        for (at, found) in [
            (0, Some('a')),
            (2, Some('c')),
            (4, Some('b')),
            (5, Some('a')),
            (11, None),
            (21, Some('d')),
            (22, None),
        ] {
            assert_eq!(slice_around(&row, us(at)), found, "{at}");
        }
    }
}
