//! Findings of two traces: one of both is of the same kind and the same subject.

use crate::{Cell, Table};
use aiprof_trace::analyze::report::Finding;

/// Findings of both, as one or two of a pair.
struct Paired<'f> {
    before: Option<&'f Finding>,
    after: Option<&'f Finding>,
}

/// Pairs by kind and subject; what is left by kind alone, where there is one on each side.
fn pairs<'f>(before: &'f [Finding], after: &'f [Finding]) -> Vec<Paired<'f>> {
    let mut old: Vec<Option<&Finding>> = before.iter().map(Some).collect();
    let mut new: Vec<(&Finding, Option<&Finding>)> = after.iter().map(|one| (one, None)).collect();
    for by_subject in [true, false] {
        for (one, found) in &mut new {
            let same = |other: &Finding| {
                other.kind == one.kind && (!by_subject || other.subject == one.subject)
            };
            if found.is_none() {
                let mut left = old.iter_mut();
                let it = left.find(|other| other.is_some_and(same));
                *found = it.and_then(Option::take);
            }
        }
    }
    let both = new.into_iter().map(|(one, found)| Paired {
        before: found,
        after: Some(one),
    });
    let gone = old.into_iter().flatten().map(|one| Paired {
        before: Some(one),
        after: None,
    });
    both.chain(gone).collect()
}

/// The table of what is new, gone, or has other numbers.
pub(super) fn table(before: &[Finding], after: &[Finding]) -> Table {
    let (mut rows, mut same) = (Vec::new(), 0);
    for Paired { before, after } in pairs(before, after) {
        let verdict = match (before, after) {
            (None, _) => "new",
            (_, None) => "gone",
            (Some(old), Some(new)) if old.text == new.text => {
                same += 1;
                continue;
            }
            _ => "other numbers",
        };
        let kind = after.or(before).map(|one| one.kind.name());
        let cost = |of: Option<&Finding>| {
            let ns = of.and_then(|one| one.cost_ns);
            Cell::from(ns.map(|ns| ns as f64 / 1e3))
        };
        let text = |of: Option<&Finding>| of.map(|one| one.text.clone());
        rows.push(vec![
            verdict.into(),
            kind.into(),
            cost(before),
            cost(after),
            text(after.or(before)).into(),
            text(before.filter(|_| after.is_some())).into(),
        ]);
    }
    let count = |word: &str| {
        let first = |row: &&Vec<Cell>| row.first() == Some(&word.into());
        rows.iter().filter(first).count()
    };
    let (new, gone, other) = (count("new"), count("gone"), count("other numbers"));
    let title = match rows.len() {
        0 => format!("findings: nothing changed ({same} are the same)"),
        _ => format!(
            "findings: {new} new, {gone} gone, {other} with other numbers, {same} unchanged"
        ),
    };
    let list = "verdict kind cost_before:us cost_after:us finding before";
    Table::of("findings", title, list, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_trace::analyze::report::FindingKind;

    #[test]
    fn findings_are_paired_by_kind_and_subject() {
        let of = |kind, subject: &str, text: &str, cost_ns| Finding {
            kind,
            subject: subject.to_owned(),
            text: text.to_owned(),
            cost_ns,
            ..Finding::default()
        };
        use FindingKind::{LaunchStarved, Spills, SynchronousWait};
        let before = [
            of(
                LaunchStarved,
                "f (a.py:1)",
                "12.5 s in f",
                Some(12_500_000_000),
            ),
            of(Spills, "k1", "k1", Some(5_000)),
            of(Spills, "k2", "k2", Some(4_000)),
            of(FindingKind::Power, "", "as before", None),
        ];
        let after = [
            of(LaunchStarved, "g (a.py:9)", "7 s in g", Some(7_000_000_000)),
            of(FindingKind::Power, "", "as before", None),
            of(Spills, "k2", "k2 other", Some(3_000)),
            of(SynchronousWait, "finish", "new here", Some(1_000)),
        ];
        let table = table(&before, &after);
        let title = "findings: 1 new, 1 gone, 2 with other numbers, 1 unchanged";
        assert_eq!(table.title, title);
        let first: Vec<Cell> = vec![
            "other numbers".into(),
            "launch-starved".into(),
            12_500_000.0.into(),
            7_000_000.0.into(),
            "7 s in g".into(),
            "12.5 s in f".into(),
        ];
        assert_eq!(table.rows[0], first);
        let words: Vec<_> = table.rows.iter().map(|row| (&row[0], &row[4])).collect();
        let of = |verdict: &str, text: &str| (Cell::from(verdict), Cell::from(text));
        let wanted = [
            of("other numbers", "7 s in g"),
            of("other numbers", "k2 other"),
            of("new", "new here"),
            of("gone", "k1"),
        ];
        assert!(
            words
                .iter()
                .zip(&wanted)
                .all(|(a, b)| (a.0, a.1) == (&b.0, &b.1))
        );
    }
}
