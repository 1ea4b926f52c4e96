//! Comments of all languages, and the texts of files that are configuration.

use super::area::Area;
use super::lexer::{Kind, Language, Token, decode, tokens};
use super::text::{Line, Style, Text, lines_of, texts};

/// Texts with their area and layout.
type Found = Vec<(Area, Style, Text)>;

/// Keys of YAML, JSON and units whose values people read.
const KEYS: [&str; 10] = [
    "about",
    "description",
    "Description",
    "help",
    "message",
    "msg",
    "name",
    "note",
    "summary",
    "title",
];

/// Comments that belong together: the first token, and the lines.
pub(super) fn groups(tokens: &[Token<'_>]) -> Vec<(usize, Vec<Line>)> {
    let mut found: Vec<(usize, Vec<Line>)> = Vec::new();
    let mut last: Option<&Token<'_>> = None;
    for (at, token) in tokens.iter().enumerate() {
        if !matches!(token.kind, Kind::Comment | Kind::Doc | Kind::InnerDoc) {
            last = None;
            continue;
        }
        let goes_on = last.is_some_and(|last| {
            last.kind == token.kind
                && last.is_first
                && token.is_first
                && last.line + 1 == token.line
        });
        match found.last_mut().filter(|_| goes_on) {
            Some((_, lines)) => lines.extend(comment_lines(token)),
            None => found.push((at, comment_lines(token))),
        }
        last = Some(token);
    }
    found
}

/// The lines of a comment, without the blank and the stars before them.
fn comment_lines(token: &Token<'_>) -> Vec<Line> {
    let lines = token.text.lines().enumerate().map(|(at, line)| {
        let star = line.trim_start().strip_prefix('*').filter(|_| at > 0);
        let behind = line.trim_start();
        let line = star.unwrap_or(if at > 0 { behind } else { line });
        Line::new(token.line + at, line.strip_prefix(' ').unwrap_or(line))
    });
    let lines: Vec<Line> = lines.collect();
    match lines.is_empty() {
        true => vec![Line::new(token.line, "")],
        false => lines,
    }
}

/// The comments of C; of JavaScript and CSS also what pages show.
pub(super) fn of_source(source: &str, language: Language, is_page: bool) -> Found {
    let tokens = tokens(source, language);
    let mut found = Found::new();
    for (_, lines) in groups(&tokens) {
        add(&mut found, Area::Comments, Style::Markdown, &lines);
    }
    for token in tokens.iter().filter(|_| is_page) {
        if matches!(token.kind, Kind::Text { .. }) {
            add(&mut found, Area::Pages, Style::Message, &decode(token));
        }
    }
    found
}

fn add(found: &mut Found, area: Area, style: Style, lines: &[Line]) {
    let texts = texts(lines, style).into_iter();
    found.extend(texts.map(|text| (area, style, text)));
}

/// Comments behind `#`, and docstrings of Python.
pub(super) fn of_script(source: &str, area: Area) -> Found {
    let mut found = Found::new();
    let mut lines: Vec<Line> = Vec::new();
    let mut docstring = false;
    for (at, line) in source.lines().enumerate() {
        let quotes = line.matches("\"\"\"").count();
        let comment = match hash_comment(line) {
            _ if docstring || quotes > 0 => Some(
                line.trim()
                    .trim_start_matches("\"\"\"")
                    .trim_end_matches("\"\"\""),
            ),
            Some((0, text)) => Some(text),
            Some((_, text)) => {
                add(&mut found, area, Style::Message, &lines);
                lines.clear();
                add(&mut found, area, Style::Message, &[Line::new(at + 1, text)]);
                None
            }
            None => None,
        };
        docstring ^= quotes == 1;
        match comment {
            Some(text) if !is_setting(text) => lines.push(Line::new(at + 1, text)),
            _ => {
                add(&mut found, area, Style::Message, &lines);
                lines.clear();
            }
        }
    }
    add(&mut found, area, Style::Message, &lines);
    found
}

/// How many bytes of code stand before a comment, and the comment.
fn hash_comment(line: &str) -> Option<(usize, &str)> {
    let mut quote = None;
    let mut before = b' ';
    for (at, byte) in line.bytes().enumerate() {
        match (byte, quote) {
            (b'#', None) if before == b' ' || before == b'\t' => {
                let text = line[at + 1..].trim_start_matches(['#', '!']);
                let code = line[..at].trim().len();
                return Some((code, text.strip_prefix(' ').unwrap_or(text)));
            }
            (b'"' | b'\'', None) => quote = Some(byte),
            (_, Some(open)) if byte == open && before != b'\\' => quote = None,
            _ => {}
        }
        before = byte;
    }
    None
}

/// Whether a comment is a setting that is commented out.
fn is_setting(text: &str) -> bool {
    let text = text.trim_start();
    let name = text.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || "_-.\"".contains(c));
    let is_named = name.len() < text.len();
    text.starts_with('[') || is_named && (name.starts_with(" = ") || name.starts_with('='))
}

/// The values of keys that people read.
pub(super) fn of_values(source: &str, area: Area) -> Found {
    let mut found = Found::new();
    let mut lines = source.lines().enumerate().peekable();
    while let Some((at, line)) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let Some(value) = value(line) else { continue };
        let mut own = vec![Line::new(at + 1, value)];
        if matches!(value, "|" | "|-" | ">" | ">-") {
            let is_deeper =
                |line: &str| line.trim().is_empty() || line.starts_with(&" ".repeat(indent + 1));
            own.clear();
            while let Some((at, line)) = lines.next_if(|(_, line)| is_deeper(line)) {
                own.push(Line::new(at + 1, line.trim()));
            }
        }
        add(&mut found, area, Style::Message, &own);
    }
    found
}

/// The value of a line `key: value` or `Key=value`, without quotes around it.
fn value(line: &str) -> Option<&str> {
    let line = line.trim().trim_start_matches("- ").trim_start_matches('{');
    let (key, value) = line.split_once([':', '='])?;
    let value = value.trim().trim_end_matches(',');
    let bare = value
        .strip_prefix('"')
        .and_then(|value| value.strip_suffix('"'));
    KEYS.contains(&key.trim_matches('"'))
        .then_some(bare.unwrap_or(value))
}

/// What shell scripts print.
pub(super) fn of_echo(source: &str, area: Area) -> Found {
    let mut found = Found::new();
    for (at, line) in source.lines().enumerate() {
        let prints = ["echo ", "printf "]
            .iter()
            .any(|print| line.trim_start().starts_with(print));
        if let Some(quote) = line.find(['"', '\'']).filter(|_| prints) {
            let text = line[quote + 1..].trim_end_matches(['"', '\'', ' ']);
            add(&mut found, area, Style::Message, &[Line::new(at + 1, text)]);
        }
    }
    found
}

/// A page: what stands between its tags.
pub(super) fn of_page(source: &str) -> Found {
    let mut found = Found::new();
    add(
        &mut found,
        Area::Pages,
        Style::Message,
        &lines_of(source, 1),
    );
    found
}

/// A document in Markdown.
pub(super) fn of_document(source: &str, area: Area) -> Found {
    let mut found = Found::new();
    add(&mut found, area, Style::Markdown, &lines_of(source, 1));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(found: Found) -> Vec<String> {
        found.into_iter().map(|(.., text)| text.body).collect()
    }

    #[test]
    fn lines_of_comments_belong_together() {
        let source = "// zero\n//\n// one\n// two\nx; // three\n// four\n\n/* five\n * six\n */";
        let found = bodies(of_source(source, Language::C, false));
        assert_eq!(found, ["zero", "one two", "three", "four", "five six"]);
    }

    #[test]
    fn pages_show_their_strings() {
        let found = of_source(
            "/* a b */ x = 'It shows ' + `${y} frames`;",
            Language::JavaScript,
            true,
        );
        assert_eq!(bodies(found), ["a b", "It shows", "${y} frames"]);
    }

    #[test]
    fn configuration_has_comments() {
        let source = "# One text\n# that goes on.\n# key = \"value\"\na = \"#1\" # three\n# [section]\nb='it'\n";
        assert_eq!(
            bodies(of_script(source, Area::Deploy)),
            ["One text that goes on.", "three"]
        );
        let python = "\"\"\"Does it.\n\nMore.\n\"\"\"\nx = 1\n# y";
        assert_eq!(
            bodies(of_script(python, Area::Comments)),
            ["Does it.", "More.", "y"]
        );
    }

    #[test]
    fn values_of_known_keys_are_read() {
        let source = "- summary: \"It is {{ x }}\"\nexpr: a b c\n\"title\": \"Of all\",\ndescription: |\n  One\n  text.\nname: b\n";
        assert_eq!(
            bodies(of_values(source, Area::Deploy)),
            ["It is {{ x }}", "Of all", "One text.", "b"]
        );
    }
}
