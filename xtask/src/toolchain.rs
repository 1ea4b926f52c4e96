//! The tools that build eBPF from Rust: a compiler that accepts unstable options and has the
//! sources of `core`, and bpf-linker. Its LLVM must be at least as new as the compiler's. The tools
//! are looked for, and on Debian installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::install::{apt_install, ensure, may_install};
use crate::manifest::Versions;
use crate::packages::Group;
use crate::proc::{capture, cargo, find_program, run};

/// The bpf-linker that is installed where none is.
const BPF_LINKER_VERSION: &str = "0.13.0";

/// What a person does where we do not install.
const ADVICE: &str = "\
building eBPF needs bpf-linker and a compiler with core's sources. Install them with:
  rustup toolchain install nightly --component rust-src
  cargo install bpf-linker
Or on Debian, as root:
  apt-get install -y rustc-web rust-web-src llvm-22-dev g++
  LLVM_PREFIX=/usr/lib/llvm-22 cargo install bpf-linker --locked \\
      --no-default-features --features llvm-22";

/// The tools of one build.
#[derive(Debug)]
pub(crate) struct Toolchain {
    pub(crate) compiler: Compiler,
    /// bpf-linker itself.
    pub(crate) linker: PathBuf,
    pub(crate) versions: Versions,
}

/// A compiler with the sources of `core`.
#[derive(Debug)]
pub(crate) struct Compiler {
    pub(crate) rustc: PathBuf,
    /// The cargo that came with it, else the one that runs this task.
    pub(crate) cargo: Option<PathBuf>,
    /// Its `lib/rustlib/src/rust`.
    pub(crate) sources: PathBuf,
    version: String,
    llvm: String,
}

/// Finds the tools, those of `wanted` first where several would do, and
/// installs what is missing on Debian.
pub(crate) fn find_or_install(wanted: Option<&Versions>) -> Result<Toolchain> {
    let compiler = match find_compiler(wanted) {
        Some(compiler) => compiler,
        None if may_install() => {
            ensure(&[Group::Ebpf])?;
            find_compiler(wanted).context("the installed compiler has no sources of core")?
        }
        None => bail!("{ADVICE}"),
    };
    let linker = match find_linker() {
        Some(linker) => linker,
        None if may_install() => install_linker(&compiler)?,
        None => bail!("{ADVICE}"),
    };
    let versions = Versions {
        rustc: compiler.version.clone(),
        rustc_llvm: compiler.llvm.clone(),
        bpf_linker: linker_version(&linker)?,
        bpf_linker_llvm: linker_llvm(&linker),
    };
    Ok(Toolchain {
        compiler,
        linker,
        versions,
    })
}

/// The first compiler that will do; one that built the committed object wins.
fn find_compiler(wanted: Option<&Versions>) -> Option<Compiler> {
    let mut found: Vec<_> = candidates()
        .iter()
        .filter_map(|rustc| inspect(rustc))
        .collect();
    let same = |c: &Compiler| wanted.is_some_and(|w| w.rustc == c.version);
    let best = found.iter().position(same).unwrap_or(0);
    (best < found.len()).then(|| found.swap_remove(best))
}

/// Compilers to look at: rustup's nightlies, the distribution's, PATH's.
fn candidates() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::env::var_os("AIPROF_EBPF_RUSTC")
        .map(PathBuf::from)
        .into_iter()
        .collect();
    let list = capture(Command::new("rustup").args(["toolchain", "list"])).unwrap_or_default();
    for name in nightlies(&list) {
        let which = capture(Command::new("rustup").args(["which", "--toolchain", name, "rustc"]));
        found.extend(which.ok().map(|path| PathBuf::from(path.trim())));
    }
    found.push("/usr/bin/rustc".into());
    found.extend(find_program("rustc"));
    found
}

/// The nightlies in the output of `rustup toolchain list`.
fn nightlies(list: &str) -> impl Iterator<Item = &str> {
    list.lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|n| n.starts_with("nightly"))
}

/// What `rustc` is, if it has the sources of core.
fn inspect(rustc: &Path) -> Option<Compiler> {
    let sysroot = capture(clean(&mut Command::new(rustc)).args(["--print", "sysroot"])).ok()?;
    let sources = Path::new(sysroot.trim()).join("lib/rustlib/src/rust");
    if !sources.join("library/core/Cargo.toml").is_file() {
        return None;
    }
    let about = capture(clean(&mut Command::new(rustc)).arg("-vV")).ok()?;
    let (version, llvm) = compiler_versions(&about)?;
    let cargo = rustc.with_file_name("cargo");
    Some(Compiler {
        rustc: rustc.to_path_buf(),
        cargo: cargo.is_file().then_some(cargo),
        sources,
        version: version.to_string(),
        llvm: llvm.to_string(),
    })
}

/// Version and LLVM version from `rustc -vV`.
fn compiler_versions(about: &str) -> Option<(&str, &str)> {
    let version = about.lines().next()?.strip_prefix("rustc ")?;
    let llvm = about
        .lines()
        .find_map(|line| line.strip_prefix("LLVM version: "))?;
    Some((version.trim(), llvm.trim()))
}

/// Keeps what cargo and rustup set for *this* compiler away from another one.
pub(crate) fn clean(command: &mut Command) -> &mut Command {
    let inherited = [
        "RUSTUP_TOOLCHAIN",
        "LD_LIBRARY_PATH",
        "RUSTC",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_BUILD_TARGET",
        "CARGO_TARGET_DIR",
        "CARGO",
    ];
    for name in inherited {
        command.env_remove(name);
    }
    command
}

fn find_linker() -> Option<PathBuf> {
    find_program("bpf-linker").or_else(|| {
        let installed = cargo_home()?.join("bin/bpf-linker");
        installed.is_file().then_some(installed)
    })
}

/// cargo's home, where it installs programs and unpacks crates.
pub(crate) fn cargo_home() -> Option<PathBuf> {
    match std::env::var_os("CARGO_HOME") {
        Some(home) => Some(home.into()),
        None => Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")),
    }
}

/// bpf-linker over Debian's LLVM of the compiler's major version.
fn install_linker(compiler: &Compiler) -> Result<PathBuf> {
    let major = compiler.llvm.split('.').next().unwrap_or_default();
    let prefix = PathBuf::from(format!("/usr/lib/llvm-{major}"));
    if !prefix.join("include/llvm-c").is_dir() {
        apt_install(&[&format!("llvm-{major}-dev"), "g++"])?;
    }
    let path = std::env::var("PATH").unwrap_or_default();
    run(cargo()
        .args([
            "install",
            "bpf-linker",
            "--version",
            BPF_LINKER_VERSION,
            "--locked",
        ])
        .args([
            "--no-default-features",
            "--features",
            &format!("llvm-{major}"),
        ])
        // It links a few small files: a fast build is worth more than a fast program.
        .envs([
            ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"),
            ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
        ])
        .env("LLVM_PREFIX", &prefix)
        .env("PATH", format!("{}/bin:{path}", prefix.display())))?;
    find_linker().context("bpf-linker was installed but is not found")
}

fn linker_version(linker: &Path) -> Result<String> {
    let text = capture(Command::new(linker).arg("--version"))?;
    Ok(text.trim().trim_start_matches("bpf-linker ").to_string())
}

/// The LLVM that bpf-linker uses: from the shared library's name, for bpf-linker itself does not
/// report it.
fn linker_llvm(linker: &Path) -> String {
    let libraries = capture(Command::new("ldd").arg(linker)).unwrap_or_default();
    llvm_of(&libraries).unwrap_or("static").to_string()
}

fn llvm_of(libraries: &str) -> Option<&str> {
    libraries
        .split_whitespace()
        .find_map(|word| word.strip_prefix("libLLVM.so."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_rustc_s_description() {
        let text = "rustc 1.96.0 (ac68faa20 2026-05-25)\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\n\
                    release: 1.96.0\nLLVM version: 22.1.8\n";
        assert_eq!(
            compiler_versions(text),
            Some(("1.96.0 (ac68faa20 2026-05-25)", "22.1.8"))
        );
        assert_eq!(compiler_versions("clang version 14"), None);
        assert_eq!(compiler_versions(""), None);
    }

    #[test]
    fn picks_the_nightlies() {
        let list = "stable-x86_64-unknown-linux-gnu (active, default)\n\
                    nightly-x86_64-unknown-linux-gnu\nnightly-2026-01-01-x86_64-unknown-linux-gnu\n";
        let names: Vec<_> = nightlies(list).collect();
        assert_eq!(
            names,
            [
                "nightly-x86_64-unknown-linux-gnu",
                "nightly-2026-01-01-x86_64-unknown-linux-gnu"
            ]
        );
    }

    #[test]
    fn reads_the_linker_s_llvm() {
        let text =
            "\tlinux-vdso.so.1 (0x7f)\n\tlibLLVM.so.22.1 => /usr/lib/libLLVM.so.22.1 (0x7f)\n";
        assert_eq!(llvm_of(text), Some("22.1"));
        assert_eq!(llvm_of("\tlibc.so.6 => /lib/libc.so.6\n"), None);
    }
}
