//! Ioctls as recorded against the program's account of them.

use aiprof::correlate::FinishedCall;
use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::recorded::{Recorded, number, value};

/// Submissions that each program makes.
pub(crate) const ROUNDS: &str = "5";

/// The calls on the device, by the program's own output.
pub(crate) fn made(truth: &[Value]) -> Vec<&Value> {
    let elsewhere = [Some("file"), Some("descriptor")];
    truth
        .iter()
        .filter(|line| line["event"] == "call" && !elsewhere.contains(&line["bad"].as_str()))
        .collect()
}

/// The program's words for fields, and the tables'.
const FIELDS: &[(&str, &str)] = &[
    ("vm", "vm"),
    ("queue", "queue"),
    ("handle", "object"),
    ("address", "batch"),
    ("size", "bytes"),
    ("addr", "address"),
    ("range", "bytes"),
    ("op", "op"),
    ("sequence", "fence"),
    ("gpu", "device"),
    ("events", "count"),
    ("vaddr", "pointer"),
    ("unmapped", "unmapped"),
    ("query", "query"),
    ("value", "value"),
];

/// Every call was recorded, in order, with its times, result and fields.
pub(crate) fn compare(
    truth: &[Value],
    calls: &[FinishedCall],
    prefixes: &[&str],
) -> anyhow::Result<()> {
    let made = made(truth);
    let names: Vec<_> = calls.iter().map(|c| c.probe.function.as_str()).collect();
    ensure!(
        made.len() == calls.len(),
        "{} made, {} recorded: {names:?}",
        made.len(),
        calls.len()
    );
    for (line, call) in made.into_iter().zip(calls) {
        compare_one(line, call, prefixes)
            .with_context(|| format!("{line}\nrecorded: {} {call:?}", call.probe.function))?;
    }
    Ok(())
}

fn compare_one(line: &Value, call: &FinishedCall, prefixes: &[&str]) -> anyhow::Result<()> {
    let command = line["command"].as_str().context("no command")?;
    if command == "unknown" {
        ensure!(
            call.probe.function.ends_with(" ioctl"),
            "an unknown command"
        );
        let number = line["number"].as_str().context("no number")?;
        let recorded = value(call, "command").map(|n| format!("{n:#x}"));
        ensure!(
            recorded.as_deref() == Some(number),
            "its number: {recorded:?}"
        );
    } else {
        // Tables name a command that grew by its newer name.
        let function = call.probe.function.as_str();
        let function = function.strip_suffix("_EXT").unwrap_or(function);
        let same = |prefix: &&str| function.strip_prefix(prefix) == Some(command);
        ensure!(prefixes.iter().any(same), "another command");
    }
    let (before, after) = (number(line, "before"), number(line, "after"));
    ensure!(before <= Some(call.start_ns), "began too early");
    let end = call.end_ns.context("its end was not seen")?;
    ensure!(call.start_ns <= end && Some(end) <= after, "ended too late");
    let (result, error) = (line["result"].as_i64(), line["error"].as_i64());
    // The C library turns -errno into -1 and errno.
    let expected = if error == Some(0) {
        result
    } else {
        error.map(|e| -e)
    };
    ensure!(
        call.result.map(|r| r as i64) == expected,
        "result {:?}",
        call.result
    );
    for (said, name) in FIELDS {
        let Some(said) = number(line, said) else {
            continue;
        };
        let Some(slot) = call.probe.slot(name) else {
            continue;
        };
        let at_exit = call.probe.values.get(slot).is_some_and(|v| v.at_exit);
        if at_exit && error != Some(0) {
            ensure!(call.value(slot).is_none(), "{name} of a call that failed");
        } else {
            ensure!(
                call.value(slot) == Some(said),
                "{name}: {:?}",
                call.value(slot)
            );
        }
    }
    if line["bad"] == "address" {
        ensure!(call.unread != 0, "a bad address was read");
    }
    compare_binds(line, call)
}

/// The elements of VM_BIND, in place and in an array.
fn compare_binds(line: &Value, call: &FinishedCall) -> anyhow::Result<()> {
    let Some(binds) = line["binds"].as_array() else {
        return Ok(());
    };
    let layout = call.probe.layout.as_ref().context("no layout")?;
    let array = layout.arrays.first().context("no array")?;
    let elements = call.elements(array);
    ensure!(elements.missing == 0 && elements.elements.len() == binds.len());
    for (bind, element) in binds.iter().zip(&elements.elements) {
        for (said, name) in [
            ("op", "op"),
            ("obj", "object"),
            ("addr", "address"),
            ("range", "bytes"),
        ] {
            let at = array.field(name).context("no such field")?;
            ensure!(number(bind, said) == element.get(at).copied(), "{name}");
        }
    }
    Ok(())
}

/// Each submission's stack goes from the function that makes it through the one
/// that calls that, to the end.
pub(crate) fn compare_stacks(
    truth: &[Value],
    recorded: &Recorded,
    kernel: bool,
) -> anyhow::Result<()> {
    let section = |name: &str| {
        let mut code = truth.iter().filter(|line| line["event"] == "code");
        let line = code.find(|line| line["name"] == name)?;
        Some(number(line, "start")?..number(line, "stop")?)
    };
    let (submit, run) = (
        section("submit").context("code")?,
        section("run").context("code")?,
    );
    let submits = recorded.calls.iter();
    let submits = submits.filter(|c| c.probe.kind == aiprof::probes::CallKind::Submit);
    // Those behind them are mistakes, made elsewhere.
    for call in submits.take(ROUNDS.parse()?) {
        let stack = recorded.stacks.get(&call.stack).context("no stack")?;
        let (user, stop) = (&stack.user, stack.stop);
        let inner = user.iter().position(|a| submit.contains(a));
        let outer = user.iter().position(|a| run.contains(a));
        let (inner, outer) = (
            inner.with_context(|| format!("no submit in {user:x?} {submit:x?}: {stop:?}"))?,
            outer.context("no run")?,
        );
        ensure!(inner < outer, "the order of calls");
        // main, what calls it, and the program's entry.
        ensure!(
            user.len() >= outer + 4,
            "the stack ends early: {user:x?}: {stop:?}"
        );
        ensure!(
            stack.kernel.is_empty() != kernel,
            "{} kernel frames",
            stack.kernel.len()
        );
    }
    Ok(())
}
