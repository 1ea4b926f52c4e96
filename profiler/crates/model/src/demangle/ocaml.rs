//! Names of OCaml: `camlStdlib__List__map_123` is `Stdlib.List.map`.
//!
//! The compiler writes modules with two underscores between them; from 5.1 on, with a dot or `$`.
//! It writes other letters than C's as `$` and two hexadecimal digits. A number at the end makes the
//! name unique (`asmcomp/compilenv.ml`, `asmcomp/cmm_helpers.ml`).

/// The readable form of a name; `None`: it is not OCaml's.
pub(super) fn demangle(name: &str) -> Option<String> {
    let rest = name.strip_prefix("caml")?;
    // C's part of the runtime has small letters here: `caml_alloc`.
    if !rest.starts_with(|c: char| c.is_ascii_uppercase()) {
        return None;
    }
    let (rest, number) = rest.rsplit_once('_')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number {
        return None;
    }
    let mut out = String::new();
    let mut rest = rest;
    while let Some(c) = rest.chars().next() {
        rest = rest.get(c.len_utf8()..)?;
        match c {
            '_' if rest.starts_with('_') && !rest.starts_with("__") => {
                rest = rest.get(1..)?;
                out.push('.');
            }
            '$' => {
                let digits = rest
                    .get(..2)
                    .and_then(|two| u8::from_str_radix(two, 16).ok());
                match digits {
                    Some(byte) => {
                        rest = rest.get(2..)?;
                        out.push(char::from(byte));
                    }
                    None => out.push('.'),
                }
            }
            c => out.push(c),
        }
    }
    Some(out)
}
