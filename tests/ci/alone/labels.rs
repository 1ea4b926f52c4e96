//! Where processes ran: filters by name, user and container, labels, and `--by`,
//! against what the test itself set up.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use aiprof_tests::agent::cpu_time;
use aiprof_tests::aiprof::{binary, truth};
use aiprof_tests::cgroup::Cgroup;
use aiprof_tests::child::{Child, LONG};
use aiprof_tests::need::{Need, skip, skip_unless};
use aiprof_tests::pprof;
use aiprof_tests::states::States;
use aiprof_tests::workload::{Workshop, checked};

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];
/// A user that has no processes of its own.
const NOBODY: u32 = 65534;
/// The container's id, as Docker gives them out.
const ID: &str = "5f3b1c7ae2d94086b1f0c6a2d9d1a52b1c7a9ad60d3d0cc6b3b2f8f1f7a4b8f0";

/// depth.c, running for two minutes unless it is killed.
fn busy(program: &Path, edit: impl FnOnce(&mut Command)) -> anyhow::Result<Child> {
    let mut command = Command::new(program);
    command.args(["120", "5"]).stdout(Stdio::piped());
    edit(&mut command);
    let mut child = Child::start(&mut command)?;
    anyhow::ensure!(truth(&child.read_line()?, "pid")? as u32 == child.pid());
    Ok(child)
}

/// Runs aiprof, which must succeed. Returns what it wrote to stderr.
fn aiprof(words: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(binary()?).args(words).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    anyhow::ensure!(output.status.success(), "{words:?}\n{stderr}");
    Ok(stderr)
}

/// The frames at one depth of a folded file, by the process that has them.
fn frames_of(
    file: &Path,
    depth: usize,
    pid_at: usize,
) -> anyhow::Result<BTreeMap<u32, BTreeSet<String>>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let mut found: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines() {
        let frames: Vec<&str> = line.split(';').collect();
        let pid = frames.get(pid_at).context("no pid")?.split(' ').next();
        let pid = pid.context("no pid")?.parse()?;
        let frame = frames.get(depth).context("no frame")?;
        found.entry(pid).or_default().insert((*frame).to_owned());
    }
    Ok(found)
}

/// The processes in a folded file.
fn pids(file: &Path) -> anyhow::Result<BTreeSet<u32>> {
    Ok(frames_of(file, 1, 1)?.into_keys().collect())
}

#[test]
fn filters_and_labels_say_where_processes_ran() -> anyhow::Result<()> {
    let name = "filters_and_labels_say_where_processes_ran";
    skip_unless!(&NEEDS);
    let group = match Cgroup::new(&format!("docker-{ID}.scope")) {
        Ok(group) => group,
        Err(reason) => {
            skip(name, &reason);
            return Ok(());
        }
    };
    let shop = Workshop::new()?;
    // Other users must reach it.
    checked(Command::new("chmod").arg("755").arg(shop.path("")))?;
    let tallow = shop.build("depth.c", "tallow", &[])?;
    let birch = shop.build("depth.c", "birch", &[])?;
    // Before it runs, as container engines do it.
    let procs = group.path().join("cgroup.procs");
    let script = format!("echo $$ > {} && exec \"$0\" \"$@\"", procs.display());
    let mut inside = Command::new("sh");
    inside
        .arg("-c")
        .arg(&script)
        .arg(&tallow)
        .args(["120", "5"]);
    inside
        .env("RANK", "5")
        .env("LOCAL_RANK", "1")
        .stdout(Stdio::piped());
    let mut inside = Child::start(&mut inside)?;
    anyhow::ensure!(truth(&inside.read_line()?, "pid")? as u32 == inside.pid());
    let other = busy(&birch, |command| {
        command.uid(NOBODY).gid(NOBODY).env("RANK", "x");
    })?;
    let (inside_pid, other_pid) = (inside.pid(), other.pid());

    let file = shop.path("live.folded");
    let path = file.to_str().context("a path")?;
    let short = &ID[..12];
    let nobody = NOBODY.to_string();
    let filters: [(&[&str], Option<u32>, &str); 5] = [
        (
            &["--comm", "^tallow$"],
            Some(inside_pid),
            "named /^tallow$/",
        ),
        (
            &["--user", &nobody, "--comm", "birch"],
            Some(other_pid),
            "of user 65534",
        ),
        (
            &["--container", short],
            Some(inside_pid),
            "in container 5f3b1c7ae2d9",
        ),
        (
            &["--exclude", "tall.w", "--comm", "tallow|birch"],
            Some(other_pid),
            "not named",
        ),
        (&["--user", &nobody, "--container", short], None, ""),
    ];
    for (filter, only, said) in filters {
        let common = ["-F", "199", "-d", "1", "-o", path];
        aiprof(&[&common[..], filter].concat())?;
        let expected: BTreeSet<u32> = only.into_iter().collect();
        anyhow::ensure!(pids(&file)? == expected, "{filter:?}: {:?}", pids(&file)?);
        let summary = Command::new(binary()?)
            .args(["-F", "199", "-d", "0.5", "--format", "summary", "-o", "-"])
            .args(filter)
            .output()?;
        let summary = String::from_utf8_lossy(&summary.stdout).into_owned();
        anyhow::ensure!(summary.contains(said), "{filter:?}:\n{summary}");
    }

    // One that starts while it is recorded, which lasts until that has worked for a second.
    let states = States::new(&shop);
    let options = ["-F", "199", "--comm", "^late", "-o", path];
    let mut recording = states.command(&options, &[])?;
    let mut recording = Child::start(recording.stderr(Stdio::null()))?;
    states.wait_for("sampling")?;
    let late = busy(&shop.build("depth.c", "latecomer", &[])?, |_| {})?;
    let begun = Instant::now();
    while cpu_time(late.pid())? < Duration::from_secs(1) {
        anyhow::ensure!(begun.elapsed() < LONG, "no CPU for the latecomer");
        std::thread::sleep(Duration::from_millis(20));
    }
    recording.signal("INT")?;
    anyhow::ensure!(recording.wait(LONG)?.success());
    anyhow::ensure!(
        pids(&file)? == BTreeSet::from([late.pid()]),
        "{:?}",
        pids(&file)?
    );
    drop(late);

    let capture = shop.path("all.aiprof");
    let capture = capture.to_str().context("a path")?;
    aiprof(&[
        "-F",
        "199",
        "-d",
        "3",
        "-o",
        capture,
        "--label",
        "job=nightly",
    ])?;
    judge_reports(&shop, capture, inside_pid, other_pid)
}

/// Checks the reports of a capture about both processes.
fn judge_reports(shop: &Workshop, capture: &str, inside: u32, other: u32) -> anyhow::Result<()> {
    let file = shop.path("report.folded");
    let path = file.to_str().context("a path")?;
    let container = format!("container={ID}");
    for (label, of_inside, of_other) in [
        ("container", container.as_str(), None),
        ("rank", "rank=5", Some("[no rank]")),
        ("local_rank", "local_rank=1", Some("[no local_rank]")),
        ("unit", "unit=docker-", None),
        ("job", "job=nightly", Some("job=nightly")),
        ("user", "user=root", Some("user=")),
    ] {
        aiprof(&["report", capture, "--by", label, "-o", path])?;
        let roots = frames_of(&file, 0, 2)?;
        for (pid, expected) in [(inside, Some(of_inside)), (other, of_other)] {
            let Some(expected) = expected else { continue };
            let found = roots.get(&pid).with_context(|| format!("no {pid}"))?;
            let all = found.iter().all(|root| root.starts_with(expected));
            anyhow::ensure!(
                all && found.len() == 1,
                "{label} of {pid}: {found:?}, not {expected}"
            );
        }
    }
    let nobody = NOBODY.to_string();
    for (filter, is_inside) in [
        (["--comm", "^tall"], true),
        (["--exclude", "tallow"], false),
        (["--user", nobody.as_str()], false),
        (["--container", ID], true),
    ] {
        aiprof(&[&["report", capture, "-o", path], &filter[..]].concat())?;
        let found = pids(&file)?;
        let has = (found.contains(&inside), found.contains(&other));
        anyhow::ensure!(has == (is_inside, !is_inside), "{filter:?}: {found:?}");
    }
    judge_traces(shop, capture, inside)?;
    let packed = shop.path("report.pb.gz");
    aiprof(&["report", capture, "-o", packed.to_str().context("a path")?])?;
    let samples = pprof::read(&packed)?;
    let own = samples
        .iter()
        .filter(|s| s.numbers.get("pid") == Some(&i64::from(inside)));
    let mut judged = 0;
    for sample in own {
        for (key, value) in [
            ("container", ID),
            ("rank", "5"),
            ("user", "root"),
            ("job", "nightly"),
        ] {
            let found = sample.texts.get(key).map(String::as_str);
            anyhow::ensure!(found == Some(value), "{key}: {found:?}");
        }
        anyhow::ensure!(!sample.texts.contains_key("uid"));
        judged += 1;
    }
    anyhow::ensure!(judged > 0, "no sample of {inside}");
    Ok(())
}

/// The labels of a process in traces.
fn judge_traces(shop: &Workshop, capture: &str, pid: u32) -> anyhow::Result<()> {
    let file = shop.path("report.json");
    aiprof(&["report", capture, "-o", file.to_str().context("a path")?])?;
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    let events = trace["traceEvents"].as_array().context("events")?;
    let found: Vec<_> = events
        .iter()
        .filter(|event| event["name"] == "process_labels" && event["pid"] == pid)
        .collect();
    let [event] = found.as_slice() else {
        anyhow::bail!("labels of {pid}: {found:?}");
    };
    let args = &event["args"];
    let texts = args["labels"].as_str().context("no text")?;
    for (key, value) in [
        ("container", ID),
        ("rank", "5"),
        ("local_rank", "1"),
        ("user", "root"),
        ("job", "nightly"),
    ] {
        anyhow::ensure!(args["values"][key] == value, "{key}: {event}");
        anyhow::ensure!(texts.contains(&format!("{key}={value}")), "{texts}");
    }
    anyhow::ensure!(args["values"].get("uid").is_none(), "{event}");
    let file = shop.path("report.pftrace");
    aiprof(&["report", capture, "-o", file.to_str().context("a path")?])?;
    let trace = std::fs::read(&file)?;
    for label in [&format!("container={ID}"), "rank=5", "job=nightly"] {
        let mut windows = trace.windows(label.len());
        anyhow::ensure!(windows.any(|at| at == label.as_bytes()), "{label}");
    }
    Ok(())
}

/// A process in a control group of a pod, on a node whose kubelet has named logs. The group is
/// real; the logs are **synthetic**, in a mount namespace of their own.
#[test]
fn pods_have_the_names_of_their_logs() -> anyhow::Result<()> {
    let name = "pods_have_the_names_of_their_logs";
    let needs = [Need::Root, Need::Tool("cc"), Need::Tool("unshare")];
    skip_unless!(&needs);
    const UID: &str = "2f0a7dd4-6a7e-4dd1-9c3c-6f3b1c1a2d3e";
    let uid = UID.replace('-', "_");
    let slice = match Cgroup::new(&format!("kubepods-burstable-pod{uid}.slice")) {
        Ok(slice) => slice,
        Err(reason) => {
            skip(name, &reason);
            return Ok(());
        }
    };
    let below = slice.path().file_name().context("a name")?;
    let below = Path::new(below).join(format!("cri-containerd-{ID}.scope"));
    let group = Cgroup::new(below.to_str().context("a path")?);
    let group = group.map_err(anyhow::Error::msg)?;
    let shop = Workshop::new()?;
    let tallow = busy(&shop.build("depth.c", "tallow", &[])?, |_| {})?;
    group.add(tallow.pid())?;
    // Where others may write is not believed.
    let script = format!(
        "set -e\n\
         mount -t tmpfs -o mode=755 none /var/log\n\
         record() {{ \"$1\" -p {} -F 199 -d 3 -o \"$2\"; }}\n\
         mkdir -p /var/log/containers /var/log/pods/ml_train-0_{UID}\n\
         mkdir '/var/log/pods/ml_ev il_{UID}'\n\
         ln -s /nowhere /var/log/containers/train-0_ml_worker-{ID}.log\n\
         record \"$1\" \"$2/x.aiprof\"\n\
         chmod 777 /var/log/containers\n\
         record \"$1\" \"$2/half.aiprof\"\n\
         chown 65534 /var/log/pods\n\
         record \"$1\" \"$2/none.aiprof\"\n",
        tallow.pid()
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", &script, "sh"]);
    checked(unshare.arg(binary()?).arg(shop.path("")))?;
    let (namespace, pod, container) = ("ml", "train-0", "worker");
    for (capture, names) in [
        ("x", [Some(namespace), Some(pod), Some(container)]),
        ("half", [Some(namespace), Some(pod), None]),
        ("none", [None, None, None]),
    ] {
        let capture = shop.path(&format!("{capture}.aiprof"));
        let packed = shop.path("pods.pb.gz");
        let words = ["report", capture.to_str().context("a path")?, "-o"];
        aiprof(&[&words[..], &[packed.to_str().context("a path")?]].concat())?;
        let samples = pprof::read(&packed)?;
        anyhow::ensure!(samples.len() > 1, "{capture:?}");
        for sample in samples {
            let text = |key: &str| sample.texts.get(key).map(String::as_str);
            let found = ["namespace", "pod_name", "container_name"].map(text);
            anyhow::ensure!(found == names, "{capture:?}: {found:?}, not {names:?}");
            anyhow::ensure!(text("pod") == Some(UID) && text("container") == Some(ID));
        }
    }
    let folded = shop.path("pods.folded");
    let path = folded.to_str().context("a path")?;
    let capture = shop.path("x.aiprof");
    let words = [
        "report",
        capture.to_str().context("a path")?,
        "--by",
        "pod_name",
    ];
    aiprof(&[&words[..], &["-o", path]].concat())?;
    let roots = frames_of(&folded, 0, 2)?;
    let expected = BTreeSet::from(["pod_name=train-0".to_owned()]);
    anyhow::ensure!(
        roots == BTreeMap::from([(tallow.pid(), expected)]),
        "{roots:?}"
    );
    drop(tallow);
    Ok(())
}

/// A machine whose device nodes and sysfs show two GPUs: **synthetic**. The nodes are /dev/full and
/// /dev/zero under other names. A tmpfs in place of /sys/dev/char describes them as GPUs.
const GPUS: &str = r#"
set -e
mount -t tmpfs none /sys/dev/char
gpu() {
    folder=/sys/dev/char/gpus/$1
    mkdir -p $folder/drm /sys/dev/char/drivers/xe /sys/dev/char/class/drm
    ln -s ../../drivers/xe $folder/driver
    mkdir $folder/drm/$3
    ln -s ../../../../class/drm $folder/drm/$3/subsystem
    ln -s ../.. $folder/drm/$3/device
    ln -s gpus/$1/drm/$3 /sys/dev/char/$2
}
gpu 0000:03:00.0 1:7 renderD128
gpu 0000:04:00.0 1:5 renderD129
mount -t tmpfs none /dev/shm
mkdir -p /dev/shm/dri
mknod /dev/shm/dri/renderD128 c 1 7
mknod /dev/shm/dri/renderD129 c 1 5
touch /dev/shm/dri/renderD130
dri=/dev/shm/dri
one() { "$1" 120 5 3<>$dri/renderD128 4<>$dri/renderD128 & kids="$kids $!"; }
several() { "$1" 120 5 3<>$dri/renderD128 4<>$dri/renderD129 & kids="$kids $!"; }
none() { "$1" 120 5 3<>$dri/renderD130 & kids="$kids $!"; }
one "$2/tallow"
several "$2/birch"
none "$2/cedar"
trap 'kill $kids' EXIT
"$1" -F 199 -d 3 -o "$2/x.aiprof"
"$1" --comm 'tallow|birch|cedar' -F 199 -d 3 --by device -o "$2/live.folded"
"#;

#[test]
fn processes_have_the_device_that_they_use() -> anyhow::Result<()> {
    let needs = [Need::Root, Need::Tool("cc"), Need::Tool("unshare")];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    for program in ["tallow", "birch", "cedar"] {
        shop.build("depth.c", program, &[])?;
    }
    let mut script = Command::new("unshare");
    script.args(["--mount", "sh", "-c", GPUS, "sh"]);
    checked(script.arg(binary()?).arg(shop.path("")))?;
    let expected = [
        ("tallow", "device=xe 0000:03:00.0"),
        ("birch", "device=several"),
        ("cedar", "[no device]"),
    ];
    let report = shop.path("report.folded");
    let capture = shop.path("x.aiprof");
    let capture = capture.to_str().context("a path")?;
    let path = report.to_str().context("a path")?;
    aiprof(&["report", capture, "--by", "device", "-o", path])?;
    for file in [&shop.path("live.folded"), &report] {
        let text = std::fs::read_to_string(file)?;
        for (comm, root) in expected {
            let lines = text.lines().filter_map(|line| line.split_once(';'));
            let own = lines.filter(|(_, rest)| rest.starts_with(&format!("{comm};")));
            let roots: BTreeSet<&str> = own.map(|(root, _)| root).collect();
            anyhow::ensure!(roots == BTreeSet::from([root]), "{comm}: {roots:?}");
        }
    }
    let packed = shop.path("report.pb.gz");
    aiprof(&["report", capture, "-o", packed.to_str().context("a path")?])?;
    let trace = shop.path("report.json");
    aiprof(&["report", capture, "-o", trace.to_str().context("a path")?])?;
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&trace)?)?;
    for (comm, root) in expected {
        let device = root.strip_prefix("device=");
        let mut judged = BTreeSet::new();
        for sample in pprof::read(&packed)? {
            if sample.texts.get("comm").is_some_and(|name| name == comm) {
                let found = sample.texts.get("device").map(String::as_str);
                anyhow::ensure!(found == device, "{comm}: {found:?}");
                judged.insert(sample.numbers.get("pid").copied());
            }
        }
        let [Some(pid)] = judged.into_iter().collect::<Vec<_>>()[..] else {
            anyhow::bail!("no samples of one {comm}");
        };
        let events = trace["traceEvents"].as_array().context("events")?;
        let of =
            |event: &&serde_json::Value| event["name"] == "process_labels" && event["pid"] == pid;
        let labels = events.iter().find(of).context("no labels")?;
        let found = labels["args"]["values"]["device"].as_str();
        anyhow::ensure!(found == device, "{comm}: {found:?} in a trace");
    }
    Ok(())
}

#[test]
fn what_is_not_there_is_told_with_what_to_do_next() -> anyhow::Result<()> {
    let shop = Workshop::new()?;
    let folded = shop.path("x.folded");
    std::fs::write(&folded, "a;1;b 2\n")?;
    let folded = folded.to_str().context("a path")?;
    for (words, code, expected) in [
        (&["--comm", "[", "true"][..], 2, "regular expression"),
        (&["--exclude", "a{1", "true"], 2, "--exclude"),
        (&["--user", "no-such-user", "true"], 2, "id -u no-such-user"),
        (
            &["--container", "no-such", "true"],
            2,
            "--container no-such",
        ),
        (&["--label", "pid=7", "true"], 2, "my_pid"),
        (&["--label", "seven", "true"], 2, "KEY=VALUE"),
        (
            &["--by", "user", "-o", "x.aiprof", "true"],
            2,
            "--by applies only to folded",
        ),
        (
            &["report", folded, "--comm", "a"],
            2,
            "--comm needs a capture",
        ),
        (
            &["report", folded, "--by", "user", "-o", "y.folded"],
            2,
            "--by needs a capture",
        ),
    ] {
        let output = Command::new(binary()?)
            .args(words)
            .current_dir(shop.path(""))
            .stdin(Stdio::null())
            .output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(
            output.status.code() == Some(code) && text.contains(expected),
            "{words:?}: {}\n{text}",
            output.status
        );
    }
    Ok(())
}
