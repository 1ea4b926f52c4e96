//! `--table critical-path`.

use super::super::{Cell, Request, Table, TableEntry};
use aiprof_model::timeline::{Length, Timeline};
use aiprof_trace::critical::{BoundBy, CriticalPath, GroupPath, LongestPath, run};
use aiprof_trace::work::{WorkIndex, name_of};
use std::collections::BTreeMap;

/// `--table critical-path`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: "critical-path",
    about: "what determines the total time, across host, devices and ranks; --what-if",
    title: "Critical path",
    columns: "ranks length:us wall:us covered:percent events what_if:us saved:us saved_share:percent",
    make,
};

fn make(request: &Request<'_>) -> Vec<Table> {
    let timeline = request.timeline;
    let index = request.index();
    let found = run(timeline, index, &request.options.path);
    let changes = &request.options.what_if;
    let changed = match changes.is_empty() {
        true => None,
        false => Some(found.what_if(timeline, changes)),
    };
    let paths = changed.as_ref().map(|(paths, _)| &paths[..]);
    let mut lengths = lengths(index, &found, paths);
    lengths.notes = notes(&found);
    if let Some((_, names)) = changed {
        lengths.notes.push(format!(
            "--what-if changes the time of {names} different names"
        ));
    }
    vec![
        lengths,
        bounds(index, &found),
        events(timeline, index, &found),
    ]
}

fn notes(found: &CriticalPath) -> Vec<String> {
    let mut notes = vec![
        "time of a thread in which the trace has no operation, Python function, annotation or wait \
         for data counts as 0; covered is the path's share of the wall time"
            .to_owned(),
    ];
    let mut note = |count: usize, text: &str| {
        if count > 0 {
            notes.push(format!("{count} {text}"));
        }
    };
    note(found.joined, "collectives join ranks");
    note(found.messages, "messages (send and receive) join ranks");
    note(
        found.apart,
        "collectives or messages do not join ranks, because the ranks' records of them do not \
         match",
    );
    note(
        found.estimated,
        "ranks have no records of waits (cuda_sync), so the causes of their waits are estimated",
    );
    let circular = found.groups.first().map_or(0, |group| group.path.circular);
    note(
        circular,
        "begins and ends of events are left out, because they would wait for themselves",
    );
    notes
}

/// Ranks of a path: `0, 1`.
fn ranks_of(index: &WorkIndex, group: &GroupPath) -> String {
    let ranks = group.ranks.iter().filter_map(|rank| index.ranks.get(*rank));
    let ranks = ranks.map(|rank| rank.rank.to_string());
    ranks.collect::<Vec<_>>().join(" ")
}

fn lengths(index: &WorkIndex, found: &CriticalPath, changed: Option<&[LongestPath]>) -> Table {
    let rows = found.groups.iter().enumerate().map(|(at, group)| {
        let now = group.path.length.micros();
        let then = changed.and_then(|paths| paths.get(at));
        let then = then.map(|path| path.length.micros());
        let saved = then.map(|then| now - then);
        vec![
            ranks_of(index, group).into(),
            now.into(),
            group.wall.micros().into(),
            (group.wall > Length::ZERO)
                .then(|| 100.0 * now / group.wall.micros())
                .into(),
            found.events_on(&group.path).len().into(),
            then.into(),
            saved.into(),
            saved
                .filter(|_| now > 0.0)
                .map(|saved| 100.0 * saved / now)
                .into(),
        ]
    });
    ENTRY.table(rows)
}

fn bounds(index: &WorkIndex, found: &CriticalPath) -> Table {
    let mut rows = Vec::new();
    for group in &found.groups {
        let all = group.path.length.micros();
        for (rank, sums) in found.bounds(&group.path) {
            for (bound, sum) in BoundBy::ALL.into_iter().zip(sums) {
                if sum > Length::ZERO {
                    rows.push(vec![
                        rank_cell(index, rank),
                        bound.word().into(),
                        sum.micros().into(),
                        Cell::Number(100.0 * sum.micros() / all),
                    ]);
                }
            }
        }
    }
    Table::of(
        "critical-path-bounds",
        "Critical path by what limits it",
        "rank bound_by time:us share:percent",
        rows,
    )
}

fn rank_cell(index: &WorkIndex, rank: u32) -> Cell {
    let rank = index.ranks.get(rank as usize);
    rank.map(|rank| rank.rank).into()
}

fn events(timeline: &Timeline, index: &WorkIndex, found: &CriticalPath) -> Table {
    let mut rows = Vec::new();
    for group in &found.groups {
        let mut names: BTreeMap<(u32, BoundBy, &str), (u64, Length)> = BTreeMap::new();
        for part in found.parts(&group.path) {
            if let Some(event) = timeline.events.get(part.event as usize) {
                let key = (part.rank, part.bound, name_of(timeline, event));
                let sum = names.entry(key).or_default();
                *sum = (sum.0 + 1, sum.1 + part.took);
            }
        }
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_by_key(|(_, (_, took))| std::cmp::Reverse(*took));
        for ((rank, bound, name), (count, took)) in names {
            rows.push(vec![
                rank_cell(index, rank),
                name.into(),
                bound.word().into(),
                count.into(),
                took.micros().into(),
            ]);
        }
    }
    Table::of(
        "critical-path-events",
        "Critical path by name",
        "rank name bound_by parts time:us",
        rows,
    )
}
