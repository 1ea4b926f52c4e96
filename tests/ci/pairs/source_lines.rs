//! Source lines of CPU frames, as viewers of profiles see them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use aiprof_tests::aiprof::{Aiprof, binary};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::pprof;
use aiprof_tests::workload::{Workshop, checked};

/// Frames of the program's own source in folded stacks: function and line; and the sum of
/// all values.
fn folded_lines(file: &Path, source: &str) -> anyhow::Result<(BTreeSet<(String, i64)>, u64)> {
    let text = std::fs::read_to_string(file)?;
    let (mut lines, mut sum) = (BTreeSet::new(), 0);
    for line in text.lines() {
        let (stack, value) = line.rsplit_once(' ').context("no value")?;
        sum += value.parse::<u64>()?;
        for frame in stack.split(';') {
            let frame = frame.strip_suffix("_[i]").unwrap_or(frame);
            let place = frame.strip_suffix(')').and_then(|f| f.rsplit_once(" ("));
            let place = place.and_then(|(name, at)| Some((name, at.rsplit_once(':')?)));
            if let Some((name, (file, number))) = place
                && file == source
            {
                lines.insert((name.to_owned(), number.parse()?));
            }
        }
    }
    Ok((lines, sum))
}

/// The lines in pprof files are compared with addr2line's in another test; folded stacks
/// of the same capture have the same ones.
#[test]
fn folded_stacks_have_the_lines_of_pprof() -> anyhow::Result<()> {
    let needs = [Need::Root, Need::Tool("c++")];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let program = shop.build("inlines.cpp", "lines", &["-g"])?;
    let capture = shop.path("x.aiprof");
    let mut aiprof = Aiprof::with(["-q", "--only", "-F", "499", "-o"]);
    aiprof = aiprof.option(&capture).command(&program, &["1.5"]);
    checked(&mut aiprof.to_command()?)?;
    let report = |out: &Path, options: &[&str]| {
        let mut command = Command::new(binary()?);
        let command = command.arg("report").arg(&capture).arg("-o").arg(out);
        checked(command.args(options))
    };
    let (with, without) = (shop.path("with.folded"), shop.path("without.folded"));
    let proto = shop.path("x.pb.gz");
    report(&with, &["--lines"])?;
    report(&without, &[])?;
    report(&proto, &[])?;
    let (lines, sum) = folded_lines(&with, "inlines.cpp")?;
    let (none, same) = folded_lines(&without, "inlines.cpp")?;
    ensure!(none.is_empty() && sum == same, "{none:?}, {sum}, {same}");
    let places = pprof::places(&proto, &program)?;
    let own = places.iter().flat_map(|place| &place.lines);
    let own = own.filter(|(_, file, line)| file.ends_with("/inlines.cpp") && *line > 0);
    let expected: BTreeSet<_> = own.map(|(name, _, line)| (name.clone(), *line)).collect();
    ensure!(expected.len() >= 3, "{expected:?}");
    ensure!(lines == expected, "{lines:?}, not {expected:?}");
    let picture = shop.path("x.svg");
    report(&picture, &["--lines"])?;
    let text = std::fs::read_to_string(&picture)?;
    ensure!(
        text.contains("(inlines.cpp:"),
        "no lines in the flame graph"
    );
    Ok(())
}

/// `go tool pprof -list` finds the source by the path in the profile, and puts the time
/// beside its lines.
#[test]
fn go_pprof_lists_the_source() -> anyhow::Result<()> {
    let needs = [Need::Root, Need::Tool("c++"), Need::Tool("go")];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let program = shop.build("inlines.cpp", "lines", &["-g"])?;
    let profile = shop.path("x.pb.gz");
    let mut aiprof = Aiprof::with(["-q", "--only", "-F", "499", "-o"]);
    aiprof = aiprof.option(&profile).command(&program, &["1.5"]);
    checked(&mut aiprof.to_command()?)?;
    let mut go = Command::new("go");
    let go = go.args(["tool", "pprof", "-list", "^main$"]).arg(&profile);
    let text = checked(go.env("HOME", shop.path(".")))?;
    // "     .     1.49s     12:    outermost(n);"
    let call = text.lines().find(|line| line.contains("outermost("));
    let call = call.with_context(|| format!("no source:\n{text}"))?;
    let times: Vec<&str> = call.split_whitespace().take(2).collect();
    ensure!(times[1].ends_with('s') && times[1] != ".", "{call}");
    Ok(())
}
