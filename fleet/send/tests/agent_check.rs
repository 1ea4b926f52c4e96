//! `aiprof agent --check`: what keeps the agent from starting or working is found, with the file,
//! the key and what to write instead; and nothing is made.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use aiprof_tests::aiprof::{binary, sender};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::Workshop;

/// Checks configurations, with `aiprof-send` in PATH.
struct Checks {
    shop: Workshop,
    path: std::ffi::OsString,
}

impl Checks {
    fn new() -> anyhow::Result<Self> {
        let folder = sender()?.parent().context("no folder")?.to_owned();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(folder).chain(std::env::split_paths(&path));
        Ok(Self {
            shop: Workshop::new()?,
            path: std::env::join_paths(folders)?,
        })
    }

    fn file(&self, name: &str, mode: u32, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.shop.path(name);
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?;
        Ok(path)
    }

    /// What the check prints about lines, and whether they are right.
    fn check(&self, lines: &str) -> anyhow::Result<(bool, String)> {
        self.check_by(&binary()?, lines, &[])
    }

    fn check_by(
        &self,
        program: &Path,
        lines: &str,
        args: &[&str],
    ) -> anyhow::Result<(bool, String)> {
        let config = self.shop.path("agent.toml");
        let state = match lines.starts_with("state") {
            true => String::new(),
            false => format!("state = {:?}\n", self.shop.path("state")),
        };
        let metrics = match lines.contains("[metrics]") {
            true => "",
            false => "[metrics]\nlisten = \"off\"\n",
        };
        std::fs::write(&config, format!("{state}{lines}\n{metrics}"))?;
        let mut command = Command::new(program);
        command.args(["agent", "--check", "--config"]).arg(config);
        command.args(args);
        command.env("PATH", &self.path).stdin(Stdio::null());
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let code = output.status.code();
        ensure!(matches!(code, Some(0 | 1)), "{lines}: {code:?}: {said}");
        Ok((code == Some(0), said))
    }

    /// That each of these is refused, by a line that begins with the file and has the text.
    fn refuses<'a>(
        &self,
        cases: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> anyhow::Result<()> {
        for (lines, expected) in cases {
            let (is_right, said) = self.check(lines)?;
            let has_file = said.contains("agent.toml: ");
            ensure!(
                !is_right && has_file && said.contains(expected),
                "{lines}\n{expected}: {said}"
            );
            ensure!(!said.contains(": valid"), "{lines}: {said}");
        }
        Ok(())
    }
}

/// An output with these lines.
fn output(kind: &str, lines: &str) -> String {
    format!("[[output]]\ntype = \"{kind}\"\n{lines}\n")
}

#[test]
fn values_that_cannot_be_are_refused() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let checks = Checks::new()?;
    let parca = |lines: &str| output("parca", &format!("url = \"http://x\"\n{lines}"));
    checks.refuses([
        ("frequenzy = 1", "line 2"),
        ("host = \"a\\nb\"", "host: must have"),
        (
            "labels = { a = \"b\\nc\" }",
            "labels.a: must have at most 255 bytes",
        ),
        ("[spool]\nsize = 0", "spool.size: must be at least 1MiB"),
        (
            &parca("tenant = \"a\\r\\nb: c\""),
            "output.parca.tenant: must be one line",
        ),
        (
            &parca("headers = { a = \"b\\nc\" }"),
            "output.parca.headers.a: must be one line",
        ),
        (
            &parca("token_file = \"/t\""),
            "output.parca.url: http:// would send the secret",
        ),
        (
            &output("files", "directory = \"/tmp\"\nformat = \"gif\""),
            "write folded, svg, pprof",
        ),
        (
            &output("lake", "url = \"s3://\""),
            "output.lake.url: must be s3://BUCKET",
        ),
    ])
}

#[test]
fn what_the_machine_lacks_is_found_and_nothing_is_made() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let checks = Checks::new()?;
    let open = checks.file("open", 0o644, "t0k3n")?;
    let token = checks.file("token", 0o600, "t0k3n")?;
    let file = checks.file("file", 0o600, "x")?;
    let link = checks.shop.path("link");
    std::os::unix::fs::symlink("nowhere", &link)?;
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let taken = taken.local_addr()?;
    let parca_at = |url: &str, lines: &str| output("parca", &format!("url = \"{url}\"\n{lines}"));
    let parca = |lines: &str| parca_at("http://127.0.0.1:1", lines);
    let lake = |url: &Path| output("lake", &format!("url = {url:?}"));
    let files = |path: &Path| output("files", &format!("directory = {path:?}"));
    checks.refuses([
        (
            "state = \"/nonexistent/state\"",
            "state: cannot use /nonexistent/state",
        ),
        (&format!("state = {file:?}"), "state: cannot use"),
        ("state = \"/proc/state\"", "state: cannot write to /proc"),
        (&files(&file), "output.files.directory: "),
        (&files(&file.join("in")), "output.files.directory: "),
        (
            &files(Path::new("/proc/nothing")),
            "output.files.directory: ",
        ),
        (
            &files(Path::new("/nonexistent/files")),
            "No such file or directory",
        ),
        (&parca(&format!("token_file = {open:?}")), "chmod 600"),
        (
            &parca(&format!("token_file = {open:?}")),
            "output.parca: token_file",
        ),
        (&parca("token_file = \"/nonexistent\""), "No such file"),
        (
            &parca_at("https://x", &format!("ca_file = {file:?}")),
            "no certificate in PEM",
        ),
        (&lake(&file), "output.lake: "),
        (&lake(&link), "is a broken symbolic link"),
        (
            &lake(Path::new("/proc/lake")),
            "output.lake: cannot write to /proc",
        ),
        (
            &format!("[metrics]\nlisten = \"{taken}\""),
            "metrics.listen: ",
        ),
    ])?;
    // All of it at once, a line each.
    let all = parca(&format!("token_file = {open:?}")) + &lake(&file);
    let (_, said) = checks.check(&all)?;
    ensure!(said.matches("agent.toml: ").count() == 2, "{said}");
    ensure!(!said.contains("t0k3n"), "{said}");
    let right = parca(&format!("token_file = {token:?}"))
        + &lake(&checks.shop.path("lake"))
        + &files(&checks.shop.path("state/files"));
    let (is_right, said) = checks.check(&right)?;
    ensure!(is_right && said.contains(": valid"), "{said}");
    for name in ["state", "lake"] {
        ensure!(!checks.shop.path(name).exists(), "{name} was made");
    }
    Ok(())
}

#[test]
fn a_missing_or_broken_sender_is_found() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let mut checks = Checks::new()?;
    // A copy, which has no aiprof-send beside it.
    let program = checks.shop.path("aiprof");
    std::fs::copy(binary()?, &program)?;
    checks.path = "/usr/bin:/bin".into();
    let lines = output("parca", "url = \"http://127.0.0.1:1\"");
    let (is_right, said) = checks.check_by(&program, &lines, &[])?;
    ensure!(!is_right && said.contains("need aiprof-send"), "{said}");
    // A service of its own delivers, if any.
    let (is_right, said) = checks.check_by(&program, &lines, &["--no-send"])?;
    ensure!(is_right && said.contains(": valid"), "{said}");
    checks.file("aiprof-send", 0o600, "no program")?;
    let (is_right, said) = checks.check_by(&program, &lines, &[])?;
    ensure!(!is_right && said.contains("cannot start"), "{said}");
    Ok(())
}
