//! Patterns of names: `*` is any text, also none, `?` one byte.

/// Whether a text is a pattern, not a name.
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// Whether `name` is one that `pattern` describes; linear in the name for each
/// star, whatever the pattern.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // Where the last star stands, and what it has eaten up to.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&byte) if byte == b'?' || Some(&byte) == name.get(n) => {
                p += 1;
                n += 1;
            }
            _ => match &mut star {
                // The star eats one byte more, and the rest is tried again.
                Some((at, eaten)) => {
                    *eaten += 1;
                    (p, n) = (*at + 1, *eaten);
                }
                None => return false,
            },
        }
    }
    pattern
        .get(p..)
        .unwrap_or_default()
        .iter()
        .all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, name, wanted) in [
            ("libze_loader.so*", "libze_loader.so.1.8.0", true),
            ("libze_loader.so*", "libze_loader.so", true),
            ("libze_loader.so*", "xlibze_loader.so", false),
            ("a*b*c", "a__b__b_c", true),
            ("a*b*c", "a__c__b_", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("?", "", false),
            ("cu?", "cuX", true),
            ("cu?", "cuXY", false),
            ("**a", "ba", true),
            ("*/opt/*.so", "/x/opt/lib.so", true),
        ] {
            assert_eq!(matches(pattern, name), wanted, "{pattern} {name}");
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        let (pattern, name) = ("a*".repeat(100), "a".repeat(10_000));
        assert!(!matches(&(pattern + "b"), &name));
    }
}
