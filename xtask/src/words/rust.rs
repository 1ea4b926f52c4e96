//! The texts of a Rust file: strings that users see, the help of command lines, comments.

use super::area::Area;
use super::comments;
use super::lexer::{Kind, Language, Token, decode, tokens};
use super::text::{Style, Text, texts};

/// Macros whose strings are for developers.
const INTERNAL: [&str; 11] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "panic",
    "todo",
    "unimplemented",
    "unreachable",
    "compile_error",
];
/// Methods that are the same.
const EXPECT: [&str; 2] = ["expect", "expect_err"];
/// What clap derives command lines for, with their doc comments as the help.
const CLAP: [&str; 4] = ["Args", "Parser", "Subcommand", "ValueEnum"];
/// Attributes that clap reads.
const CLAP_ATTRIBUTES: [&str; 5] = ["arg", "command", "clap", "value", "group"];
/// Words in them that keep a doc comment out of the help.
const UNSEEN: [&str; 4] = ["flatten", "hide", "skip", "subcommand"];
/// What items begin with; others (fields, variants) end at a comma.
const ITEMS: [&str; 15] = [
    "async",
    "const",
    "enum",
    "extern",
    "fn",
    "impl",
    "let",
    "macro_rules",
    "mod",
    "pub",
    "static",
    "struct",
    "trait",
    "type",
    "use",
];

/// What is read of a file.
#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) texts: Vec<(Area, Style, Text)>,
    /// Modules in files of their own that are compiled for tests only.
    pub(super) test_modules: Vec<String>,
}

/// Who sees the strings and doc comments of a piece of source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Users see strings; doc comments are for developers.
    Code,
    /// Users see doc comments too.
    Help,
    /// Users see neither.
    Never,
    /// A string that developers read as a comment: the reason of an attribute.
    Reason,
}

/// Reads a file. Strings and help are taken of a product's.
pub(super) fn read(source: &str, is_product: bool) -> Source {
    let tokens = tokens(source, Language::Rust);
    let mut reader = Reader {
        seen: vec![Seen::Code; tokens.len()],
        closing: closings(&tokens),
        tokens: &tokens,
        test_modules: Vec::new(),
    };
    reader.walk();
    let mut found = Source::default();
    for (token, seen) in tokens.iter().zip(&reader.seen) {
        if !matches!(token.kind, Kind::Text { .. }) {
            continue;
        }
        let area = match seen {
            Seen::Reason => Area::Comments,
            Seen::Code if is_product => Area::Messages,
            Seen::Help if is_product => Area::Help,
            _ => continue,
        };
        if is_prose(token) {
            let of = texts(&decode(token), Style::Message).into_iter();
            found
                .texts
                .extend(of.map(|text| (area, Style::Message, text)));
        }
    }
    let is_help = |at: usize| reader.seen[at] == Seen::Help && tokens[at].kind == Kind::Doc;
    for (at, lines) in comments::groups(&tokens) {
        let area = if is_product && is_help(at) {
            Area::Help
        } else {
            Area::Comments
        };
        let of = texts(&lines, Style::Markdown).into_iter();
        found
            .texts
            .extend(of.map(|text| (area, Style::Markdown, text)));
    }
    found.test_modules = reader.test_modules;
    found
}

/// For each bracket that opens, where it is closed.
fn closings(tokens: &[Token<'_>]) -> Vec<usize> {
    let mut closing = vec![tokens.len(); tokens.len()];
    let mut open = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Sign(b'(' | b'[' | b'{') => open.push(at),
            Kind::Sign(b')' | b']' | b'}') => {
                if let Some(from) = open.pop() {
                    closing[from] = at;
                }
            }
            _ => {}
        }
    }
    closing
}

struct Reader<'a> {
    tokens: &'a [Token<'a>],
    closing: Vec<usize>,
    seen: Vec<Seen>,
    test_modules: Vec<String>,
}

/// The attributes and comments before an item.
#[derive(Default)]
struct Header {
    end: usize,
    is_test: bool,
    is_clap: bool,
    is_unseen: bool,
    path: Option<String>,
}

impl Reader<'_> {
    fn walk(&mut self) {
        let mut at = 0;
        while at < self.tokens.len() {
            at = match self.tokens[at].kind {
                Kind::Doc => self.item(at),
                Kind::Sign(b'#') if self.is_sign(at + 1, b'[') => self.item(at),
                Kind::Word => self.call(at),
                _ => at + 1,
            };
        }
    }

    fn is_sign(&self, at: usize, sign: u8) -> bool {
        self.tokens.get(at).is_some_and(|token| token.is_sign(sign))
    }

    fn word(&self, at: usize) -> &str {
        let token = self.tokens.get(at).filter(|token| token.kind == Kind::Word);
        token.map_or("", |token| token.text)
    }

    fn mark(&mut self, from: usize, to: usize, seen: Seen) {
        let to = to.min(self.seen.len());
        if let Some(seen_by) = self.seen.get_mut(from..to) {
            seen_by.fill(seen);
        }
    }

    /// Hides the strings of macros and methods that are for developers.
    fn call(&mut self, at: usize) -> usize {
        let name = self.word(at);
        let is_macro = self.is_sign(at + 1, b'!') && INTERNAL.contains(&name);
        let is_method = at > 0 && self.is_sign(at - 1, b'.') && EXPECT.contains(&name);
        let open = at + if is_macro { 2 } else { 1 };
        if (is_macro || is_method) && open < self.tokens.len() {
            let end = self.closing[open];
            self.mark(open, end, Seen::Never);
            return end;
        }
        at + 1
    }

    /// An item from its first comment or attribute on; gives where to go on.
    fn item(&mut self, start: usize) -> usize {
        let header = self.header(start);
        let end = self.end_of_item(header.end);
        if header.is_test {
            self.mark(start, end, Seen::Never);
            self.test_module(&header, end);
            return end.max(header.end);
        }
        if header.is_clap {
            self.docs(start, end, Seen::Help);
        }
        if header.is_unseen {
            self.docs(start, header.end, Seen::Code);
        }
        header.end
    }

    /// Sets who sees the doc comments of a range.
    fn docs(&mut self, start: usize, end: usize, seen: Seen) {
        let all = self.tokens.iter().zip(&mut self.seen);
        let own = all.take(end).skip(start);
        let docs = own.filter(|(token, _)| token.kind == Kind::Doc);
        docs.for_each(|(_, seen_by)| *seen_by = seen);
    }

    fn header(&mut self, start: usize) -> Header {
        let mut header = Header {
            end: start,
            ..Header::default()
        };
        while let Some(token) = self.tokens.get(header.end) {
            match token.kind {
                Kind::Doc | Kind::Comment => header.end += 1,
                Kind::Sign(b'#') if self.is_sign(header.end + 1, b'[') => {
                    let close = self.closing[header.end + 1];
                    self.attribute(header.end + 2, close, &mut header);
                    header.end = (close + 1).min(self.tokens.len());
                }
                _ => break,
            }
        }
        header
    }

    fn attribute(&mut self, from: usize, to: usize, header: &mut Header) {
        let own = &self.tokens[from.min(to)..to];
        let has = |word: &str| own.iter().any(|token| token.is_word(word));
        let name = self.word(from);
        let seen = match name {
            "error" => Seen::Code,
            name if CLAP_ATTRIBUTES.contains(&name) => {
                header.is_unseen |= UNSEEN.iter().any(|word| has(word));
                Seen::Help
            }
            _ => Seen::Reason,
        };
        header.is_test |= name == "cfg" && has("test") && !has("not");
        header.is_clap |= name == "derive" && CLAP.iter().any(|word| has(word));
        if name == "path" {
            let text = own
                .iter()
                .find(|token| matches!(token.kind, Kind::Text { .. }));
            header.path = text.map(|token| token.text.to_owned());
        }
        self.mark(from, to, seen);
    }

    /// Where an item ends, that begins here.
    fn end_of_item(&self, start: usize) -> usize {
        let ends_at_comma = !ITEMS.contains(&self.word(start));
        let mut at = start;
        while let Some(token) = self.tokens.get(at) {
            match token.kind {
                Kind::Sign(b';') => return at + 1,
                Kind::Sign(b',') if ends_at_comma => return at + 1,
                Kind::Sign(b'{') => return (self.closing[at] + 1).min(self.tokens.len()),
                Kind::Sign(b'(' | b'[') => at = self.closing[at],
                Kind::Sign(b')' | b']' | b'}') => return at,
                _ => {}
            }
            at += 1;
        }
        self.tokens.len()
    }

    /// Notes the file of a module for tests.
    fn test_module(&mut self, header: &Header, end: usize) {
        let item = &self.tokens[header.end.min(end)..end];
        let Some(at) = item.iter().position(|token| token.is_word("mod")) else {
            return;
        };
        if let [_, name, last] = &item[at..]
            && last.is_sign(b';')
        {
            let path = header
                .path
                .as_deref()
                .and_then(|path| path.strip_suffix(".rs"));
            let name = path.map_or(name.text.to_owned(), |path| format!("/{path}"));
            self.test_modules.push(name);
        }
    }
}

/// Whether a string may be prose, and not code of another language.
fn is_prose(token: &Token<'_>) -> bool {
    let text = token.text.trim_start();
    let is_raw = token.kind == Kind::Text { is_raw: true };
    let begins = |with: &[&str]| with.iter().any(|with| text.starts_with(with));
    let has = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let is_query = begins(&[
        "SELECT ", "INSERT ", "CREATE ", "WITH ", "COPY ", "DELETE ", "UPDATE ",
    ]);
    let is_data = begins(&[
        "{\"", "[{", "{\\\"", "{{\"", "{{\\\"", "[\"", "#include", "import ",
    ]);
    let is_pattern = is_raw && has(&["(?", "\\b", "\\s", "\\d", "\\w", "[^", ".*"]);
    let is_style = has(&[";}", "; }"]);
    text.contains(' ') && !is_query && !is_data && !is_pattern && !is_style
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str, wanted: Area) -> Vec<String> {
        let texts = read(source, true).texts.into_iter();
        let own = texts.filter(|(area, ..)| *area == wanted);
        own.map(|(.., text)| text.body).collect()
    }

    #[test]
    fn strings_that_users_see_are_messages() {
        let source = r##"
            #[error("it says {0}")]
            #[allow(dead_code, reason = "a reason why")]
            fn f() {
                bail!("cannot \
                       read {}", g.expect("no such thing"));
                assert!(x, "a b c");
                let sql = "SELECT a, b FROM c";
                let json = r#"{"a": 1}"#;
                let pattern = r"^a .* b$";
            }
            #[cfg(test)]
            use a::b;
            #[cfg(test)]
            mod tests { fn g() { bail!("for tests alone"); } }
            fn h() { info!("after the tests"); }
        "##;
        let messages = found(source, Area::Messages);
        assert_eq!(
            messages,
            ["it says {0}", "cannot read {}", "after the tests"]
        );
        assert_eq!(found(source, Area::Comments), ["a reason why"]);
    }

    #[test]
    fn doc_comments_of_command_lines_are_help() {
        let source = r#"
            /// Words of the command.
            #[derive(Debug, Args)]
            // Not shown.
            #[command(after_help = "More of it")]
            struct A {
                /// Shown.
                #[arg(long, help = "In short")]
                a: u8,
                /// Not seen.
                #[command(flatten)]
                b: B,
            }
            /// A plain item.
            struct B { /** a field */ c: u8 }
        "#;
        let help = found(source, Area::Help);
        assert_eq!(
            help,
            ["More of it", "In short", "Words of the command.", "Shown."]
        );
        let comments = found(source, Area::Comments);
        assert_eq!(
            comments,
            ["Not shown.", "Not seen.", "A plain item.", "a field"]
        );
    }

    #[test]
    fn files_of_tests_are_known() {
        let source = "#[cfg(test)]\nmod a;\n#[cfg(any(test, fuzzing))]\n#[path = \"b_tests.rs\"]\n\
                      pub(crate) mod b;\n#[cfg(not(test))]\nmod c;\n#[cfg(test)]\nmod d {}\nmod e;";
        assert_eq!(read(source, true).test_modules, ["a", "/b_tests"]);
    }

    #[test]
    fn a_field_for_tests_ends_at_its_comma() {
        let source = "struct A { #[cfg(test)] a: [u8; 2], b: B }\nfn f() { g(\"a b c\") }";
        assert_eq!(found(source, Area::Messages), ["a b c"]);
    }
}
