//! Compares with the listings that Intel's compiler wrote beside its modules. Their
//! blocks, predecessors and annotations are read as text, and a separate search looks for
//! holders in them.

use super::graph::Graph;
use super::search::{Index, Want};
use aiprof_symbols::symbolize::device::Module;
use aiprof_symbols::symbolize::device::isa::{TokenUse, decode};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

fn unpacked(name: &str) -> Vec<u8> {
    let path = format!(
        "{}/../../../tests/data/zebin/{name}.gz",
        env!("CARGO_MANIFEST_DIR")
    );
    let packed = std::fs::read(path).unwrap();
    let mut out = Vec::new();
    flate2::read::GzDecoder::new(packed.as_slice())
        .read_to_end(&mut out)
        .unwrap();
    out
}

/// An instruction as listed.
struct Line {
    offset: u32,
    block: usize,
    /// What is in its braces.
    annotation: Vec<String>,
}

#[derive(Default)]
struct Kernel {
    name: String,
    lines: Vec<Line>,
    before: BTreeMap<usize, Vec<usize>>,
    has_calls: bool,
}

fn kernels(text: &str) -> Vec<Kernel> {
    let mut all: Vec<Kernel> = Vec::new();
    let (mut block, mut offset) = (0, 0);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("//.kernel ") {
            let name = name.trim().trim_matches('"').to_owned();
            all.push(Kernel {
                name,
                ..Kernel::default()
            });
            (block, offset) = (0, 0);
        } else if let Some((number, rest)) =
            line.strip_prefix("// B").and_then(|l| l.split_once(": "))
        {
            block = number.parse().unwrap();
            let before = rest
                .split("Preds:{")
                .nth(1)
                .unwrap()
                .split('}')
                .next()
                .unwrap();
            let before = before
                .split(", ")
                .filter_map(|b| b.strip_prefix('B')?.parse().ok());
            let kernel = all.last_mut().unwrap();
            kernel.before.insert(block, before.collect());
            kernel.has_calls |= rest.contains("CALL");
        } else if !line.starts_with("//")
            && line.contains(" //")
            && !line.trim_start().starts_with("//")
        {
            let code = line.split(" //").next().unwrap();
            let braces = code
                .rsplit_once('{')
                .map_or("", |(_, b)| b.trim_end().trim_end_matches('}'));
            let annotation: Vec<String> = braces.split(',').map(str::to_owned).collect();
            let size = if annotation.iter().any(|a| a == "Compacted") {
                8
            } else {
                16
            };
            all.last_mut().unwrap().lines.push(Line {
                offset,
                block,
                annotation,
            });
            offset += size;
        }
    }
    all
}

impl Kernel {
    /// Offsets of the nearest holders on every path, by the listing's own blocks.
    fn holders(&self, at: usize, token: &str, use_: &str) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let own: Vec<usize> = (0..at)
            .filter(|i| self.lines[*i].block == self.lines[at].block)
            .collect();
        let mut open = vec![(self.lines[at].block, own)];
        while let Some((block, lines)) = open.pop() {
            let nearest = lines.into_iter().rev().find(|i| {
                let words = &self.lines[*i].annotation;
                let has = |word: &str| words.iter().any(|w| *w == word);
                has(&format!("${token}"))
                    || has(&format!("${token}.dst"))
                    || (use_ == "src" && has(&format!("${token}.src")))
            });
            match nearest {
                Some(i) => {
                    if self.lines[i]
                        .annotation
                        .iter()
                        .any(|w| *w == format!("${token}"))
                    {
                        found.insert(self.lines[i].offset);
                    }
                }
                None => {
                    for before in self.before.get(&block).into_iter().flatten() {
                        if seen.insert(*before) {
                            let all =
                                (0..self.lines.len()).filter(|i| self.lines[*i].block == *before);
                            open.push((*before, all.collect()));
                        }
                    }
                }
            }
        }
        found
    }
}

/// Holders of all waits of a module's kernels without calls: ours, and by the listing.
fn compare(name: &str) -> (usize, usize) {
    let module = Module::parse(&unpacked(&format!("{name}.zebin"))).unwrap();
    let listing = String::from_utf8(unpacked(&format!("{name}.asm"))).unwrap();
    let (mut checked, mut across) = (0, 0);
    for listed in kernels(&listing).iter().filter(|k| !k.has_calls) {
        let Some(kernel) = module.kernel(&listed.name) else {
            continue;
        };
        let decoded = decode(&kernel.code, module.platform.unwrap());
        let code = &decoded.instructions;
        let graph = Graph::of(code);
        let mut index = Index::new(code, &graph);
        for (at, line) in listed.lines.iter().enumerate() {
            let wait = line
                .annotation
                .iter()
                .find_map(|w| w.strip_prefix('$')?.split_once('.'));
            let Some((token, use_)) = wait else { continue };
            let number: u8 = token.parse().unwrap();
            let ours = code
                .binary_search_by_key(&line.offset, |i| i.offset)
                .unwrap();
            let want = match use_ {
                "dst" => TokenUse::WaitDst,
                _ => TokenUse::WaitSrc,
            };
            assert_eq!(
                code[ours].swsb.token.map(|t| (t.number, t.use_)),
                Some((number, want))
            );
            let found = index.search(ours, Want::Token(number, want));
            let found: BTreeSet<u32> = found
                .found
                .iter()
                .map(|f| code[f.instruction].offset)
                .collect();
            let expected = listed.holders(at, token, use_);
            assert_eq!(
                found, expected,
                "{name} {} {:#x} ${token}.{use_}",
                listed.name, line.offset
            );
            checked += 1;
            let is_near = |offset: &u32| {
                let other = listed.lines.iter().find(|l| l.offset == *offset);
                other.is_some_and(|l| l.block == line.block)
            };
            across += usize::from(!expected.iter().all(is_near));
        }
    }
    (checked, across)
}

#[test]
fn holders_are_those_by_the_compilers_own_blocks() {
    let all = ["bmg", "bmg-lines", "ptl", "pvc"].map(compare);
    let sum = |part: fn(&(usize, usize)) -> usize| all.iter().map(part).sum::<usize>();
    let (checked, across) = (sum(|c| c.0), sum(|c| c.1));
    println!("{checked} waits, {across} of them across blocks");
    assert!(checked > 150 && across > 20, "{checked}, {across}");
}
