//! Events taken apart: each device event into its three phases (`-s`), request numbers
//! out of names (`-O async`).

use aiprof_model::timeline::{Event, Kind, Kinds, Sym, Timeline};
use rustc_hash::FxHashMap;

/// What acelyzer takes off, so that neighbours do not touch, microseconds: half of a
/// tick at 560 MHz.
const GAP_US: f64 = 1.0 / 1120.0;

/// A phase: what is added to a name that does not have it, and the counters at its
/// begin and end.
const PHASES: [(&str, usize, usize); 3] = [("DmaI", 0, 1), ("Cmpt", 2, 3), ("DmaO", 3, 4)];

/// Replaces each device event by its phases that take time. An event that is a phase by
/// its name keeps only that phase. Preparations are dropped. Takes calibrated events.
pub(crate) fn phases(timeline: &mut Timeline, kinds: &Kinds) {
    let mut names: FxHashMap<(Sym, usize), Sym> = FxHashMap::default();
    let mut out = Vec::with_capacity(timeline.events.len());
    for event in std::mem::take(&mut timeline.events) {
        if !event.is_slice() || !event.is_counted() {
            out.push(event);
            continue;
        }
        let kind = kinds.of(event.name);
        if kind.is(Kind::HAS_PREP) {
            continue;
        }
        let only = if kind.is(Kind::DMA_IN) {
            Some(0)
        } else if kind.is(Kind::HAS_EXEC) {
            Some(1)
        } else if kind.is(Kind::DMA_OUT) {
            Some(2)
        } else {
            None
        };
        for (index, phase) in PHASES.iter().enumerate() {
            if only.is_none_or(|only| only == index)
                && let Some(mut part) = part(timeline, &event, phase)
            {
                let name = *names.entry((event.name, index)).or_insert_with(|| {
                    let known = timeline.names.get(event.name);
                    match known.contains(phase.0) {
                        true => event.name,
                        false => {
                            let name = format!("{known}_{}", phase.0);
                            timeline.names.intern(&name)
                        }
                    }
                });
                part.name = name;
                out.push(part);
            }
        }
    }
    timeline.events = out;
}

fn part(timeline: &Timeline, event: &Event, phase: &(&str, usize, usize)) -> Option<Event> {
    let (_, begin, end) = *phase;
    let (from, to) = (
        timeline.stamp_time(event, begin)?,
        timeline.stamp_time(event, end)?,
    );
    if to - from < 2.0 * GAP_US {
        return None;
    }
    let mut part = *event;
    part.set_ts(from);
    part.set_dur(((to - from - GAP_US) * 1000.0).round() / 1000.0);
    (part.dur() > 0.0).then_some(part)
}

/// Takes the request's number out of names (`x_17_y` and the like) and keeps it as
/// `args.reqID`. Names with `Recv_` keep theirs, which is the peer.
pub(crate) fn ids_from_names(timeline: &mut Timeline) {
    let found: FxHashMap<Sym, (String, String)> = timeline
        .names
        .iter()
        .filter(|(_, text)| !text.contains("Recv_"))
        .filter_map(|(sym, text)| Some((sym, without_id(text)?)))
        .collect();
    let found: FxHashMap<Sym, (Sym, String)> = found
        .into_iter()
        .map(|(sym, (name, id))| (sym, (timeline.names.intern(&name), id)))
        .collect();
    for index in 0..timeline.events.len() {
        let Some(event) = timeline.events.get(index) else {
            break;
        };
        let Some((name, id)) = found.get(&event.name) else {
            continue;
        };
        timeline.add_args(index, &format!("\"reqID\":\"{id}\""));
        if let Some(event) = timeline.events.get_mut(index) {
            event.name = *name;
        }
    }
}

/// The name with a blank for each `_` and number before a `_`, blank or `-`, and the
/// first of these numbers.
fn without_id(name: &str) -> Option<(String, String)> {
    let mut out = String::with_capacity(name.len());
    let (mut rest, mut id) = (name, None);
    while let Some(at) = rest.find('_') {
        let (before, after) = rest.split_at(at);
        let number = after.get(1..).unwrap_or_default();
        let end = number
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(number.len());
        let (digits, tail) = number.split_at(end);
        out.push_str(before);
        match tail.strip_prefix(['_', ' ', '-']) {
            Some(tail) if !digits.is_empty() => {
                out.push(' ');
                id.get_or_insert_with(|| digits.to_owned());
                rest = tail;
            }
            _ => {
                out.push('_');
                rest = number;
            }
        }
    }
    out.push_str(rest);
    Some((out, id?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::calibration::{self, Options};
    use aiprof_formats::import::json;

    #[test]
    fn request_numbers_leave_names() {
        // As Python's re.sub(r"_\d+[_ -]", " ", name).
        for (name, short) in [
            ("add_11 Cmpt Exec", Some(("add Cmpt Exec", "11"))),
            ("a_1_2_b", Some(("a 2_b", "1"))),
            ("a_1_b_22-c", Some(("a b c", "1"))),
            ("a_1", None),
            ("__1 x", Some(("_ x", "1"))),
            ("plain", None),
        ] {
            let found = without_id(name);
            let found = found.as_ref().map(|(a, b)| (a.as_str(), b.as_str()));
            assert_eq!(found, short, "{name}");
        }
    }

    #[test]
    fn events_are_taken_apart() {
        let args = r#""args":{"TS1":0,"TS2":1000,"TS3":3000,"TS4":7000,"TS5":7000}"#;
        let text = format!(
            r#"[{{"ph":"X","name":"whole","pid":0,"tid":1,"ts":100,"dur":7,{args}}},
            {{"ph":"X","name":"k Cmpt Exec","pid":0,"tid":1,"ts":103,"dur":4,{args}}},
            {{"ph":"X","name":"k Cmpt Prep","pid":0,"tid":1,"ts":101,"dur":2,{args}}}]"#
        );
        let mut timeline = Timeline::default();
        json::read(text.as_bytes(), "x", &mut timeline).unwrap();
        let options = Options {
            mhz: 1000.0,
            is_fitted: false,
            keeps_listed: false,
            moves_jobs: false,
            converts: true,
        };
        calibration::run(&mut timeline, options);
        let kinds = Kinds::new(&timeline);
        phases(&mut timeline, &kinds);
        let events = timeline.events.iter();
        let found: Vec<(&str, f64, f64)> = events
            .map(|e| (timeline.name(e.name), e.ts(), e.dur()))
            .collect();
        assert_eq!(
            found,
            [
                ("whole_DmaI", 0.0, 0.999),
                ("whole_Cmpt", 3.0, 3.999),
                ("k Cmpt Exec", 3.0, 3.999)
            ]
        );
    }
}
