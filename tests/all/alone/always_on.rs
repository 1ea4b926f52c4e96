//! What it costs to have aiprof running all the time, and what a recording has from its
//! first sample to names that come late.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use aiprof_tests::aiprof::{Aiprof, binary, truth};
use aiprof_tests::child::Child;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::pprof::{self, Place};
use aiprof_tests::workload::{Workshop, checked};

/// addr2line's result for addresses: function, file and line of each frame, innermost first.
fn addr2line(program: &Path, places: &[Place]) -> anyhow::Result<Vec<Vec<(String, String, i64)>>> {
    let addresses = places.iter().map(|p| format!("{:#x}", p.address));
    let text = checked(
        Command::new("addr2line")
            .args(["-a", "-f", "-i", "-C", "-e"])
            .arg(program)
            .args(addresses),
    )?;
    let mut frames: Vec<Vec<(String, String, i64)>> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            frames.push(Vec::new());
            continue;
        }
        let place = lines.next().context("a function without a place")?;
        let place = place.split(" (discriminator").next().unwrap_or(place);
        let (file, number) = place.rsplit_once(':').context("no line")?;
        let last = frames.last_mut().context("no address")?;
        last.push((
            line.to_owned(),
            file.to_owned(),
            number.parse().unwrap_or(0),
        ));
    }
    Ok(frames)
}

/// The rows of a program's line table by objdump: address, file and line, in order.
fn line_table(program: &Path) -> anyhow::Result<Vec<(u64, String, i64)>> {
    let mut objdump = Command::new("objdump");
    let text = checked(objdump.arg("--dwarf=decodedline").arg(program))?;
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let (file, number, address) = (words.next()?, words.next()?, words.next()?);
        let address = u64::from_str_radix(address.strip_prefix("0x")?, 16).ok()?;
        Some((address, file.to_owned(), number.parse().unwrap_or(0)))
    };
    let mut rows: Vec<_> = text.lines().filter_map(row).collect();
    // Stable: of several rows at an address the last holds.
    rows.sort_by_key(|(address, ..)| *address);
    Ok(rows)
}

/// Compares a program's lines in a pprof file: the calls around inlined code with addr2line, the
/// innermost line with the line table. (For code of another file, binutils 2.40's addr2line gives
/// the unit's file.)
fn check_lines(file: &Path, program: &Path, main: &str) -> anyhow::Result<()> {
    let places = pprof::places(file, program)?;
    ensure!(!places.is_empty(), "{}: no code of it", program.display());
    let expected = addr2line(program, &places)?;
    let rows = line_table(program)?;
    let mut own = 0;
    for (place, expected) in places.iter().zip(&expected) {
        if expected.iter().all(|(_, _, line)| *line == 0) {
            continue; // the C library's start code has no lines
        }
        let base = |file: &str| file.rsplit('/').next().unwrap_or(file).to_owned();
        let told: Vec<_> = place.lines.iter().map(|(_, f, n)| (base(f), *n)).collect();
        let mut truth: Vec<_> = expected.iter().map(|(_, f, n)| (base(f), *n)).collect();
        let after = rows.partition_point(|(address, ..)| *address <= place.address);
        let row = after.checked_sub(1).and_then(|at| rows.get(at));
        let (_, file, line) = row.context("no row")?;
        truth[0] = (file.clone(), *line);
        ensure!(
            told == truth,
            "{:#x}: {told:?}, not {truth:?}",
            place.address
        );
        own += usize::from(told.iter().any(|(f, _)| f == main));
    }
    ensure!(own >= 3, "{own} of {} places with lines", places.len());
    Ok(())
}

#[test]
fn pprof_tells_source_lines() -> anyhow::Result<()> {
    let needs = [Need::Root, Need::Tool("c++"), Need::Tool("addr2line")];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let program = shop.build("inlines.cpp", "lines", &["-g"])?;
    let (live, capture) = (shop.path("live.pb.gz"), shop.path("x.aiprof"));
    for out in [&live, &capture] {
        let mut aiprof = Aiprof::with(["-q", "-F", "499", "-o"]);
        aiprof = aiprof.option(out).command(&program, &["1.5"]);
        checked(&mut aiprof.to_command()?)?;
    }
    check_lines(&live, &program, "inlines.cpp")?;
    let reported = shop.path("reported.pb.gz");
    let report = |out: &Path| {
        let mut command = Command::new(binary()?);
        checked(command.arg("report").arg(&capture).arg("-o").arg(out))
    };
    report(&reported)?;
    check_lines(&reported, &program, "inlines.cpp")?;
    // Other formats do not distinguish lines: one frame is one frame.
    let folded = shop.path("x.folded");
    report(&folded)?;
    let text = std::fs::read_to_string(&folded)?;
    let paths = text.lines().filter(|l| l.contains(";main;outermost"));
    let mut stacks: Vec<_> = paths
        .filter_map(|l| l.rsplit_once(' '))
        .map(|l| l.0)
        .collect();
    let all = stacks.len();
    stacks.dedup();
    ensure!(all > 0 && all == stacks.len(), "{text}");
    Ok(())
}

/// Serves one debug file by its build id, after a while, and no other; on this machine
/// only.
fn serve_slowly(id: &str, debug: Vec<u8>, delay: Duration) -> anyhow::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let wanted = format!("/buildid/{id}/debuginfo");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (debug, wanted) = (debug.clone(), wanted.clone());
            std::thread::spawn(move || answer(stream, &wanted, &debug, delay));
        }
    });
    Ok(format!("http://{address}/"))
}

fn answer(
    mut stream: TcpStream,
    wanted: &str,
    debug: &[u8],
    delay: Duration,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    for line in BufReader::new(stream.try_clone()?).lines() {
        match line? {
            line if line.is_empty() => break,
            line => head.push(line),
        }
    }
    let first = head.first().map_or("", String::as_str);
    let (status, body) = match first.contains(wanted) {
        true => ("200 OK", debug),
        false => ("404 Not Found", &b""[..]),
    };
    if !body.is_empty() {
        std::thread::sleep(delay);
    }
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    match first.starts_with("GET") {
        true => stream.write_all(body),
        false => Ok(()),
    }
}

/// A program without symbols, its build id, and the file that has them.
fn split(shop: &Workshop) -> anyhow::Result<(PathBuf, String, Vec<u8>)> {
    let flags = ["-g", "-Wl,--build-id=sha1"];
    let program = shop.build("inlines.cpp", "stripped", &flags)?;
    let debug = shop.path("its-symbols");
    checked(
        Command::new("objcopy")
            .arg("--only-keep-debug")
            .args([&program, &debug]),
    )?;
    checked(Command::new("strip").arg(&program))?;
    let bytes = std::fs::read(&debug)?;
    std::fs::remove_file(&debug)?;
    let notes = checked(Command::new("readelf").arg("-n").arg(&program))?;
    let id = notes
        .lines()
        .find_map(|l| l.trim().strip_prefix("Build ID: "));
    let id = id.context("no build id")?.to_owned();
    Ok((program, id, bytes))
}

/// When the server answers, the names of a first batch are long given.
#[test]
fn names_that_come_late_are_asked_for_again() -> anyhow::Result<()> {
    let needs = [
        Need::Root,
        Need::Tool("c++"),
        Need::Tool("objcopy"),
        Need::Tool("debuginfod-find"),
    ];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let (program, id, debug) = split(&shop)?;
    let url = serve_slowly(&id, debug, Duration::from_millis(1500))?;
    let out = shop.path("x.folded");
    let mut aiprof = Aiprof::with(["-q", "-F", "199", "-o"]);
    aiprof = aiprof.option(&out).command(&program, &["6"]);
    checked(
        aiprof
            .to_command()?
            .env("DEBUGINFOD_URLS", url)
            .env("DEBUGINFOD_CACHE_PATH", shop.path("cache")),
    )?;
    let text = std::fs::read_to_string(&out)?;
    let own: Vec<_> = text.lines().filter(|l| l.starts_with("stripped")).collect();
    let named = own.iter().filter(|l| l.contains(";main;outermost"));
    let unnamed = own.iter().filter(|l| l.contains("[no symbols stripped]"));
    ensure!(
        named.count() > 0 && unnamed.count() == 0,
        "{}",
        own.join("\n")
    );
    Ok(())
}

/// The duration counts from the first sample on, however long the start takes: as busy as they
/// are, CPUs are sampled all the time, whoever else is.
#[test]
fn a_short_recording_beside_busy_processes_has_samples() -> anyhow::Result<()> {
    const BUSY: usize = 12;
    let needs = [Need::Root, Need::Tool("cc")];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let program = shop.build("depth.c", "busy", &[])?;
    let mut busy = Vec::new();
    for _ in 0..BUSY {
        let mut command = Command::new(&program);
        let mut child = Child::start(command.args(["60", "5"]).stdout(Stdio::piped()))?;
        ensure!(truth(&child.read_line()?, "pid")? as u32 == child.pid());
        busy.push(child);
    }
    let cpus = std::thread::available_parallelism()?.get().min(BUSY) as u64;
    for file in ["x.folded", "x.aiprof"] {
        let out = shop.path(file);
        let aiprof = Aiprof::with(["-d", "2", "-F", "199", "-o"]).option(&out);
        let output = aiprof.to_command()?.output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        let said = stderr.lines().find_map(|line| {
            let (count, _) = line.strip_prefix("aiprof: ")?.split_once(" samples in ")?;
            count.replace(',', "").parse::<u64>().ok()
        });
        // Half of two seconds: a virtual machine may be held up itself.
        let least = 199 * cpus;
        ensure!(
            said.is_some_and(|n| n >= least),
            "{file}, {least}: {stderr}"
        );
    }
    Ok(())
}

/// Anonymous memory of a process and those that read for it, in KiB.
fn memory(pid: u32) -> Vec<u64> {
    let text = |pid: u32, file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}"));
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(&parent) = all.get(next) {
        next += 1;
        let children = text(parent, &format!("task/{parent}/children")).unwrap_or_default();
        all.extend(
            children
                .split_whitespace()
                .filter_map(|c| c.parse::<u32>().ok()),
        );
    }
    let anonymous = |pid: &u32| {
        let status = text(*pid, "status").unwrap_or_default();
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix("RssAnon:").map(str::to_owned));
        line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    all.iter().map(anonymous).collect()
}

/// A storm of programs, each a file of its own, leaves nothing behind.
#[test]
fn memory_stays_where_it_is_while_programs_come_and_go() -> anyhow::Result<()> {
    const FILES: usize = 3600;
    let needs = [Need::Root, Need::Tool("cc")];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let program = std::fs::read(shop.build("depth.c", "seed", &["-Wl,--build-id=sha1"])?)?;
    let at = program
        .windows(4)
        .position(|w| w == b"GNU\0")
        .context("no build id")?
        + 4;
    let mut aiprof = Aiprof::with(["-q", "--every", "2s", "--keep", "2", "-F", "499", "-o"]);
    aiprof = aiprof.option(shop.path("windows"));
    let mut aiprof = Child::start(&mut aiprof.to_command()?)?;
    let mut seen = Vec::new();
    let begun = Instant::now();
    for n in 0..FILES {
        let mut copy = program.clone();
        copy[at..at + 8].copy_from_slice(&(n as u64).to_le_bytes());
        let path = shop.path(&format!("unique-{n}"));
        // Written by another process: a fork of another test could hold it open.
        let mut install = Command::new("install")
            .args(["-m", "755", "/dev/stdin"])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()?;
        install.stdin.take().context("a pipe")?.write_all(&copy)?;
        ensure!(install.wait()?.success(), "install");
        for _ in 0..3 {
            Command::new(&path)
                .args(["0.004", "8"])
                .stdout(Stdio::null())
                .status()?;
        }
        std::fs::remove_file(&path)?;
        if n % 40 == 39 {
            seen.push(memory(aiprof.pid()));
        }
    }
    ensure!(aiprof.is_running(), "{}", aiprof.stderr()?);
    aiprof.signal("INT")?;
    ensure!(
        aiprof.wait(Duration::from_secs(30))?.success(),
        "aiprof failed"
    );
    // What is known of programs goes some seconds after they do, all at once, and readers give
    // memory back once in a while: what is usual of each process counts. In the first third of
    // the time it still grows.
    let third = seen.len() / 3;
    let usual = |part: &[Vec<u64>]| -> u64 {
        let processes = part.iter().map(Vec::len).min().unwrap_or(0);
        let of = |at: usize| {
            let mut all: Vec<_> = part.iter().filter_map(|each| each.get(at)).collect();
            all.sort_unstable();
            all.get(all.len() / 2).copied()
        };
        (0..processes).filter_map(of).sum()
    };
    let (second, last) = (usual(&seen[third..2 * third]), usual(&seen[2 * third..]));
    let most = seen.iter().map(|all| all.iter().sum::<u64>()).max();
    let most = most.unwrap_or(0);
    println!(
        "{FILES} files in {:.0?}: {second} KiB, then {last} KiB",
        begun.elapsed()
    );
    ensure!(last <= second + 2048 && most <= 64 << 10, "{seen:?}");
    Ok(())
}
