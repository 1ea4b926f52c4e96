//! `--ranges` and ROCTX: programs that name ranges by the makers' own NVTX and ITT (packages
//! of PyPI), and by a library of ours in ROCTX's place (*synthetic*).
//! What is right is what the programs wrote down: the clock before and after each call.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use aiprof_tests::aiprof::{binary, lost};
use aiprof_tests::ranges::{
    Bench, CUT, DROPPED, UNENDED, UNMATCHED, judge, nothing_lost, ranges,
};
use aiprof_tests::trace::Trace;
use aiprof_tests::workload::{checked, source_path};

#[test]
fn nvtx_ranges_of_a_program_are_what_it_wrote_down() -> anyhow::Result<()> {
    let Some(bench) = Bench::with_packages("nvtx_ranges_of_a_program_are_what_it_wrote_down")?
    else {
        return Ok(());
    };
    let program = bench.nvtx()?;
    let alone = bench.run(None, &program, &["plain"], &[])?;
    let run = bench.run(Some("t.json"), &program, &["plain"], &["--ranges"])?;
    ensure!(run.output == alone.output, "{}", run.output);
    let trace = run.trace.context("a trace")?;
    judge(&trace, &run.truth, "NVTX")?;
    nothing_lost(&run.stderr)?;
    let of = |name: &str| {
        let all = ranges(&trace).into_iter().find(|span| span.name == name);
        all.map(|span| span.args.clone()).context("a range")
    };
    let own = of("registered text")?;
    ensure!(own["category"] == "io" && own["payload"] == -17, "{own}");
    ensure!(of("on any thread")?["payload"] == 0.25);
    Ok(())
}

/// The fields of a line of CSV after its name.
fn row<'t>(table: &'t str, name: &str) -> anyhow::Result<Vec<&'t str>> {
    let mut lines = table.lines();
    let heads: Vec<&str> = lines.next().context("columns")?.split(',').collect();
    let at = heads.iter().position(|head| *head == "name");
    let at = at.with_context(|| format!("{heads:?}"))?;
    let rows = lines.map(|line| line.split(',').collect::<Vec<_>>());
    let mut own = rows.filter(|row| row.get(at) == Some(&name));
    let found = own
        .next()
        .with_context(|| format!("no {name} in {table}"))?;
    ensure!(own.next().is_none(), "twice {name} in {table}");
    Ok(found[at + 1..].to_vec())
}

#[test]
fn captures_tables_and_perfetto_have_them() -> anyhow::Result<()> {
    let Some(bench) = Bench::with_packages("captures_tables_and_perfetto_have_them")? else {
        return Ok(());
    };
    let program = bench.nvtx()?;
    let run = bench.run(Some("x.aiprof"), &program, &["plain"], &["--ranges"])?;
    let capture = bench.shop.path("x.aiprof");
    let report = |name: &str| {
        let out = bench.shop.path(name);
        let mut report = Command::new(binary()?);
        checked(report.arg("report").arg(&capture).arg("-o").arg(&out))?;
        anyhow::Ok(out)
    };
    let (chrome, perfetto) = (report("x.json")?, report("x.pftrace")?);
    judge(&Trace::read(&chrome)?, &run.truth, "NVTX")?;
    let analyze = |input: &Path, options: &[&str]| {
        let mut analyze = Command::new(binary()?);
        analyze.arg("analyze").arg(input).args(options);
        checked(&mut analyze)
    };
    let annotations = ["--table", "annotations", "--format", "csv"];
    let tables = [&capture, &chrome, &perfetto].map(|input| analyze(input, &annotations));
    let [of_capture, of_chrome, of_perfetto] = tables;
    let (of_capture, of_perfetto) = (of_capture?, of_perfetto?);
    ensure!(of_capture == of_chrome?, "{of_capture}");
    for table in [&of_capture, &of_perfetto] {
        let [count, sum, ..] = row(table, "inner")?[..] else {
            anyhow::bail!("{table}");
        };
        // Microseconds or nanoseconds, the third of a millisecond is in it.
        ensure!(count == "3" && sum.parse::<f64>()? >= 300.0, "{table}");
        ensure!(row(table, "on any thread")?[0] == "2", "{table}");
        ensure!(row(table, "a moment").is_err(), "{table}");
    }
    // They choose what is looked at: all calls of the program, or those of a range that is there.
    let path = ["--table", "critical-path"];
    analyze(&capture, &path)?;
    let of_none = [&path[..], &["--annotation", "no such range"]].concat();
    let Err(refused) = analyze(&capture, &of_none) else {
        anyhow::bail!("a range that is not there is no error");
    };
    ensure!(format!("{refused:#}").contains("outer range"), "{refused:#}");
    let of_range = [&path[..], &["--annotation", "outer range"]].concat();
    analyze(&capture, &of_range)?;
    Ok(())
}

#[test]
fn what_is_not_paired_is_counted_and_harms_no_other() -> anyhow::Result<()> {
    let Some(bench) = Bench::with_packages("what_is_not_paired_is_counted_and_harms_no_other")?
    else {
        return Ok(());
    };
    let program = bench.nvtx()?;
    let alone = bench.run(None, &program, &["pops"], &[])?;
    let run = bench.run(Some("t.json"), &program, &["pops"], &["--ranges"])?;
    ensure!(run.output == alone.output, "{}", run.output);
    let trace = run.trace.context("a trace")?;
    judge(&trace, &run.truth, "NVTX")?;
    let lost = |kind| lost(&run.stderr, kind);
    ensure!(lost(UNMATCHED) == 4 && lost(UNENDED) == 2, "{}", run.stderr);
    ensure!(lost(CUT) == 1 && lost(DROPPED) == 0, "{}", run.stderr);
    let open: Vec<&str> = ranges(&trace)
        .into_iter()
        .filter(|span| span.args["end"] == "not seen")
        .map(|span| &*span.name)
        .collect();
    ensure!(open == ["never popped", "never ended"], "{open:?}");
    let long = ranges(&trace)
        .into_iter()
        .find(|span| span.name.starts_with("xx"));
    ensure!(long.is_some_and(|span| span.name.len() <= 1024));

    // Threads that end inside a range end it.
    let run = bench.run(Some("t.json"), &program, &["threads", "40"], &["--ranges"])?;
    let trace = run.trace.context("a trace")?;
    judge(&trace, &run.truth, "NVTX")?;
    let origin = trace.start_ns()?;
    let lost = aiprof_tests::aiprof::lost(&run.stderr, UNENDED);
    ensure!(run.truth.len() == 40 && lost == 40, "{}", run.stderr);
    for range in &run.truth {
        let own = ranges(&trace)
            .into_iter()
            .find(|span| span.tid == range.tid);
        let own = own.context("a range")?;
        // Its thread ends some microseconds after it has looked at the clock.
        let end = own.end + origin;
        ensure!(
            end >= range.end[0] && end < range.end[1] + 50_000_000,
            "{own:?} {range:?}"
        );
        ensure!(own.args["end"] == "not seen", "{own:?}");
    }

    // A child has its own, and none of its parent's.
    let alone = bench.run(None, &program, &["fork"], &[])?;
    let run = bench.run(Some("t.json"), &program, &["fork"], &["--ranges"])?;
    ensure!(run.output == alone.output, "{}", run.output);
    judge(&run.trace.context("a trace")?, &run.truth, "NVTX")?;
    let lost = |kind| aiprof_tests::aiprof::lost(&run.stderr, kind);
    ensure!(lost(UNMATCHED) == 1 && lost(UNENDED) == 0, "{}", run.stderr);
    Ok(())
}

/// The helper's thread does not keep a process alive that has no other any more.
#[test]
fn a_program_ends_with_its_own_last_thread() -> anyhow::Result<()> {
    let Some(bench) = Bench::with_packages("a_program_ends_with_its_own_last_thread")? else {
        return Ok(());
    };
    let program = bench.nvtx()?;
    let alone = bench.run(None, &program, &["leave"], &[])?;
    let run = bench.run(Some("t.json"), &program, &["leave"], &["--ranges"])?;
    ensure!(run.output == alone.output, "{}", run.output);
    ensure!(!run.truth.is_empty(), "{}", run.stderr);
    nothing_lost(&run.stderr)?;
    judge(&run.trace.context("a trace")?, &run.truth, "NVTX")
}

#[test]
fn a_million_ranges_are_recorded_or_counted() -> anyhow::Result<()> {
    let Some(bench) = Bench::with_packages("a_million_ranges_are_recorded_or_counted")? else {
        return Ok(());
    };
    let program = bench.nvtx()?;
    let run = bench.run(
        Some("t.json"),
        &program,
        &["many", "1000000"],
        &["--ranges"],
    )?;
    let trace = run.trace.context("a trace")?;
    let lost = |kind| lost(&run.stderr, kind);
    let all = ranges(&trace);
    let whole = all.iter().filter(|span| span.args["end"].is_null()).count() as u64;
    let open = all.len() as u64 - whole;
    ensure!(open == lost(UNENDED), "{open}: {}", run.stderr);
    // Each begin and each end is somewhere.
    let sum = 2 * whole + open + lost(UNMATCHED) + lost(DROPPED);
    // A batch of marks that finds no room in the kernel's ring counts as one, whatever is in it. It
    // is at most a ring of the program's, of words, two to a mark.
    let batches = lost("data of calls dropped (ring buffer full)");
    let missing = 2_000_002_u64.checked_sub(sum).context("more than there are")?;
    ensure!(missing <= batches << 15, "{sum}: {}", run.stderr);
    // None got the end of another: each lasts no longer than a step of the loop, or a time
    // in which its thread did not run.
    let mut inner = all.iter().filter(|span| span.name == "one of many");
    let long = inner
        .clone()
        .filter(|span| span.end - span.start > 20_000_000);
    ensure!(long.count() * 100 <= whole as usize, "{}", run.stderr);
    ensure!(
        inner.any(|span| span.args["end"].is_null()),
        "{}",
        run.stderr
    );
    println!("{whole} whole, {} dropped: {}", lost(DROPPED), run.stderr);

    // A handler of a signal that marks something, in the middle of other marks.
    let run = bench.run(
        Some("t.json"),
        &program,
        &["signals", "300000"],
        &["--ranges"],
    )?;
    ensure!(run.output == "done\n", "{}", run.output);
    ensure!(ranges(&run.trace.context("a trace")?).len() > 1000);
    Ok(())
}

#[test]
fn python_names_ranges_by_nvtx_and_itt() -> anyhow::Result<()> {
    let name = "python_names_ranges_by_nvtx_and_itt";
    let Some(bench) = Bench::with_packages(name)? else {
        return Ok(());
    };
    let packages = bench.packages.as_ref().context("packages")?;
    let script = source_path("ranges.py");
    let script = script.to_str().context("a path")?;
    for (mode, api) in [("nvtx", "NVTX"), ("itt", "ITT")] {
        let run = bench.run(
            Some("t.json"),
            &packages.python,
            &[script, mode],
            &["--ranges"],
        )?;
        ensure!(run.output == "done\n", "{}", run.output);
        ensure!(run.truth.len() > 120, "{}", run.truth.len());
        judge(&run.trace.context("a trace")?, &run.truth, api)?;
        nothing_lost(&run.stderr)?;
    }
    Ok(())
}

#[test]
fn roctx_ranges_are_seen_without_a_helper() -> anyhow::Result<()> {
    let Some(bench) = Bench::new("roctx_ranges_are_seen_without_a_helper")? else {
        return Ok(());
    };
    let library = bench.shop.path("libroctx64.so.4");
    let library = library.to_str().context("a path")?;
    let soname = ["-shared", "-fPIC", "-Wl,-soname,libroctx64.so.4"];
    aiprof_tests::workload::compile("roctx.c", Path::new(library), &soname)?;
    let program = bench
        .shop
        .build("roctx_work.c", "roctx_work", &[library, "-lpthread"])?;
    for out in ["t.json", "x.aiprof"] {
        let run = bench.run(Some(out), &program, &[], &[])?;
        ensure!(run.output == "done 1\n", "{}", run.output);
        let trace = match run.trace {
            Some(trace) => trace,
            None => {
                let out = bench.shop.path("report.json");
                let mut report = Command::new(binary()?);
                report.arg("report").arg(bench.shop.path("x.aiprof"));
                checked(report.arg("-o").arg(&out))?;
                Trace::read(&out)?
            }
        };
        judge(&trace, &run.truth, "ROCTX")?;
        ensure!(run.truth.len() == 151, "{}", run.truth.len());
        nothing_lost(&run.stderr)?;
    }
    Ok(())
}

#[test]
fn a_tool_of_the_user_s_keeps_its_place() -> anyhow::Result<()> {
    let Some(bench) = Bench::new("a_tool_of_the_user_s_keeps_its_place")? else {
        return Ok(());
    };
    let out = bench.shop.path("t.json");
    let show = "echo $NVTX_INJECTION64_PATH; echo $INTEL_LIBITTNOTIFY64";
    let run = |variable: Option<&str>| {
        let mut command = Command::new(binary()?);
        command.args(["--only", "--ranges", "-o"]).arg(&out);
        command.args(["--", "sh", "-c", show]);
        command.env_remove("NVTX_INJECTION64_PATH");
        command.env_remove("INTEL_LIBITTNOTIFY64");
        if let Some(variable) = variable {
            command.env(variable, "/no/such");
        }
        let output = command.output()?;
        let text = String::from_utf8(output.stdout)?;
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        anyhow::Ok((lines, String::from_utf8(output.stderr)?))
    };
    let (lines, stderr) = run(None)?;
    let is_helper = |path: &String| path.ends_with("/libaiprof-timing.so");
    ensure!(lines.len() == 2 && lines.iter().all(is_helper), "{lines:?}");
    ensure!(!stderr.contains("set already"), "{stderr}");
    for (at, variable) in ["NVTX_INJECTION64_PATH", "INTEL_LIBITTNOTIFY64"]
        .into_iter()
        .enumerate()
    {
        let (lines, stderr) = run(Some(variable))?;
        ensure!(
            lines[at] == "/no/such" && is_helper(&lines[1 - at]),
            "{lines:?}"
        );
        ensure!(
            stderr.contains(&format!("{variable} is already set")),
            "{stderr}"
        );
    }
    // A profile has no ranges, and a running program cannot be given the helper.
    for args in [
        &["--ranges", "-o", "x.svg", "true"][..],
        &["--ranges", "-d", "1", "-o", "t.json"],
    ] {
        let output = Command::new(binary()?).args(args).output()?;
        ensure!(output.status.code() == Some(2), "{:?}", output.status);
    }
    Ok(())
}
