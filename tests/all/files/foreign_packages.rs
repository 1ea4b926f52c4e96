//! `cargo xtask package --arch`: the packages of machines other than x86-64, with a program in the
//! place of aiprof that writes its arguments. qemu runs it for the man page and the completions.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::{Workshop, checked};

/// aiprof's and its packages'.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Makes the packages of a program in the folder `packages`.
fn package(arch: &str, program: &Path, shop: &Workshop) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--package", "xtask", "--", "package"]);
    command.args(["--arch", arch, "--aiprof"]).arg(program);
    command.arg("-o").arg(shop.path("packages"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    checked(command.current_dir(root)).map(drop)
}

/// A program of one machine, packaged.
struct Packaged {
    shop: Workshop,
    /// The greatest version of glibc that the program needs.
    glibc: String,
}

impl Packaged {
    fn new(arch: &str, gnu: &str) -> anyhow::Result<Self> {
        let shop = Workshop::new()?;
        let (source, program) = (shop.path("words.c"), shop.path("words"));
        std::fs::write(
            &source,
            "#include <stdio.h>\n\
             int main(int n, char **words) { while (*++words) puts(*words); return n == 1; }\n",
        )?;
        let mut compiler = Command::new(format!("{gnu}-gcc"));
        checked(compiler.arg(source).arg("-o").arg(&program))?;
        package(arch, &program, &shop)?;
        let mut symbols = Command::new(format!("{gnu}-objdump"));
        let symbols = checked(symbols.arg("-T").arg(program))?;
        let minors = symbols.split("GLIBC_2.").skip(1).filter_map(|rest| {
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
            digits.parse::<u32>().ok()
        });
        let glibc = format!("2.{}", minors.max().context("no version of glibc")?);
        Ok(Self { shop, glibc })
    }

    /// The package of a name, which must have been made.
    fn package(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.shop.path("packages").join(name);
        let made = std::fs::read_dir(self.shop.path("packages"))?.flatten();
        let made: Vec<_> = made.map(|entry| entry.file_name()).collect();
        ensure!(path.is_file(), "{name} was not made, but {made:?}");
        Ok(path)
    }

    /// A file of an unpacked .deb.
    fn text(&self, path: &str) -> anyhow::Result<String> {
        let path = self.shop.path("unpacked").join(path);
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    fn check_deb(&self, architecture: &str) -> anyhow::Result<()> {
        let deb = self.package(&format!("aiprof_{VERSION}_{architecture}.deb"))?;
        let field = |name: &str| {
            let mut command = Command::new("dpkg-deb");
            checked(command.arg("-f").arg(&deb).arg(name))
        };
        assert_eq!(field("Package")?.trim(), "aiprof");
        assert_eq!(field("Architecture")?.trim(), architecture);
        let depends = format!("libc6 (>= {})", self.glibc);
        assert_eq!(field("Depends")?.trim(), depends);
        let unpacked = self.shop.path("unpacked");
        let mut unpack = Command::new("dpkg-deb");
        checked(unpack.arg("-x").arg(&deb).arg(&unpacked))?;
        let program = std::fs::read(unpacked.join("usr/bin/aiprof"))?;
        assert_eq!(program, std::fs::read(self.shop.path("words"))?);
        for (path, words) in [
            ("bash-completion/completions/aiprof", "completions\nbash\n"),
            (
                "fish/vendor_completions.d/aiprof.fish",
                "completions\nfish\n",
            ),
            ("zsh/vendor-completions/_aiprof", "completions\nzsh\n"),
        ] {
            assert_eq!(self.text(&format!("usr/share/{path}"))?, words);
        }
        let page = unpacked.join("usr/share/man/man1/aiprof.1.gz");
        assert_eq!(checked(Command::new("zcat").arg(page))?, "man\n");
        // Nothing of the agent, which it does not have.
        for absent in ["etc", "usr/lib", "usr/bin/aiprof-send"] {
            ensure!(!unpacked.join(absent).exists(), "{absent} is packaged");
        }
        Ok(())
    }

    fn check_rpm(&self, architecture: &str) -> anyhow::Result<()> {
        let rpm = self.package(&format!("aiprof-{VERSION}-1.{architecture}.rpm"))?;
        let query = |args: &[&str]| {
            let mut command = Command::new("rpm");
            checked(command.arg("-qp").args(args).arg(&rpm))
        };
        assert_eq!(
            query(&["--qf", "%{name} %{arch}"])?,
            format!("aiprof {architecture}")
        );
        let needs = query(&["--requires"])?;
        let glibc = format!("glibc >= {}", self.glibc);
        ensure!(needs.lines().any(|line| line == glibc), "{needs}");
        let files = query(&["-l"])?;
        for path in ["/usr/bin/aiprof", "/usr/share/man/man1/aiprof.1.gz"] {
            ensure!(files.lines().any(|line| line == path), "{files}");
        }
        Ok(())
    }
}

macro_rules! packages {
    ($($name:ident: $gnu:literal, $deb:literal, $rpm:literal;)*) => {
        $(
            #[test]
            fn $name() -> anyhow::Result<()> {
                let compiler = Need::Tool(concat!($gnu, "-gcc"));
                let qemu = Need::Tool(concat!("qemu-", $rpm));
                skip_unless!(
                    stringify!($name),
                    &[compiler, qemu, Need::Tool("dpkg-deb"), Need::Tool("rpm")]
                );
                let packaged = Packaged::new(stringify!($name), $gnu)?;
                packaged.check_deb($deb)?;
                packaged.check_rpm($rpm)
            }
        )*
    };
}

packages! {
    s390x: "s390x-linux-gnu", "s390x", "s390x";
    ppc64le: "powerpc64le-linux-gnu", "ppc64el", "ppc64le";
    aarch64: "aarch64-linux-gnu", "arm64", "aarch64";
}

/// A program of this machine is in no package of another.
#[test]
fn a_program_of_another_machine_is_refused() -> anyhow::Result<()> {
    skip_unless!(&[Need::Tool("qemu-s390x"), Need::Path("/usr/s390x-linux-gnu")]);
    let shop = Workshop::new()?;
    let error = package("s390x", &std::env::current_exe()?, &shop).err();
    let error = error.context("it was packaged")?.to_string();
    ensure!(error.contains("another machine"), "{error}");
    Ok(())
}
