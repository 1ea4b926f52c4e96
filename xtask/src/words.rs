//! `cargo xtask words`: whether texts are in plain English.
//!
//! Rules find words and forms that slow readers down. Each has its line in [`RULES`]. What they
//! find is counted by area, and the counts are in `xtask/words.txt`: they may only fall.
//!
//! Rust, C, JavaScript and CSS are read with one small lexer (`words/lexer.rs`). syn reads no
//! comments, and would take longer to build than all of xtask.

mod area;
mod comments;
pub(crate) mod lexer;
mod rules;
mod rust;
mod sentence;
mod text;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};
use lexopt::prelude::*;

use self::area::{Area, File};
use self::rules::{Finds, Hit, Rule};
use self::text::Style;
use crate::proc::{capture, root};

/// The rules.
const RULES: &[Rule] = &[
    Rule {
        name: "TELL",
        finds: Finds::Words(&["tell", "tells", "told", "say", "says", "said"]),
        advice: "write what a program does: prints, shows, writes, reports, means, distinguishes",
    },
    Rule {
        name: "OF",
        finds: Finds::First("Of"),
        advice: "begin with the subject: `It records only names of other users`",
    },
    Rule {
        name: "OF-ONE",
        finds: Finds::Phrases(&[&["of", "one", "that"]]),
        advice: "name the thing again, or write two sentences",
    },
    Rule {
        name: "SUCH",
        finds: Finds::Phrases(&[&["such", "a", "one"]]),
        advice: "name the thing again",
    },
    Rule {
        name: "SO-MANY",
        finds: Finds::Phrases(&[&["so", "many"]]),
        advice: "give the number, or name it: `N`",
    },
    Rule {
        name: "AS-FAR",
        finds: Finds::Phrases(&[&["as", "far", "as"]]),
        advice: "write `if`, `where`, or `up to`",
    },
    Rule {
        name: "TO-BE",
        finds: Finds::Phrases(&[&["is", "to", "be"], &["are", "to", "be"]]),
        advice: "write `must` or `should`, or who does it",
    },
    Rule {
        name: "ANY-CASE",
        finds: Finds::Phrases(&[&["in", "any", "case"]]),
        advice: "write `always`, or leave it out",
    },
    Rule {
        name: "WHAT-IT-IS",
        finds: Finds::Phrases(&[&["what", "it", "is"]]),
        advice: "name it: its kind, its name, its purpose",
    },
    Rule {
        name: "NOBODY",
        // The user of this name is allowed.
        finds: Finds::Unless("nobody", &["user", "group"]),
        advice: "write `no user`, `no program`, `not ... by anyone`",
    },
    Rule {
        name: "LONG",
        finds: Finds::Longer(30),
        advice: "make two sentences; 30 words are the limit",
    },
];

pub(crate) const HELP: &str = "
Looks for words and long sentences that make texts hard to read: in documents, in what
programs print, in help, pages and templates. Prints `FILE:LINE: RULE: SENTENCE` for each,
then how many there are. Quotations and code are not checked.

  --update   write lower counts to xtask/words.txt
  --all      print what is in comments and guides for developers, too
  PATH       look only at these files and folders

The exit status is 1 where an area has more than its count in xtask/words.txt.
";

/// The counts that may only fall, and what stands above them.
const COUNTS: &str = "xtask/words.txt";
const COUNTS_HEAD: &str = "# How many findings `cargo xtask words` has by area. They may only fall: \
                           `--update` writes lower ones.\n";

/// How many findings each area has.
type Counts = BTreeMap<&'static str, usize>;

/// One finding.
#[derive(Clone, Debug)]
struct Finding {
    area: Area,
    /// The file, or `commits`.
    place: String,
    hit: Hit,
}

/// What the command line asks for.
#[derive(Debug, Default)]
struct Options {
    update: bool,
    all: bool,
    paths: Vec<String>,
}

pub(crate) fn main(args: Vec<String>) -> Result<ExitCode> {
    let options = options(args)?;
    let mut findings = check(&root())?;
    findings.extend(commits());
    if !options.paths.is_empty() {
        findings.retain(|finding| {
            options
                .paths
                .iter()
                .any(|path| is_below(&finding.place, path))
        });
    }
    print!("{}", report(&findings, options.all));
    if !options.paths.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let counts = counts(&findings);
    if options.update {
        let written = write_counts(&counts, &read_counts()?);
        fs::write(root().join(COUNTS), written).context(COUNTS)?;
    }
    let most = read_counts()?;
    let above = above(&counts, &most);
    for line in &above {
        eprintln!("{line}");
    }
    Ok(if above.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn options(args: Vec<String>) -> Result<Options> {
    let mut args = lexopt::Parser::from_args(args);
    let mut options = Options::default();
    while let Some(arg) = args.next()? {
        match arg {
            Long("update") => options.update = true,
            Long("all") => options.all = true,
            Value(path) => options.paths.push(own_path(Path::new(&path))?),
            _ => return Err(arg.unexpected().into()),
        }
    }
    if options.update && !options.paths.is_empty() {
        bail!("--update counts everything: leave PATH out");
    }
    Ok(options)
}

/// A path from the root of the repository on.
fn own_path(path: &Path) -> Result<String> {
    let all = [PathBuf::from(path), root().join(path)];
    let there = all.iter().find_map(|path| path.canonicalize().ok());
    let there = there.with_context(|| format!("there is no {}", path.display()))?;
    let own = there.strip_prefix(root().canonicalize()?);
    let own = own.with_context(|| format!("{} is not in the repository", path.display()))?;
    Ok(own.to_string_lossy().into_owned())
}

fn is_below(place: &str, path: &str) -> bool {
    let behind = place.strip_prefix(path);
    path.is_empty() || behind.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// All findings in the files of a repository.
fn check(root: &Path) -> Result<Vec<Finding>> {
    let files = area::files(root)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    // Every file to another thread: large ones stand side by side.
    let part = |first: usize| {
        files
            .iter()
            .skip(first)
            .step_by(threads)
            .map(check_file)
            .collect::<Vec<_>>()
    };
    let parts: Vec<_> = std::thread::scope(|scope| {
        let part = &part;
        let running: Vec<_> = (0..threads)
            .map(|first| scope.spawn(move || part(first)))
            .collect();
        running.into_iter().map(|thread| thread.join()).collect()
    });
    let (mut findings, mut tests) = (Vec::new(), Vec::new());
    for part in parts {
        let Ok(part) = part else {
            bail!("a thread that read files has panicked");
        };
        for (found, modules) in part {
            findings.extend(found);
            tests.extend(modules);
        }
    }
    let is_test = |file: &str| {
        let stem = file.strip_suffix(".rs").unwrap_or(file);
        tests.iter().any(|module| is_below(stem, module))
    };
    findings.retain(|finding: &Finding| {
        !matches!(finding.area, Area::Messages | Area::Help) || !is_test(&finding.place)
    });
    findings.sort_by(|a, b| (a.area, &a.place, a.hit.line).cmp(&(b.area, &b.place, b.hit.line)));
    Ok(findings)
}

/// The findings of a file, and the modules that it has for tests only.
fn check_file(file: &File) -> (Vec<Finding>, Vec<String>) {
    let read = area::read(file);
    let texts = read.texts.iter();
    let findings = texts.flat_map(|(area, style, text)| {
        rules::hits(text, *style).into_iter().map(|hit| Finding {
            area: *area,
            place: file.name.clone(),
            hit,
        })
    });
    (findings.collect(), read.test_modules)
}

/// The findings in subjects of commits, where git knows them.
fn commits() -> Vec<Finding> {
    let mut git = Command::new("git");
    let log = capture(git.current_dir(root()).args(["log", "--format=%s"]));
    let log = log.unwrap_or_default();
    let lines = text::lines_of(&log, 1).into_iter();
    let texts = lines.flat_map(|line| text::texts(&[line], Style::Markdown));
    let hits = texts.flat_map(|text| rules::hits(&text, Style::Markdown));
    let finding = |hit| Finding {
        area: Area::Commits,
        place: Area::Commits.name().to_owned(),
        hit,
    };
    hits.map(finding).collect()
}

/// What is printed: findings, advice, counts.
fn report(findings: &[Finding], all: bool) -> String {
    let mut out = String::new();
    let shown = findings
        .iter()
        .filter(|finding| all || finding.area.is_for_users());
    let mut rules = vec![0; RULES.len()];
    for Finding { place, hit, .. } in shown {
        let rule = &RULES[hit.rule];
        let _ = writeln!(out, "{place}:{}: {}: {}", hit.line, rule.name, hit.excerpt);
        rules[hit.rule] += 1;
    }
    let _ = writeln!(out);
    for (rule, count) in RULES.iter().zip(&rules).filter(|(_, count)| **count > 0) {
        let _ = writeln!(out, "{:<10} {count:>6}  {}", rule.name, rule.advice);
    }
    let _ = writeln!(out);
    let (mut users, mut developers) = (0, 0);
    let counts = counts(findings);
    for area in Area::ALL {
        let count = counts.get(area.name()).copied().unwrap_or(0);
        let whom = if area.is_for_users() {
            ""
        } else {
            "  (developers)"
        };
        let _ = writeln!(out, "{:<10} {count:>6}{whom}", area.name());
        *if area.is_for_users() {
            &mut users
        } else {
            &mut developers
        } += count;
    }
    let _ = writeln!(
        out,
        "{:<10} {users:>6} for users, {developers} for developers",
        "total"
    );
    out
}

/// Findings by area; areas without any, too.
fn counts(findings: &[Finding]) -> Counts {
    let mut counts: Counts = Area::ALL.map(|area| (area.name(), 0)).into();
    for finding in findings {
        *counts.entry(finding.area.name()).or_default() += 1;
    }
    counts
}

/// The committed counts.
fn read_counts() -> Result<Counts> {
    let text = fs::read_to_string(root().join(COUNTS)).context(COUNTS)?;
    parse_counts(&text)
}

fn parse_counts(text: &str) -> Result<Counts> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let count = |line: &str| {
        let (name, count) = line.split_once(' ')?;
        let area = Area::ALL.into_iter().find(|area| area.name() == name)?;
        Some((area.name(), count.trim().parse().ok()?))
    };
    let count = |line: &str| {
        count(line).with_context(|| format!("{COUNTS}: {line:?} is no count of an area"))
    };
    lines.map(count).collect()
}

/// Commits stay what they are: their count is no line of the file.
fn is_kept(area: Area) -> bool {
    area != Area::Commits
}

/// The file of counts with the lower ones of two.
fn write_counts(counts: &Counts, most: &Counts) -> String {
    let mut out = COUNTS_HEAD.to_owned();
    for area in Area::ALL.into_iter().filter(|area| is_kept(*area)) {
        let now = counts.get(area.name()).copied().unwrap_or(0);
        let count = most.get(area.name()).map_or(now, |most| now.min(*most));
        let _ = writeln!(out, "{} {count}", area.name());
    }
    out
}

/// A line for each area that has more findings than it may have.
fn above(counts: &Counts, most: &Counts) -> Vec<String> {
    let kept = Area::ALL.into_iter().filter(|area| is_kept(*area));
    let lines = kept.filter_map(|area| {
        let now = counts.get(area.name()).copied().unwrap_or(0);
        let most = most.get(area.name()).copied().unwrap_or(0);
        let name = area.name();
        (now > most).then(|| {
            format!(
                "{name}: {now} findings, {most} in {COUNTS}: write {} more plainly",
                now - most
            )
        })
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// The rules that a text breaks.
    fn rules(text: &str, style: Style) -> Vec<&'static str> {
        let texts = text::texts(&text::lines_of(text, 1), style);
        let hits = texts.iter().flat_map(|text| rules::hits(text, style));
        hits.map(|hit| RULES[hit.rule].name).collect()
    }

    #[test]
    fn each_rule_finds_its_form() {
        for (text, rule) in [
            ("It tells the name.", "TELL"),
            ("The name is *said* twice.", "TELL"),
            ("Say which.", "TELL"),
            ("One ends. Of those two remain.", "OF"),
            ("- **Of** all files", "OF"),
            ("The names of one that ends are kept.", "OF-ONE"),
            ("Such a one ends.", "SUCH"),
            ("One in so many turns.", "SO-MANY"),
            ("As far as it goes.", "AS-FAR"),
            ("It is to be read.", "TO-BE"),
            ("Files that are to be read.", "TO-BE"),
            ("It is read in any case.", "ANY-CASE"),
            ("It knows what it is.", "WHAT-IT-IS"),
            ("Nobody reads it.", "NOBODY"),
            ("It is nobody's file.", "NOBODY"),
        ] {
            assert_eq!(rules(text, Style::Markdown), [rule], "{text}");
        }
    }

    #[test]
    fn other_texts_break_no_rule() {
        for text in [
            "`tell_of` and \"as it says\" and “it is said” and tell_of and --tell",
            "> Of one that says so\n\n    Of one that says so\n\n```\nOf one that says so\n```",
            "Of",
            "One of the names, most of them",
            "Runs as the user nobody.",
            "So, many of one, that such, a one",
            "In any other case it is as far away as before",
            "It has to be read; what is it?",
            "https://example.com/said and [link](said.md) and untold stories, a saying",
            "A TELL of it",
        ] {
            assert_eq!(rules(text, Style::Markdown), [""; 0], "{text}");
        }
    }

    #[test]
    fn sentences_are_long_from_31_words_on() {
        let words = |count: usize| vec!["word"; count].join(" ");
        let long = |text: &str| rules(text, Style::Markdown) == ["LONG"];
        assert!(long(&format!("{}.", words(31))) && !long(&format!("{}.", words(30))));
        assert!(!long(&format!("{}. {}.", words(20), words(20))));
        assert!(!long(&format!("- {}\n- {}", words(20), words(20))));
        assert!(!long(&format!("| {} | {} |", words(20), words(20))));
        assert!(!long(&format!("# {}\n{}", words(20), words(20))));
        assert!(!long(&format!("{} `{}`", words(20), words(20))));
        assert!(long(&format!("{} e.g. {}", words(15), words(15))));
    }

    #[test]
    fn short_strings_are_no_prose() {
        assert_eq!(rules("not said", Style::Message), [""; 0]);
        assert_eq!(rules("{} says {}", Style::Message), ["TELL"]);
        assert_eq!(rules("not said", Style::Markdown), ["TELL"]);
    }

    #[test]
    fn findings_show_their_sentence() {
        let text = format!(
            "First. {} said {}. Last.",
            "before ".repeat(20),
            "behind ".repeat(20)
        );
        let texts = text::texts(&text::lines_of(&text, 7), Style::Markdown);
        let hits = rules::hits(&texts[0], Style::Markdown);
        let said = hits
            .iter()
            .find(|hit| RULES[hit.rule].name == "TELL")
            .unwrap();
        assert_eq!(said.line, 7);
        assert!(said.excerpt.starts_with('\u{2026}') && said.excerpt.ends_with('\u{2026}'));
        assert!(said.excerpt.contains("before said behind") && said.excerpt.len() < 150);
    }

    #[test]
    fn updates_raise_no_count() {
        let most = parse_counts("# x\nreadme 5\ndocs 5\n").unwrap();
        let counts = Counts::from([("readme", 3), ("docs", 7), ("help", 2), ("commits", 9)]);
        let written = write_counts(&counts, &most);
        let written = parse_counts(&written).unwrap();
        assert_eq!(
            (written["readme"], written["docs"], written["help"]),
            (3, 5, 2)
        );
        assert!(!written.contains_key("commits"));
        let lines = above(&counts, &written);
        assert!(
            lines.len() == 1 && lines[0].starts_with("docs: 7"),
            "{lines:?}"
        );
        assert!(parse_counts("reame 5").is_err() && parse_counts("readme x").is_err());
    }

    #[test]
    fn counts_only_fall() {
        let start = Instant::now();
        let findings = check(&root()).unwrap();
        let above = above(&counts(&findings), &read_counts().unwrap());
        assert!(
            above.is_empty(),
            "{above:#?}\n`cargo xtask words --all` lists them"
        );
        eprintln!("{} findings in {:?}", findings.len(), start.elapsed());
    }
}
