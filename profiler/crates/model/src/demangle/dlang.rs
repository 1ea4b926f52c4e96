//! Names of D: <https://dlang.org/spec/abi.html#name_mangling>.
//!
//! Written out as binutils does: qualified name, arguments of templates, types of parameters. No
//! crate reads these names. A position may refer back to a name or type before it, so a short name
//! can stand for a long one: depth, steps and length are bounded.

use super::MAX_NAME;
use std::fmt::Write;

/// Most types and names within each other.
const MAX_DEPTH: u32 = 64;
/// Most names, types and values.
const MAX_STEPS: u32 = 1 << 14;

/// Attributes of functions, by the letter behind `N`.
const ATTRIBUTES: [(u8, &str); 10] = [
    (b'a', "pure"),
    (b'b', "nothrow"),
    (b'c', "ref"),
    (b'd', "@property"),
    (b'e', "@trusted"),
    (b'f', "@safe"),
    (b'i', "@nogc"),
    (b'j', "return"),
    (b'l', "scope"),
    (b'm', "@live"),
];

/// Types of one letter.
const BASIC: [(u8, &str); 24] = [
    (b'n', "typeof(null)"),
    (b'v', "void"),
    (b'g', "byte"),
    (b'h', "ubyte"),
    (b's', "short"),
    (b't', "ushort"),
    (b'i', "int"),
    (b'k', "uint"),
    (b'l', "long"),
    (b'm', "ulong"),
    (b'f', "float"),
    (b'd', "double"),
    (b'e', "real"),
    (b'o', "ifloat"),
    (b'p', "idouble"),
    (b'j', "ireal"),
    (b'q', "cfloat"),
    (b'r', "cdouble"),
    (b'c', "creal"),
    (b'b', "bool"),
    (b'a', "char"),
    (b'u', "wchar"),
    (b'w', "dchar"),
    (b'B', "tuple"),
];

/// The readable form of a name; `None`: it is not D's, or not understood.
pub(super) fn demangle(name: &str) -> Option<String> {
    if name == "_Dmain" {
        return Some("D main".to_owned());
    }
    let text = name.as_bytes();
    let mut reader = DName {
        text,
        at: 0,
        out: String::new(),
        depth: 0,
        steps: 0,
    };
    reader.mangled()?;
    (reader.at == text.len()).then_some(reader.out)
}

/// A name that is being read.
struct DName<'a> {
    text: &'a [u8],
    at: usize,
    out: String,
    depth: u32,
    steps: u32,
}

impl DName<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn starts_with(&self, text: &[u8]) -> bool {
        self.text
            .get(self.at..)
            .is_some_and(|rest| rest.starts_with(text))
    }

    /// Moves over a text, if it is next.
    fn skip(&mut self, text: &[u8]) -> bool {
        let found = self.starts_with(text);
        self.at += if found { text.len() } else { 0 };
        found
    }

    fn push(&mut self, text: &str) -> Option<()> {
        self.out.push_str(text);
        (self.out.len() <= MAX_NAME).then_some(())
    }

    /// Reads something one level deeper.
    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.steps += 1;
        if self.depth >= MAX_DEPTH || self.steps > MAX_STEPS {
            return None;
        }
        self.depth += 1;
        let found = read(self);
        self.depth -= 1;
        found
    }

    /// What is read is not written, but given.
    fn apart(&mut self, read: impl FnOnce(&mut Self) -> Option<()>) -> Option<String> {
        let before = std::mem::take(&mut self.out);
        let found = read(self);
        let text = std::mem::replace(&mut self.out, before);
        found.map(|()| text)
    }

    fn number(&mut self) -> Option<usize> {
        let digits = self.text.get(self.at..)?;
        let n = digits
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let digits = std::str::from_utf8(digits.get(..n)?).ok()?;
        self.at += n;
        digits.parse().ok()
    }

    /// Reads what a reference leads back to.
    fn back(&mut self, read: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        let from = self.at;
        self.at += 1;
        let mut distance = 0usize;
        loop {
            let digit = self.peek()?;
            self.at += 1;
            let (value, is_last) = match digit {
                b'A'..=b'Z' => (digit - b'A', false),
                b'a'..=b'z' => (digit - b'a', true),
                _ => return None,
            };
            distance = distance.checked_mul(26)?.checked_add(value.into())?;
            if is_last {
                break;
            }
        }
        let after = self.at;
        self.at = from.checked_sub(distance).filter(|at| *at < from)?;
        self.nested(read)?;
        self.at = after;
        Some(())
    }

    /// A whole mangled name; the type of its result, or of the variable, is left out.
    fn mangled(&mut self) -> Option<()> {
        if !self.skip(b"_D") {
            return None;
        }
        self.qualified(true)?;
        if !self.skip(b"Z") {
            self.apart(|reader| reader.type_of())?;
        }
        Some(())
    }

    fn is_symbol(&self) -> bool {
        match self.peek() {
            Some(b'0'..=b'9') => true,
            Some(b'_') => self.starts_with(b"__T") || self.starts_with(b"__U"),
            // A reference is a name if a name's length is there.
            Some(b'Q') => {
                let mut other = DName {
                    out: String::new(),
                    ..*self
                };
                let is_name = |other: &mut Self| {
                    let found = other.peek().filter(u8::is_ascii_digit);
                    found.map(|_| ())
                };
                other.back(is_name).is_some()
            }
            _ => false,
        }
    }

    /// Names with dots between them. `whole`: also how the function's `this` is typed.
    fn qualified(&mut self, whole: bool) -> Option<()> {
        let mut n = 0;
        loop {
            if self.peek() == Some(b'0') {
                self.at += 1;
            } else {
                if n > 0 {
                    self.push(".")?;
                }
                n += 1;
                self.nested(Self::identifier)?;
                self.parameters_of_symbol(whole);
            }
            if !self.is_symbol() {
                return (n > 0).then_some(());
            }
        }
    }

    /// The parameters of a function, if a type follows them.
    fn parameters_of_symbol(&mut self, whole: bool) {
        let is_function =
            |byte: Option<u8>| matches!(byte, Some(b'M' | b'F' | b'U' | b'V' | b'W' | b'R' | b'Y'));
        if !is_function(self.peek()) {
            return;
        }
        let (at, len) = (self.at, self.out.len());
        let read = |reader: &mut Self| {
            let modifiers = match reader.skip(b"M") {
                true => reader.apart(Self::suffixes)?,
                false => String::new(),
            };
            reader.call_convention()?;
            reader.attributes()?;
            reader.parameters()?;
            if whole {
                reader.push(&modifiers)?;
            }
            reader.peek().map(|_| ())
        };
        if self.nested(read).is_none() {
            self.at = at;
            self.out.truncate(len);
        }
    }

    /// Modifiers behind a function's parameters.
    fn suffixes(&mut self) -> Option<()> {
        loop {
            let text = match self.peek() {
                Some(b'x') => " const",
                Some(b'y') => " immutable",
                Some(b'O') => " shared",
                Some(b'N') if self.starts_with(b"Ng") => {
                    self.at += 1;
                    " inout"
                }
                _ => return Some(()),
            };
            self.at += 1;
            self.push(text)?;
        }
    }

    fn identifier(&mut self) -> Option<()> {
        if self.peek() == Some(b'Q') {
            return self.back(Self::identifier);
        }
        if self.starts_with(b"__T") || self.starts_with(b"__U") {
            return self.template();
        }
        let length = self.number().filter(|&n| n > 0)?;
        let end = self.at.checked_add(length)?;
        let name = self.text.get(self.at..end)?;
        if name.starts_with(b"__T") || name.starts_with(b"__U") {
            self.template()?;
            return (self.at == end).then_some(());
        }
        let name = std::str::from_utf8(name).ok()?;
        self.at = end;
        match name {
            "__ctor" => self.push("this"),
            "__dtor" => self.push("~this"),
            _ => self.push(name),
        }
    }

    fn template(&mut self) -> Option<()> {
        self.at += 3;
        self.nested(Self::identifier)?;
        self.push("!(")?;
        let mut n = 0;
        while !self.skip(b"Z") {
            if n > 0 {
                self.push(", ")?;
            }
            n += 1;
            self.skip(b"H");
            self.nested(Self::argument)?;
        }
        self.push(")")
    }

    fn argument(&mut self) -> Option<()> {
        let kind = self.peek()?;
        self.at += 1;
        match kind {
            b'T' => self.type_of(),
            b'S' if self.starts_with(b"_D") => self.mangled(),
            b'S' => self.qualified(false),
            b'X' => {
                let length = self.number()?;
                let end = self.at.checked_add(length)?;
                let name = std::str::from_utf8(self.text.get(self.at..end)?).ok()?;
                self.at = end;
                self.push(name)
            }
            b'V' => {
                let mut kind = self.peek()?;
                if kind == b'Q' {
                    let mut found = None;
                    let at = self.at;
                    self.back(|reader| {
                        found = reader.peek();
                        Some(())
                    })?;
                    self.at = at;
                    kind = found?;
                }
                let name = self.apart(Self::type_of)?;
                self.value(kind, &name)
            }
            _ => None,
        }
    }

    /// A value whose type begins with a letter, and is called `name`.
    fn value(&mut self, kind: u8, name: &str) -> Option<()> {
        let first = self.peek()?;
        if !first.is_ascii_digit() {
            self.at += 1;
        }
        match first {
            b'n' => self.push("null"),
            b'N' => {
                self.push("-")?;
                self.integer(kind)
            }
            b'i' | b'0'..=b'9' => self.integer(kind),
            b'a' | b'w' | b'd' => self.string(first),
            b'A' | b'S' => {
                let (open, close) = match first {
                    b'A' => ("[", "]"),
                    _ => ("(", ")"),
                };
                if first == b'S' {
                    self.push(name)?;
                }
                self.push(open)?;
                for n in 0..self.number()? {
                    if n > 0 {
                        self.push(", ")?;
                    }
                    self.nested(|reader| reader.value(0, ""))?;
                    if kind == b'H' && first == b'A' {
                        self.push(":")?;
                        self.nested(|reader| reader.value(0, ""))?;
                    }
                }
                self.push(close)
            }
            b'f' if self.starts_with(b"_D") => self.nested(Self::mangled),
            _ => None,
        }
    }

    fn integer(&mut self, kind: u8) -> Option<()> {
        let value = self.number()?;
        let byte = u8::try_from(value).ok();
        match (kind, byte) {
            (b'b', _) => self.push(if value == 0 { "false" } else { "true" }),
            (b'a', Some(byte @ 0x20..=0x7e)) => self.push(&format!("'{}'", char::from(byte))),
            (b'a', _) => self.push(&format!("'\\x{value:02x}'")),
            (b'u', _) => self.push(&format!("'\\u{value:04x}'")),
            (b'w', _) => self.push(&format!("'\\U{value:08x}'")),
            (b'h' | b't' | b'k', _) => self.push(&format!("{value}u")),
            (b'l', _) => self.push(&format!("{value}L")),
            (b'm', _) => self.push(&format!("{value}uL")),
            _ => self.push(&value.to_string()),
        }
    }

    fn string(&mut self, width: u8) -> Option<()> {
        let length = self.number()?;
        if !self.skip(b"_") {
            return None;
        }
        let end = length.checked_mul(2)?.checked_add(self.at)?;
        let digits = self.text.get(self.at..end)?;
        self.at = end;
        self.push("\"")?;
        for pair in digits.chunks_exact(2) {
            let pair = std::str::from_utf8(pair).ok()?;
            let byte = u8::from_str_radix(pair, 16).ok()?;
            match byte {
                b'\t' => self.push("\\t")?,
                b'\n' => self.push("\\n")?,
                b'\r' => self.push("\\r")?,
                0x0c => self.push("\\f")?,
                0x0b => self.push("\\v")?,
                0x20..=0x7e => self.push(char::from(byte).encode_utf8(&mut [0; 4]))?,
                _ => write!(self.out, "\\x{pair}").ok()?,
            }
        }
        self.push("\"")?;
        match width {
            b'a' => Some(()),
            _ => self.push(char::from(width).encode_utf8(&mut [0; 4])),
        }
    }

    fn type_of(&mut self) -> Option<()> {
        self.nested(Self::any_type)
    }

    /// A type with a text before it and one behind.
    fn wrapped(&mut self, before: &str, after: &str) -> Option<()> {
        self.push(before)?;
        self.type_of()?;
        self.push(after)
    }

    fn any_type(&mut self) -> Option<()> {
        let kind = self.peek()?;
        if kind == b'Q' {
            return self.back(Self::type_of);
        }
        if matches!(kind, b'F' | b'U' | b'V' | b'W' | b'R' | b'Y') {
            return self.function();
        }
        self.at += 1;
        match kind {
            b'x' => self.wrapped("const(", ")"),
            b'y' => self.wrapped("immutable(", ")"),
            b'O' => self.wrapped("shared(", ")"),
            b'N' => {
                let kind = self.peek()?;
                self.at += 1;
                match kind {
                    b'g' => self.wrapped("inout(", ")"),
                    b'h' => self.wrapped("__vector(", ")"),
                    b'n' => self.push("noreturn"),
                    _ => None,
                }
            }
            b'A' => self.wrapped("", "[]"),
            b'G' => {
                let length = self.number()?;
                self.wrapped("", &format!("[{length}]"))
            }
            b'H' => {
                let key = self.apart(Self::type_of)?;
                self.wrapped("", &format!("[{key}]"))
            }
            b'P' if matches!(self.peek(), Some(b'F' | b'U' | b'V' | b'W' | b'R' | b'Y')) => {
                self.function()?;
                self.push(" function")
            }
            b'P' => self.wrapped("", "*"),
            b'C' | b'S' | b'E' | b'T' => self.qualified(false),
            b'D' => {
                let modifiers = self.apart(Self::suffixes)?;
                match self.peek() {
                    Some(b'Q') => self.back(Self::function)?,
                    _ => self.function()?,
                }
                self.push(" delegate")?;
                self.push(&modifiers)
            }
            b'B' => self.tuple(),
            b'z' if self.skip(b"i") => self.push("cent"),
            b'z' if self.skip(b"k") => self.push("ucent"),
            _ => {
                let found = BASIC.iter().find(|(letter, _)| *letter == kind);
                found.and_then(|(_, name)| self.push(name))
            }
        }
    }

    fn tuple(&mut self) -> Option<()> {
        let count = self.number();
        self.push("tuple(")?;
        let mut n = 0;
        while count.map_or(!self.skip(b"Z"), |count| n < count) {
            if n > 0 {
                self.push(", ")?;
            }
            n += 1;
            self.type_of()?;
        }
        self.push(")")
    }

    /// The type of a function: its result, its parameters, its attributes.
    fn function(&mut self) -> Option<()> {
        let convention = self.call_convention()?;
        let attributes = self.attributes()?;
        let parameters = self.apart(Self::parameters)?;
        self.push(convention)?;
        self.type_of()?;
        self.push(&parameters)?;
        for attribute in attributes {
            self.push(" ")?;
            self.push(attribute)?;
        }
        Some(())
    }

    fn call_convention(&mut self) -> Option<&'static str> {
        let found = match self.peek()? {
            b'F' => "",
            b'U' => "extern(C) ",
            b'W' => "extern(Windows) ",
            b'V' => "extern(Pascal) ",
            b'R' => "extern(C++) ",
            b'Y' => "extern(Objective-C) ",
            _ => return None,
        };
        self.at += 1;
        Some(found)
    }

    fn attributes(&mut self) -> Option<Vec<&'static str>> {
        let mut found = Vec::new();
        while self.peek() == Some(b'N') {
            let letter = *self.text.get(self.at + 1)?;
            let known = ATTRIBUTES.iter().find(|(known, _)| *known == letter);
            // Others begin a parameter.
            let Some((_, attribute)) = known else { break };
            self.at += 2;
            found.push(*attribute);
        }
        Some(found)
    }

    fn parameters(&mut self) -> Option<()> {
        self.push("(")?;
        let mut n = 0;
        loop {
            let more = if n > 0 { ", " } else { "" };
            let end = match self.peek()? {
                b'Z' => Some(")".to_owned()),
                b'X' => Some("...)".to_owned()),
                b'Y' => Some(format!("{more}...)")),
                _ => None,
            };
            if let Some(end) = end {
                self.at += 1;
                return self.push(&end);
            }
            self.push(more)?;
            n += 1;
            self.nested(Self::parameter)?;
        }
    }

    fn parameter(&mut self) -> Option<()> {
        for (letters, text) in [
            (&b"M"[..], "scope "),
            (b"Nk", "return "),
            (b"I", "in "),
            (b"J", "out "),
            (b"K", "ref "),
            (b"L", "lazy "),
        ] {
            if self.skip(letters) {
                self.push(text)?;
            }
        }
        self.type_of()
    }
}
