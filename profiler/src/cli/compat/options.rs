//! The options of a command line, read from its help.
//!
//! A help text is a file, as it is printed. It is the only place that has the options, so what
//! is explained and what is read cannot differ.

/// Blanks before a line that continues an explanation: more than before any option.
const EXPLANATION: usize = 20;

/// An option, as the help has it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OptionRow {
    /// `-x`, or empty.
    pub(super) short: &'static str,
    /// `--name`.
    pub(super) long: &'static str,
    /// What stands for its value; empty: it has none.
    pub(super) value: &'static str,
    /// The heading above it.
    pub(super) heading: &'static str,
    /// What it does, as one line.
    pub(super) help: String,
}

/// How many values an option has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueCount {
    /// None.
    Zero,
    /// Exactly one.
    One,
    /// Any number.
    Any,
}

impl OptionRow {
    /// Reads `-x, --name VALUE  explanation`.
    fn read(heading: &'static str, line: &'static str) -> Self {
        let (names, help) = line.split_once("  ").unwrap_or((line, ""));
        let (short, names) = names.split_once(", ").unwrap_or(("", names));
        let (long, value) = names.split_once(' ').unwrap_or((names, ""));
        Self {
            short,
            long,
            value,
            heading,
            help: help.trim().to_owned(),
        }
    }

    /// How many values it has: `[A ...]` stands for any number.
    pub(super) fn count(&self) -> ValueCount {
        match self.value {
            "" => ValueCount::Zero,
            value if value.starts_with('[') => ValueCount::Any,
            _ => ValueCount::One,
        }
    }

    /// The values that there are to choose from: those of `{a,b}`.
    pub(super) fn choices(&self) -> impl Iterator<Item = &'static str> + use<> {
        let list = self.value.split(['{', '}']).nth(1);
        list.unwrap_or_default().split(',')
    }
}

/// The options of a help text, in their order.
pub(super) fn rows(help: &'static str) -> Vec<OptionRow> {
    let mut rows: Vec<OptionRow> = Vec::new();
    let mut heading = "";
    for line in help.lines() {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if indent == 0 {
            heading = line;
        } else if indent < EXPLANATION && text.starts_with('-') {
            rows.push(OptionRow::read(heading, text));
        } else if indent >= EXPLANATION
            && let Some(row) = rows.last_mut()
        {
            let blank = if row.help.is_empty() { "" } else { " " };
            row.help.push_str(blank);
            row.help.push_str(text);
        }
    }
    rows
}

/// The option that is written so.
pub(super) fn named(rows: &'static [OptionRow], name: &str) -> Option<&'static OptionRow> {
    rows.iter()
        .find(|row| !name.is_empty() && (row.short == name || row.long == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_help_text_is_a_table_of_options() {
        const HELP: &str = "\
Examples:
  app -a b    does it

Options:
  -a, --all [{x,y} ...]
                        Everything, and
                        more
      --one N           One

Not supported:
  --none  why
";
        let row = |short, long, value, heading, help: &str| OptionRow {
            short,
            long,
            value,
            heading,
            help: help.to_owned(),
        };
        let found = rows(HELP);
        assert_eq!(
            found,
            [
                row(
                    "-a",
                    "--all",
                    "[{x,y} ...]",
                    "Options:",
                    "Everything, and more"
                ),
                row("", "--one", "N", "Options:", "One"),
                row("", "--none", "", "Not supported:", "why"),
            ]
        );
        let counts: Vec<_> = found.iter().map(OptionRow::count).collect();
        assert_eq!(counts, [ValueCount::Any, ValueCount::One, ValueCount::Zero]);
        assert_eq!(found[0].choices().collect::<Vec<_>>(), ["x", "y"]);
    }
}
