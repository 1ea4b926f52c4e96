//! Where values of a JSON text end, without reading them.

/// Finds the ends of values that stand side by side in an array, in text that comes
/// in pieces.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cutter {
    depth: u32,
    quoted: bool,
    escaped: bool,
}

/// What [`Cutter::scan`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Behind the last object or array that is whole, in the text given; 0: none is.
    pub whole: usize,
    /// Where the array around the values is closed.
    pub closed: Option<usize>,
}

impl Cutter {
    /// Goes on through the text from `from`.
    pub(super) fn scan(&mut self, text: &[u8], from: usize) -> Cut {
        let mut cut = Cut {
            whole: 0,
            closed: None,
        };
        let mut at = from;
        while let Some(&byte) = text.get(at) {
            if self.quoted {
                at += self.skip_string(text.get(at..).unwrap_or_default());
                continue;
            }
            match byte {
                b'"' => self.quoted = true,
                b'{' | b'[' => self.depth = self.depth.saturating_add(1),
                b'}' | b']' => {
                    if self.depth == 0 {
                        cut.closed = Some(at);
                        return cut;
                    }
                    self.depth -= 1;
                    if self.depth == 0 {
                        cut.whole = at + 1;
                    }
                }
                _ => {}
            }
            at += 1;
        }
        cut
    }

    /// Inside a string: how many bytes to go on.
    fn skip_string(&mut self, text: &[u8]) -> usize {
        if self.escaped {
            self.escaped = false;
            return 1;
        }
        let Some(len) = text.iter().position(|b| *b == b'"' || *b == b'\\') else {
            return text.len();
        };
        if text.get(len) == Some(&b'\\') {
            self.escaped = true;
        } else {
            self.quoted = false;
        }
        len + 1
    }
}

/// Length of the JSON value at the begin of a text; `None`: it does not end there.
pub(super) fn value_len(text: &[u8]) -> Option<usize> {
    match text.first()? {
        b'{' | b'[' => {
            // The first value that is whole ends where depth comes back to 0.
            let mut cutter = Cutter::default();
            let mut at = 0;
            loop {
                // Closing brackets are looked at one by one: behind the first whole
                // value nothing is scanned.
                let close = text
                    .get(at..)?
                    .iter()
                    .position(|b| matches!(b, b'}' | b']'))?;
                let cut = cutter.scan(text.get(..at + close + 1)?, at);
                at += close + 1;
                if cut.whole > 0 {
                    return Some(cut.whole);
                }
            }
        }
        b'"' => {
            let mut cutter = Cutter {
                quoted: true,
                ..Cutter::default()
            };
            let mut at = 1;
            while cutter.quoted {
                let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
                at += cutter.skip_string(rest);
            }
            Some(at)
        }
        _ => text
            .iter()
            .position(|b| matches!(b, b',' | b'}' | b']' | b':') || b.is_ascii_whitespace()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_found_whatever_the_pieces() {
        let text = br#" {"a":"}\"]","b":[1,{}]} , [2] ,{"c":"\\"}  ] tail"#;
        let close = text.len() - " tail".len() - 1;
        let ends: Vec<usize> = vec![24, 30, 42];
        for step in 1..text.len() {
            let (mut cutter, mut wholes, mut from) = (Cutter::default(), Vec::new(), 0);
            let closed = loop {
                let to = (from + step).min(text.len());
                let cut = cutter.scan(&text[..to], from);
                wholes.extend((cut.whole > 0).then_some(cut.whole));
                if cut.closed.is_some() || to == text.len() {
                    break cut.closed;
                }
                from = to;
            };
            assert_eq!(closed, Some(close), "{step}");
            assert_eq!(wholes.last(), ends.last(), "{step}");
            if step == 1 {
                assert_eq!(wholes, ends);
            }
        }
    }

    #[test]
    fn values_are_measured() {
        for (text, len) in [
            (&br#"{"a":[1,"}"]},3"#[..], Some(13)),
            (br#""x\"y" "#, Some(6)),
            (b"12.5,", Some(4)),
            (b"null}", Some(4)),
            (b"12", None),
            (b"{\"a\":", None),
            (b"\"abc", None),
            (b"", None),
        ] {
            assert_eq!(value_len(text), len, "{}", String::from_utf8_lossy(text));
        }
    }
}
