//! Files whose times count from a moment that they state, as Kineto's do. It changes every few
//! months, so files of one run can have different ones.

use super::Reading;
use aiprof_model::timeline::{Length, Time, Timeline};

/// The member that states it.
pub const BASE: &str = "baseTimeNanoseconds";

/// Its value: nanoseconds since 1970.
pub(super) fn parse(text: &str) -> Option<i64> {
    text.parse().ok().filter(|ns| *ns >= 0)
}

/// The first that was read.
fn first(timeline: &Timeline) -> Option<i64> {
    let stated = timeline.metadata.iter().filter(|(key, _)| key == BASE);
    stated.filter_map(|(_, text)| parse(text)).next()
}

impl Reading {
    /// Makes the file count from what the first file counts from that states a base:
    /// [`Self::origin`] is then on the clock of that file.
    pub fn place_by_base(&mut self, timeline: &mut Timeline) {
        let Some((own, first)) = self.base_ns.zip(first(timeline)) else {
            return;
        };
        let apart = own.saturating_sub(first);
        self.base_ns = Some(first);
        self.origin = self.origin.saturating_add(apart.div_euclid(1000));
        let rest = Length::from_nanos(apart.rem_euclid(1000));
        let events = timeline.events.get_mut(self.events.clone());
        for event in events.unwrap_or_default() {
            if event.start != Time::FIRST {
                event.start = event.start + rest;
            }
        }
    }
}
