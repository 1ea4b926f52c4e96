//! Programs that come, go, hide and change while they are sampled.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aiprof_tests::aiprof::{Aiprof, Run, lost, truth};
use aiprof_tests::chain::{check, check_reached, check_share, from_entry};
use aiprof_tests::child::{Child, LONG};
use aiprof_tests::folded::{Folded, Line, base};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::states::States;
use aiprof_tests::workload::Workshop;

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];
const SECONDS: &str = "2";
const LEAST: u64 = 800;

/// Whether the stack is complete and lies on the way to `chain` below `main`.
fn is_on_the_way(line: &Line, chain: &[&str]) -> bool {
    from_entry(line, "main").is_some_and(|names| {
        let body = &names[1..];
        chain.starts_with(body) || body.first() == Some(&"work_left")
    })
}

#[test]
fn mount_namespace() -> anyhow::Result<()> {
    let needs = [Need::Root, Need::Tool("cc"), Need::Tool("unshare")];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    shop.library("depth.c", "depth", &["-DLIBRARY"])?;
    shop.build("depth.c", "hidden", &["-DPROGRAM", "-ldepth"])?;
    // Program and library exist at these paths inside the namespace only.
    let inside = shop.path("inside");
    std::fs::create_dir(&inside)?;
    let script = format!(
        "mount -t tmpfs none {inside} && cp {dir}/hidden {dir}/libdepth.so {inside} && \
         rm {dir}/hidden {dir}/libdepth.so && exec {inside}/hidden {SECONDS} 20",
        inside = inside.display(),
        dir = shop.path("").display(),
    );
    let run = Aiprof::counting()
        .command("unshare", &["-m", "sh", "-c", &script])
        .record_one()?;
    let mut chain = vec!["down"; 20];
    chain.push("bottom");
    // Until its last exec the process was unshare, then sh.
    let hidden = run.folded.of_comm("hidden");
    check("inside the namespace", &hidden, LEAST, |l| {
        is_on_the_way(l, &chain)
    })
}

#[test]
fn dlopen_and_dlclose() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let run = record_plugins("250")?;
    check("plugins, 250 ms each", &run.folded, LEAST, |l| {
        is_plugin(l, true)
    })?;
    for one in ["spin_one", "spin_two"] {
        check_reached(one, &run.folded, 0.3, |l| is_plugin(l, true) && l.has(one))?;
    }
    Ok(())
}

#[test]
fn fast_dlopen_and_dlclose_never_misname() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let run = record_plugins("2")?;
    // Faster than mappings can be followed: a stack may be cut or a frame
    // unnamed, visibly, but the other plugin's names must not appear.
    check_share("plugins, 2 ms each", &run.folded, LEAST, 1.0, |line| {
        let mixed = (line.has("use_one") && (line.has("plugin_two") || line.has("spin_two")))
            || (line.has("use_two") && (line.has("plugin_one") || line.has("spin_one")));
        !mixed
    })?;
    check("plugins, 2 ms each", &run.folded, LEAST, |line| {
        is_plugin(line, false) || line.frames.iter().any(|frame| frame.starts_with('['))
    })
}

fn record_plugins(milliseconds: &str) -> anyhow::Result<Run> {
    let shop = Workshop::new()?;
    let one = shop.library("plugins.c", "one", &["-DPLUGIN=one"])?;
    let two = shop.library("plugins.c", "two", &["-DPLUGIN=two"])?;
    let program = shop.build("plugins.c", "plugins", &["-ldl"])?;
    let (one, two) = (one.to_string_lossy(), two.to_string_lossy());
    Aiprof::counting()
        .command(program, &[SECONDS, milliseconds, &one, &two])
        .record_one()
}

/// Whether the chain is one of plugins.c, with the plugin that `use_*` uses.
/// `usual`: time in the dynamic linker is not the matter, but may occur.
fn is_plugin(line: &Line, usual: bool) -> bool {
    let Some(names) = from_entry(line, "main") else {
        // Before main: the dynamic linker.
        return !usual && !line.is_cut() && line.user().first() == Some(&"_start");
    };
    match &names[1..] {
        [] => true,
        ["use_one", rest @ ..] => is_use(rest, ["plugin_one", "spin_one"]),
        ["use_two", rest @ ..] => is_use(rest, ["plugin_two", "spin_two"]),
        ["work_left", ..] => true,
        [other, ..] => other.contains("dl") || other.starts_with('['),
    }
}

/// The frames below `use_*`: `use`, then the plugin or the clock.
fn is_use(rest: &[&str], plugin: [&str; 2]) -> bool {
    match rest {
        [] | ["use"] => true,
        ["use", "cpu_seconds", ..] => true,
        ["use", rest @ ..] => plugin.starts_with(rest),
        _ => false,
    }
}

#[test]
fn static_programs_that_exec_each_other() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let flags = ["-static", "-no-pie", "-O1"];
    let build = |name, flag| {
        let all = [
            &flags[..],
            &[flag, "-DLONGER"][..1 + usize::from(name == "turn_b")],
        ]
        .concat();
        shop.build("turns.c", name, &all)
    };
    let a = build("turn_a", "-DNAME=work_a")?;
    let b = build("turn_b", "-DNAME=work_b")?;
    // Executed from a fork that works too, and as the first program.
    let script = format!(
        "for i in 1 2 3; do {a} 200 {b} & done; wait; exec {a} 200 {b}",
        a = a.display(),
        b = b.display(),
    );
    let run = Aiprof::counting()
        .command("sh", &["-c", &script])
        .record()?;
    for (comm, own) in [("turn_a", "work_a"), ("turn_b", "work_b")] {
        let other = if own == "work_a" { "work_b" } else { "work_a" };
        // Time in exec itself has no stack of either program.
        let folded = run
            .folded
            .of_comm(comm)
            .filter(|line| !line.frames.iter().any(|frame| frame.ends_with("_[k]")));
        check_share(comm, &folded, LEAST, 1.0, |line| !line.has(other))?;
        check(comm, &folded, LEAST, |line| {
            !line.is_cut() && line.user().first() == Some(&"_start")
        })?;
    }
    Ok(())
}

fn check_replaced(replacement: bool) -> anyhow::Result<()> {
    let shop = Workshop::new()?;
    let program = shop.build("replaced.c", "replaced", &[])?;
    let new = shop.build("replaced.c", "new", &["-DNEW"])?;
    let new = new.to_string_lossy();
    let args = match replacement {
        true => vec![SECONDS, &new],
        false => vec![SECONDS],
    };
    let run = Aiprof::counting().command(&program, &args).record_one()?;
    anyhow::ensure!(
        program.exists() == replacement,
        "the workload did not replace itself"
    );
    check_share("no new names", &run.folded, LEAST, 1.0, |line| {
        !["new_outer", "new_spin", "new_padding"]
            .iter()
            .any(|name| line.has(name))
    })?;
    check("old names", &run.folded, LEAST, |l| {
        is_on_the_way(l, &["old_outer", "old_spin"])
    })
}

#[test]
fn binary_replaced_while_running() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_replaced(true)
}

#[test]
fn binary_deleted_while_running() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_replaced(false)
}

#[test]
fn threads_belong_to_their_process() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("threads.c", "threads", &["-static", "-pthread"])?;
    let run = Aiprof::counting().command(program, &["3"]).record_one()?;
    // The first field is the process's name, whatever a thread calls itself:
    // `outputs::pprof_labels_threads_by_name` is about that.
    let worker = |line: &Line, chain: [&str; 2]| {
        let names: Vec<_> = line.user().into_iter().map(base).collect();
        let body = match names.as_slice() {
            [
                "clone3" | "__clone3" | "__clone" | "clone",
                "start_thread",
                body @ ..,
            ] => body,
            _ => return false,
        };
        let spinning = chain.starts_with(body) || body.get(1) == Some(&"work_left");
        line.comm == "threads" && spinning
    };
    let a = |l: &Line| worker(l, ["thread_a", "spin_a"]);
    let b = |l: &Line| worker(l, ["thread_b", "spin_b"]);
    check("threads", &run.folded, LEAST, |line| {
        a(line) || b(line) || from_entry(line, "main").is_some() && line.comm == "threads"
    })?;
    check_reached("worker-a", &run.folded, 0.2, a)?;
    check_reached("worker-b", &run.folded, 0.2, b)
}

/// A family.c process that waits for its start signal.
fn start_family(shop: &Workshop) -> anyhow::Result<(Child, u32)> {
    let program = shop.build("family.c", "family", &[])?;
    let mut command = Command::new(program);
    command
        .arg("2")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = Child::start(&mut command)?;
    let pid = truth(&child.read_line()?, "pid")? as u32;
    Ok((child, pid))
}

#[test]
fn by_pid_with_children_and_nothing_else() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let (mut family, pid) = start_family(&shop)?;
    // Something else that burns CPU and must not appear.
    let other = shop.build("depth.c", "other", &[])?;
    let mut other = Child::start(Command::new(other).args(["60", "5"]).stdout(Stdio::null()))?;
    let (states, out) = (States::new(&shop), shop.path("out.folded"));
    let (family_pid, file) = (pid.to_string(), out.display().to_string());
    let options = [
        "-F", "499", "--weight", "samples", "-p", &family_pid, "-o", &file,
    ];
    let mut aiprof = Child::start(&mut states.command(&options, &[])?)?;
    states.wait_known(pid)?;
    family.write_line("go")?;
    let output = family.output()?;
    // It ends with them.
    let said = aiprof.stderr()?;
    anyhow::ensure!(aiprof.wait(LONG)?.success(), "{said}");
    other.kill();
    let folded = Folded::parse(&std::fs::read_to_string(&out)?)?;
    let child = output
        .lines()
        .filter_map(|line| line.strip_prefix("pid ")?.parse::<u32>().ok())
        .find(|child| *child != pid)
        .ok_or_else(|| anyhow::anyhow!("no child: {output}"))?;
    check_share("only the family", &folded, LEAST, 1.0, |l| {
        l.pid == pid || l.pid == child
    })?;
    check("parent", &folded.of_pid(pid), LEAST / 4, |l| {
        is_on_the_way(l, &["parent_spin"])
    })?;
    check("child", &folded.of_pid(child), LEAST / 4, |l| {
        is_on_the_way(l, &["child_spin"])
    })
}

#[test]
fn process_started_before() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("depth.c", "before", &[])?;
    let mut command = Command::new(program);
    command.args(["60", "20"]).stdout(Stdio::piped());
    let mut before = Child::start(&mut command)?;
    let pid = truth(&before.read_line()?, "pid")? as u32;
    let run = Aiprof::counting().until_used(pid, 3).record()?;
    before.kill();
    let mut chain = vec!["down"; 20];
    chain.push("bottom");
    check("started before", &run.folded.of_pid(pid), LEAST, |l| {
        is_on_the_way(l, &chain)
    })
}

/// The recorder is stopped until the program has ended: its ring fills up.
#[test]
fn samples_that_find_no_room_are_counted() -> anyhow::Result<()> {
    const HERTZ: f64 = 2999.0;
    const CPU_SECONDS: f64 = 5.0;
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("depth.c", "deep", &[])?;
    let out = shop.path("o.folded");
    let recording = Aiprof::with(["--only", "-F", "2999", "--weight", "samples", "-o"])
        .option(&out)
        .command(program, &["5", "120"]);
    let begun = Instant::now();
    let mut recorder = Child::start(&mut recording.to_command()?)?;
    let pid = truth(&recorder.read_line()?, "pid")?;
    recorder.signal("STOP")?;
    // Its parent cannot wait for it: it stays, as one that has ended.
    let stat = format!("/proc/{pid}/stat");
    while !std::fs::read_to_string(&stat)?.contains(") Z ") {
        anyhow::ensure!(begun.elapsed() < LONG, "the program does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    recorder.signal("CONT")?;
    recorder.output()?;
    let stderr = recorder.stderr()?;
    let kept = Folded::parse(&std::fs::read_to_string(&out)?)?.total() as f64;
    let lost = lost(&stderr, "samples dropped (ring buffer full)") as f64;
    let expected = HERTZ * CPU_SECONDS;
    println!("{kept} kept, {lost} lost of {expected}");
    anyhow::ensure!(kept > 1000.0 && lost > 1000.0, "{stderr}");
    // The clock misses some, too; those of other programs find no room, either.
    let most = HERTZ * begun.elapsed().as_secs_f64() * std::thread::available_parallelism()?.get() as f64;
    let all = kept + lost;
    anyhow::ensure!((0.9 * expected..1.05 * most).contains(&all), "{stderr}");
    Ok(())
}
