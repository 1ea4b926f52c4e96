//! What of a timeline the tables are of.

/// What of a timeline the tables are of; by default all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Only this process.
    pub pid: Option<u32>,
    /// Only these backends, as unitrace calls them: `L0`, `CL`; empty: all.
    pub backends: Vec<String>,
    /// Kernels by their shapes too: SIMD width, work groups, size of a work group; and
    /// copies by their bytes.
    pub shapes: bool,
    /// Which device commands.
    pub commands: NameChoice,
}

impl Scope {
    /// Whether a backend is wanted.
    pub(super) fn wants_backend(&self, name: &str) -> bool {
        self.backends.is_empty() || self.backends.iter().any(|wanted| wanted == name)
    }
}

/// Which names are wanted, in the way of `--include-kernels` and `--exclude-kernels`: by parts of
/// demangled names, in whose letters the case counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameChoice {
    /// Only names with one of these parts; empty: all.
    pub include: Vec<String>,
    /// Among those, none with one of these.
    pub exclude: Vec<String>,
}

impl NameChoice {
    /// Whether a name is wanted.
    pub fn wants(&self, name: &str) -> bool {
        let has = |parts: &[String]| parts.iter().any(|part| name.contains(&**part));
        (self.include.is_empty() || has(&self.include)) && !has(&self.exclude)
    }

    /// Parts of names in a list: separated by commas, blanks around them left out. A part in double
    /// quotes may have commas and blanks, and `\\"` is a quote in it.
    pub fn parts(list: &str) -> Vec<String> {
        let (mut parts, mut part) = (Vec::new(), String::new());
        let (mut is_quoted, mut was_quoted) = (false, false);
        let mut chars = list.chars().peekable();
        let end = |part: &mut String, was_quoted: bool| {
            let whole = std::mem::take(part);
            match was_quoted {
                true => whole,
                false => whole.trim().to_owned(),
            }
        };
        while let Some(c) = chars.next() {
            match c {
                '\\' if chars.peek() == Some(&'"') => {
                    chars.next();
                    part.push('"');
                }
                '"' => {
                    if !is_quoted && part.trim().is_empty() {
                        part.clear();
                    }
                    is_quoted = !is_quoted;
                    was_quoted = true;
                }
                ',' | '\n' | '\r' if !is_quoted => {
                    parts.push(end(&mut part, was_quoted));
                    was_quoted = false;
                }
                // Blanks behind a part in quotes.
                c if was_quoted && !is_quoted && c.is_whitespace() => {}
                c => part.push(c),
            }
        }
        parts.push(end(&mut part, was_quoted));
        parts.retain(|part| !part.is_empty());
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_names_are_lists() {
        let parts = NameChoice::parts;
        assert_eq!(parts("gemm, conv"), ["gemm", "conv"]);
        assert_eq!(
            parts(r#""a, b" , c\"d,,"x\"y z""#),
            ["a, b", r#"c"d"#, r#"x"y z"#]
        );
        assert_eq!(parts(""), [""; 0]);
        assert_eq!(parts(" \n gemm\nconv\n"), ["gemm", "conv"]);
        assert_eq!(parts("\"open, end"), ["open, end"]);
    }

    #[test]
    fn what_is_excluded_is_so_among_what_is_included() {
        let choice = NameChoice {
            include: vec!["gemm".to_owned(), "conv".to_owned()],
            exclude: vec!["tail".to_owned()],
        };
        let wants = |name: &str| choice.wants(name);
        assert!(wants("big_gemm<1>") && wants("conv"));
        assert!(!wants("gemm_tail") && !wants("GEMM") && !wants("add"));
        assert!(NameChoice::default().wants("anything"));
    }
}
