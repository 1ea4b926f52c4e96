//! Listings of device code by Intel's disassembler `iga64`, and the registers that
//! their instructions use.

use std::collections::BTreeSet;
use std::path::Path;

/// An instruction as iga64 prints it.
#[derive(Debug)]
pub struct Listed {
    /// Bytes from the first instruction.
    pub offset: u32,
    /// The whole syntax, with one space between words.
    pub text: String,
    /// The operation with its sub-function.
    pub mnemonic: String,
    /// Scoreboard annotations, as printed.
    pub swsb: String,
    /// Offsets that it may go to.
    pub targets: BTreeSet<u32>,
    /// Whether the thread ends here.
    pub end: bool,
    /// Whether it has 8 bytes.
    pub compacted: bool,
    /// Whether a label stands before it.
    pub labelled: bool,
}

/// Reads a listing that `iga64 -d -Xprint-pc` wrote.
///
/// # Errors
/// When the file cannot be read, or an offset in it.
pub fn read_listing(path: &Path) -> anyhow::Result<Vec<Listed>> {
    let text = std::fs::read(path)?;
    let text = String::from_utf8_lossy(&text);
    let mut listed = Vec::new();
    let mut labelled = false;
    for line in text.lines() {
        let Some((offset, syntax)) = line
            .strip_prefix("/* [")
            .and_then(|l| l.split_once("]  */ "))
        else {
            labelled |= line.starts_with('L');
            continue;
        };
        let offset = u32::from_str_radix(offset, 16)?;
        listed.push(Listed::read(offset, syntax, std::mem::take(&mut labelled)));
    }
    Ok(listed)
}

impl Listed {
    fn read(offset: u32, syntax: &str, labelled: bool) -> Self {
        let code = syntax.split("//").next().unwrap_or_default();
        let options: Vec<&str> = match code.rsplit_once('{') {
            Some((_, options)) => options.trim().trim_end_matches('}').split(',').collect(),
            None => Vec::new(),
        };
        let annotations = options
            .iter()
            .filter(|o| o.contains('@') || o.starts_with('$'));
        let words: Vec<&str> = without_predicate(code).split_whitespace().collect();
        let label = |word: &&str| word.strip_prefix('L')?.parse().ok();
        Self {
            offset,
            text: spaced(syntax),
            mnemonic: words[0].to_owned(),
            swsb: annotations.copied().collect::<Vec<_>>().join(","),
            targets: words.iter().filter_map(label).collect(),
            end: options.contains(&"EOT") || words[0] == "illegal",
            compacted: options.contains(&"Compacted"),
            labelled,
        }
    }
}

fn without_predicate(code: &str) -> &str {
    let code = code.trim_start();
    match code.strip_prefix('(').and_then(|c| c.split_once(')')) {
        Some((_, rest)) => rest,
        None => code,
    }
}

/// Text with one space between its words.
#[must_use]
pub fn spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether one writes a register that the other reads or writes, where general
/// registers have `grf` bytes.
#[must_use]
pub fn share(waiting: &Listed, found: &Listed, grf: u32) -> bool {
    let ((w0, r0), (w1, r1)) = (registers(waiting, grf), registers(found, grf));
    let overlap = |a: &BTreeSet<String>, b: &BTreeSet<String>| !a.is_disjoint(b);
    overlap(&w1, &r0) || overlap(&w1, &w0) || overlap(&r1, &w0)
}

/// Registers that an instruction writes, and those that it reads.
fn registers(listed: &Listed, grf: u32) -> (BTreeSet<String>, BTreeSet<String>) {
    let code = listed.text.split(" //").next().unwrap_or_default();
    let code = code.split('{').next().unwrap_or_default();
    let (mut written, mut read) = (BTreeSet::new(), BTreeSet::new());
    let rest = without_predicate(code);
    let predicate = &code[..code.len() - rest.len()];
    read.extend(flag(predicate));
    let mut words = rest.split_whitespace().skip(1);
    let width = words
        .next()
        .and_then(|w| w.trim_start_matches('(').split('|').next()?.parse().ok());
    let mut words = words.peekable();
    if let Some(condition) = words.next_if(|w| w.starts_with('(') && w.contains(")f")) {
        written.extend(flag(condition));
    }
    let mut operands = words.map(|word| operand(word, width.unwrap_or(1), grf));
    written.extend(operands.next().into_iter().flatten());
    read.extend(operands.flatten());
    let implied = ["mac", "mach", "macl", "addc", "subb"];
    if implied.contains(&&*listed.mnemonic) || listed.text.contains("AccWrEn") {
        written.insert("acc".to_owned());
        read.insert("acc".to_owned());
    }
    (written, read)
}

fn flag(text: &str) -> Option<String> {
    let at = text.find('f')?;
    Some(text.get(at..at + 2)?.to_owned())
}

/// The registers of an operand: of general ones, which have `grf` bytes, each that
/// its elements reach.
fn operand(word: &str, width: u32, grf: u32) -> BTreeSet<String> {
    let word = word
        .trim_start_matches(['-', '~'])
        .trim_start_matches("(abs)");
    let digits = |text: &str| {
        text.chars()
            .take_while(char::is_ascii_digit)
            .collect::<String>()
    };
    let mut registers = BTreeSet::new();
    for name in ["acc", "f", "a", "r[a", "s"] {
        if let Some(rest) = word
            .strip_prefix(name)
            .filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        {
            let name = name.trim_start_matches("r[");
            registers.insert(if name == "acc" {
                name.to_owned()
            } else {
                format!("{name}{}", digits(rest))
            });
        }
    }
    let Some(Ok(first)) = word.strip_prefix('r').map(|r| digits(r).parse::<u32>()) else {
        return registers;
    };
    let size = match word.rsplit(':').next() {
        Some("df" | "q" | "uq") => 8,
        Some("f" | "d" | "ud") => 4,
        _ => 2,
    };
    let region: Vec<u32> = word
        .split(['<', '>'])
        .nth(1)
        .unwrap_or_default()
        .split([';', ','])
        .filter_map(|n| n.parse().ok())
        .collect();
    let elements = match region[..] {
        [0, ..] => 1,
        [stride] => width * stride,
        [vertical, across, _] => width / across.max(1) * vertical.max(1),
        [vertical, _] => width * vertical,
        _ => width,
    };
    let count = (elements * size).div_ceil(grf).max(1);
    registers.extend((first..first + count).map(|n| format!("r{n}")));
    registers
}
