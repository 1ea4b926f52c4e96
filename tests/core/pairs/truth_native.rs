//! The true call chains of C programs without frame pointers.

use aiprof_tests::aiprof::{Aiprof, lost};
use aiprof_tests::chain::{check, check_reached, check_share, from_entry};
use aiprof_tests::folded::{Line, base};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::Workshop;

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];

/// Seconds of CPU for most workloads: about 1,000 samples at 499 Hz.
const SECONDS: &str = "2";
/// Fewest samples of them to judge by.
const LEAST: u64 = 800;

/// Whether the stack is complete and runs from `main` through exactly `chain`
/// (kernel frames apart), or asks the clock from `main`.
fn is_exactly(line: &Line, chain: &[&str]) -> bool {
    from_entry(line, "main").is_some_and(|names| {
        let body = names.get(1..).unwrap_or_default();
        body == chain || body.first() == Some(&"work_left")
    })
}

/// Whether the stack is complete and lies on the way to `chain`: the callers
/// themselves are sampled now and then, while they call.
fn is_on_the_way(line: &Line, chain: &[&str]) -> bool {
    from_entry(line, "main").is_some_and(|names| {
        let body = names.get(1..).unwrap_or_default();
        chain.starts_with(body) || body.first() == Some(&"work_left")
    })
}

#[test]
fn recursion_across_two_libraries() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    shop.library("hop.c", "hopa", &["-DHOP_A"])?;
    shop.library("hop.c", "hopb", &["-DHOP_B"])?;
    let program = shop.build("hop.c", "hop", &["-lhopa", "-lhopb"])?;
    let run = Aiprof::counting()
        .command(program, &[SECONDS])
        .record_one()?;

    let mut chain = ["hop_a", "hop_b"].repeat(50);
    chain.push("hop_leaf");
    check("100 hops", &run.folded, LEAST, |l| is_on_the_way(l, &chain))?;
    check_share("in the leaf", &run.folded, LEAST, 0.97, |l| {
        is_exactly(l, &chain)
    })
}

/// Shares of the three functions in a profile against the program's own
/// accounts, each within two points.
/// `rate`: samples per second of CPU time. A share may differ by half a point, and by five
/// standard deviations of chance where the program shared its CPU.
fn check_split(options: Aiprof, rate: f64, least: u64) -> anyhow::Result<()> {
    let shop = Workshop::new()?;
    let program = shop.build("split.c", "split", &[])?;
    let run = options.command(program, &["4"]).record_one()?;
    check("split", &run.folded, least, |l| {
        is_exactly(l, &[])
            || ["seventy", "twenty", "ten"]
                .iter()
                .any(|f| is_exactly(l, &["spend", f]))
            || is_exactly(l, &["spend"])
            || (l.has("spend") && l.has("cpu_seconds") && !l.is_cut())
    })?;
    let names = ["seventy", "twenty", "ten"];
    let had = names
        .map(|name| run.truth(name))
        .into_iter()
        .collect::<anyhow::Result<Vec<_>>>()?;
    let seen = names.map(|name| run.folded.filter(|l| l.has(name)).total() as f64);
    let (all_had, all_seen) = (had.iter().sum::<f64>(), seen.iter().sum::<f64>());
    let by_chance = (1.0 - all_had / run.truth("took")?).clamp(0.0, 1.0);
    for ((name, had), seen) in names.iter().zip(&had).zip(&seen) {
        let (truth, got) = (100.0 * had / all_had, 100.0 * seen / all_seen);
        let variance = truth * (100.0 - truth) * by_chance / (all_had * rate);
        anyhow::ensure!(
            (truth - got).abs() <= 0.5 + 5.0 * variance.sqrt(),
            "{name}: {got:.2} % of the samples, {truth:.2} % of the CPU time;\n{}",
            run.folded.excerpt(8)
        );
    }
    Ok(())
}

#[test]
fn split_70_20_10() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_split(Aiprof::counting(), 499.0, 1600)
}

#[test]
fn split_70_20_10_by_default_options() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    // Values are microseconds: four seconds less what sampling may miss.
    check_split(Aiprof::with::<&str>([]), 99.0, 3_500_000)
}

fn check_signals(
    flags: &[&str],
    args: &[&str],
    restorer: impl Fn(&str) -> bool,
) -> anyhow::Result<()> {
    let shop = Workshop::new()?;
    let program = shop.build("signals.c", "signals", flags)?;
    let run = Aiprof::counting().command(program, args).record_one()?;
    let right = |line: &Line| {
        let Some(names) = from_entry(line, "main") else {
            return false;
        };
        let body = &names[1..];
        if body.first() != Some(&"interrupted") {
            // Before the first signal and after the last one.
            return !line.has("on_alarm");
        }
        let body = &body[1..];
        let body = match body.first() {
            Some(&"tick") => &body[1..],
            _ => body,
        };
        match body {
            [] => true,
            [frame, "on_alarm", rest @ ..] => {
                restorer(frame) && matches!(rest, [] | ["handler_work"] | ["work_left" | "arm", ..])
            }
            [frame] => restorer(frame),
            _ => false,
        }
    };
    check("signal handler", &run.folded, LEAST, right)?;
    check_reached("in the handler, below main", &run.folded, 0.7, |l| {
        right(l) && l.has("handler_work")
    })
}

#[test]
fn signal_handler() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    // Behind the handler's frames the caller's rbp counts, too. libc's restorer has a name
    // only where libc's debugging symbols are.
    check_signals(&["-fno-omit-frame-pointer"], &[SECONDS], |frame| {
        frame == "__restore_rt" || frame.starts_with('[')
    })
}

#[test]
fn signal_handler_on_its_own_stack() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_signals(&["-static"], &[SECONDS, "alt"], |frame| {
        frame == "__restore_rt"
    })
}

#[test]
fn vdso() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("vdso.c", "vdso", &[])?;
    let run = Aiprof::counting()
        .command(program, &[SECONDS])
        .record_one()?;
    // Both have several names: libc's is called as programs call it, the vdso's so
    // that it is not taken for libc's.
    let in_libc = |name: &str| name == "clock_gettime";
    let in_vdso = |name: &str| name == "__vdso_clock_gettime";
    let right = |line: &Line| {
        from_entry(line, "main").is_some_and(|names| match &names[1..] {
            [] | ["vdso_loop"] | ["work_left", ..] => true,
            ["vdso_loop", leaf] => in_libc(leaf) || *leaf == "clock_gettime@plt",
            ["vdso_loop", libc, vdso] => in_libc(libc) && in_vdso(vdso),
            _ => false,
        })
    };
    check("vdso", &run.folded, LEAST, right)?;
    check_reached("in the vdso", &run.folded, 0.5, |line| {
        let names = from_entry(line, "main").unwrap_or_default();
        matches!(names.get(1..), Some(["vdso_loop", libc, vdso]) if in_libc(libc) && in_vdso(vdso))
    })
}

fn check_plt(flags: &[&str]) -> anyhow::Result<()> {
    let shop = Workshop::new()?;
    let mut library = vec!["-DLIBRARY"];
    library.extend(flags.iter().filter(|f| f.starts_with("-f")));
    shop.library("plt.c", "plt", &library)?;
    let mut all = vec!["-lplt"];
    all.extend_from_slice(flags);
    let program = shop.build("plt.c", "plt", &all)?;
    let run = Aiprof::counting()
        .command(program, &[SECONDS])
        .record_one()?;
    let callees = ["plt_a", "plt_b", "plt_c", "plt_d"];
    // A PLT entry is named after what it calls, and is one leaf below its true
    // caller.
    let is_leaf = |name: &str| callees.contains(&name.trim_end_matches("@plt"));
    check(&format!("plt {flags:?}"), &run.folded, LEAST, |line| {
        from_entry(line, "main").is_some_and(|names| {
            matches!(&names[1..], [] | ["plt_loop"] | ["work_left", ..])
                || matches!(&names[1..], ["plt_loop", leaf] if is_leaf(leaf))
        })
    })?;
    check_reached(
        &format!("in PLT entries {flags:?}"),
        &run.folded,
        0.05,
        |line| {
            let names = from_entry(line, "main").unwrap_or_default();
            matches!(&names.get(1..), Some(["plt_loop", leaf]) if leaf.ends_with("@plt"))
        },
    )
}

#[test]
fn plt_entries_bound_lazily() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_plt(&["-Wl,-z,lazy"])
}

#[test]
fn plt_entries_bound_now() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_plt(&["-Wl,-z,now"])
}

#[test]
fn plt_entries_with_branch_tracking() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_plt(&["-fcf-protection", "-Wl,-z,ibtplt", "-Wl,-z,lazy"])
}

fn check_static(flags: &[&str]) -> anyhow::Result<()> {
    let shop = Workshop::new()?;
    let program = shop.build("depth.c", "depth", flags)?;
    let run = Aiprof::counting()
        .command(program, &[SECONDS, "30"])
        .record_one()?;
    let mut chain = vec!["down"; 30];
    chain.push("bottom");
    check(&format!("{flags:?}"), &run.folded, LEAST, |l| {
        is_on_the_way(l, &chain)
    })?;
    check_share(
        &format!("{flags:?}, at the bottom"),
        &run.folded,
        LEAST,
        0.97,
        |l| is_exactly(l, &chain),
    )?;
    // All of libc is in the program, so its start code has names too.
    check(
        &format!("{flags:?}, start code"),
        &run.folded,
        LEAST,
        |line| {
            let user = line.user();
            user.first() == Some(&"_start")
                && user
                    .get(1)
                    .is_some_and(|f| base(f).starts_with("__libc_start_main"))
                && user
                    .get(2)
                    .is_some_and(|f| base(f) == "__libc_start_call_main")
                && user.get(3) == Some(&"main")
        },
    )
}

#[test]
fn static_pie() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_static(&["-static-pie"])
}

#[test]
fn static_fixed() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_static(&["-static"])
}

#[test]
fn too_deep_is_cut_visibly() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("depth.c", "depth", &[])?;
    // More than are walked: the root is missing.
    let run = Aiprof::counting()
        .command(program, &[SECONDS, "12000"])
        .record_one()?;
    check("12,000 frames", &run.folded, LEAST, |line| {
        let names: Vec<&str> = line.user().iter().map(|f| base(f)).collect();
        let Some((leaf, rest)) = names.split_last() else {
            return false;
        };
        // Until the process is known, a stack of this size is cut for another reason.
        let cuts = |f: &str| f.starts_with("[stack cut: ");
        let downs = rest.iter().filter(|f| **f == "down").count();
        let cut = rest.first().is_some_and(|f| cuts(f)) && downs >= 255;
        let deep = cut && rest.iter().all(|f| *f == "down" || cuts(f));
        // On the way down and up the root is within reach.
        let way = names.first() == Some(&"_start") && names.contains(&"main");
        (deep || way) && matches!(*leaf, "bottom" | "down") || is_exactly(line, &[])
    })?;
    anyhow::ensure!(
        lost(&run.stderr, "stacks cut: too deep") >= LEAST,
        "the cut stacks are not counted:\n{}",
        run.stderr
    );
    Ok(())
}

const RARE_FRAMES: [&str; 6] = [
    "with_realigned_entry",
    "with_alignment",
    "with_array",
    "with_big_frame",
    "with_alloca",
    "spin",
];

fn check_frames(flags: &[&str]) -> anyhow::Result<()> {
    let shop = Workshop::new()?;
    let program = shop.build("frames.c", "frames", flags)?;
    // Before that, each stack is copied, and 40 KiB each are too many of a busy machine.
    let run = Aiprof::counting()
        .waited_for()
        .command(program, &[SECONDS])
        .record_one()?;
    check(&format!("rare frames {flags:?}"), &run.folded, LEAST, |l| {
        is_on_the_way(l, &RARE_FRAMES)
    })?;
    check_share(
        &format!("rare frames {flags:?}, at the leaf"),
        &run.folded,
        LEAST,
        0.97,
        |l| is_exactly(l, &RARE_FRAMES),
    )
}

#[test]
fn realigned_variable_and_large_frames() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_frames(&[])
}

#[test]
fn realigned_frames_with_branch_tracking() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_frames(&["-fcf-protection", "-O1"])
}
