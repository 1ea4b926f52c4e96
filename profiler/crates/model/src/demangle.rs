//! Readable names for C++ (Itanium ABI), Rust (legacy and v0), D, OCaml and Cython symbols.

mod cython;
mod dlang;
mod ocaml;

use std::borrow::Cow;
use std::fmt::{self, Write};

/// Longest name kept, in bytes. Longer ones are cut (mangled) or left mangled:
/// back references let a short mangled name expand to gigabytes.
const MAX_NAME: usize = 16 << 10;

/// Makes a symbol name readable; returns it unchanged where it is not mangled,
/// not understood, or would expand beyond 16 KiB. Rust hashes are left out.
pub fn demangle(name: &str) -> Cow<'_, str> {
    let name = cut(name, MAX_NAME);
    let readable = match scheme(name) {
        Some(Scheme::Rust) => demangle_rust(name).or_else(|| demangle_cpp(name)),
        Some(Scheme::Cpp) => demangle_cpp(name),
        Some(Scheme::D) => dlang::demangle(name),
        Some(Scheme::OCaml) => ocaml::demangle(name),
        Some(Scheme::Cython) => cython::demangle(name),
        None => None,
    };
    readable.map_or(Cow::Borrowed(name), Cow::Owned)
}

enum Scheme {
    /// Rust v0, or legacy Rust, which looks like a nested C++ name.
    Rust,
    Cpp,
    D,
    OCaml,
    Cython,
}

fn scheme(name: &str) -> Option<Scheme> {
    if name.starts_with("caml") {
        return Some(Scheme::OCaml);
    }
    if name.starts_with("__pyx_") {
        return Some(Scheme::Cython);
    }
    if name.starts_with("_D") {
        return Some(Scheme::D);
    }
    // Mach-O style names have one underscore more.
    let name = name.strip_prefix('_')?;
    let name = name.strip_prefix('_').unwrap_or(name);
    if name.starts_with('R') || name.starts_with("ZN") {
        Some(Scheme::Rust)
    } else if name.starts_with('Z') {
        Some(Scheme::Cpp)
    } else {
        None
    }
}

/// Whether a name looks like a C++, Rust or D symbol, which debug data give beside a plain name.
pub fn is_mangled(name: &str) -> bool {
    matches!(scheme(name), Some(Scheme::Rust | Scheme::Cpp | Scheme::D))
}

/// The longest prefix of at most `limit` bytes.
fn cut(name: &str, limit: usize) -> &str {
    name.get(..name.floor_char_boundary(limit)).unwrap_or(name)
}

fn demangle_rust(name: &str) -> Option<String> {
    let symbol = rustc_demangle::try_demangle(name).ok()?;
    let mut out = Bounded(String::new());
    write!(out, "{symbol:#}").ok()?;
    Some(out.0)
}

fn demangle_cpp(name: &str) -> Option<String> {
    // The names are anybody's, and this parser has had panics: they cost the
    // readable form only.
    std::panic::catch_unwind(|| {
        let symbol = cpp_demangle::BorrowedSymbol::new(name.as_bytes()).ok()?;
        let mut out = Bounded(String::new());
        let options = cpp_demangle::DemangleOptions::new();
        symbol.structured_demangle(&mut out, &options).ok()?;
        Some(out.0)
    })
    .ok()?
}

/// A string that refuses to grow beyond [`MAX_NAME`].
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_NAME {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::demangle;

    #[test]
    fn cpp_names_like_the_abi_says() {
        // Examples of the Itanium C++ ABI, section 5.1 and appendix.
        assert_eq!(demangle("_Z1fv"), "f()");
        assert_eq!(
            demangle("_Z3fooILi2EEvRAplT_Li1E_i"),
            "void foo<2>(int (&) [(2)+(1)])"
        );
        assert_eq!(
            demangle("_ZN1N1TIiiE2mfES0_IddE"),
            "N::T<int, int>::mf(N::T<double, double>)"
        );
    }

    #[test]
    fn rust_names_of_both_schemes() {
        assert_eq!(
            demangle("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"),
            "core::fmt::Write::write_fmt"
        );
        // RFC 2603: crate `mycrate` with disambiguator, item `example`.
        assert_eq!(
            demangle("_RNvNtCs1234_7mycrate3foo3bar"),
            "mycrate::foo::bar"
        );
    }

    #[test]
    fn d_names_like_its_abi_says() {
        // Readable forms by binutils' c++filt 2.40.
        for (name, readable) in [
            ("_Dmain", "D main"),
            ("_D4main3fooFiAyaZv", "main.foo(int, immutable(char)[])"),
            (
                "_D3std5stdio4File6__ctorMFNcNePOS4core4stdcQBl8_IO_FILEAyakbZSQCiQChQCe",
                "std.stdio.File.this(shared(core.stdc.stdio._IO_FILE)*, immutable(char)[], uint, bool)",
            ),
            (
                "_D3std6random18RandomCoverChoices10__postblitMFNaNbNiNeZv",
                "std.random.RandomCoverChoices.__postblit()",
            ),
            (
                "_D3std4file__T13getAttributesTAyaZQuFNfQjZk",
                "std.file.getAttributes!(immutable(char)[]).getAttributes(immutable(char)[])",
            ),
            (
                "_D3std7variant__T8VariantNVmi32ZQp6__dtorMFZv",
                "std.variant.VariantN!(32uL).VariantN.~this()",
            ),
            (
                "_D8demangle4testFDFNaZaZv",
                "demangle.test(char() pure delegate)",
            ),
            (
                "_D8demangle4testFPUZaZv",
                "demangle.test(extern(C) char() function)",
            ),
            (
                "_D8demangle3fooMxFHAyaiKkJlYv",
                "demangle.foo(int[immutable(char)[]], ref uint, out long, ...) const",
            ),
        ] {
            assert_eq!(demangle(name), readable);
        }
        // References to themselves, or that double what is before them.
        let doubled = format!("_D1aFB{}Zv", "B2QbQd".repeat(200));
        for name in ["_D1aFQaZv", "_DQa", "_D1aFAQbZv", &doubled] {
            assert_eq!(demangle(name), name);
        }
    }

    #[test]
    fn cython_names_that_have_one_meaning() {
        // The C functions that Cython 3.3 makes of a module `pkgx.fibo`, and their sources.
        for (name, readable) in [
            ("__pyx_f_4pkgx_4fibo_3Cls_cm", "pkgx.fibo.Cls.cm"),
            ("__pyx_f_4pkgx_4fibo_cfib", "pkgx.fibo.cfib"),
            ("__pyx_pw_4pkgx_4fibo_1fib", "pkgx.fibo.fib"),
            (
                "__pyx_pw_4pkgx_4fibo_3Cls_1__init__",
                "pkgx.fibo.Cls.__init__",
            ),
            ("__pyx_pw_4pkgx_4fibo_2Py_1a_b", "pkgx.fibo.Py.a_b"),
            // The function `Cls_run` with the number 3.
            ("__pyx_pw_4pkgx_4fibo_3Cls_run", "pkgx.fibo.Cls_run"),
            (
                "__pyx_pw_4pkgx_4fibo_5outer_1inner",
                "pkgx.fibo.outer.inner",
            ),
            ("__pyx_pf_4pkgx_4fibo_3Cls_2run", "pkgx.fibo.Cls.run"),
            (
                "__pyx_gb_4pkgx_4fibo_2Py_4generator",
                "pkgx.fibo.Py.generator",
            ),
        ] {
            assert_eq!(demangle(name), readable);
        }
        for name in [
            // The method `a_b` of `Py`, or a function `Py_a_b`.
            "__pyx_pf_4pkgx_4fibo_2Py_a_b",
            "__pyx_pw_",
            "__pyx_pw_1fib",
            "__pyx_pw_4fibo_",
            "__pyx_pw_99fibo_1f",
            "__pyx_pymod_exec_fibo",
        ] {
            assert_eq!(demangle(name), name);
        }
    }

    #[test]
    fn ocaml_names_of_both_separators() {
        for (name, readable) in [
            ("camlStdlib__List__map_481", "Stdlib.List.map"),
            ("camlDune__exe__Main__fun_1024", "Dune.exe.Main.fun"),
            ("camlStdlib__$2b$2b_139", "Stdlib.++"),
            ("camlStdlib$List$map_12_34", "Stdlib.List.map_12"),
            ("camlStdlib.List.map_481", "Stdlib.List.map"),
        ] {
            assert_eq!(demangle(name), readable);
        }
        for name in [
            "caml_alloc_small",
            "caml",
            "camlStdlib__data_begin",
            "camlA_",
            "caml_c_call_1",
        ] {
            assert_eq!(demangle(name), name);
        }
    }

    #[test]
    fn others_stay_as_they_are() {
        for name in [
            "_D",
            "_DYNAMIC",
            "main",
            "",
            "_",
            "_Z",
            "_R",
            "_ZN",
            "__libc_start_main",
            "ünïcode",
        ] {
            assert_eq!(demangle(name), name);
        }
    }

    #[test]
    fn expanding_names_are_bounded() {
        // Each level doubles what the one before expands to.
        let mut name = String::from("_Z1fI1AE");
        for i in 0..40 {
            let seq = if i == 0 {
                "S_".to_owned()
            } else {
                format!("S{}_", radix36(i - 1))
            };
            name.push_str(&format!("St4pairI{seq}{seq}E"));
        }
        assert!(demangle(&name).len() <= super::MAX_NAME);
        assert!(demangle(&"x".repeat(1 << 20)).len() <= super::MAX_NAME);
    }

    fn radix36(mut n: u32) -> String {
        let mut digits = Vec::new();
        loop {
            digits.push(char::from_digit(n % 36, 36).unwrap().to_ascii_uppercase());
            n /= 36;
            if n == 0 {
                return digits.into_iter().rev().collect();
            }
        }
    }
}
