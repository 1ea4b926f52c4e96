//! Command lines as Python's argparse reads them (3.11): abbreviated long options,
//! bundled short ones, `--option=value`, values that look like negative numbers, and
//! its messages. clap reads command lines differently; scripts written for acelyzer
//! must not notice.

use super::super::options::{OptionRow, ValueCount, named};
use super::help::OURS;
use std::fmt::Write as _;

/// An option as argparse names it in messages: `-x/--name`.
pub(super) fn display(option: &OptionRow) -> String {
    match option.short {
        "" => option.long.to_owned(),
        short => format!("{short}/{}", option.long),
    }
}

/// A piece of the command line.
#[derive(Clone, Copy)]
enum Piece<'a> {
    /// Not an option.
    Word(&'a str),
    /// `--` and all that follows it is no option.
    Dashes,
    /// Looks like an option and is none.
    Unknown(&'a str),
    /// An option as it was written, with the text after `=` or after a short option.
    Option(&'static OptionRow, &'a str, Option<&'a str>),
}

/// Reads `args` (without the program's name). For each option, in order, `take` gets
/// it with its values and may refuse them.
///
/// Returns the arguments that nothing takes.
///
/// # Errors
/// The message that argparse shows, without `usage:` and program.
pub(super) fn parse<'a>(
    options: &'static [OptionRow],
    args: &'a [String],
    mut take: impl FnMut(&'static OptionRow, &[&'a str]) -> Result<(), String>,
) -> Result<Vec<&'a str>, String> {
    let pieces = classify(options, args)?;
    let mut extras = Vec::new();
    let mut rest = pieces.as_slice();
    while let Some((piece, after)) = rest.split_first() {
        rest = after;
        match *piece {
            Piece::Word(word) | Piece::Unknown(word) => extras.push(word),
            Piece::Dashes => extras.push("--"),
            Piece::Option(option, _, None) => {
                let (values, after) = following(option, after)?;
                take(option, &values)?;
                rest = after;
            }
            Piece::Option(option, written, Some(text)) => {
                rest = with_text(options, option, written, text, after, &mut take)?;
            }
        }
    }
    Ok(extras)
}

/// An option with attached text: its value, or more short flags.
fn with_text<'a, 'p>(
    options: &'static [OptionRow],
    first: &'static OptionRow,
    written: &str,
    text: &'a str,
    after: &'p [Piece<'a>],
    take: &mut impl FnMut(&'static OptionRow, &[&'a str]) -> Result<(), String>,
) -> Result<&'p [Piece<'a>], String> {
    let mut flags = Vec::new();
    let (mut option, mut text) = (first, text);
    let mut is_short = !written.starts_with("--");
    loop {
        if option.count() != ValueCount::Zero {
            flags.into_iter().try_for_each(|flag| take(flag, &[]))?;
            take(option, &[text])?;
            return Ok(after);
        }
        let ignored = || {
            let text = repr(text);
            format!(
                "argument {}: ignored explicit argument {text}",
                display(option)
            )
        };
        let mut chars = text.chars();
        let Some(letter) = chars.next().filter(|_| is_short) else {
            return Err(ignored());
        };
        let bundled = options.iter().find(|o| {
            let mut short = o.short.chars().skip(1);
            short.next() == Some(letter)
        });
        flags.push(option);
        option = bundled.ok_or_else(ignored)?;
        is_short = true;
        text = chars.as_str();
        if text.is_empty() {
            flags.into_iter().try_for_each(|flag| take(flag, &[]))?;
            let (values, after) = following(option, after)?;
            take(option, &values)?;
            return Ok(after);
        }
    }
}

/// The values of an option among the pieces after it.
fn following<'a, 'p>(
    option: &'static OptionRow,
    after: &'p [Piece<'a>],
) -> Result<(Vec<&'a str>, &'p [Piece<'a>]), String> {
    let most = match option.count() {
        ValueCount::Zero => 0,
        ValueCount::One => 1,
        ValueCount::Any => usize::MAX,
    };
    let words = after.iter().map_while(|piece| match piece {
        Piece::Word(word) => Some(*word),
        _ => None,
    });
    let values: Vec<_> = words.take(most).collect();
    if option.count() == ValueCount::One && values.is_empty() {
        return Err(format!(
            "argument {}: expected one argument",
            display(option)
        ));
    }
    let rest = after.get(values.len()..).unwrap_or_default();
    Ok((values, rest))
}

fn classify<'a>(
    options: &'static [OptionRow],
    args: &'a [String],
) -> Result<Vec<Piece<'a>>, String> {
    let mut pieces = Vec::with_capacity(args.len());
    let mut words_only = false;
    for arg in args {
        pieces.push(match arg.as_str() {
            arg if words_only => Piece::Word(arg),
            "--" => {
                words_only = true;
                Piece::Dashes
            }
            arg => classify_one(options, arg)?,
        });
    }
    Ok(pieces)
}

fn classify_one<'a>(options: &'static [OptionRow], arg: &'a str) -> Result<Piece<'a>, String> {
    if !arg.starts_with('-') || arg.len() == 1 {
        return Ok(Piece::Word(arg));
    }
    if let Some(option) = named(options, arg) {
        return Ok(Piece::Option(option, arg, None));
    }
    let (name, value) = match arg.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (arg, None),
    };
    if let Some(option) = named(options, name) {
        return Ok(Piece::Option(option, name, value));
    }
    if arg.starts_with("--") {
        let matching = || {
            options
                .iter()
                .filter(|o| o.long.starts_with(name) && !OURS.contains(&o.long))
        };
        let mut found = matching();
        match (found.next(), found.next()) {
            (Some(option), None) => return Ok(Piece::Option(option, name, value)),
            (Some(_), Some(_)) => {
                let all: Vec<_> = matching().map(|o| o.long).collect();
                let all = all.join(", ");
                return Err(format!("ambiguous option: {arg} could match {all}"));
            }
            (None, _) => {}
        }
    } else if let Some((second, _)) = arg.char_indices().nth(2) {
        let (short, text) = arg.split_at(second);
        if let Some(option) = named(options, short) {
            return Ok(Piece::Option(option, short, Some(text)));
        }
    }
    if is_negative_number(arg) || arg.contains(' ') {
        return Ok(Piece::Word(arg));
    }
    Ok(Piece::Unknown(arg))
}

/// argparse's `^-\d+$|^-\d*\.\d+$`.
fn is_negative_number(arg: &str) -> bool {
    let digits = |text: &str| text.chars().all(char::is_numeric);
    match arg.strip_prefix('-') {
        Some(number) => match number.split_once('.') {
            None => !number.is_empty() && digits(number),
            Some((whole, part)) => digits(whole) && !part.is_empty() && digits(part),
        },
        None => false,
    }
}

/// A string as Python's `repr` shows it.
pub(super) fn repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if (c as u32) < 0x20 || (c as u32) == 0x7f => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// An integer as Python's `int()` reads it.
pub(super) fn int(text: &str) -> Option<i64> {
    number(text)?.parse().ok()
}

/// A number as Python's `float()` reads it.
pub(super) fn float(text: &str) -> Option<f64> {
    number(text)?.parse().ok()
}

/// Without blanks around it and without `_` between digits.
fn number(text: &str) -> Option<String> {
    let text = text.trim();
    let chars: Vec<_> = text.chars().collect();
    let is_digit = |i: Option<usize>| {
        i.and_then(|i| chars.get(i))
            .is_some_and(char::is_ascii_digit)
    };
    let misplaced = |i: usize| !is_digit(i.checked_sub(1)) || !is_digit(i.checked_add(1));
    let mut underscores = chars.iter().enumerate().filter(|(_, c)| **c == '_');
    if underscores.any(|(i, _)| misplaced(i)) {
        return None;
    }
    Some(text.replace('_', ""))
}
