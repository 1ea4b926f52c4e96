//! `aiprof agent`: windows without gaps, a budget that it keeps, a configuration that is read
//! again, and what is left when it is killed.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::net::UnixDatagram;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use aiprof_tests::agent::windows::{Busy, ctl, files, programs, unix_ns, windows};
use aiprof_tests::agent::{Agent, tree};
use aiprof_tests::aiprof::binary;
use aiprof_tests::child::LONG;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::pprof::{self, Sample};
use aiprof_tests::workload::Workshop;

#[test]
fn windows_follow_each_other_and_say_what_they_cost() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let shop = Workshop::new()?;
    let busy = Busy::start(2)?;
    let lines = format!(
        "window = \"3s\"\nfrequency = 997\n[budget]\ncpu = \"50%\"\n{}",
        files(&shop)
    );
    let mut agent = Agent::start(&shop, &lines)?;
    agent.await_lines("window of", 4)?;
    let status = agent.status()?;
    agent.end()?;
    let windows = windows(&shop.path("files"))?;
    ensure!(windows.len() >= 5, "{} windows", windows.len());
    for (path, about) in &windows {
        for key in ["own_cpu_ns", "bpf_ns", "duration_ns", "period_ns", "step"] {
            let key = format!("aiprof.{key}");
            ensure!(
                about.facts.contains_key(&key),
                "{}: no {key}",
                path.display()
            );
        }
        ensure!(about.facts["aiprof.own_cpu_ns"] > 0, "it cost nothing");
    }
    busy.check_whole(&windows, 20_000_000)?;
    ensure!(status["windows"].as_u64() >= Some(4), "{status}");
    ensure!(status["frequency_hz"] == 997, "{status}");
    ensure!(status["memory_bytes"].as_u64() < Some(64 << 20), "{status}");
    Ok(())
}

#[test]
fn a_configuration_that_is_read_again_loses_no_sample() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let shop = Workshop::new()?;
    let busy = Busy::start(2)?;
    let with_labels = |window: &str, hz: u32, more: &str| {
        format!(
            "window = \"{window}\"\nfrequency = {hz}\n{more}\n[budget]\ncpu = \"50%\"\n{}",
            files(&shop)
        )
    };
    let with = |window: &str, hz: u32| with_labels(window, hz, "");
    let mut agent = Agent::start(&shop, &with("60s", 99))?;
    busy.works()?;
    agent.configure(&with("60s", 49))?;
    agent.signal("HUP")?;
    agent.await_line("configuration reloaded")?;
    busy.works()?;
    // A wrong configuration changes nothing, and is reported.
    agent.configure("frequency = 0\n")?;
    agent.signal("HUP")?;
    let said = agent.await_line("the previous configuration stays in use")?;
    ensure!(said.contains("frequency: must be 1 to 1000"), "{said}");
    // Seen without a signal.
    agent.configure(&with("2s", 197))?;
    agent.await_lines("configuration reloaded", 2)?;
    agent.await_lines("window of 2", 2)?;
    // Another session takes over: it has other labels, and records other things.
    let said = agent.said()?.matches("window of").count();
    let other = with_labels("60s", 197, "labels = { cluster = \"c1\" }");
    agent.configure(&format!("{other}\n[record]\nlaunches = false\n"))?;
    agent.signal("HUP")?;
    agent.await_lines("configuration reloaded", 3)?;
    busy.works()?;
    agent.end()?;
    let windows = windows(&shop.path("files"))?;
    let labelled = |path: &Path| -> anyhow::Result<bool> {
        let has = |s: &Sample| s.texts.get("cluster").is_some_and(|c| c == "c1");
        Ok(pprof::read(path)?.iter().all(has))
    };
    let (last, _) = windows.last().context("no window")?;
    ensure!(labelled(last)?, "samples of the last have no label");
    let (before, _) = windows.get(said).context("no window before it")?;
    ensure!(!labelled(before)?, "samples before it have the label");
    let hz: Vec<i64> = windows.iter().map(|(_, about)| about.hz()).collect();
    ensure!(
        hz.first() == Some(&99) && hz.contains(&49) && hz.last() == Some(&197),
        "{hz:?}"
    );
    busy.check_whole(&windows, 40_000_000)
}

fn is_sampled() -> anyhow::Result<bool> {
    Ok(programs()?.iter().any(|(name, _)| name == "sampler"))
}

/// An id of a host whose turns alternate from this one on, which it waits for: drawn as the
/// agent draws.
fn with_every_other_turn(one_in: u64, turn: u64) -> anyhow::Result<String> {
    let has = |id: &String, turn: u64| {
        let mut drawn = DefaultHasher::new();
        (id, turn).hash(&mut drawn);
        drawn.finish().is_multiple_of(one_in)
    };
    let alternates =
        |id: &String| (0..4).all(|after| has(id, turn + after) != after.is_multiple_of(2));
    let mut ids = (0..1000).map(|n| format!("host-{n}"));
    ids.find(alternates).context("no host has such turns")
}

#[test]
fn in_its_turns_it_counts_for_all_of_them() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let shop = Workshop::new()?;
    let busy = Busy::start(2)?;
    let turn = u64::try_from(unix_ns())? / 10_000_000_000;
    let lines = format!(
        "window = \"1s\"\none_in = 2\nfrequency = 99\nhost_id = \"{}\"\n[budget]\ncpu = \"50%\"\n{}",
        with_every_other_turn(2, turn)?,
        files(&shop)
    );
    let mut agent = Agent::start(&shop, &lines)?;
    agent.await_lines("window of", 5)?;
    let begun = Instant::now();
    let waits = |said: &str| said.rfind("until this host's next slot") > said.rfind("window of");
    while !waits(&agent.said()?) {
        ensure!(begun.elapsed() < LONG, "no end: {}", agent.said()?);
        std::thread::sleep(Duration::from_millis(50));
    }
    let status = ctl(&["status"])?;
    ensure!(
        status.contains("nothing until this host's next slot"),
        "{status}"
    );
    ensure!(
        ctl(&["snapshot"]).is_err(),
        "a window of what is not recorded"
    );
    let said = agent.end()?;
    let windows = windows(&shop.path("files"))?;
    ensure!(windows.len() == said.matches("window of").count(), "{said}");
    for (_, about) in &windows {
        // 99 Hz, counted twice.
        ensure!(about.period_ns / 2 == 10_101_400, "{about:?}");
        ensure!(about.duration_ns < 2_000_000_000, "{about:?}");
    }
    busy.check_weighed(&windows, 2).context(said)
}

/// When something was done, nanoseconds since the Unix epoch: by two clocks, which are a
/// little apart.
fn during<T>(act: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<RangeInclusive<i64>> {
    let begun = unix_ns();
    act()?;
    Ok(begun - 1_000_000..=unix_ns() + 1_000_000)
}

#[test]
fn an_engineer_gets_more_from_it_while_it_runs() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let shop = Workshop::new()?;
    let busy = Busy::start(2)?;
    let lines = format!("[budget]\ncpu = \"50%\"\n{}", files(&shop));
    let agent = Agent::start(&shop, &lines)?;
    busy.works()?;
    let at_rate = during(|| ctl(&["rate", "499"]))?;
    // A profile of one process, beside the agent's own.
    let folded = shop.path("one.folded");
    let pid = busy.pids().next().context("no busy program")?.to_string();
    let out = folded.display().to_string();
    ctl(&["profile", "-p", &pid, "-d", "2", "-o", &out])?;
    let folded = std::fs::read_to_string(folded)?;
    let of_it = format!("sh;{pid}");
    ensure!(
        !folded.is_empty() && folded.lines().all(|line| line.starts_with("sh")),
        "no {of_it}:\n{folded}"
    );
    let status = ctl(&["status"])?;
    ensure!(status.contains("499 Hz"), "{status}");
    let at_snapshot = during(|| ctl(&["snapshot"]))?;
    let at_pause = during(|| ctl(&["pause"]))?;
    ensure!(ctl(&["status"])?.contains("paused"), "it is not paused");
    busy.works()?;
    let at_resume = during(|| ctl(&["resume"]))?;
    ensure!(ctl(&["rate", "0"]).is_err(), "no samples at all");
    ensure!(ctl(&["--name", "other", "status"]).is_err(), "another");
    busy.works()?;
    let at_end = during(|| agent.end())?;
    let windows = windows(&shop.path("files"))?;
    let periods: Vec<i64> = windows.iter().map(|(_, about)| about.period_ns).collect();
    // 19 and 499 Hz, which are no round parts of a second.
    let expected = [53_819_660, 2_004_023, 2_004_023];
    ensure!(periods == expected, "{periods:?}");
    // They begin and end while the agent is asked for that; what is paused does not count.
    let lasts = |from: &RangeInclusive<i64>, to: &RangeInclusive<i64>| {
        to.start() - from.end()..=to.end() - from.start()
    };
    let (rest, last) = (lasts(&at_snapshot, &at_pause), lasts(&at_resume, &at_end));
    let of_last = rest.start() + last.start()..=rest.end() + last.end();
    for (number, from, length) in [
        (1, &at_rate, lasts(&at_rate, &at_snapshot)),
        (2, &at_snapshot, of_last),
    ] {
        let (_, about) = windows.get(number).context("a window is missing")?;
        let is_right = from.contains(&about.start_unix_ns) && length.contains(&about.duration_ns);
        ensure!(is_right, "{number}: {about:?}, {from:?}, {length:?}");
    }
    let (first, rest) = windows.split_at(1);
    busy.check(first)?;
    busy.check(rest.get(..1).context("none")?)
}

#[test]
fn a_killed_agent_leaves_nothing_attached() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root, Need::Tool("bpftool")]);
    let shop = Workshop::new()?;
    let lines = format!("window = \"2s\"\n{}", files(&shop));
    let mut agent = Agent::start(&shop, &lines)?;
    agent.await_line("window of")?;
    ensure!(is_sampled()?, "no sampler is loaded");
    let all = tree(agent.pid())?;
    ensure!(all.len() > 1, "it has no readers");
    agent.kill()?;
    let begun = Instant::now();
    loop {
        let left: Vec<_> = all
            .iter()
            .filter(|pid| Path::new(&format!("/proc/{pid}")).exists())
            .collect();
        let is_sampled = is_sampled()?;
        if left.is_empty() && !is_sampled {
            break;
        }
        ensure!(
            begun.elapsed() < LONG,
            "{left:?} are left, sampled: {is_sampled}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let before = windows(&shop.path("files"))?.len();
    ensure!(before >= 1, "no window was kept");
    let mut agent = Agent::start(&shop, &lines)?;
    agent.await_line("window of")?;
    agent.end()?;
    ensure!(
        windows(&shop.path("files"))?.len() > before,
        "no more windows"
    );
    Ok(())
}

#[test]
fn the_service_manager_hears_how_it_is() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let shop = Workshop::new()?;
    let place = shop.path("notify");
    let socket = UnixDatagram::bind(&place)?;
    socket.set_read_timeout(Some(LONG))?;
    let lines = format!("window = \"3s\"\n{}", files(&shop));
    let mut agent = Agent::start_with(&shop, &lines, |command| {
        command
            .env("NOTIFY_SOCKET", &place)
            .env("WATCHDOG_USEC", "6000000");
        command.env("JOURNAL_STREAM", "1:2");
    })?;
    let mut heard = String::new();
    let mut hear = |until: &str| -> anyhow::Result<()> {
        let mut bytes = [0; 4096];
        loop {
            let n = socket
                .recv(&mut bytes)
                .with_context(|| format!("no {until}:\n{heard}"))?;
            let text = String::from_utf8_lossy(bytes.get(..n).unwrap_or_default()).into_owned();
            heard.push_str(&text);
            heard.push('\n');
            if text.contains(until) {
                return Ok(());
            }
        }
    };
    hear("READY=1")?;
    hear("WATCHDOG=1")?;
    hear("STATUS=window of")?;
    agent.signal("HUP")?;
    hear("RELOADING=1")?;
    hear("READY=1")?;
    agent.await_line("<6>aiprof: info: window")?;
    agent.end()?;
    hear("STOPPING=1")
}

#[test]
fn what_cannot_be_is_refused_at_the_start() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let shop = Workshop::new()?;
    let state = shop.path("state");
    let run = |lines: &str, more: &[&str]| -> anyhow::Result<(Option<i32>, String)> {
        let config = shop.path("wrong.toml");
        std::fs::write(&config, format!("state = \"{}\"\n{lines}", state.display()))?;
        let mut command = Command::new(binary()?);
        command.args(["agent", "--config"]).arg(&config).args(more);
        let output = command.stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok((output.status.code(), said))
    };
    for (lines, expected) in [
        ("frequenzy = 3\n", "frequenzy"),
        (
            "[[output]]\ntype = \"files\"\ndirectory = \"/proc/nothing\"\n",
            "output.files.directory",
        ),
        (
            "[[output]]\ntype = \"files\"\nformat = \"gif\"\ndirectory = \"/tmp\"\n",
            "gif",
        ),
        ("[spool]\nsize = 0\n", "spool.size: must be at least 1MiB"),
    ] {
        let (code, said) = run(lines, &[])?;
        ensure!(
            code == Some(1) && said.contains(expected),
            "{lines}: {code:?} {said}"
        );
    }
    let (code, said) = run("", &["--check"])?;
    ensure!(
        code == Some(0) && said.contains(": valid"),
        "{code:?} {said}"
    );
    ensure!(said.contains("no [[output]]"), "{said}");
    // A state that others may write to.
    std::fs::create_dir_all(&state)?;
    std::fs::set_permissions(&state, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    let (code, said) = run("", &[])?;
    ensure!(
        code == Some(1) && said.contains("other users may access it"),
        "{code:?} {said}"
    );
    // One at a time.
    std::fs::remove_dir_all(&state)?;
    let agent = Agent::start(&shop, &files(&shop))?;
    let (code, said) = run("", &[])?;
    ensure!(
        code == Some(1) && said.contains("already"),
        "{code:?} {said}"
    );
    agent.end().map(drop)
}
