//! Names of the C functions that Cython writes for functions of Python.
//!
//! `__pyx_pw_3pkg_3mod_1run` is the function `run` of the module `pkg.mod`. The prefix shows the
//! kind of function. Packages, modules and classes follow, with their lengths; then a number that
//! makes the name unique, and the name.

/// What a function is, by its prefix.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CythonFunction {
    /// Called by Python, or the body of a generator: its name has a number always.
    Numbered,
    /// The body of a Python function: the first one in a module or class has no number.
    Body,
    /// C's own: without a number.
    Own,
}

const PREFIXES: [(&str, CythonFunction); 4] = [
    ("__pyx_pw_", CythonFunction::Numbered),
    ("__pyx_gb_", CythonFunction::Numbered),
    ("__pyx_pf_", CythonFunction::Body),
    ("__pyx_f_", CythonFunction::Own),
];

/// The readable form of a name; `None`: it is not Cython's, or has two meanings.
pub(super) fn demangle(name: &str) -> Option<String> {
    let mut prefixes = PREFIXES.iter();
    let (mut rest, kind) =
        prefixes.find_map(|(prefix, kind)| Some((name.strip_prefix(prefix)?, *kind)))?;
    let mut path: Vec<&str> = Vec::new();
    loop {
        let (number, after) = leading_number(rest);
        let Some((scope, more)) = number.and_then(|length| scope(after, length)) else {
            break;
        };
        let is_numbered = leading_number(more).0.is_some();
        match kind {
            // The number is not a length: it belongs to a name with an underscore.
            CythonFunction::Numbered if !is_numbered => break,
            // A method of `Main`, or the function `Main_run` with the number 4.
            CythonFunction::Body if !is_numbered && !path.is_empty() => return None,
            _ => path.push(scope),
        }
        rest = more;
    }
    let (number, last) = leading_number(rest);
    let lacks_number = kind == CythonFunction::Numbered && number.is_none();
    if path.is_empty() || last.is_empty() || lacks_number {
        return None;
    }
    path.push(last);
    Some(path.join("."))
}

/// The number that a text begins with, and the rest.
fn leading_number(text: &str) -> (Option<usize>, &str) {
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let (digits, rest) = text.split_at(digits.unwrap_or(text.len()));
    (digits.parse().ok(), rest)
}

/// A name of `length` bytes, and what comes behind it and an underscore.
fn scope(text: &str, length: usize) -> Option<(&str, &str)> {
    let (name, rest) = text.split_at_checked(length)?;
    let rest = rest.strip_prefix('_')?;
    (!name.is_empty() && !rest.is_empty()).then_some((name, rest))
}
