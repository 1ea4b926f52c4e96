//! Lines of a file, and the texts that they make: paragraphs, items of lists, cells of tables,
//! headings.

/// Stands in a line where the source goes on on its next line and the text does not.
pub(super) const WRAP: char = '\u{e000}';

/// A line of text.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Its number in the file.
    pub(super) number: usize,
    pub(super) text: String,
    /// It is shown as a line of its own, whatever stands before.
    pub(super) is_hard: bool,
}

impl Line {
    pub(super) fn new(number: usize, text: impl Into<String>) -> Self {
        let (text, is_hard) = (text.into(), false);
        Self {
            number,
            text,
            is_hard,
        }
    }

    pub(super) fn hard(number: usize, text: impl Into<String>) -> Self {
        let line = Self::new(number, text);
        Self {
            is_hard: true,
            ..line
        }
    }

    /// The source goes on some lines further down, on line `number`.
    pub(super) fn wrap(&mut self, number: usize, lines: usize) {
        match self.text.is_empty() {
            true => self.number = number,
            false => self.text.extend(std::iter::repeat_n(WRAP, lines)),
        }
    }
}

/// The lines of a file, from `first` on.
pub(super) fn lines_of(text: &str, first: usize) -> Vec<Line> {
    let lines = text.lines().enumerate();
    lines
        .map(|(at, line)| Line::new(first + at, line))
        .collect()
}

/// A text, on one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Text {
    pub(super) body: String,
    /// Bytes of the body from which on it stands on a line of the file.
    lines: Vec<(usize, usize)>,
}

impl Text {
    fn add(&mut self, line: usize, text: &str) {
        if !self.body.is_empty() {
            self.body.push(' ');
        }
        for (wraps, part) in text.split(WRAP).enumerate() {
            self.lines.push((self.body.len(), line + wraps));
            self.body.push_str(part);
        }
    }

    /// The line of the file that a byte of the body stands on.
    pub(super) fn line_at(&self, at: usize) -> usize {
        let before = self.lines.iter().rev().find(|(from, _)| *from <= at);
        before.or(self.lines.first()).map_or(0, |(_, line)| *line)
    }
}

/// How a text is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Markdown, as in documents and in comments.
    Markdown,
    /// What a program prints: blanks lay it out, and `{}` stands for values.
    Message,
}

/// The texts that lines make.
pub(super) fn texts(lines: &[Line], style: Style) -> Vec<Text> {
    let mut blocks = Blocks {
        style,
        done: Vec::new(),
        open: None,
        fence: None,
        list: 0,
        code_may_begin: true,
        is_comment: false,
    };
    for line in lines {
        blocks.line(line);
    }
    blocks.close();
    blocks.done
}

/// A text that further lines may belong to.
struct Open {
    text: Text,
    /// Blanks before lines that belong to it.
    indents: [usize; 2],
}

struct Blocks {
    style: Style,
    done: Vec<Text>,
    open: Option<Open>,
    /// The marks that end a block of code.
    fence: Option<&'static str>,
    /// Where the content of the innermost item of a list begins.
    list: usize,
    /// A line that is indented by four begins code, or continues it.
    code_may_begin: bool,
    /// Within `<!--` and `-->`.
    is_comment: bool,
}

impl Blocks {
    fn line(&mut self, line: &Line) {
        let rest = line.text.trim_start_matches(' ');
        let indent = line.text.len() - rest.len();
        let rest = rest.trim_end_matches(|c: char| c == WRAP || c.is_whitespace());
        if self.style == Style::Markdown && self.is_code(indent, rest) {
            return self.close();
        }
        if rest.is_empty() {
            self.close();
            self.code_may_begin = true;
            return;
        }
        self.code_may_begin = false;
        if line.is_hard {
            self.close();
        }
        if rest.starts_with('>') {
            return self.close();
        }
        if rest.starts_with('|') {
            return self.table(line.number, rest);
        }
        if let Some(width) = marker(rest) {
            self.close();
            self.list = indent + width;
            return self.begin(line.number, indent + width, &rest[width..]);
        }
        match self.style {
            Style::Markdown => self.markdown(line.number, indent, rest),
            Style::Message => self.message(line.number, indent, rest),
        }
    }

    /// Whether a line is of a block of code, or begins or ends one.
    fn is_code(&mut self, indent: usize, rest: &str) -> bool {
        if let Some(fence) = self.fence {
            if rest.starts_with(fence) {
                self.fence = None;
            }
            return true;
        }
        self.fence = ["```", "~~~"]
            .into_iter()
            .find(|fence| rest.starts_with(fence));
        if rest.starts_with("<!--") || self.is_comment {
            self.is_comment = !rest.contains("-->");
            return true;
        }
        let is_indented = self.code_may_begin && self.open.is_none() && indent >= self.list + 4;
        self.fence.is_some() || is_indented && !rest.is_empty()
    }

    fn markdown(&mut self, number: usize, indent: usize, rest: &str) {
        let is_rule = rest.len() >= 3 && rest.bytes().all(|byte| b"-=*_ ".contains(&byte));
        let is_link = rest.starts_with('[') && rest.contains("]: ");
        if is_rule || is_link {
            return self.close();
        }
        let heading = rest.trim_start_matches('#');
        if heading.len() < rest.len() && heading.starts_with(' ') {
            self.close();
            self.begin(number, 0, heading);
            return self.close();
        }
        match &mut self.open {
            Some(open) => open.text.add(number, rest),
            None => {
                self.list = self.list.min(indent);
                self.begin(number, indent, rest);
            }
        }
    }

    /// A line of a message: columns are texts of their own, and the last goes on on lines that
    /// are indented as it is.
    fn message(&mut self, number: usize, indent: usize, rest: &str) {
        let columns = columns(rest);
        if let [(_, only)] = columns[..]
            && let Some(open) = &mut self.open
            && open.indents.contains(&indent)
        {
            return open.text.add(number, only);
        }
        self.close();
        for (at, column) in &columns {
            self.close();
            self.begin(number, indent + at, column);
        }
    }

    fn table(&mut self, number: usize, rest: &str) {
        self.close();
        for cell in cells(rest) {
            if !cell.bytes().all(|byte| b"-: ".contains(&byte)) {
                self.begin(number, 0, cell);
                self.close();
            }
        }
    }

    fn begin(&mut self, number: usize, indent: usize, text: &str) {
        let blanks = text.len() - text.trim_start().len();
        let mut open = Open {
            text: Text::default(),
            indents: [indent, indent + blanks],
        };
        open.text.add(number, text.trim());
        self.open = Some(open);
    }

    fn close(&mut self) {
        let text = self.open.take().map(|open| open.text);
        self.done.extend(text.filter(|text| !text.body.is_empty()));
    }
}

/// How wide the mark of an item of a list is, with the blank behind it.
fn marker(rest: &str) -> Option<usize> {
    for mark in ["- ", "* ", "+ ", "\u{2022} ", "\u{2013} "] {
        if rest.starts_with(mark) {
            return Some(mark.len());
        }
    }
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let is_number =
        (1..=2).contains(&digits) && matches!(rest[digits..].get(..2), Some(". " | ") "));
    is_number.then_some(digits + 2)
}

/// The columns of a line of a message, and where they begin.
fn columns(rest: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(gap) = rest[from..].find("  ") {
        found.push((from, &rest[from..from + gap]));
        let behind = &rest[from + gap..];
        from += gap + (behind.len() - behind.trim_start_matches(' ').len());
    }
    found.push((from, &rest[from..]));
    found
}

/// The cells of a table's row.
fn cells(row: &str) -> Vec<&str> {
    let (mut found, mut from, mut is_code, mut is_escaped) = (Vec::new(), 0, false, false);
    for (at, byte) in row.bytes().enumerate() {
        match byte {
            b'`' => is_code = !is_code,
            b'|' if !is_code && !is_escaped => {
                found.push(row[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
        is_escaped = byte == b'\\';
    }
    found.push(row[from..].trim());
    found.retain(|cell| !cell.is_empty());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(text: &str, style: Style) -> Vec<String> {
        let texts = texts(&lines_of(text, 1), style);
        texts.into_iter().map(|text| text.body).collect()
    }

    #[test]
    fn markdown_is_cut_into_texts() {
        let text = "# Head\nText that\ngoes on.\n\n- one\n  item\n- two\n\n      code\n\n    more of it\n\n\
                    1. number\n\n| a | `b|c` \\| d |\n|---|:-:|\n| e | |\n\n> quoted\n\n[x]: y\n***\nend\n";
        assert_eq!(
            bodies(text, Style::Markdown),
            [
                "Head",
                "Text that goes on.",
                "one item",
                "two",
                "more of it",
                "number",
                "a",
                "`b|c` \\| d",
                "e",
                "end"
            ]
        );
    }

    #[test]
    fn code_is_no_text() {
        let text = "a\n\n    code one\n\n    code two\n\nb\n    lazy\n\n```sh\nc\n```\nd\n<!-- e\nf -->\ng";
        assert_eq!(bodies(text, Style::Markdown), ["a", "b lazy", "d", "g"]);
    }

    #[test]
    fn messages_are_cut_where_they_are_laid_out() {
        let text = "Head that goes\non here.\n  --ci      first column\n            of two\n  --all     x\n\n\
                    - item\n  more\nend\n   of it";
        assert_eq!(
            bodies(text, Style::Message),
            [
                "Head that goes on here.",
                "--ci",
                "first column of two",
                "--all",
                "x",
                "item more",
                "end",
                "of it"
            ]
        );
    }

    #[test]
    fn texts_know_their_lines() {
        let lines = [
            Line::new(3, format!("a b{WRAP}c{WRAP}{WRAP}d")),
            Line::new(9, "e"),
        ];
        let [text] = &texts(&lines, Style::Message)[..] else {
            panic!("one text");
        };
        assert_eq!(text.body, "a bcd e");
        let lines: Vec<_> = (0..7).map(|at| text.line_at(at)).collect();
        assert_eq!(lines, [3, 3, 3, 4, 6, 6, 9]);
        let hard = [Line::new(1, "a"), Line::hard(1, "b")];
        assert_eq!(texts(&hard, Style::Message).len(), 2);
    }
}
