//! Every distribution package that a task may need, in one table, each with the reason; and the
//! distribution on which they are installed.

use std::path::Path;

use crate::proc::find_program;

/// Which task needs a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Building aiprof itself.
    Build,
    /// The tests, unit and end to end.
    Test,
    /// Booting other kernels.
    Vm,
    /// The fuzz targets.
    Fuzz,
    /// Rebuilding the eBPF object on Debian.
    Ebpf,
}

/// How to see that a package is there, on any distribution.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sign {
    /// A program on PATH.
    Program(&'static str),
    /// A file or folder.
    File(&'static str),
    /// A static library, where .cargo/config.toml has them searched for.
    Archive(&'static str),
}

/// Where distributions put static libraries.
const ARCHIVES: &[&str] = &[
    #[cfg(target_arch = "x86_64")]
    "/usr/lib/x86_64-linux-gnu",
    #[cfg(target_arch = "aarch64")]
    "/usr/lib/aarch64-linux-gnu",
    #[cfg(target_arch = "powerpc64")]
    "/usr/lib/powerpc64le-linux-gnu",
    #[cfg(target_arch = "s390x")]
    "/usr/lib/s390x-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
];

impl Sign {
    fn is_there(self) -> bool {
        match self {
            Sign::Program(name) => find_program(name).is_some(),
            Sign::File(path) => Path::new(path).exists(),
            Sign::Archive(name) => ARCHIVES
                .iter()
                .any(|folder| Path::new(folder).join(name).exists()),
        }
    }
}

/// One need and the package that meets it, by package manager.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Package {
    pub(crate) group: Group,
    pub(crate) sign: Sign,
    pub(crate) apt: &'static str,
    pub(crate) dnf: &'static str,
    pub(crate) zypper: &'static str,
    pub(crate) pacman: &'static str,
    /// What needs it, for the message when it is missing.
    pub(crate) why: &'static str,
}

macro_rules! package {
    ($group:ident, $sign:expr, [$apt:literal $dnf:literal $zypper:literal $pacman:literal], $why:literal) => {
        Package {
            group: Group::$group,
            sign: $sign,
            apt: $apt,
            dnf: $dnf,
            zypper: $zypper,
            pacman: $pacman,
            why: $why,
        }
    };
}

use Sign::{Archive, File, Program};

/// The columns are the names for apt, dnf, zypper and pacman.
pub(crate) const PACKAGES: &[Package] = &[
    package!(Build, Program("cc"), ["gcc" "gcc" "gcc" "gcc"], "linker; compiles the bundled zstd and libbpf"),
    package!(Build, File("/usr/include/stdio.h"),
        ["libc6-dev" "glibc-devel" "glibc-devel" "glibc"], "C headers for the bundled zstd and libbpf"),
    package!(Build, Program("make"), ["make" "make" "make" "make"], "builds the bundled libbpf"),
    package!(Build, Program("pkg-config"),
        ["pkg-config" "pkgconf-pkg-config" "pkg-config" "pkgconf"], "builds the bundled libbpf"),
    package!(Build, Archive("libelf.a"),
        ["libelf-dev" "elfutils-libelf-devel-static" "libelf-devel" "libelf"],
        "libbpf reads eBPF objects with it"),
    package!(Build, Archive("libz.a"),
        ["zlib1g-dev" "zlib-static" "zlib-devel-static" "zlib"], "libelf needs it"),
    package!(Test, Program("strace"), ["strace" "strace" "strace" "strace"],
        "shows the system calls of a recording, and with which rights it opens files"),
    package!(Test, Program("debuginfod-find"),
        ["debuginfod" "elfutils-debuginfod-client" "debuginfod-client" "debuginfod"],
        "fetches debug files from the tests' server"),
    package!(Test, Program("dwz"), ["dwz" "dwz" "dwz" "dwz"],
        "moves common debug information to a separate file"),
    package!(Test, Program("xz"), ["xz-utils" "xz" "xz" "xz"],
        "compresses the symbols that stripped files keep"),
    package!(Test, Program("llvm-addr2line"), ["llvm" "llvm" "llvm" "llvm"],
        "source lines to compare with; llvm-dwp packs split DWARF"),
    package!(Test, Program("clang++"), ["clang" "clang" "clang" "clang"],
        "compiles programs with debug information that differs from gcc's"),
    package!(Test, Program("ld.lld"), ["lld" "lld" "lld" "lld"],
        "writes gdb's index while it links"),
    package!(Test, Program("systemd-analyze"), ["systemd" "systemd" "systemd" "systemd"],
        "checks the systemd unit and lists its groups of system calls"),
    package!(Test, Program("c++"), ["g++" "gcc-c++" "gcc-c++" "gcc"], "compiles the C++ workloads"),
    package!(Test, Program("go"), ["golang-go" "golang" "go" "go"],
        "`go tool pprof` reads aiprof's pprof files"),
    package!(Test, Program("python3"), ["python3" "python3" "python3" "python"],
        "independent XML parser for aiprof's SVG files"),
    package!(Test, Program("java"),
        ["default-jre-headless" "java-headless" "java-17-openjdk-headless" "jre-openjdk-headless"],
        "Spark reads aiprof's lakes"),
    package!(Test, Program("pip3"), ["python3-pip" "python3-pip" "python3-pip" "python-pip"],
        "installs acelyzer and the viewers that tests compare with"),
    package!(Test, File("/usr/include/level_zero/ze_api.h"),
        ["libze-dev" "oneapi-level-zero-devel" "level-zero-devel" "level-zero-headers"],
        "headers and loader of Level Zero, for workloads and the virtual driver"),
    package!(Test, Program("ocloc"),
        ["intel-opencl-icd" "intel-compute-runtime" "intel-opencl" "intel-compute-runtime"],
        "Intel's Level Zero and OpenCL driver and its compiler, run in capture mode"),
    package!(Test, Program("iga64"),
        ["libigc-tools" "intel-igc" "intel-graphics-compiler" "intel-graphics-compiler"],
        "Intel's disassembler of device code, to compare with"),
    package!(Test, File("/usr/include/CL/cl.h"),
        ["ocl-icd-opencl-dev" "ocl-icd-devel" "ocl-icd-devel" "opencl-headers"],
        "headers and loader of OpenCL, for a workload"),
    package!(Test, File("/etc/OpenCL/vendors/pocl.icd"),
        ["pocl-opencl-icd" "pocl" "pocl" "pocl"], "OpenCL that computes on the CPU"),
    package!(Test, Program("mpicc.openmpi"),
        ["libopenmpi-dev" "openmpi-devel" "openmpi-devel" "openmpi"],
        "compiles MPI programs (Open MPI)"),
    package!(Test, Program("mpirun.openmpi"), ["openmpi-bin" "openmpi" "openmpi" "openmpi"],
        "starts MPI programs (Open MPI)"),
    package!(Test, Program("mpicc.mpich"), ["libmpich-dev" "mpich-devel" "mpich-devel" "mpich"],
        "compiles MPI programs (MPICH)"),
    package!(Test, Program("mpirun.mpich"), ["mpich" "mpich" "mpich" "mpich"],
        "starts MPI programs (MPICH)"),
    package!(Test, File("/usr/lib/python3/dist-packages/mpi4py/__init__.py"),
        ["python3-mpi4py" "python3-mpi4py-openmpi" "python3-mpi4py" "python-mpi4py"],
        "MPI messages of Python programs"),
    package!(Test, Program("bpftrace"), ["bpftrace" "bpftrace" "bpftrace" "bpftrace"],
        "counts calls independently of aiprof"),
    package!(Test, Program("perf"), ["linux-perf" "perf" "perf" "perf"],
        "a profiler that must work beside aiprof"),
    package!(Test, Program("setcap"), ["libcap2-bin" "libcap" "libcap-progs" "libcap"],
        "gives capabilities to a copy of aiprof, to attack it as an ordinary user"),
    package!(Test, Program("bpftool"), ["bpftool" "bpftool" "bpftool" "bpf"],
        "shows which eBPF programs are loaded and how long each has run"),
    package!(Test, Program("promtool"), ["prometheus" "golang-github-prometheus" "golang-github-prometheus-prometheus" "prometheus"],
        "tests alerts and scrapes the agent"),
    package!(Test, Program("mmdebstrap"), ["mmdebstrap" "mmdebstrap" "mmdebstrap" "mmdebstrap"],
        "creates a clean Debian to install the package in"),
    package!(Test, Program("rpm"), ["rpm" "rpm" "rpm" "rpm-tools"], "reads the .rpm package"),
    package!(Vm, Program("qemu-system-x86_64"),
        ["qemu-system-x86" "qemu-system-x86-core" "qemu-x86" "qemu-system-x86"], "runs other kernels"),
    package!(Vm, Program("busybox"), ["busybox-static" "busybox" "busybox-static" "busybox"],
        "shell and tools inside the initramfs"),
    package!(Fuzz, Program("c++"), ["g++" "gcc-c++" "gcc-c++" "gcc"], "compiles libFuzzer's driver"),
    package!(Ebpf, File("/usr/lib/rustlib/src/rust/library/core/Cargo.toml"),
        ["rust-web-src" "rust-src" "rust" "rust-src"], "core's sources, to build it for eBPF"),
    package!(Ebpf, File("/usr/bin/rustc"), ["rustc-web" "rust" "rust" "rust"],
        "the compiler that matches those sources"),
];

/// The packages of the groups that are not there, each once.
pub(crate) fn missing(groups: &[Group]) -> Vec<Package> {
    let mut found: Vec<Package> = Vec::new();
    for package in PACKAGES {
        let wanted = groups.contains(&package.group) && !package.sign.is_there();
        if wanted && found.iter().all(|have| have.apt != package.apt) {
            found.push(*package);
        }
    }
    found
}

/// The package managers that aiprof's instructions speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manager {
    Apt,
    Dnf,
    Zypper,
    Pacman,
}

impl Manager {
    /// The manager of the distribution that os-release (the text of
    /// /etc/os-release, see os-release(5)) describes: by `ID`, then by the
    /// relatives in `ID_LIKE`.
    pub(crate) fn of(os_release: &str) -> Option<Manager> {
        let id = field(os_release, "ID").unwrap_or_default();
        let like = field(os_release, "ID_LIKE").unwrap_or_default();
        std::iter::once(id)
            .chain(like.split_whitespace())
            .find_map(|name| match name {
                "debian" | "ubuntu" => Some(Manager::Apt),
                "fedora" | "rhel" | "centos" => Some(Manager::Dnf),
                "suse" | "opensuse" | "sles" => Some(Manager::Zypper),
                "opensuse-leap" | "opensuse-tumbleweed" => Some(Manager::Zypper),
                "arch" => Some(Manager::Pacman),
                _ => None,
            })
    }

    /// The line that installs `packages`, without sudo.
    pub(crate) fn line(self, packages: &[Package]) -> String {
        let (command, names): (&str, fn(&Package) -> &'static str) = match self {
            Manager::Apt => ("apt-get install -y --no-install-recommends", |p| p.apt),
            Manager::Dnf => ("dnf install -y", |p| p.dnf),
            Manager::Zypper => ("zypper install -y", |p| p.zypper),
            Manager::Pacman => ("pacman -S --needed", |p| p.pacman),
        };
        let mut names: Vec<_> = packages.iter().map(names).collect();
        names.dedup();
        format!("{command} {}", names.join(" "))
    }
}

/// The value of `key` in os-release text, without its quotes.
fn field<'a>(os_release: &'a str, key: &str) -> Option<&'a str> {
    os_release.lines().find_map(|line| {
        let value = line.trim().strip_prefix(key)?.strip_prefix('=')?;
        Some(value.trim_matches(['"', '\'']))
    })
}

/// The text of this machine's os-release; empty where there is none.
pub(crate) fn os_release() -> String {
    ["/etc/os-release", "/usr/lib/os-release"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok())
        .unwrap_or_default()
}

/// Whether os-release describes Debian itself, where tasks may install.
pub(crate) fn is_debian(os_release: &str) -> bool {
    field(os_release, "ID") == Some("debian")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEBIAN: &str =
        "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\nID=debian\n";
    const MINT: &str = "NAME=\"Linux Mint\"\nID=linuxmint\nID_LIKE=\"ubuntu debian\"\n";
    const ROCKY: &str = "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n";
    const LEAP: &str = "ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n";

    #[test]
    fn knows_the_package_manager_by_id_and_relatives() {
        assert_eq!(Manager::of(DEBIAN), Some(Manager::Apt));
        assert_eq!(Manager::of(MINT), Some(Manager::Apt));
        assert_eq!(Manager::of(ROCKY), Some(Manager::Dnf));
        assert_eq!(Manager::of(LEAP), Some(Manager::Zypper));
        assert_eq!(Manager::of("ID=arch\n"), Some(Manager::Pacman));
        assert_eq!(Manager::of("ID=plan9\n"), None);
        assert_eq!(Manager::of(""), None);
    }

    #[test]
    fn installs_only_on_debian_itself() {
        assert!(is_debian(DEBIAN));
        assert!(!is_debian(MINT));
        assert!(!is_debian("VERSION_ID=debian\n"));
    }

    #[test]
    fn writes_the_line_of_each_manager() {
        let gpp: Vec<_> = PACKAGES
            .iter()
            .filter(|p| p.apt == "g++")
            .take(1)
            .copied()
            .collect();
        assert_eq!(
            Manager::Apt.line(&gpp),
            "apt-get install -y --no-install-recommends g++"
        );
        assert_eq!(Manager::Dnf.line(&gpp), "dnf install -y gcc-c++");
        assert_eq!(Manager::Zypper.line(&gpp), "zypper install -y gcc-c++");
        assert_eq!(Manager::Pacman.line(&gpp), "pacman -S --needed gcc");
    }

    #[test]
    fn static_libraries_are_looked_for_where_the_build_does() {
        let config = crate::proc::root().join(".cargo/config.toml");
        let config = std::fs::read_to_string(config).unwrap();
        let target = format!("_{}", std::env::consts::ARCH);
        let line = config.lines().find(|line| line.contains(&target));
        assert!(
            line.is_some_and(|line| line.contains(&ARCHIVES.join(":"))),
            "{config}"
        );
    }

    #[test]
    fn a_present_program_is_not_missing() {
        assert!(Sign::Program("sh").is_there());
        assert!(!Sign::Program("no-such-program-here").is_there());
        assert!(Sign::File("/proc/self").is_there());
        assert!(!Sign::Archive("libno-such-library.a").is_there());
    }
}
