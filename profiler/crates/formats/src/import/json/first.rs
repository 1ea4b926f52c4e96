//! What a file's times count from.

use super::cut::value_len;
use super::event::begin;
use super::file::FAR;
use aiprof_model::timeline::number::Micros;
use serde::Deserialize;
use serde_json::value::RawValue;

/// How many times [`first_time`] looks at.
const ASKED: usize = 9;

/// The first time in a block that is not zero, whole microseconds. It takes one of the
/// first few that most of the others are near. Names of rows have any times, and count only
/// where nothing else has one.
pub(super) fn first_time(block: &[u8]) -> Option<i64> {
    let text = String::from_utf8_lossy(block);
    let mut of_names = None;
    let mut times = Vec::with_capacity(ASKED);
    let found = all_times(&text).filter(|(time, is_name)| {
        if *is_name {
            of_names.get_or_insert(*time);
        }
        !is_name
    });
    times.extend(found.map(|(time, _)| time).take(ASKED));
    let is_usual = |time: &&i64| {
        let near = times.iter().filter(|other| time.abs_diff(**other) < FAR);
        2 * near.count() > times.len()
    };
    let usual = times.iter().find(is_usual).or(times.first()).copied();
    usual.or(of_names)
}

/// The times of a block's events that are not zero, and whether they are of names.
fn all_times(block: &str) -> impl Iterator<Item = (i64, bool)> {
    #[derive(Deserialize)]
    struct Timed<'a> {
        #[serde(borrow)]
        ts: Option<&'a RawValue>,
        #[serde(borrow)]
        ph: Option<&'a RawValue>,
    }
    let mut rest = block;
    let next = move || {
        loop {
            rest = rest.get(begin(rest, 0)?..)?;
            // What no value begins with is passed over too.
            let len = value_len(rest.as_bytes())?.max(1);
            let event: Option<Timed<'_>> = serde_json::from_str(rest.get(..len)?).ok();
            rest = rest.get(len..)?;
            let Some(event) = event else { continue };
            let micros = event.ts.and_then(|ts| Micros::parse(ts.get()));
            if let Some(micros) = micros.filter(|micros| micros.whole != 0) {
                let is_name = event.ph.is_some_and(|ph| ph.get() == "\"M\"");
                return Some((micros.whole, is_name));
            }
        }
    };
    std::iter::from_fn(next)
}
