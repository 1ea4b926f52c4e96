//! Where the commands of pages run: files that they name, programs that stand for others, and
//! processes that end in time.

use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use tempfile::TempDir;

use aiprof_tests::aiprof::binary;
use aiprof_tests::cgroup::Cgroup;
use aiprof_tests::child::Child;
use aiprof_tests::cuda::Cuda;
use aiprof_tests::need::find_tool;
use aiprof_tests::workload::{checked, source_path};

use super::pages;

/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How long a command runs that has to be stopped.
const ENDLESS: Duration = Duration::from_secs(2);
/// How many lines of stderr a failure shows.
const LAST_LINES: usize = 6;

/// The container of the helper process, which `containers.md` names by its first digits.
const CONTAINER: &str = "5f3b1c7a9d2e4f60815a3c7be94d02f6a1c85e37bd604f9218ce73a05b1d46f8";

/// `sudo [-E] [NAME=VALUE]... COMMAND`: the test is root, and so is who calls sudo.
const SUDO: &str = "#!/bin/sh\n\
    [ \"$1\" != -E ] || shift\n\
    exec env SUDO_UID=0 SUDO_GID=0 \"$@\"\n";
/// `mpirun` and `torchrun`: two ranks of a program, with the variables by which ranks are known.
const RANKS: &str = r#"#!/bin/sh
while :; do
    case $1 in
        -n | --nproc-per-node) shift 2 ;;
        --no-python) shift ;;
        *.py) set -- python "$@"; break ;;
        *) break ;;
    esac
done
export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
RANK=1 LOCAL_RANK=1 "$@" &
RANK=0 LOCAL_RANK=0 "$@" || exit
wait $!
"#;
/// Two programs; `make` is what a page records.
const MAKEFILE: &str = "all: one two\none two:\n\techo 'int main(void) { return 0; }' > $@.c\n\
                        \tcc -o $@ $@.c\n";

/// `train.py`, and the helper process.
const TRAIN: &str = "tests/workloads/documented_train.py";
/// Files of the repository that pages name otherwise.
const COPIES: [(&str, &str); 6] = [
    (TRAIN, "train.py"),
    (
        "tests/data/roofline/gemm_fp16_bytes.1799860",
        "bytes.metrics.csv",
    ),
    (
        "tests/data/roofline/gemm_fp16_flops.1799853",
        "flops.metrics.csv",
    ),
    ("tests/data/roofline/PVC_1tile.csv", "PVC_1tile.csv"),
    (
        "tests/data/acelyzer/sample_comp_log_ideal.txt",
        "compile.log",
    ),
    ("tests/data/flame/python.folded", "old.folded"),
];

/// How a command ended.
pub(super) struct Ended {
    /// As a shell has it: 128 and the number of the signal that ended it. `None`: it was killed,
    /// as it took too long.
    pub(super) status: Option<i32>,
    /// The last lines that it wrote to stderr.
    pub(super) errors: String,
}

/// A command that runs.
pub(super) struct Running {
    child: Child,
    errors: PathBuf,
    is_endless: bool,
}

/// What all pages share.
pub(super) struct Desk {
    cuda: Cuda,
    busy: Child,
    group: Cgroup,
}

impl Desk {
    /// Makes all files, and starts the helper process; the reason why there is no control group
    /// for it.
    pub(super) fn new() -> anyhow::Result<Result<Self, String>> {
        let group = match Cgroup::new(&format!("docker-{CONTAINER}.scope")) {
            Ok(group) => group,
            Err(reason) => return Ok(Err(reason)),
        };
        let cuda = Cuda::new("documented_program.c", true)?;
        let busy = Child::start(
            Command::new("python3")
                .arg(pages::root().join(TRAIN))
                .env("LD_LIBRARY_PATH", cuda.shop.path("lib"))
                .env("TRAIN_SECONDS", "3600")
                .stdout(Stdio::null()),
        )?;
        group.add(busy.pid())?;
        let desk = Self { cuda, busy, group };
        for folder in ["tools", "given", "given/deploy", "errors"] {
            std::fs::create_dir(desk.path(folder))?;
        }
        desk.make_tools()?;
        desk.write_texts()?;
        desk.make_traces()?;
        desk.record()?;
        Ok(Ok(desk))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.cuda.shop.path(name)
    }

    /// The programs that come first in PATH.
    fn make_tools(&self) -> anyhow::Result<()> {
        let tools = self.path("tools");
        symlink(binary()?.canonicalize()?, tools.join("aiprof"))?;
        write_program(&tools.join("sudo"), SUDO)?;
        for name in ["mpirun", "torchrun"] {
            write_program(&tools.join(name), RANKS)?;
        }
        if find_tool("python").is_none() {
            let python = find_tool("python3").context("python3")?;
            symlink(python, tools.join("python"))?;
        }
        Ok(())
    }

    /// What is not recorded.
    fn write_texts(&self) -> anyhow::Result<()> {
        let given = self.path("given");
        std::fs::copy(&self.cuda.program, given.join("program"))?;
        for (source, name) in COPIES {
            std::fs::copy(pages::root().join(source), given.join(name))?;
        }
        let config = pages::read("deploy/agent.toml")?.replace("/var/lib/aiprof", "STATE");
        let texts = [
            ("Makefile", MAKEFILE.to_owned()),
            ("categories.ini", pages::block("docs/tables.md", "ini")?),
            ("mylib.toml", pages::block("docs/probes.md", "toml")?),
            ("deploy/agent.toml", format!("state = \"STATE\"\n{config}")),
            // What setcap marks.
            ("installed", String::new()),
        ];
        for (name, text) in texts {
            std::fs::write(given.join(name), text)?;
        }
        Ok(())
    }

    /// Traces with a planted problem each, and one without.
    fn make_traces(&self) -> anyhow::Result<()> {
        let given = self.path("given");
        for kind in ["recompilation", "late-rank"] {
            let script = source_path("../findings/planted.py");
            let folder = self.path(kind);
            checked(Command::new("python3").arg(script).arg(kind).arg(folder))?;
        }
        let one = self.path("recompilation");
        for (source, name) in [
            ("planted/0.json", "trace.json"),
            ("clean/0.json", "before.json"),
            ("planted/0.json", "after.json"),
        ] {
            std::fs::copy(one.join(source), given.join(name))?;
        }
        for rank in 0..4 {
            let source = self.path(&format!("late-rank/planted/{rank}.json"));
            std::fs::copy(source, given.join(format!("rank{rank}.json")))?;
        }
        Ok(())
    }

    /// A capture of the program under its names, and its profile.
    fn record(&self) -> anyhow::Result<()> {
        let given = self.path("given");
        for text in [
            "aiprof --device-timing -o x.aiprof ./program",
            "aiprof --device-timing -o after.aiprof ./program",
            "cp x.aiprof before.aiprof; cp x.aiprof ai.aiprof",
            "aiprof report x.aiprof -o x.pb.gz",
        ] {
            let ended = self.run(text, &given)?;
            let errors = ended.errors;
            anyhow::ensure!(
                ended.status == Some(0),
                "{text}: {:?}\n{errors}",
                ended.status
            );
        }
        Ok(())
    }

    /// A directory for a page.
    pub(super) fn page(&self) -> anyhow::Result<TempDir> {
        let dir = tempfile::Builder::new().prefix("aiprof-page-").tempdir()?;
        let mut copy = Command::new("cp");
        checked(copy.arg("-r").arg(self.path("given/.")).arg(dir.path()))?;
        let config = dir.path().join("deploy/agent.toml");
        let state = dir.path().join("state").display().to_string();
        let text = std::fs::read_to_string(&config)?.replace("STATE", &state);
        std::fs::write(&config, text)?;
        Ok(dir)
    }

    /// The command as it runs here.
    pub(super) fn shortened(&self, command: &str) -> String {
        let group = self.group.path().file_name().unwrap_or_default();
        pages::shortened(command, self.busy.pid(), &group.to_string_lossy())
    }

    /// Runs a command to its end.
    fn run(&self, text: &str, dir: &Path) -> anyhow::Result<Ended> {
        self.start(text, dir)?.end()
    }

    /// Starts a command in a process group of its own.
    pub(super) fn start(&self, text: &str, dir: &Path) -> anyhow::Result<Running> {
        let errors = tempfile::Builder::new().tempfile_in(self.path("errors"))?;
        let (file, errors) = errors.keep()?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(self.path("tools")).chain(std::env::split_paths(&path));
        let is_endless = pages::is_endless(text);
        // A program in the background runs as long as the page needs it. `exec`, because a shell
        // that is interrupted would hide the status of its program.
        let (text, seconds) = match text.trim_end().strip_suffix('&') {
            Some(text) => (text.to_owned(), "5"),
            None if is_endless => (format!("exec {text}"), "0.5"),
            None => (text.to_owned(), "0.5"),
        };
        let mut command = Command::new("sh");
        command
            .args(["-c", &text])
            .current_dir(dir)
            .env("PATH", std::env::join_paths(paths)?)
            .env("LD_LIBRARY_PATH", self.path("lib"))
            .env("TRAIN_SECONDS", seconds)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .process_group(0);
        Ok(Running {
            child: Child::start(&mut command)?,
            errors,
            is_endless,
        })
    }
}

impl Running {
    /// Waits while a command gets going that others are for.
    pub(super) fn gets_going(&mut self) {
        // One that has ended already is judged at its end.
        let _ = self.child.wait(ENDLESS);
    }

    /// Waits for the end of a command, or stops one that has none.
    pub(super) fn end(mut self) -> anyhow::Result<Ended> {
        // One that a command has stopped may still be ending.
        if self.is_endless && self.child.wait(ENDLESS).is_err() {
            self.signal("INT")?;
        }
        let status = self.child.wait(LIMIT).ok();
        if status.is_none() {
            self.signal("KILL")?;
        }
        let text = std::fs::read(&self.errors)?;
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        Ok(Ended {
            status: status.map(code),
            errors: lines[lines.len().saturating_sub(LAST_LINES)..].join("\n"),
        })
    }

    /// Sends its process group a signal.
    fn signal(&self, name: &str) -> anyhow::Result<()> {
        let group = format!("-{}", self.child.pid());
        checked(Command::new("kill").args(["-s", name, "--", &group])).map(drop)
    }
}

/// An exit status as shells have it.
fn code(status: ExitStatus) -> i32 {
    let signal = status.signal().map(|signal| 128 + signal);
    status.code().or(signal).unwrap_or(-1)
}

fn write_program(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text)?;
    let file = File::open(path)?;
    Ok(file.set_permissions(Permissions::from_mode(0o755))?)
}
