//! Names that were asked for and that nothing has.

use super::{PathOptions, WhatIf};
use crate::work::{RankWork, SpanRole, WorkIndex, name_of};
use aiprof_model::timeline::Timeline;
use rustc_hash::FxHashSet;
use std::cmp::Reverse;

/// Names that are offered instead of an unknown one.
const OFFERED: usize = 3;
/// Characters of each.
const NAME: usize = 80;

/// What was asked for that no trace has: a sentence for each, with the names that are nearest.
/// Names of `--what-if` may be of work, calls, operators, notes and functions of Python; a part of
/// the name of an `operator` is enough.
pub fn unknown_names(
    timeline: &Timeline,
    index: &WorkIndex,
    options: &PathOptions,
    changes: &[WhatIf],
    operator: Option<&str>,
) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(wanted) = &options.annotation {
        let notes = |rank: &RankWork| super::notes(timeline, index, (rank, None), wanted).len();
        let most = index.ranks.iter().map(notes).max().unwrap_or(0);
        match options.instance {
            _ if most == 0 => {
                let known = names(timeline, index, Some(SpanRole::Note));
                found.push(sentence("--annotation", "annotation", wanted, &known));
            }
            Some(instance) if instance >= most => found.push(format!(
                "--instance {instance}: only {most} annotations contain `{wanted}`, counted from 0"
            )),
            _ => {}
        }
    }
    if !changes.is_empty() {
        let known = names(timeline, index, None);
        let missing = changes
            .iter()
            .filter(|change| !known.iter().any(|name| name.contains(&change.name)));
        found.extend(missing.map(|change| sentence("--what-if", "name", &change.name, &known)));
    }
    if let Some(wanted) = operator {
        let known = names(timeline, index, Some(SpanRole::Operator));
        if !known.iter().any(|name| name.contains(wanted)) {
            found.push(sentence("--operator", "operator", wanted, &known));
        }
    }
    found
}

/// Names of what the host does in one role; `None`: of everything that may be on a path.
fn names<'t>(
    timeline: &'t Timeline,
    index: &WorkIndex,
    only: Option<SpanRole>,
) -> FxHashSet<&'t str> {
    let mut names = FxHashSet::default();
    for rank in &index.ranks {
        let work = rank.work.iter().map(|work| work.event);
        let all = rank.host.iter().copied().chain(work);
        for event in all.filter_map(|at| timeline.events.get(at as usize)) {
            if only.is_none_or(|only| index.role(event) == only) {
                names.insert(name_of(timeline, event));
            }
        }
    }
    if only.is_none() {
        let python = timeline.events.iter();
        let python = python.filter(|event| timeline.name(event.cat) == "python_function");
        names.extend(python.map(|event| name_of(timeline, event)));
    }
    names
}

fn sentence(option: &str, what: &str, wanted: &str, known: &FxHashSet<&str>) -> String {
    let nearest: Vec<String> = nearest(wanted, known)
        .into_iter()
        .map(|name| format!("`{}`", name.chars().take(NAME).collect::<String>()))
        .collect();
    match nearest.is_empty() {
        true => format!("{option}: the trace has no {what} that contains `{wanted}`"),
        false => format!(
            "{option}: the trace has no {what} that contains `{wanted}`; the nearest: {}",
            nearest.join(", ")
        ),
    }
}

/// The names that have most pairs of characters in common with what was asked for, for their
/// length; without regard to upper and lower case.
fn nearest<'t>(wanted: &str, known: &FxHashSet<&'t str>) -> Vec<&'t str> {
    let pairs = |text: &str| {
        let small = text.to_lowercase();
        let next = small.chars().skip(1);
        small.chars().zip(next).collect::<FxHashSet<_>>()
    };
    let of_wanted = pairs(wanted);
    let mut scored: Vec<(usize, &str)> = known
        .iter()
        .map(|name| {
            let of_name = pairs(name);
            let common = of_wanted.intersection(&of_name).count();
            (
                2000 * common / (of_wanted.len() + of_name.len()).max(1),
                *name,
            )
        })
        .collect();
    scored.sort_unstable_by_key(|(score, name)| (Reverse(*score), *name));
    scored
        .into_iter()
        .take(OFFERED)
        .map(|(_, name)| name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_names_are_offered() {
        let known = ["forward", "Backward", "optimizer"].into_iter().collect();
        assert_eq!(nearest("forwrad", &known)[0], "forward");
        assert_eq!(nearest("OPTIM", &known)[0], "optimizer");
        assert!(nearest("x", &FxHashSet::default()).is_empty());
    }
}
