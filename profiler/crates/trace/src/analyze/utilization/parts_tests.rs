//! One file of a whole run: a prefill and many decodes.

use super::*;
use crate::analyze::token_times;
use crate::analyze::utilization::UtilizationResults;
use crate::analyze::utilization::compiler_log;
use aiprof_model::timeline::Dialect;
use aiprof_testkit::timelines as testing;
use std::fmt::Write;

/// A table of a compiler log with ideal cycles for each of 12 kernels.
fn table(log: &mut String, phase: &str, prefix: &str, cycles: u64) {
    writeln!(log, "   {phase}\n Ideal/Total Cycles ").unwrap();
    for index in 0..12 {
        writeln!(
            log,
            "{prefix}{}-opCatBmm {cycles}",
            char::from(b'a' + index)
        )
        .unwrap();
    }
    writeln!(log, "====== Perf Summary End ======").unwrap();
}

/// A prefill of 12 kernels of 200 us, and 20 decodes of 12 kernels of 20 us.
fn analysed(prefix: &str, divides: bool) -> (Timeline, UtilizationResults) {
    let mut log = String::new();
    table(&mut log, "PREFILL", prefix, 100_000);
    table(&mut log, "DECODING", "d", 10_000);
    let mut messages = Messages::new(Level::Error);
    let tables = compiler_log::read(&mut log.as_bytes(), &mut messages).unwrap();
    assert_eq!(tables.tables().len(), 2, "{log}");
    let info = CompilerInfo { logs: vec![tables] };
    let mut timeline = testing::timeline(Dialect::Flex);
    let mut ts = 100.0;
    for index in 0..21 * 12 {
        let (prefix, us) = if index < 12 {
            (prefix, 200.0)
        } else {
            ("d", 20.0)
        };
        let letter = char::from(b'a' + (index % 12) as u8);
        let name = format!("{prefix}{letter} Cmpt Exec");
        let slice = testing::slice(&mut timeline, &name, 0, ts, us);
        testing::count(&mut timeline, slice, [0, 1, 2, 3, 4], -1);
        ts += us + 5.0;
    }
    let kinds = Kinds::new(&timeline);
    let found = events::run(&mut timeline, &kinds, &info, 1000.0, divides, &mut messages);
    (timeline, found)
}

/// Each kernel takes twice its ideal time; names of prefill and decode differ, or not.
#[test]
fn every_kernel_of_one_file_has_its_utilization() {
    for prefix in ["p", "d"] {
        let (timeline, found) = analysed(prefix, true);
        let shares = timeline
            .events
            .iter()
            .filter_map(|event| timeline.arg(event, "pt_active"));
        let shares: Vec<&str> = shares.collect();
        assert_eq!(shares.len(), 252, "{prefix}");
        assert!(
            shares.iter().all(|share| *share == "0.5"),
            "{prefix} {shares:?}"
        );
        let times = token_times::run(&found.steps);
        assert_eq!(times[0].tokens, 21);
        let first = times[0].first_token_us.unwrap();
        assert_eq!((first.calls, first.mean), (1, 12.0 * 205.0 - 5.0));
        let next = times[0].between_tokens_us.unwrap();
        assert!(
            next.calls == 20 && (next.mean - 300.0).abs() < 1e-9,
            "{next:?}"
        );
    }
}

/// As acelyzer: one file, one table.
#[test]
fn undivided_a_file_has_one_table() {
    let (timeline, found) = analysed("p", false);
    let shares = timeline
        .events
        .iter()
        .filter_map(|event| timeline.arg(event, "pt_active"));
    assert_eq!(shares.count(), 12);
    assert!(found.steps.is_empty());
}
