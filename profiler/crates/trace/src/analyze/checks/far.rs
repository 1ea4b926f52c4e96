//! Events whose times are far from all others: how far.

use super::{Checks, Fault};
use aiprof_model::timeline::Ph;
use rustc_hash::FxHashMap;

impl Checks<'_> {
    /// Events that are too far from the others of their file.
    pub(super) fn far(&mut self) {
        let timeline = self.timeline;
        if timeline.aside.is_empty() {
            return;
        }
        // From the first begin to the last end of each file's other events, as the file has them.
        let mut files: FxHashMap<u32, (f64, f64)> = FxHashMap::default();
        for event in timeline.events.iter().filter(|e| e.ph != Ph::Metadata) {
            let (from, to) = (
                timeline.file_us(event),
                timeline.file_us(event) + event.dur(),
            );
            let known = files.entry(timeline.job(event)).or_insert((from, to));
            *known = (known.0.min(from), known.1.max(to));
        }
        for event in &timeline.aside {
            let at = timeline.file_us(event);
            let by_us = files.get(&timeline.job(event)).map_or(0.0, |(from, to)| {
                (from - at).max(at + event.dur() - to).max(0.0)
            });
            self.add(Fault::FarTime, event, by_us, String::new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fault, run};
    use aiprof_model::timeline::{Dialect, Kinds};
    use aiprof_testkit::scene::{self, Slice};

    /// How far an event is from the first begin or the last end of the others.
    #[test]
    fn events_far_from_all_others_are_off_by_the_distance() {
        let slice = |name, ts, dur| Slice {
            name,
            ts,
            dur,
            ..Slice::default()
        };
        let mut timeline = torch(&[slice("a", 100.0, 50.0), slice("b", 400.0, 100.0)]);
        let day = 86_400e6;
        let far = torch(&[
            slice("before", -3.0 * day, 5.0),
            slice("behind", 3.0 * day, 5.0),
            slice("long", 100.0, 3.0 * day),
        ]);
        timeline.aside = far.events;
        let outcome = run(&timeline, &Kinds::new(&timeline));
        let found = &outcome.found[Fault::FarTime as usize].evidence;
        let by_us: Vec<f64> = found.iter().map(|one| one.by_us).collect();
        let expected = [
            100.0 + 3.0 * day,
            3.0 * day + 5.0 - 500.0,
            3.0 * day - 400.0,
        ];
        assert_eq!(by_us, expected);
    }

    fn torch(slices: &[Slice<'_>]) -> aiprof_model::timeline::Timeline {
        let mut timeline = scene::empty(Dialect::Torch);
        for slice in slices {
            scene::add(&mut timeline, slice);
        }
        timeline
    }
}
