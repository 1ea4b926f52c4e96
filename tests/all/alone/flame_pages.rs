//! Flame graphs in a real browser, as they open from the disk in a window of 1400 x 900. What a
//! reader looks for first is in sight, and search, zoom, keys and the dark mode work. The stacks
//! are recordings of real programs (`data/flame`); what must be seen is added up from them here.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::{Value, json};

use aiprof_tests::aiprof::binary;
use aiprof_tests::need::{Need, find_tool, skip_unless};
use aiprof_tests::workload::{Workshop, checked};

/// Recordings, with a word that stands in names of some of their functions.
const RECORDED: [(&str, &str); 7] = [
    ("make", "parse"),
    ("python", "sqlite3"),
    ("java", "trim_queue"),
    ("node", "json"),
    ("go", "sort"),
    ("idle", "idle"),
    ("ai", "sbid"),
];
const SCREEN: [f64; 2] = [1400.0, 900.0];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("data/flame/{name}.folded"))
}

/// A name as it is shown: without the suffix of its kind.
fn shown(name: &str) -> &str {
    let kinds = ["_[i]", "_[k]", "_[j]", "_[G]", "_[g]"];
    let plain = kinds.iter().find_map(|kind| name.strip_suffix(kind));
    plain.unwrap_or(name)
}

/// What the stacks of a file add up to.
struct Truth {
    /// Value by path from the root.
    paths: HashMap<Vec<String>, u64>,
    stacks: Vec<(Vec<String>, u64)>,
    total: u64,
}

impl Truth {
    fn read(file: &Path, is_inverted: bool) -> anyhow::Result<Self> {
        let mut truth = Self {
            paths: HashMap::new(),
            stacks: Vec::new(),
            total: 0,
        };
        for line in std::fs::read_to_string(file)?.lines() {
            let (stack, value) = line.rsplit_once(' ').context("no stack")?;
            let value: u64 = value.parse()?;
            let mut names: Vec<String> = stack.split(';').map(ToOwned::to_owned).collect();
            if is_inverted {
                names.reverse();
            }
            for end in 1..=names.len() {
                *truth.paths.entry(names[..end].to_vec()).or_default() += value;
            }
            truth.stacks.push((names, value));
            truth.total += value;
        }
        Ok(truth)
    }

    fn percent(&self, value: u64) -> f64 {
        100.0 * value as f64 / self.total as f64
    }

    /// Names and shares of the widest frames, those near the root first: all that are a
    /// quarter of the picture, and 20 of those in which it branches.
    fn widest(&self) -> Vec<(&str, f64)> {
        let mut all: Vec<_> = self.paths.iter().collect();
        all.sort_by_key(|(path, value)| (std::cmp::Reverse(**value), path.len()));
        let parent = |path: &[String]| {
            let above = &path[..path.len() - 1];
            self.paths.get(above).copied().unwrap_or(self.total)
        };
        let mut branches = 0;
        let is_wide = |(path, value): &(&Vec<String>, &u64)| {
            branches += usize::from(**value < parent(path));
            self.percent(**value) >= 25.0 || branches <= 20 && self.percent(**value) >= 1.0
        };
        let widest = all.into_iter().filter(is_wide);
        let named = widest.map(|(path, value)| {
            let name = path.last().map_or("", |name| shown(name));
            (name, self.percent(*value))
        });
        named.collect()
    }

    /// Share of the stacks that have a name with this word in it, in percent.
    fn share_of(&self, word: &str) -> f64 {
        let has = |names: &[String]| {
            let mut names = names.iter();
            names.any(|name| shown(name).to_lowercase().contains(word))
        };
        let with = self.stacks.iter().filter(|(names, _)| has(names));
        self.percent(with.map(|(_, value)| value).sum())
    }
}

fn number(of: &Value, name: &str) -> anyhow::Result<f64> {
    of[name]
        .as_f64()
        .with_context(|| format!("no {name} in {of}"))
}

/// Whether something is shown, whole, in the first screen.
fn check_seen(of: &Value, what: &str) -> anyhow::Result<()> {
    let [left, top, right, bottom] = ["left", "top", "right", "bottom"].map(|n| number(of, n));
    let [left, top, right, bottom] = [left?, top?, right?, bottom?];
    anyhow::ensure!(
        left >= 0.0 && top >= 0.0 && right <= SCREEN[0] && bottom <= SCREEN[1],
        "{what} is out of sight: {left}, {top} to {right}, {bottom}"
    );
    let has_area = right - left > 0.0 && bottom - top > 0.0;
    anyhow::ensure!(has_area && of["display"] != "none", "{what} is hidden");
    Ok(())
}

/// All that has to be in sight always.
fn check_head(step: &Value) -> anyhow::Result<()> {
    for what in ["title", "subtitle", "search", "reset", "details"] {
        check_seen(&step[what], what)?;
    }
    let legend = step["legend"].as_array().context("no legend")?;
    anyhow::ensure!(legend.len() > 1, "{legend:?}");
    legend
        .iter()
        .try_for_each(|entry| check_seen(entry, "a kind in the legend"))?;
    anyhow::ensure!(number(step, "width")? <= SCREEN[0], "wider than the window");
    Ok(())
}

fn check_first(step: &Value, truth: &Truth) -> anyhow::Result<()> {
    check_head(step)?;
    check_seen(&step["root"], "the root")?;
    anyhow::ensure!(step["root"]["label"] == "all", "{}", step["root"]);
    let wide = number(&step["root"], "right")? - number(&step["root"], "left")?;
    anyhow::ensure!(wide > 0.95 * SCREEN[0], "the root is {wide} wide");
    let below = number(&step["details"], "bottom")?;
    anyhow::ensure!(
        number(&step["root"], "top")? >= below,
        "the head hides the root"
    );
    let frames = step["frames"].as_array().context("no frames")?;
    let widest = truth.widest();
    anyhow::ensure!(widest.len() > 3, "{widest:?}");
    let mut left: Vec<&Value> = frames.iter().collect();
    for (name, share) in widest {
        let is_it = |frame: &&Value| {
            let title = frame["name"].as_str().unwrap_or("");
            let of = title
                .strip_prefix(name)
                .and_then(|rest| rest.strip_prefix(" ("));
            of.is_some_and(|rest| rest.contains(&format!(", {share:.2}%)")))
        };
        // Only frames of at least a tenth of the screen are listed.
        let Some(i) = left.iter().position(is_it) else {
            anyhow::ensure!(share < 10.5, "no {name} ({share:.2}%)");
            continue;
        };
        let frame = left.remove(i);
        check_seen(frame, name)?;
        let drawn = number(frame, "right")? - number(frame, "left")?;
        anyhow::ensure!(
            (100.0 * drawn / wide - share).abs() < 0.2,
            "{name}: {drawn}"
        );
    }
    Ok(())
}

/// Marks and share of a search.
fn check_search(step: &Value, word: &str, expected: Option<f64>) -> anyhow::Result<()> {
    check_head(step)?;
    check_seen(&step["share"], "the share")?;
    anyhow::ensure!(step["focus"] == "input", "the field has no focus");
    let matches = step["matches"].as_array().context("no matches")?;
    anyhow::ensure!(!matches.is_empty(), "nothing is marked");
    for frame in matches {
        let name = frame["name"].as_str().unwrap_or("").to_lowercase();
        anyhow::ensure!(name.contains(word), "{name} is marked");
        anyhow::ensure!(frame["fill"] == "rgb(224, 92, 240)", "{frame}");
    }
    let text = step["share"]["text"].as_str().context("no share")?;
    let (share, count) = text.split_once("% in ").context("no share")?;
    let share: f64 = share.parse()?;
    anyhow::ensure!(count == format!("{} frames", matches.len()), "{count}");
    if let Some(expected) = expected {
        // Frames that are too narrow to be drawn are not found.
        anyhow::ensure!((share - expected).abs() < 0.3, "{share}, really {expected}");
    }
    Ok(())
}

/// Red, green and blue of `rgb(1, 2, 3)`, added up.
fn light(color: &Value) -> anyhow::Result<u32> {
    let text = color.as_str().context("no colour")?;
    let numbers = text
        .trim_start_matches("rgb(")
        .trim_end_matches(')')
        .split(", ");
    numbers.map(|n| Ok(n.parse::<u32>()?)).sum()
}

fn check(steps: &Value, truth: &Truth, word: &str) -> anyhow::Result<()> {
    anyhow::ensure!(steps["messages"] == json!([]), "{}", steps["messages"]);
    check_first(&steps["first"], truth)?;
    check_search(&steps["searched"], word, Some(truth.share_of(word)))?;
    let scrolled = &steps["scrolled"];
    check_search(scrolled, word, Some(truth.share_of(word)))?;
    let zoomed = &steps["zoomed"];
    check_head(zoomed)?;
    let name = &zoomed["name"];
    let frames = zoomed["frames"].as_array().context("no frames")?;
    let frame = frames.iter().find(|frame| frame["name"] == *name);
    let frame = frame.with_context(|| format!("{name} is not there"))?;
    let wide = |of: &Value| Ok::<_, anyhow::Error>(number(of, "right")? - number(of, "left")?);
    anyhow::ensure!(
        (wide(frame)? - wide(&zoomed["root"])?).abs() < 1.0,
        "not zoomed"
    );
    check_seen(frame, "what was zoomed into")?;
    let details = steps["pointed"]["details"].as_str().unwrap_or("");
    let pointed = steps["pointed"]["name"].as_str().unwrap_or("-");
    // A long name is cut at the width of the window.
    let same = details
        .chars()
        .zip(pointed.chars())
        .take_while(|(a, b)| a == b)
        .count();
    anyhow::ensure!(same >= pointed.chars().count().min(100), "{details}");
    let reset = &steps["reset"];
    anyhow::ensure!(reset["share"]["text"] == "" && reset["matches"] == json!([]));
    anyhow::ensure!(
        reset["all"] == steps["first"]["all"],
        "the reset does not reset"
    );
    let walked = steps["walked"].as_str().unwrap_or("");
    anyhow::ensure!(walked.contains("%)"), "the keys choose {walked}");
    let kind = steps["kind"]["matches"].as_array().context("no matches")?;
    anyhow::ensure!(!kind.is_empty(), "a click on the legend marks nothing");
    let (dark, bright) = (&steps["dark"], &steps["first"]);
    check_head(dark)?;
    anyhow::ensure!(light(&dark["back"])? < 150 && light(&dark["ink"])? > 600);
    anyhow::ensure!(light(&bright["back"])? > 600 && light(&bright["ink"])? < 150);
    Ok(())
}

/// Draws a folded file.
fn draw(file: &Path, svg: &Path, options: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new(binary()?);
    command
        .arg("report")
        .arg(file)
        .arg("-o")
        .arg(svg)
        .args(options);
    checked(&mut command).map(drop)
}

/// What a browser did with these pictures, searching each for its word.
fn in_browser(shop: &Workshop, pictures: &[(PathBuf, &str)]) -> anyhow::Result<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("viewers/flame.mjs");
    let browser = find_tool("chromium").context("no chromium")?;
    let mut command = Command::new("node");
    command.arg(script).arg(shop.path("")).arg(browser);
    for (file, word) in pictures {
        command.arg(file).arg(word);
    }
    Ok(serde_json::from_str(&checked(&mut command)?)?)
}

#[test]
fn pictures_open_on_their_answer() -> anyhow::Result<()> {
    let needs = [Need::Tool("node"), Need::Tool("chromium")];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let (mut pictures, mut truths) = (Vec::new(), Vec::new());
    for (name, word) in RECORDED {
        for inverted in [false, true] {
            let (suffix, options): (_, &[&str]) = match inverted {
                true => ("-inverted", &["--inverted"]),
                false => ("", &[]),
            };
            let svg = shop.path(&format!("{name}{suffix}.svg"));
            draw(&data(name), &svg, options)?;
            let script = std::fs::read_to_string(&svg)?;
            anyhow::ensure!(!script.contains("href"), "{name} refers to something");
            pictures.push((svg, word));
            truths.push(Truth::read(&data(name), inverted)?);
        }
    }
    let answer = in_browser(&shop, &pictures)?;
    for ((svg, word), truth) in pictures.iter().zip(&truths) {
        let name = svg.file_name().unwrap_or_default().display().to_string();
        check(&answer["files"][&name], truth, word).with_context(|| name.clone())?;
    }
    // Twice in one page: each has its own field.
    let page = &answer["inline"];
    assert_eq!(page["messages"], json!([]));
    assert_eq!(
        (&page["live"], &page["fields"]),
        (&json!(2), &json!([true, false]))
    );
    assert!(number(page, "wide")? <= SCREEN[0]);
    Ok(())
}

#[test]
fn a_difference_has_a_scale_and_opens_on_its_answer() -> anyhow::Result<()> {
    skip_unless!(&[Need::Tool("node"), Need::Tool("chromium")]);
    let shop = Workshop::new()?;
    let svg = shop.path("diff.svg");
    let mut command = Command::new(binary()?);
    command.arg("diff").arg(data("python")).arg(data("python2"));
    checked(command.arg("-o").arg(&svg))?;
    let answer = in_browser(&shop, &[(svg, "sqlite3")])?;
    let steps = &answer["files"]["diff.svg"];
    assert_eq!(steps["messages"], json!([]));
    let first = &steps["first"];
    check_head(first)?;
    check_seen(&first["root"], "the root")?;
    check_search(&steps["searched"], "sqlite3", None)?;
    let legend: Vec<&str> = first["legend"]
        .as_array()
        .context("no legend")?
        .iter()
        .filter_map(|entry| entry["text"].as_str())
        .collect();
    assert_eq!(legend.len(), 5);
    anyhow::ensure!(legend[2].starts_with("unchanged"), "{legend:?}");
    let points = |text: &str| text.split(':').next().unwrap_or("").parse::<f64>();
    let (least, most) = (points(legend[0])?, points(legend[4])?);
    anyhow::ensure!(least < 0.0 && (least + most).abs() < 0.011, "{legend:?}");
    // The largest change of one function's own time, from the two files.
    let own = |name: &str| -> anyhow::Result<HashMap<Vec<String>, f64>> {
        let truth = Truth::read(&data(name), false)?;
        let mut own: HashMap<Vec<String>, f64> = HashMap::new();
        for (mut names, value) in truth.stacks.clone() {
            names.remove(1);
            *own.entry(names).or_default() += truth.percent(value);
        }
        Ok(own)
    };
    let (before, after) = (own("python")?, own("python2")?);
    let change =
        |path: &Vec<String>| after.get(path).unwrap_or(&0.0) - before.get(path).unwrap_or(&0.0);
    let largest = after
        .keys()
        .map(|path| change(path).abs())
        .fold(0.0, f64::max);
    anyhow::ensure!((largest - most).abs() < 0.02, "{largest}: {legend:?}");
    Ok(())
}
