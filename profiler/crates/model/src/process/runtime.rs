//! Language runtimes, recognised by the names of the files that a process maps.

use super::without_mark;
use std::rc::Rc;

/// A language runtime: it generates or interprets code that has no unwind data.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub enum Runtime {
    /// Java's HotSpot.
    Java,
    /// JavaScript's V8: node, Chromium.
    V8,
    /// .NET's CoreCLR.
    DotNet,
    /// Mono.
    Mono,
    /// LuaJIT.
    LuaJit,
    /// Erlang's BEAM.
    Beam,
    /// Ruby.
    Ruby,
    /// PHP.
    Php,
    /// Julia.
    Julia,
    /// CPython.
    Python,
    /// Perl.
    Perl,
    /// Steel Bank Common Lisp.
    Sbcl,
    /// QEMU's code generator.
    Qemu,
    /// Bun, with JavaScriptCore.
    Bun,
    /// Deno, with V8.
    Deno,
    /// PyPy.
    PyPy,
    /// GHC's runtime, as a library.
    Haskell,
    /// OCaml's runtime, as a library, or its interpreter.
    OCaml,
    /// R.
    R,
    /// Guile.
    Guile,
    /// Racket.
    Racket,
}

/// Beginnings of file names, and the runtime of the files. What follows must be the end
/// of the name or no letter.
const FILES: &[(&str, Runtime)] = &[
    ("libjvm", Runtime::Java),
    ("node", Runtime::V8),
    ("nodejs", Runtime::V8),
    ("libnode", Runtime::V8),
    ("libv8", Runtime::V8),
    ("chrome", Runtime::V8),
    ("chromium", Runtime::V8),
    ("electron", Runtime::V8),
    ("deno", Runtime::Deno),
    ("bun", Runtime::Bun),
    ("d8", Runtime::V8),
    ("libcoreclr", Runtime::DotNet),
    ("libmonosgen", Runtime::Mono),
    ("mono-sgen", Runtime::Mono),
    ("mono", Runtime::Mono),
    ("luajit", Runtime::LuaJit),
    ("libluajit", Runtime::LuaJit),
    ("beam", Runtime::Beam),
    ("ruby", Runtime::Ruby),
    ("libruby", Runtime::Ruby),
    ("php", Runtime::Php),
    ("php-fpm", Runtime::Php),
    ("libphp", Runtime::Php),
    ("libjulia", Runtime::Julia),
    ("libjulia-internal", Runtime::Julia),
    ("python", Runtime::Python),
    ("libpython", Runtime::Python),
    ("perl", Runtime::Perl),
    ("libperl", Runtime::Perl),
    ("sbcl", Runtime::Sbcl),
    ("qemu-", Runtime::Qemu),
    ("pypy", Runtime::PyPy),
    ("libpypy", Runtime::PyPy),
    ("libHSrts", Runtime::Haskell),
    ("libasmrun", Runtime::OCaml),
    ("libcamlrun", Runtime::OCaml),
    ("ocamlrun", Runtime::OCaml),
    ("R", Runtime::R),
    ("libR", Runtime::R),
    ("guile", Runtime::Guile),
    ("libguile", Runtime::Guile),
    ("racket", Runtime::Racket),
];

impl Runtime {
    /// The runtime whose program or library a file is, by its path.
    pub fn of_path(path: &str) -> Option<Self> {
        let name = without_mark(path).rsplit('/').next()?;
        let is_of = |(begin, _): &&(&str, Self)| {
            let rest = name.strip_prefix(begin);
            let is_end = |rest: &str| match rest.chars().next() {
                Some(next) if begin.ends_with('-') => next.is_ascii_alphanumeric(),
                Some('.') => is_library_or_version(rest),
                Some(next) => next.is_ascii_digit() || next == '-',
                None => true,
            };
            rest.is_some_and(is_end)
        };
        FILES.iter().find(is_of).map(|&(_, runtime)| runtime)
    }

    /// Name in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Java => "Java",
            Self::V8 => "JavaScript (V8)",
            Self::DotNet => ".NET",
            Self::Mono => "Mono",
            Self::LuaJit => "LuaJIT",
            Self::Beam => "Erlang",
            Self::Ruby => "Ruby",
            Self::Php => "PHP",
            Self::Julia => "Julia",
            Self::Python => "Python",
            Self::Perl => "Perl",
            Self::Sbcl => "Lisp (SBCL)",
            Self::Qemu => "QEMU",
            Self::Bun => "Bun",
            Self::Deno => "Deno",
            Self::PyPy => "PyPy",
            Self::Haskell => "Haskell",
            Self::OCaml => "OCaml",
            Self::R => "R",
            Self::Guile => "Guile",
            Self::Racket => "Racket",
        }
    }

    /// The option or setting with which its generated code can be walked, or is not generated.
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Self::Java => Some("-XX:+PreserveFramePointer"),
            Self::Php => Some("opcache.jit=off"),
            Self::LuaJit => Some("-joff"),
            Self::Beam => Some("+JPperf true"),
            Self::Ruby => Some("--yjit-perf"),
            Self::PyPy => Some("--jit off"),
            Self::Bun => Some("BUN_JSC_useJIT=0"),
            Self::Deno => Some("--v8-flags=--jitless"),
            Self::Guile => Some("GUILE_JIT_THRESHOLD=-1"),
            Self::Haskell => Some("ghc -g"),
            _ => None,
        }
    }

    /// Whether it runs only what is in its files, without generated code: anonymous code
    /// beside it is another's, such as an extension's.
    fn is_interpreter(self) -> bool {
        matches!(self, Self::Python | Self::Perl)
    }
}

/// `.so`, `.so.6`, `.smp`, `.1` end the name of a runtime's file; `.txt` does not.
fn is_library_or_version(rest: &str) -> bool {
    let next = rest[1..].split('.').next().unwrap_or_default();
    next == "so" || next == "smp" || next.bytes().all(|b| b.is_ascii_digit()) && !next.is_empty()
}

/// What the names of a process's mapped files show about the code that it generates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generated {
    /// The runtime in it that generates code.
    runtime: Option<Runtime>,
    /// It has several.
    is_mixed: bool,
    /// The jitdump file that it writes: the path of its latest mapping.
    pub dump: Option<Rc<str>>,
}

impl Generated {
    /// Takes in a mapped file.
    pub(super) fn note(&mut self, path: &str) {
        if is_jitdump(path) {
            self.dump = Some(path.into());
            return;
        }
        let Some(new) = Runtime::of_path(path) else {
            return;
        };
        match self.runtime {
            None => self.runtime = Some(new),
            Some(old) if old == new || new.is_interpreter() => {}
            Some(old) if old.is_interpreter() => self.runtime = Some(new),
            Some(_) => self.is_mixed = true,
        }
    }

    /// The runtime that wrote the anonymous code of the process; `None` where it has none,
    /// or several.
    pub fn runtime(&self) -> Option<Runtime> {
        self.runtime.filter(|_| !self.is_mixed)
    }
}

/// Whether a file is called as jitdump files are: `jit-PID.dump`.
pub fn is_jitdump(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let number = name
        .strip_prefix("jit-")
        .and_then(|n| n.strip_suffix(".dump"));
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_runtimes() {
        let runtime = |path| Runtime::of_path(path);
        assert_eq!(
            runtime("/usr/lib/jvm/lib/server/libjvm.so"),
            Some(Runtime::Java)
        );
        assert_eq!(runtime("/usr/bin/node"), Some(Runtime::V8));
        assert_eq!(runtime("/usr/bin/node (deleted)"), Some(Runtime::V8));
        assert_eq!(runtime("/usr/lib/libnode.so.108"), Some(Runtime::V8));
        assert_eq!(runtime("/opt/libpython3.11.so.1.0"), Some(Runtime::Python));
        assert_eq!(runtime("/usr/bin/python3.11"), Some(Runtime::Python));
        assert_eq!(runtime("/usr/lib/erlang/bin/beam.smp"), Some(Runtime::Beam));
        assert_eq!(
            runtime("/usr/lib/libluajit-5.1.so.2"),
            Some(Runtime::LuaJit)
        );
        assert_eq!(runtime("/usr/bin/luajit-2.1.0"), Some(Runtime::LuaJit));
        assert_eq!(runtime("/usr/bin/php8.2"), Some(Runtime::Php));
        assert_eq!(runtime("/usr/bin/qemu-system-x86_64"), Some(Runtime::Qemu));
        assert_eq!(runtime("/usr/bin/qemu-aarch64"), Some(Runtime::Qemu));
        assert_eq!(runtime("/opt/libpypy3.9-c.so"), Some(Runtime::PyPy));
        assert_eq!(runtime("/usr/lib/R/bin/exec/R"), Some(Runtime::R));
        assert_eq!(runtime("/home/a/.bun/bin/bun"), Some(Runtime::Bun));
        for other in [
            "/usr/bin/nodeadm",
            "/x/node.txt",
            "/x/rubyish",
            "",
            "/",
            "/libjvm/a",
        ] {
            assert_eq!(runtime(other), None, "{other}");
        }
    }

    #[test]
    fn one_runtime_writes_the_code_of_a_process() {
        let of = |paths: &[&str]| {
            let mut all = Generated::default();
            paths.iter().for_each(|path| all.note(path));
            all.runtime()
        };
        assert_eq!(of(&["/bin/cat"]), None);
        assert_eq!(of(&["/usr/bin/python3.11"]), Some(Runtime::Python));
        let both = ["/usr/bin/python3.11", "/lib/libjvm.so"];
        assert_eq!(of(&both), Some(Runtime::Java));
        assert_eq!(
            of(&["/lib/libjvm.so", "/usr/bin/python3.11"]),
            Some(Runtime::Java)
        );
        assert_eq!(of(&["/lib/libjvm.so", "/lib/libcoreclr.so"]), None);
    }

    #[test]
    fn jitdump_files_are_called_so() {
        let mut all = Generated::default();
        for other in [
            "/tmp/jit-.dump",
            "/tmp/jit-1x.dump",
            "/jit-1.dump/x",
            "jit-1.dump.so",
        ] {
            all.note(other);
            assert_eq!(all.dump, None, "{other}");
        }
        all.note("/root/.debug/jit/a/jit-12.dump");
        assert_eq!(all.dump.as_deref(), Some("/root/.debug/jit/a/jit-12.dump"));
    }
}
