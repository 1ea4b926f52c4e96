//! Which file is which: another user's copy neither cuts nor renames stacks, and one image in many
//! containers is known once.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use aiprof_tests::aiprof::{Aiprof, Run, lost};
use aiprof_tests::chain::{check, from_entry};
use aiprof_tests::folded::{Folded, Line};
use aiprof_tests::need::{Need, skip, skip_unless};
use aiprof_tests::states::{UNTIL_KNOWN, until_known};
use aiprof_tests::workload::Workshop;
use anyhow::Context as _;

const BUILD_ID: &str = "-Wl,--build-id=0xabababababababababababababababababababab";

/// Whether the stack is `main`, then the function, or less.
fn is_of(line: &Line, function: &str) -> bool {
    from_entry(line, "main").is_some_and(|names| match &names[1..] {
        [] => true,
        [only] => *only == function || *only == "work_left",
        [first, ..] => *first == "work_left",
    })
}

#[test]
fn a_false_twin_of_another_user_changes_nothing() -> anyhow::Result<()> {
    let needs = [Need::Root, Need::Tool("cc"), Need::Tool("setpriv")];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let own = shop.build("twin.c", "own", &[BUILD_ID, "-DNAME=own_work"])?;
    // The same functions elsewhere under other names, and no unwind data.
    let false_flags = [
        BUILD_ID,
        "-DNAME=false_work",
        "-DLONGER",
        "-fomit-frame-pointer",
        "-fno-asynchronous-unwind-tables",
        "-fno-unwind-tables",
    ];
    let twin = shop.build("twin.c", "twin", &false_flags)?;
    for path in [shop.path(""), own.clone(), twin.clone()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    }
    // The twin is known first, and there all the time.
    let script = format!(
        "setpriv --reuid 65534 --regid 65534 --clear-groups {} 9 > /dev/null & \
         ${UNTIL_KNOWN}$! > /dev/null && exec {} 1.5",
        twin.display(),
        own.display(),
    );
    let (name, wait) = until_known()?;
    let variable = format!("{UNTIL_KNOWN}={wait}");
    let run = Aiprof::counting()
        .option(format!("--control={name}"))
        .command("env", &[variable.as_str(), "sh", "-c", &script])
        .record_one()?;
    // Its own process is shown as the sh that it was, too.
    let of_own = run.folded.of_comm("own");
    check("beside a false twin", &of_own, 500, |l| {
        is_of(l, "own_work")
    })
}

/// Mounts an overlay of a directory; removed when dropped.
struct Overlay(PathBuf);

impl Overlay {
    fn mount(lower: &Path, at: &Path) -> anyhow::Result<Self> {
        let part = |name: &str| at.join(name);
        for name in ["upper", "work", "root"] {
            std::fs::create_dir_all(part(name))?;
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            part("upper").display(),
            part("work").display()
        );
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", &options]);
        let status = mount.arg(part("root")).status()?;
        anyhow::ensure!(status.success(), "mount -t overlay: {status}");
        Ok(Self(part("root")))
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Containers of one image.
const CONTAINERS: usize = 50;

#[test]
fn one_image_in_fifty_containers_is_one_set_of_tables() -> anyhow::Result<()> {
    let name = "one_image_in_fifty_containers_is_one_set_of_tables";
    skip_unless!(&[Need::Root, Need::Tool("cc")]);
    let shop = Workshop::new()?;
    let image = shop.path("image");
    std::fs::create_dir(&image)?;
    let program = shop.build("twin.c", "contained", &["-DNAME=contained_work", "-static"])?;
    std::fs::rename(&program, image.join("contained"))?;
    let mut mounts = Vec::new();
    for n in 0..CONTAINERS {
        match Overlay::mount(&image, &shop.path(&format!("c{n}"))) {
            Ok(mount) => mounts.push(mount),
            Err(error) => {
                skip(name, &format!("{error:#}"));
                return Ok(());
            }
        }
    }
    let files: Vec<_> = mounts.iter().map(|m| m.0.join("contained")).collect();
    let (_, own_of_one) = at_once(&shop, &vec![image.join("contained"); CONTAINERS])?;
    let (run, own) = at_once(&shop, &files)?;
    let folded = run.folded.of_comm("contained");
    check("in containers", &folded, 2000, |l| {
        // Before and after main() is the start code alone.
        let starts = !l.is_cut() && l.user().first() == Some(&"_start") && !l.has("main");
        is_of(l, "contained_work") || starts
    })?;
    let works = folded.filter(|l| l.has("contained_work")).total();
    anyhow::ensure!(works > 2000, "{works} samples of the work");
    // How many pages a program needs depends on what the samples hit, three at the least here. The
    // same programs from one file show the number without containers.
    let most = 2 * (CONTAINERS - 1);
    anyhow::ensure!(
        own.pages < own_of_one.pages + most && own.shared >= own_of_one.shared + most,
        "{own:?} of {CONTAINERS} containers, {own_of_one:?} of one file"
    );
    Ok(())
}

/// Pages of unwind tables: those that were made, and those that were made before.
#[derive(Debug)]
struct Pages {
    pages: usize,
    shared: usize,
}

/// Records programs that begin together, when all of them run: else this machine's
/// pace decides how long the first ones hold up the last ones' tables.
fn at_once(shop: &Workshop, files: &[PathBuf]) -> anyhow::Result<(Run, Pages)> {
    let go = shop.path("go").display().to_string();
    let programs: Vec<String> = files
        .iter()
        .map(|file| format!("{} 0.4 {go} & ", file.display()))
        .collect();
    let begin = format!(
        "for n in $(seq {}); do read pid; done; exec 3>{go}",
        files.len()
    );
    let script = format!(
        "rm -f {go}; mkfifo {go}; {{ {} wait; }} | {{ {begin}; cat; }}",
        programs.concat()
    );
    let run = Aiprof::counting()
        .option("-v")
        // A program that does not start would be waited for without end.
        .command("timeout", &["60", "sh", "-c", &script])
        .record()?;
    let pages = run.stderr.lines().find_map(|line| {
        let (_, line) = line.split_once("unwind tables: ")?;
        let (pages, line) = line.split_once(" pages, ")?;
        let (shared, _) = line.split_once(" more shared")?;
        Some(Pages {
            pages: pages.parse().ok()?,
            shared: shared.parse().ok()?,
        })
    });
    let pages = pages.with_context(|| format!("no line on tables:\n{}", run.stderr))?;
    Ok((run, pages))
}

#[test]
fn few_descriptors_close_old_files_and_refuse_no_new_ones() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root, Need::Tool("cc"), Need::Tool("prlimit")]);
    let shop = Workshop::new()?;
    let program = shop.build("twin.c", "one", &["-DNAME=short_work"])?;
    // Copies: each is a file of its own.
    let n = 600;
    for i in 0..n {
        std::fs::copy(&program, shop.path(&format!("copy{i}")))?;
    }
    let last = shop.build("twin.c", "last", &["-DNAME=last_work"])?;
    let script = format!(
        "for i in $(seq 0 {}); do {}/copy$i 0.005 > /dev/null; done; exec {} 1",
        n - 1,
        shop.path("").display(),
        last.display()
    );
    let out = shop.path("out.folded");
    let mut command = Command::new("prlimit");
    command.args(["--nofile=300:300"]);
    let aiprof = Aiprof::counting()
        .option("-o")
        .option(&out)
        .command("sh", &["-c", &script])
        .to_command()?;
    command.arg(aiprof.get_program()).args(aiprof.get_args());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let output = command.output()?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let folded = Folded::parse(&std::fs::read_to_string(&out)?)?;
    check(
        "the last of 600 programs",
        &folded.of_comm("last"),
        300,
        |l| is_of(l, "last_work"),
    )?;
    let unreadable = lost(&stderr, "files not readable");
    anyhow::ensure!(unreadable < 30, "{unreadable} files not readable\n{stderr}");
    Ok(())
}
