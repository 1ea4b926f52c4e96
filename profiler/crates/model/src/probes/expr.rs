//! The expressions of a probe table: where a value is, and how it is read.
//!
//! `TYPE PLACE`: `u32 [arg2+4]` is the 32-bit number four bytes behind what the
//! third argument points at. docs/probes.md describes the language for people.

use super::{DataFormat, ValueFormat};

/// Most bytes of an expression.
const MAX_TEXT: usize = 256;
/// Most brackets inside one another: pointers followed.
const MAX_DEPTH: usize = 6;
/// Arguments passed in registers.
const REGISTER_ARGUMENTS: u8 = 6;
/// Arguments on the stack that can be named.
const STACK_ARGUMENTS: u8 = 32;

/// A parsed expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expr {
    /// What is read.
    pub ty: Type,
    /// Where: for a scalar the value itself, for data the address they are at.
    pub at: Address,
}

/// What is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// A number of 1, 2, 4 or 8 bytes.
    Scalar {
        /// How it is printed.
        format: ValueFormat,
        /// Its bytes.
        size: u8,
    },
    /// Text that ends with a NUL.
    Text,
    /// As many handles of 8 bytes.
    Handles(Count),
    /// As many bytes, up to `ARRAY_BYTES`.
    Bytes(Count),
    /// As many bytes, up to `MAX_BLOB`.
    Blob(Count),
}

impl From<(ValueFormat, u8)> for Type {
    fn from((format, size): (ValueFormat, u8)) -> Self {
        Self::Scalar { format, size }
    }
}

impl Type {
    /// The format of data; `None` for a scalar.
    pub(super) fn data_format(&self) -> Option<DataFormat> {
        match self {
            Self::Scalar { .. } => None,
            Self::Text => Some(DataFormat::Text),
            Self::Handles(_) => Some(DataFormat::Handles),
            Self::Bytes(_) | Self::Blob(_) => Some(DataFormat::Blob),
        }
    }
}

/// How many there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// Bytes of the number.
    pub size: u8,
    /// Where it is.
    pub at: Place,
}

/// A place and what is added to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The place.
    pub place: Place,
    /// Bytes added.
    pub offset: i32,
}

/// Where a value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `arg0` to `arg5`: an integer argument in a register.
    Argument(u8, ValuePart),
    /// `stack0`...: an argument on the stack.
    Stack(u8, ValuePart),
    /// `result`: the return value.
    Result(ValuePart),
    /// An earlier value, by its name.
    Named(String),
    /// `[address]`: what memory holds there.
    Read(Box<Address>),
}

/// Which part of an argument's eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValuePart {
    /// All of it.
    Whole,
    /// `.lo`: bytes 0 to 3.
    Low,
    /// `.hi`: bytes 4 to 7.
    High,
}

/// What is wrong with an expression, and where in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExprError {
    /// Byte offset in the expression.
    pub at: usize,
    /// What is wrong and what is allowed.
    pub message: String,
}

/// The types of scalars by name: format and bytes.
pub(super) const SCALARS: [(&str, ValueFormat, u8); 12] = [
    ("u8", ValueFormat::Decimal, 1),
    ("u16", ValueFormat::Decimal, 2),
    ("u32", ValueFormat::Decimal, 4),
    ("u64", ValueFormat::Decimal, 8),
    ("i8", ValueFormat::Signed(1), 1),
    ("i16", ValueFormat::Signed(2), 2),
    ("i32", ValueFormat::Signed(4), 4),
    ("i64", ValueFormat::Signed(8), 8),
    ("f32", ValueFormat::Float(4), 4),
    ("f64", ValueFormat::Float(8), 8),
    ("hex32", ValueFormat::Hex, 4),
    ("hex", ValueFormat::Hex, 8),
];

/// Whether an expression would take `name` for something else than a value.
pub(super) fn is_reserved(name: &str) -> bool {
    ["result", "text"].contains(&name)
        || SCALARS.iter().any(|(scalar, ..)| *scalar == name)
        || numbered(name, "arg").is_some()
        || numbered(name, "stack").is_some()
}

/// Parses an expression.
///
/// # Errors
/// It is none; with the place and what is allowed there.
pub fn parse(text: &str) -> Result<Expr, ExprError> {
    if text.len() > MAX_TEXT {
        return Err(ExprError {
            at: 0,
            message: format!("longer than the limit of {MAX_TEXT} bytes"),
        });
    }
    let mut parser = Parser { text, at: 0 };
    let expr = parser.expr()?;
    match parser.peek() {
        None => Ok(expr),
        Some(found) => Err(parser.error(format!("expected the end, found `{found}`"))),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn expr(&mut self) -> Result<Expr, ExprError> {
        let start = self.skip_spaces();
        let ty = match self.word() {
            "text" => Some(Type::Text),
            "handles" if self.is_type() => Some(Type::Handles(self.count()?)),
            "bytes" if self.is_type() => Some(Type::Bytes(self.count()?)),
            "blob" if self.is_type() => Some(Type::Blob(self.count()?)),
            word => scalar(word).map(Type::from).or_else(|| {
                self.at = start;
                None
            }),
        };
        let place_at = self.skip_spaces();
        let at = self.address(0)?;
        let ty = ty.unwrap_or(default_type(&at.place));
        check(&ty, &at).map_err(|message| ExprError {
            at: place_at,
            message,
        })?;
        Ok(Expr { ty, at })
    }

    /// Whether the word that ends here is a type: `bytes` is also what the size of
    /// a copy is called.
    fn is_type(&mut self) -> bool {
        !matches!(self.peek(), None | Some(']' | ')' | '+' | '-' | '.'))
    }

    /// `(PLACE)` or `(TYPE PLACE)`.
    fn count(&mut self) -> Result<Count, ExprError> {
        self.expect('(', "a count in parentheses, such as `handles(count)`")?;
        let start = self.skip_spaces();
        let size = match scalar(self.word()) {
            Some((ValueFormat::Decimal, size)) => size,
            Some(_) => {
                self.at = start;
                return Err(self.error("a count must be u8, u16, u32 or u64".into()));
            }
            None => {
                self.at = start;
                8
            }
        };
        let at = self.place(0)?;
        self.expect(')', "`)`")?;
        Ok(Count { size, at })
    }

    fn address(&mut self, depth: usize) -> Result<Address, ExprError> {
        let place = self.place(depth)?;
        let sign = match self.peek() {
            Some('+') => 1,
            Some('-') => -1,
            _ => return Ok(Address { place, offset: 0 }),
        };
        self.at += 1;
        let offset = sign * self.number()?;
        Ok(Address { place, offset })
    }

    fn place(&mut self, depth: usize) -> Result<Place, ExprError> {
        if self.peek() == Some('[') {
            if depth == MAX_DEPTH {
                return Err(self.error(format!("too many nested brackets (limit: {MAX_DEPTH})")));
            }
            self.at += 1;
            let address = self.address(depth + 1)?;
            self.expect(']', "`]`")?;
            return Ok(Place::Read(Box::new(address)));
        }
        let start = self.skip_spaces();
        let word = self.word();
        if word.is_empty() {
            return Err(self.error(
                "expected arg0 to arg5, stack0 to stack31, result, the name of an earlier value, \
                 or an address in brackets"
                    .into(),
            ));
        }
        self.named(word).inspect_err(|_| self.at = start)
    }

    fn named(&mut self, word: &str) -> Result<Place, ExprError> {
        let start = self.at - word.len();
        let wrong = |message: String| ExprError { at: start, message };
        if let Some(n) = numbered(word, "arg") {
            let n = u8::try_from(n)
                .ok()
                .filter(|n| *n < REGISTER_ARGUMENTS)
                .ok_or_else(|| {
                    wrong(format!(
                        "`{word}`: arguments in registers are arg0 to arg5, the next is stack0"
                    ))
                })?;
            return Ok(Place::Argument(n, self.part()?));
        }
        if let Some(n) = numbered(word, "stack") {
            let n = u8::try_from(n)
                .ok()
                .filter(|n| *n < STACK_ARGUMENTS)
                .ok_or_else(|| {
                    wrong(format!(
                        "`{word}`: arguments on the stack are stack0 to stack31"
                    ))
                })?;
            return Ok(Place::Stack(n, self.part()?));
        }
        if word == "result" {
            return Ok(Place::Result(self.part()?));
        }
        if is_reserved(word) || !is_name(word) {
            return Err(wrong(format!(
                "`{word}` is not a place; expected arg0 to arg5, stack0 to stack31, result, the \
                 name of an earlier value, or an address in brackets"
            )));
        }
        Ok(Place::Named(word.to_owned()))
    }

    fn part(&mut self) -> Result<ValuePart, ExprError> {
        if self.peek() != Some('.') {
            return Ok(ValuePart::Whole);
        }
        self.at += 1;
        match self.word() {
            "lo" => Ok(ValuePart::Low),
            "hi" => Ok(ValuePart::High),
            other => Err(self.error(format!(
                "`.{other}`: the parts of an argument are .lo and .hi"
            ))),
        }
    }

    /// A number below 2^31, decimal or `0x...`.
    fn number(&mut self) -> Result<i32, ExprError> {
        let start = self.skip_spaces();
        let word = self.word();
        let parsed = match word.strip_prefix("0x") {
            Some(digits) => i32::from_str_radix(digits, 16),
            None => word.parse(),
        };
        parsed.map_err(|_| ExprError {
            at: start,
            message: format!(
                "`{word}` is not an offset; write a number below 2147483648, decimal or 0x..."
            ),
        })
    }

    fn expect(&mut self, wanted: char, name: &str) -> Result<(), ExprError> {
        match self.peek() {
            Some(found) if found == wanted => {
                self.at += wanted.len_utf8();
                Ok(())
            }
            Some(found) => Err(self.error(format!("expected {name}, found `{found}`"))),
            None => Err(self.error(format!("expected {name}, found the end"))),
        }
    }

    /// Letters, digits and underscores from here on; possibly none.
    fn word(&mut self) -> &'a str {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let end = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).unwrap_or_default()
    }

    fn skip_spaces(&mut self) -> usize {
        let rest = self.text.get(self.at..).unwrap_or_default();
        self.at += rest.len() - rest.trim_start().len();
        self.at
    }

    /// The next character that is no space.
    fn peek(&mut self) -> Option<char> {
        self.skip_spaces();
        self.text.get(self.at..)?.chars().next()
    }

    fn error(&self, message: String) -> ExprError {
        ExprError {
            at: self.at,
            message,
        }
    }
}

/// The type of numbers with this name: format and bytes.
pub(super) fn scalar(word: &str) -> Option<(ValueFormat, u8)> {
    SCALARS
        .iter()
        .find(|(name, ..)| *name == word)
        .map(|&(_, format, size)| (format, size))
}

/// `argN` and the like: N. A number with a leading zero is a name.
fn numbered(word: &str, prefix: &str) -> Option<u32> {
    let digits = word.strip_prefix(prefix)?;
    if digits.len() > 1 && digits.starts_with('0') {
        return None;
    }
    digits.parse().ok()
}

/// Whether a word can name a value: lower case, digits and underscores.
pub fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_lowercase())
        && word
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// What an expression without a type is: a handle or an address.
fn default_type(place: &Place) -> Type {
    let size = match part(place) {
        ValuePart::Whole => 8,
        ValuePart::Low | ValuePart::High => 4,
    };
    (ValueFormat::Hex, size).into()
}

fn part(place: &Place) -> ValuePart {
    match place {
        Place::Argument(_, part) | Place::Stack(_, part) | Place::Result(part) => *part,
        Place::Named(_) | Place::Read(_) => ValuePart::Whole,
    }
}

/// What the grammar allows and makes no sense.
fn check(ty: &Type, at: &Address) -> Result<(), String> {
    let Type::Scalar { format, size } = ty else {
        return Ok(());
    };
    if at.offset != 0 {
        return Err(
            "a number has no offset; to read memory at an address, write [place+offset]".into(),
        );
    }
    if part(&at.place) != ValuePart::Whole && *size > 4 {
        return Err("`.lo` and `.hi` have 4 bytes: use u32, i32, hex32 or a smaller type".into());
    }
    match (&at.place, format) {
        (Place::Argument(..) | Place::Result(_), ValueFormat::Float(_)) => Err(
            "floating-point registers cannot be read, only floating-point values in memory".into(),
        ),
        (Place::Named(name), _) => Err(format!(
            "`{name}` is an earlier value: use it as an address, as in `[{name}+8]`, or as a count"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar_of(text: &str) -> (ValueFormat, u8, Place) {
        match parse(text) {
            Ok(Expr {
                ty: Type::Scalar { format, size },
                at: Address { place, offset: 0 },
            }) => (format, size, place),
            other => panic!("{text}: {other:?}"),
        }
    }

    fn read(place: Place, offset: i32) -> Place {
        Place::Read(Box::new(Address { place, offset }))
    }

    #[test]
    fn places() {
        let hex = ValueFormat::Hex;
        let arg = |n| Place::Argument(n, ValuePart::Whole);
        assert_eq!(scalar_of("arg0"), (hex, 8, arg(0)));
        assert_eq!(
            scalar_of("arg5.hi"),
            (hex, 4, Place::Argument(5, ValuePart::High))
        );
        assert_eq!(
            scalar_of("u16 arg1.lo"),
            (ValueFormat::Decimal, 2, Place::Argument(1, ValuePart::Low))
        );
        assert_eq!(
            scalar_of("i32 stack12"),
            (
                ValueFormat::Signed(4),
                4,
                Place::Stack(12, ValuePart::Whole)
            )
        );
        assert_eq!(scalar_of(" [ arg2 + 0x10 ] "), (hex, 8, read(arg(2), 16)));
        assert_eq!(
            scalar_of("f64 [[name]-8]"),
            (
                ValueFormat::Float(8),
                8,
                read(read(Place::Named("name".into()), 0), -8)
            )
        );
        assert_eq!(
            scalar_of("result"),
            (hex, 8, Place::Result(ValuePart::Whole))
        );
    }

    #[test]
    fn data() {
        let expr = parse("text [arg1+24]").unwrap();
        assert_eq!(expr.ty, Type::Text);
        assert_eq!(
            expr.at.place,
            read(Place::Argument(1, ValuePart::Whole), 24),
            "the address of the text is read"
        );
        let expr = parse("bytes(u32 [arg1+4]) arg0+64").unwrap();
        assert_eq!(expr.at.offset, 64);
        let count = Count {
            size: 4,
            at: read(Place::Argument(1, ValuePart::Whole), 4),
        };
        assert_eq!(expr.ty, Type::Bytes(count));
        let named = |text: &str| matches!(parse(text).unwrap().at.place, Place::Read(_));
        assert!(named("[bytes]") && named("[bytes+8]") && named("bytes(bytes) [bytes]"));
        let expr = parse("handles(count) arg2").unwrap();
        let count = Count {
            size: 8,
            at: Place::Named("count".into()),
        };
        assert_eq!(expr.ty, Type::Handles(count));
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, at, message) in [
            ("", 0, "expected arg0"),
            ("arg6", 0, "the next is stack0"),
            ("u32 arg6", 4, "the next is stack0"),
            ("stack32", 0, "stack0 to stack31"),
            ("[arg0", 5, "expected `]`, found the end"),
            ("[arg0+x]", 6, "not an offset"),
            ("[arg0+2147483648]", 6, "not an offset"),
            ("arg0+8", 0, "write [place+offset]"),
            ("u64 arg0.hi", 4, "`.lo` and `.hi` have 4 bytes"),
            ("arg0.mid", 8, ".lo and .hi"),
            ("f32 arg0", 4, "floating-point"),
            ("text", 4, "expected arg0"),
            ("handles arg0", 8, "count in parentheses"),
            ("handles(i32 arg1) arg0", 8, "a count must be u8"),
            ("arg0 arg1", 5, "expected the end"),
            ("Kernel", 0, "not a place"),
            ("count", 0, "is an earlier value"),
            ("u32 text", 4, "not a place"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(
                error.message.contains(message) && error.at == at,
                "{text}: {error:?}"
            );
        }
    }

    #[test]
    fn hostile_expressions_are_refused() {
        assert!(parse(&"[".repeat(200)).is_err());
        assert!(parse(&"arg0 ".repeat(200)).is_err());
        assert!(parse("ä").is_err() && parse("[arg0+ä]").is_err());
        assert!(parse("[[[[[[arg0]]]]]]").is_ok());
        assert!(parse("[[[[[[[arg0]]]]]]]").is_err());
    }

    #[test]
    fn types_and_places_are_no_names() {
        for word in ["u8", "hex", "text", "arg0", "arg77", "stack3", "result"] {
            assert!(is_reserved(word), "{word}");
        }
        for word in ["arg", "arg00", "stack", "bytes", "results"] {
            assert!(!is_reserved(word), "{word}");
        }
    }
}
