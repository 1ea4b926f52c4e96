//! Readable names for C++ (Itanium ABI) and Rust (legacy and v0) symbols.

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
        None => None,
    };
    readable.map_or(Cow::Borrowed(name), Cow::Owned)
}

enum Scheme {
    /// Rust v0, or legacy Rust, which looks like a nested C++ name.
    Rust,
    Cpp,
}

fn scheme(name: &str) -> Option<Scheme> {
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

/// Whether a name looks like a C++ or Rust symbol.
pub fn is_mangled(name: &str) -> bool {
    scheme(name).is_some()
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
    fn others_stay_as_they_are() {
        for name in [
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
