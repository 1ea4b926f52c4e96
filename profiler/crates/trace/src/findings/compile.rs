//! What `torch.compile` did twice or in pieces.

use super::rules::{keep, ns, time};
use super::{Scene, cut, measure, times};
use crate::finding::{Finding, FindingKind, SeenAt};
use crate::torch::compile::{Compiled, GraphBreak};

/// Looks for graph breaks and recompilations.
pub(super) fn find(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let report = &scene.outcome.compiled;
    if !report.breaks.is_empty() {
        keep(breaks(&report.breaks), scene.elapsed_us, findings);
    }
    let recompiled: Vec<&Compiled> = report.recompiled().collect();
    if !recompiled.is_empty() {
        keep(recompilations(&recompiled), scene.elapsed_us, findings);
    }
}

fn breaks(breaks: &[GraphBreak]) -> Finding {
    let us: f64 = breaks.iter().map(|one| one.compile_us).sum();
    let known = |of: &Option<String>, what: &str| of.clone().unwrap_or(format!("{what} unknown"));
    let mut sorted: Vec<&GraphBreak> = breaks.iter().collect();
    sorted.sort_by(|a, b| b.compile_us.total_cmp(&a.compile_us));
    let frame = |one: &GraphBreak| match one.frame {
        Some(frame) => format!("frame {frame}"),
        None => "frame unknown".to_owned(),
    };
    let lines = sorted.iter().map(|one| {
        format!(
            "{}: {}; {}, {}, {} to compile the code behind it",
            known(&one.place, "place"),
            known(&one.reason, "reason"),
            frame(one),
            times(one.runs, "run"),
            time(one.compile_us)
        )
    });
    let place = |one: &&GraphBreak| match (&one.place, one.frame) {
        (Some(place), _) => place.clone(),
        (None, Some(_)) => frame(one),
        (None, None) => "an unknown place".to_owned(),
    };
    let subject = sorted.first().map(place).unwrap_or_default();
    Finding {
        kind: FindingKind::GraphBreaks,
        text: format!(
            "It takes {} to compile the code behind {}. The most expensive one is at {subject}.",
            time(us),
            times(breaks.len() as u64, "graph break")
        ),
        subject,
        cost_ns: Some(ns(us)),
        numbers: vec![
            measure("compiling", us / 1e6, "s"),
            measure("breaks", breaks.len() as f64, ""),
            measure(
                "runs",
                breaks.iter().map(|one| one.runs).sum::<u64>() as f64,
                "",
            ),
        ],
        places: sorted
            .iter()
            .map(|one| seen(one.place.as_ref(), one.compile_us))
            .collect(),
        evidence: cut(lines.collect()),
        ..Finding::default()
    }
}

fn seen(place: Option<&String>, us: f64) -> SeenAt {
    SeenAt {
        name: place.cloned(),
        cost_ns: Some(ns(us)),
        ..SeenAt::default()
    }
}

fn recompilations(recompiled: &[&Compiled]) -> Finding {
    let us: f64 = recompiled.iter().map(|one| one.recompile_us).sum();
    let mut sorted = recompiled.to_vec();
    sorted.sort_by(|a, b| b.recompile_us.total_cmp(&a.recompile_us));
    let count: u64 = recompiled.iter().map(|one| one.recompilations).sum();
    let name = |one: &Compiled| {
        let frame = || format!("frame {}", one.id.unwrap_or_default().frame);
        one.function.clone().unwrap_or_else(frame)
    };
    let which = |one: &Compiled| match one.id {
        Some(id) => id.to_string(),
        None => times(one.recompilations, "time"),
    };
    let lines = sorted.iter().map(|one| {
        let guard = one.guards.first().map_or("guard unknown", String::as_str);
        format!(
            "{} ({}): {}; {guard}",
            name(one),
            which(one),
            time(one.recompile_us)
        )
    });
    let subject = sorted.first().map_or(String::new(), |one| name(one));
    Finding {
        kind: FindingKind::Recompilation,
        text: format!(
            "Recompilation takes {} ({}). The most expensive function is {subject}.",
            time(us),
            times(count, "time")
        ),
        subject,
        cost_ns: Some(ns(us)),
        numbers: vec![
            measure("compiling", us / 1e6, "s"),
            measure("recompilations", count as f64, ""),
        ],
        places: sorted
            .iter()
            .map(|one| seen(one.place.as_ref(), one.recompile_us))
            .collect(),
        evidence: cut(lines.collect()),
        ..Finding::default()
    }
}
