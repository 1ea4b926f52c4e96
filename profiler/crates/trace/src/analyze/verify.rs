//! Verification of a trace as it was written (`-V`): the tests of acelyzer 1.3.0,
//! with its report.
//!
//! Device counters count wherever they are, in `args` or in `attr` (1.3.0 does not see
//! the latter and finds nothing), and ranks are kept apart. An AIU executes one kernel at a
//! time. Preparations and transfers wait in queues meanwhile, and their spans include that
//! wait. aiprof's own verification also knows the calls that
//! launch kernels of GPUs.

use super::config::Compatibility;
use aiprof_model::timeline::{Dialect, Event, Id, Kind, Kinds, Length, Sym, Time, Timeline};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Occurrences of a finding that are listed; all are counted.
const MAX_LISTED: usize = 10_000;

/// Keys and values of one occurrence, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance(pub Vec<(&'static str, Value)>);

impl Serialize for Instance {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// Something that may be wrong.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Finding {
    /// Its name in the report.
    #[serde(rename = "finding")]
    pub name: &'static str,
    /// The verification fails by it.
    pub is_error: bool,
    /// How often it was found.
    pub count: u64,
    /// The first 10,000 of them.
    pub instances: Vec<Instance>,
}

/// A test that was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Test {
    /// Its name in the report.
    pub name: &'static str,
    /// What it can find.
    pub findings: Vec<Finding>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifyReport {
    /// Whose tests these are: acelyzer's know the AIU's calls only, aiprof's own the kernels of
    /// all devices.
    pub rules: Compatibility,
    /// All tests, in their order.
    pub tests: Vec<Test>,
}

impl Finding {
    fn new(name: &'static str, is_error: bool) -> Self {
        Self {
            name,
            is_error,
            count: 0,
            instances: Vec::new(),
        }
    }

    fn add(&mut self, times: u64, instance: impl FnOnce() -> Vec<(&'static str, Value)>) {
        self.count += times;
        if self.instances.len() < MAX_LISTED {
            self.instances.push(Instance(instance()));
        }
    }
}

impl Test {
    fn result(&self) -> &'static str {
        let found = |f: &&Finding| f.count > 0;
        if self.findings.iter().filter(found).any(|f| f.is_error) {
            "fail"
        } else if self.findings.iter().any(|f| f.count > 0) {
            "warn"
        } else {
            "pass"
        }
    }
}

/// Makes all tests. Needs the trace as it was read: uncalibrated, in any order.
pub fn run(timeline: &Timeline, rules: Compatibility) -> VerifyReport {
    let mut order: Vec<u32> = (0u32..)
        .zip(&timeline.events)
        .filter(|(_, event)| event.is_slice() && !event.dropped)
        .map(|(index, _)| index)
        .collect();
    let event = |index: &u32| timeline.events.get(*index as usize);
    order.sort_by(|a, b| match (event(a), event(b)) {
        (Some(a), Some(b)) => a.start.cmp(&b.start).then(b.length.cmp(&a.length)),
        _ => std::cmp::Ordering::Equal,
    });
    let events: Vec<&Event> = order.iter().filter_map(event).collect();
    VerifyReport {
        rules,
        tests: vec![
            Test {
                name: "Compute Overlap Check",
                findings: overlaps(timeline, &events, rules),
            },
            Test {
                name: "Kernel-Parent Timestamp Check",
                findings: parents(timeline, &events, rules),
            },
        ],
    }
}

/// The number or text of an argument.
fn value(timeline: &Timeline, event: &Event, key: &str) -> Value {
    let text = timeline.arg(event, key);
    text.and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or(Value::Null)
}

fn id(timeline: &Timeline, id: Id) -> Value {
    match id {
        Id::Number(number) => json!(number),
        Id::Token(sym) => serde_json::from_str(timeline.name(sym)).unwrap_or(Value::Null),
    }
}

/// Microseconds as the trace has them.
fn time(timeline: &Timeline, us: f64) -> f64 {
    us + timeline.origin() as f64
}

/// What makes an event of the AIU the same as another: its process, rank, name, begin, length and
/// counters.
type Recorded = (Id, u32, Sym, Time, Length, [i64; 5]);

/// A stream does one thing at a time. What was recorded twice is not two things.
fn overlaps(timeline: &Timeline, events: &[&Event], rules: Compatibility) -> Vec<Finding> {
    let kinds = Kinds::new(timeline);
    let mut finding = Finding::new("overlaps", true);
    let mut twice = Finding::new("duplicates", false);
    let mut busy: FxHashMap<(Id, u32, &str), i64> = FxHashMap::default();
    let mut seen: FxHashSet<Recorded> = FxHashSet::default();
    for event in events {
        let is_new = identity(timeline, event).is_none_or(|identity| seen.insert(identity));
        if !is_new {
            twice.add(1, || place(timeline, event));
        }
        if !is_new || !is_exclusive(timeline, &kinds, event, rules) {
            continue;
        }
        let stream = match timeline.dialect(event) {
            Dialect::Torch => timeline.arg(event, "stream").unwrap_or("0"),
            _ => "",
        };
        // What touches when written in nanoseconds touches; begin and length are both
        // rounded, so a nanosecond more means nothing.
        let end = event.end().nearest_nanos();
        let until = busy
            .entry((timeline.pid(event), timeline.rank(event), stream))
            .or_insert(i64::MIN);
        if *until > event.start.nearest_nanos().saturating_add(1) {
            finding.add(1, || place(timeline, event));
        } else {
            *until = end;
        }
    }
    // acelyzer's report lists no such test among those that passed.
    match rules.is_own() || twice.count > 0 {
        true => vec![finding, twice],
        false => vec![finding],
    }
}

/// Whether the event keeps its stream for itself.
fn is_exclusive(timeline: &Timeline, kinds: &Kinds, event: &Event, rules: Compatibility) -> bool {
    if kinds.of(event.name).is(Kind::PREP) {
        return false;
    }
    match timeline.dialect(event) {
        Dialect::Torch if rules.is_own() => kinds.is_device(timeline, event),
        Dialect::Torch => {
            let cat = timeline.name(event.cat);
            cat.contains("gpu") || cat.contains("kernel")
        }
        _ => event.is_counted() && kinds.is_kernel(timeline, event),
    }
}

/// What no second event of the AIU has; `None`: its counters do not distinguish it.
fn identity(timeline: &Timeline, event: &Event) -> Option<Recorded> {
    let device = timeline.device(event)?;
    let is_own = timeline.dialect(event) == Dialect::Flex && device.stamps.iter().any(|s| *s > 0);
    let process = (timeline.pid(event), timeline.rank(event));
    is_own.then_some((
        process.0,
        process.1,
        event.name,
        event.start,
        event.length,
        device.stamps,
    ))
}

/// Where an event is, for reports.
fn place(timeline: &Timeline, event: &Event) -> Vec<(&'static str, Value)> {
    vec![
        ("name", json!(timeline.name(event.name))),
        ("pid", json!(id(timeline, timeline.pid(event)))),
        ("tid", json!(id(timeline, timeline.tid(event)))),
        ("stream", json!(value(timeline, event, "stream"))),
        ("ts", json!(timeline.file_us(event))),
        ("dur", json!(event.dur())),
    ]
}

/// The calls that a launch's kernels are in, and how many kernels it has.
struct Parent {
    start_us: f64,
    end_us: f64,
    kernels: u64,
    /// One of the calls encloses its kernels.
    encloses: bool,
}

/// What an event is to a launch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LaunchPart {
    /// A call around all kernels of the launch.
    Enclosing,
    /// A call that the kernels come after: of a GPU's runtime or driver.
    Call,
    Kernel,
    Nothing,
}

fn part(timeline: &Timeline, kinds: &Kinds, event: &Event, rules: Compatibility) -> LaunchPart {
    let name = timeline.name(event.name);
    let is_own = rules.is_own();
    if name.contains("ScheduleCompute") || name.contains("ScheduleWait") {
        return LaunchPart::Enclosing;
    }
    let is_kernel = match is_own {
        true => kinds.of(event.cat).is(Kind::CAT_KERNEL),
        false => timeline.name(event.cat) == "kernel",
    };
    let is_torch = timeline.dialect(event) == Dialect::Torch;
    match is_kernel {
        true => LaunchPart::Kernel,
        false if is_own && is_torch && !kinds.is_device(timeline, event) => LaunchPart::Call,
        false => LaunchPart::Nothing,
    }
}

/// Kernels run between the begin of their `ScheduleCompute` and the end of their
/// `ScheduleWait`; those of GPUs after the begin of the call that launched them.
fn parents(timeline: &Timeline, events: &[&Event], rules: Compatibility) -> Vec<Finding> {
    let mut outside = Finding::new("kernel_outside_parent", true);
    let mut lonely_kernels = Finding::new("orphan_kernels", false);
    let mut lonely_parents = Finding::new("orphan_parents", false);
    let kinds = Kinds::new(timeline);
    let part = |event: &Event| part(timeline, &kinds, event, rules);
    let mut order = Vec::new();
    let mut parents: FxHashMap<(u32, u64), Parent> = FxHashMap::default();
    for event in events.iter().filter(|event| event.correlation != 0) {
        let part = part(event);
        if part == LaunchPart::Nothing {
            continue;
        }
        let key = (timeline.rank(event), event.correlation);
        let known = parents.entry(key).or_insert_with(|| {
            order.push(key);
            Parent {
                start_us: f64::INFINITY,
                end_us: f64::NEG_INFINITY,
                kernels: 0,
                encloses: false,
            }
        });
        if part == LaunchPart::Kernel {
            known.kernels += 1;
            continue;
        }
        known.start_us = known.start_us.min(event.ts());
        known.encloses |= part == LaunchPart::Enclosing;
        known.end_us = known.end_us.max(match part {
            LaunchPart::Enclosing => event.end_us(),
            _ => f64::NEG_INFINITY,
        });
    }
    for event in events
        .iter()
        .filter(|event| part(event) == LaunchPart::Kernel)
    {
        let Some(parent) = parents.get(&(timeline.rank(event), event.correlation)) else {
            continue;
        };
        let is_known = parent.start_us.is_finite();
        let is_late = parent.encloses && event.end_us() > parent.end_us;
        if is_known && (event.ts() < parent.start_us || is_late) {
            outside.add(1, || {
                vec![
                    ("corr_id", json!(format!("{:#x}", event.correlation))),
                    ("kernel_start", json!(timeline.file_us(event))),
                    ("kernel_end", json!(time(timeline, event.end_us()))),
                    ("parent_start", json!(time(timeline, parent.start_us))),
                    ("parent_end", end(timeline, parent)),
                ]
            });
        }
    }
    for key in order {
        let Some(parent) = parents.get(&key) else {
            continue;
        };
        match (parent.kernels, parent.start_us.is_finite()) {
            // Most calls of a GPU's runtime launch nothing.
            (0, true) if !parent.encloses => {}
            (0, true) => lonely_parents.add(1, || vec![("corr_id", json!(key.1))]),
            (count, false) => {
                lonely_kernels.add(count, || {
                    vec![("corr_id", json!(key.1)), ("count", json!(count))]
                });
            }
            _ => {}
        }
    }
    vec![outside, lonely_kernels, lonely_parents]
}

/// When the last call around a launch ended; `null`: none is around it.
fn end(timeline: &Timeline, parent: &Parent) -> Value {
    match parent.encloses {
        true => json!(time(timeline, parent.end_us)),
        false => Value::Null,
    }
}

impl VerifyReport {
    /// Whether the trace failed: the command's exit code is 1.
    pub fn has_failed(&self) -> bool {
        self.tests.iter().any(|test| test.result() == "fail")
    }

    fn result(&self) -> &'static str {
        if self.has_failed() { "FAIL" } else { "PASS" }
    }

    fn findings(&self, wanted: impl Fn(&Finding) -> bool) -> Vec<&Finding> {
        let all = self.tests.iter().flat_map(|test| &test.findings);
        all.filter(|finding| wanted(finding)).collect()
    }

    fn groups(&self) -> [(&'static str, Vec<&Finding>); 3] {
        [
            ("errors", self.findings(|f| f.count > 0 && f.is_error)),
            ("warnings", self.findings(|f| f.count > 0 && !f.is_error)),
            ("passed", self.findings(|f| f.count == 0)),
        ]
    }

    /// `report.json`. `metadata` is what is known of the run, an object: Application,
    /// CmdLine, Settings, and the input's own.
    ///
    /// # Errors
    /// As `metadata`.
    pub fn to_json(&self, metadata: &impl Serialize) -> serde_json::Result<String> {
        #[derive(serde::Serialize)]
        struct Whole<'r, M> {
            version: &'static str,
            result: &'static str,
            metadata: &'r M,
            test_results: Vec<Made>,
            errors: Vec<&'r Finding>,
            warnings: Vec<&'r Finding>,
            passed: Vec<&'r Finding>,
        }
        #[derive(serde::Serialize)]
        struct Made {
            test: &'static str,
            result: &'static str,
        }
        let made = |test: &Test| Made {
            test: test.name,
            result: test.result(),
        };
        let [(_, errors), (_, warnings), (_, passed)] = self.groups();
        serde_json::to_string_pretty(&Whole {
            version: "1.0",
            result: self.result(),
            metadata,
            test_results: self.tests.iter().map(made).collect(),
            errors,
            warnings,
            passed,
        })
    }

    /// The report in words (`-f text`).
    pub fn to_text(&self, command_line: &str) -> String {
        let (title, width) = match self.rules.is_own() {
            true => ("Verification by aiprof", 22),
            false => ("Acelyzer Verification Report", 29),
        };
        let mut out = format!(
            "{title}\n{}\nInput:   {command_line}\n\n",
            "=".repeat(width)
        );
        for (name, findings) in self.groups() {
            heading(&mut out, &name.to_uppercase(), findings.len());
            for finding in findings {
                let _ = writeln!(out, "  {}: {} occurrence(s)", finding.name, finding.count);
                finding.instances.iter().for_each(|i| line(&mut out, i));
            }
            out.push('\n');
        }
        heading(&mut out, "TESTS APPLIED", self.tests.len());
        for test in &self.tests {
            let _ = writeln!(out, "  {:<5} {}", test.result().to_uppercase(), test.name);
        }
        let errors = if self.has_failed() {
            " (errors detected)"
        } else {
            ""
        };
        let _ = writeln!(out, "\nResult: {}{errors}", self.result());
        out
    }
}

// Writing to a String does not fail.
fn heading(out: &mut String, title: &str, count: usize) {
    let title = format!("{title} ({count})");
    let _ = writeln!(out, "{title}\n{}", "-".repeat(title.len()));
}

fn line(out: &mut String, instance: &Instance) {
    let member = |(key, value): &(&str, Value)| match value {
        Value::String(text) => format!("{key}={text}"),
        Value::Null => format!("{key}=None"),
        value => format!("{key}={value}"),
    };
    let members: Vec<String> = instance.0.iter().map(member).collect();
    let _ = writeln!(out, "    {}", members.join("  "));
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_testkit::scene::{self, Slice};

    /// Each rank of the shipped sample runs one kernel at a time, beside preparations,
    /// receipts and several sends at once.
    #[test]
    fn only_kernels_keep_the_aiu_for_themselves() {
        let timeline = scene::allreduce_tp4_raw();
        for rules in [Compatibility::Acelyzer, Compatibility::Own] {
            let report = run(&timeline, rules);
            assert!(!report.has_failed(), "{}", report.to_text(""));
            assert_eq!(report.tests[0].result(), "pass");
        }
    }

    fn counted(lines: &[(&str, u32, u32)]) -> Timeline {
        let event = |(name, begin, end): &(&str, u32, u32)| {
            let dur = end - begin;
            format!(
                r#"{{"ph":"X","name":"{name}","pid":0,"tid":1,"ts":{begin},"dur":{dur},"args":{{
                    "TS1":"{begin}","TS2":"{begin}","TS3":"{begin}","TS4":"{end}","TS5":"{end}"}}}}"#
            )
        };
        let events: Vec<String> = lines.iter().map(event).collect();
        let mut timeline = Timeline::default();
        let text = format!("[{}]", events.join(","));
        aiprof_formats::import::json::read(text.as_bytes(), "x.json", &mut timeline).unwrap();
        timeline
    }

    /// Two kernels at once are a fault; one that stands there twice is named and is none.
    #[test]
    fn kernels_that_overlap_are_not_kernels_recorded_twice() {
        for (lines, counts) in [
            (
                &[("a Cmpt Exec", 10, 30), ("b Cmpt Exec", 20, 40)][..],
                [1, 0],
            ),
            (&[("a Cmpt Exec", 10, 30), ("a Cmpt Exec", 10, 30)], [0, 1]),
            (&[("a DmaO", 10, 30), ("a DmaO", 10, 30)], [0, 1]),
            (&[("a Cmpt Exec", 10, 30), ("a Cmpt Exec", 10, 31)], [1, 0]),
            (&[("a Cmpt Exec", 10, 30), ("b Cmpt Exec", 30, 40)], [0, 0]),
            (
                &[
                    ("a Cmpt Exec", 10, 30),
                    ("b Cmpt Prep", 12, 50),
                    ("c Cmpt Prep", 13, 60),
                    ("d DmaI", 11, 70),
                    ("e DmaO", 12, 40),
                    ("f DmaO", 13, 41),
                ],
                [0, 0],
            ),
        ] {
            let timeline = counted(lines);
            for rules in [Compatibility::Acelyzer, Compatibility::Own] {
                let report = run(&timeline, rules);
                let findings = &report.tests[0].findings;
                let count = |at: usize| findings.get(at).map_or(0, |finding| finding.count);
                assert_eq!([count(0), count(1)], counts, "{lines:?}");
                assert_eq!(report.has_failed(), counts[0] > 0, "{lines:?}");
            }
        }
    }

    fn launched(
        rank: u32,
        name: &'static str,
        cat: &'static str,
        ts: f64,
        correlation: u64,
    ) -> Slice<'static> {
        Slice {
            rank,
            name,
            cat,
            ts,
            dur: 10.0,
            correlation,
            ..Slice::default()
        }
    }

    fn torch() -> Timeline {
        let mut timeline = scene::empty(Dialect::Torch);
        for slice in [
            launched(0, "aiuLaunchScheduleCompute", "cuda_runtime", 100.0, 31),
            launched(0, "aiuScheduleWait", "cuda_runtime", 120.0, 31),
            launched(0, "inside", "kernel", 105.0, 31),
            launched(0, "late", "kernel", 125.0, 31),
            // The same number on another rank is another launch.
            launched(1, "alone", "kernel", 105.0, 31),
            launched(0, "aiuScheduleWait", "cuda_runtime", 120.0, 32),
            launched(0, "free", "kernel", 900.0, 0),
        ] {
            scene::add(&mut timeline, &slice);
        }
        timeline
    }

    #[test]
    fn kernels_are_in_their_parents() {
        let report = run(&torch(), Compatibility::Acelyzer);
        let counts: Vec<_> = report.tests[1]
            .findings
            .iter()
            .map(|f| (f.name, f.count, serde_json::to_value(&f.instances).unwrap()))
            .collect();
        let outside = json!({"corr_id": "0x1f", "kernel_start": 125.0, "kernel_end": 135.0,
            "parent_start": 100.0, "parent_end": 130.0});
        let expected = [
            ("kernel_outside_parent", 1, json!([outside])),
            ("orphan_kernels", 1, json!([{"corr_id": 31, "count": 1}])),
            ("orphan_parents", 1, json!([{"corr_id": 32}])),
        ];
        assert_eq!(counts, expected);
        assert_eq!(report.tests[0].result(), "pass");
    }

    #[test]
    fn streams_may_overlap_each_other_only() {
        let mut timeline = scene::empty(Dialect::Torch);
        for (stream, ts) in [
            ("1", 0.0),
            ("2", 5.0),
            ("1", 10.0),
            ("1", 19.0),
            ("2", 30.0),
        ] {
            let args = format!("\"stream\":{stream}");
            let slice = Slice {
                args: &args,
                ..launched(0, "k", "kernel", ts, 0)
            };
            scene::add(&mut timeline, &slice);
        }
        let report = run(&timeline, Compatibility::Acelyzer);
        let overlaps = &report.tests[0].findings[0];
        assert_eq!(overlaps.count, 1);
        let expected =
            json!({"name": "k", "pid": 0, "tid": 0, "stream": 1, "ts": 19.0, "dur": 10.0});
        let seen = serde_json::to_value(&overlaps.instances).unwrap();
        assert_eq!(seen, json!([expected]));
    }

    /// Kernels of GPUs end whenever they do, but none begins before its call; calls that
    /// launch nothing are no parents.
    #[test]
    fn kernels_of_gpus_have_the_calls_of_their_runtime() {
        let mut timeline = scene::empty(Dialect::Torch);
        for slice in [
            launched(0, "cudaLaunchKernel", "cuda_runtime", 100.0, 1),
            launched(0, "k", "kernel", 500.0, 1),
            launched(0, "hipModuleLaunchKernel", "cuda_driver", 600.0, 2),
            launched(0, "early", "Kernel", 590.0, 2),
            launched(0, "cudaStreamSynchronize", "cuda_runtime", 700.0, 3),
            launched(0, "lost", "kernel", 800.0, 4),
        ] {
            scene::add(&mut timeline, &slice);
        }
        let report = run(&timeline, Compatibility::Own);
        let found = &report.tests[1].findings;
        let counts: Vec<_> = found.iter().map(|f| f.count).collect();
        assert_eq!(counts, [1, 1, 0]);
        let early = serde_json::to_value(&found[0].instances).unwrap();
        assert_eq!(early[0]["kernel_start"], 590.0);
        assert_eq!(early[0]["parent_end"], Value::Null);
        assert_eq!(
            serde_json::to_value(&found[1].instances).unwrap(),
            json!([{"corr_id": 4, "count": 1}])
        );
    }

    /// The form of 1.3.0's reports.
    #[test]
    fn reports_have_the_form_of_1_3_0() {
        let report = run(&torch(), Compatibility::Acelyzer);
        let text = report.to_text("acelyzer -V");
        let expected = "Acelyzer Verification Report\n=============================\n\
            Input:   acelyzer -V\n\nERRORS (1)\n----------\n  kernel_outside_parent: 1 occurrence(s)\n\
            \u{20}   corr_id=0x1f  kernel_start=125.0  kernel_end=135.0  parent_start=100.0  \
            parent_end=130.0\n\nWARNINGS (2)\n------------\n  orphan_kernels: 1 occurrence(s)\n\
            \u{20}   corr_id=31  count=1\n  orphan_parents: 1 occurrence(s)\n    corr_id=32\n\n\
            PASSED (1)\n----------\n  overlaps: 0 occurrence(s)\n\nTESTS APPLIED (2)\n\
            -----------------\n  PASS  Compute Overlap Check\n  FAIL  Kernel-Parent Timestamp Check\n\n\
            Result: FAIL (errors detected)\n";
        assert_eq!(text, expected);
        let text = report.to_json(&json!({"Application": "x"})).unwrap();
        assert!(text.starts_with("{\n  \"version\": \"1.0\",\n  \"result\": \"FAIL\",\n"));
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["result"], "FAIL");
        assert_eq!(report["test_results"][1]["result"], "fail");
        assert_eq!(report["passed"][0]["finding"], "overlaps");
        assert_eq!(report["warnings"][1]["count"], 1);
        let empty = run(&scene::empty(Dialect::Flex), Compatibility::Own);
        assert!(!empty.has_failed());
        assert!(
            empty
                .to_text("x")
                .starts_with("Verification by aiprof\n=====")
        );
    }
}
