//! Reading the stacks out of what the profilers write, and judging them.

use std::collections::BTreeMap;

/// Depth of the chain of calls in `deep.c`.
const DEPTH: u32 = 26;

/// Equal samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stack {
    /// Root to leaf; the first ones name the process, and where the tool does
    /// not keep them apart the last ones are the kernel's.
    pub(super) frames: Vec<String>,
    /// Samples, or what the tool weighs them by.
    pub(super) weight: u64,
}

/// The share of the samples of `deep.c`, running as `name`, whose stacks are
/// complete, and their weight; none when there are no such samples.
pub(super) fn complete_share(stacks: &[Stack], name: &str) -> Option<(f64, u64)> {
    let named = |s: &&Stack| s.frames.iter().take(4).any(|f| f == name);
    let (mut complete, mut all) = (0, 0);
    for stack in stacks.iter().filter(named) {
        all += stack.weight;
        if is_complete(&stack.frames) {
            complete += stack.weight;
        }
    }
    (all > 0).then(|| (complete as f64 / all as f64, all))
}

/// Whether a stack reaches `main` with every call from there on, or, before and
/// after `main`, `_start`.
fn is_complete(frames: &[String]) -> bool {
    let Some(main) = frames.iter().position(|f| f == "main") else {
        return frames.iter().any(|f| f == "_start");
    };
    let mut rest = frames.iter().skip(main + 1).peekable();
    let mut level = DEPTH;
    while level > 0 && rest.next_if(|f| **f == format!("f{level}")).is_some() {
        level -= 1;
    }
    if level == 0 {
        rest.next_if(|f| *f == "spin");
    }
    // What follows is the kernel's, or there is a hole.
    !rest.any(|f| is_ours(f))
}

/// Whether a stack of a process that also starts and ends has nothing cut, and with
/// `main` every call from there on.
pub(super) fn is_whole(frames: &[String]) -> bool {
    let cut = frames.iter().any(|f| f.starts_with("[stack cut"));
    !cut && (is_complete(frames) || !frames.iter().any(|f| is_ours(f)))
}

/// Whether a frame is one of `deep.c`'s functions.
fn is_ours(frame: &str) -> bool {
    let chain = frame.strip_prefix('f').and_then(|n| n.parse::<u32>().ok());
    frame == "main" || frame == "spin" || chain.is_some_and(|n| (1..=DEPTH).contains(&n))
}

/// `perf script -F comm,pid,ip,sym`: a header line, then frames from the leaf,
/// each with its address, then an empty line.
pub(super) fn perf_script(text: &str) -> Vec<Stack> {
    let mut stacks: Vec<Stack> = Vec::new();
    for sample in text.split("\n\n") {
        let mut lines = sample.lines().filter(|l| !l.trim().is_empty());
        let Some((comm, _)) = lines.next().and_then(|h| h.trim().rsplit_once(' ')) else {
            continue;
        };
        let mut frames: Vec<String> = lines
            .map(|line| line.trim().split_once(' ').map_or("", |(_, name)| name))
            .map(|name| name.trim().to_string())
            .collect();
        frames.push(comm.trim().to_string());
        frames.reverse();
        stacks.push(Stack { frames, weight: 1 });
    }
    stacks
}

/// bpftrace's `@[kstack, ustack, comm]: count`; the kernel's frames are left out.
pub(super) fn bpftrace(text: &str) -> Vec<Stack> {
    let mut stacks = Vec::new();
    let mut user = Vec::new();
    for line in text.lines() {
        if line.starts_with("@[") || line == ", " {
            // What came before was the kernel's part, or an empty one.
            user.clear();
        } else if let Some(frame) = line.strip_prefix("    ") {
            let name = frame.rsplit_once('+').map_or(frame, |(name, _)| name);
            user.push(name.to_string());
        } else if let Some((comm, count)) = line.strip_prefix(", ").and_then(key_end) {
            user.push(comm.to_string());
            let frames = user.drain(..).rev().collect();
            stacks.push(Stack {
                frames,
                weight: count,
            });
        }
    }
    stacks
}

/// `comm]: count`
fn key_end(text: &str) -> Option<(&str, u64)> {
    let (comm, count) = text.rsplit_once("]: ")?;
    Some((comm, count.trim().parse().ok()?))
}

/// Lines of frames, separated by semicolons, and a weight.
pub(super) fn folded(text: &str) -> Vec<Stack> {
    let stack = |line: &str| {
        let (frames, weight) = line.rsplit_once(' ')?;
        Some(Stack {
            frames: frames.split(';').map(str::to_string).collect(),
            weight: weight.parse().ok()?,
        })
    };
    text.lines().filter_map(stack).collect()
}

/// A flame graph of ours or in the form that inferno writes: each frame a title and a
/// box with its place and width in samples.
pub(super) fn svg(text: &str) -> Vec<Stack> {
    let mut levels: BTreeMap<u64, Vec<Bar>> = BTreeMap::new();
    for part in text.split("<title>").skip(1) {
        if let Some((y, bar)) = bar(part) {
            levels.entry(y).or_default().push(bar);
        }
    }
    let mut levels: Vec<Vec<Bar>> = levels.into_values().collect();
    // In inferno's, the root is at the bottom, where y is largest.
    if !text.contains("class=\"frames\"") {
        levels.reverse();
    }
    for bars in &mut levels {
        bars.sort_by_key(|bar| bar.start);
    }
    for depth in 1..levels.len() {
        let (below, here) = levels.split_at_mut(depth);
        let (Some(below), Some(here)) = (below.last_mut(), here.first_mut()) else {
            break;
        };
        for bar in here {
            let at = below.partition_point(|p| p.start <= bar.start);
            bar.parent = at.checked_sub(1);
            if let Some(parent) = bar.parent.and_then(|i| below.get_mut(i)) {
                parent.own = parent.own.saturating_sub(bar.width);
            }
        }
    }
    let mut stacks = Vec::new();
    for (depth, bars) in levels.iter().enumerate() {
        for bar in bars.iter().filter(|bar| bar.own > 0) {
            stacks.push(Stack {
                frames: path(&levels, depth, bar),
                weight: bar.own,
            });
        }
    }
    stacks
}

/// A frame of a flame graph.
struct Bar {
    name: String,
    start: u64,
    width: u64,
    /// The part of the width that no frame above covers.
    own: u64,
    parent: Option<usize>,
}

/// The names from the root, which is not a frame, to `bar`.
fn path(levels: &[Vec<Bar>], depth: usize, bar: &Bar) -> Vec<String> {
    let mut names = Vec::with_capacity(depth);
    let mut bar = Some(bar);
    for level in (0..depth).rev() {
        let Some(here) = bar else { break };
        names.push(here.name.clone());
        bar = here.parent.and_then(|at| levels.get(level)?.get(at));
    }
    names.reverse();
    names
}

/// `NAME (WIDTH, SHARE)</title><rect ... y=".." fg:x=".." fg:w=".."/>`
fn bar(text: &str) -> Option<(u64, Bar)> {
    let (title, rest) = text.split_once("</title>")?;
    let (name, _) = title.rsplit_once(" (")?;
    let rect = rest.split_once("/>")?.0;
    let value = |key: &str| -> Option<u64> {
        let (_, rest) = rect.split_once(&format!(" {key}=\""))?;
        rest.split_once('"')?.0.parse().ok()
    };
    let width = value("fg:w")?;
    let name = name
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&apos;", "'")
        .replace("&amp;", "&");
    let bar = Bar {
        name,
        start: value("fg:x")?,
        width,
        own: width,
        parent: None,
    };
    Some((value("y")?, bar))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(';').map(str::to_string).collect()
    }

    fn chain(to: u32) -> String {
        let calls: Vec<String> = (to..=DEPTH).rev().map(|n| format!(";f{n}")).collect();
        format!("deep;_start;main{}", calls.concat())
    }

    #[test]
    fn complete_stacks_have_every_call() {
        assert!(is_complete(&words(&format!("{};spin", chain(1)))));
        assert!(is_complete(&words(&format!(
            "{};spin;asm_irq;irq",
            chain(1)
        ))));
        assert!(is_complete(&words(&chain(3))));
        assert!(is_complete(&words("deep;_start;main")));
        assert!(is_complete(&words("deep;_start;dl_main")));
    }

    #[test]
    fn holes_and_cut_ends_are_seen() {
        assert!(!is_complete(&words(&format!("{};spin", chain(2)))));
        assert!(!is_complete(&words("deep;_start;main;f26;f24")));
        assert!(!is_complete(&words("deep;_start;main;spin")));
        assert!(!is_complete(&words("deep;f1;spin")));
        assert!(!is_complete(&words("deep")));
    }

    #[test]
    fn whole_stacks_may_lie_before_and_after_main() {
        assert!(is_whole(&words(&format!("{};spin", chain(1)))));
        assert!(is_whole(&words("deep;do_exit_[k];unmap_vmas_[k]")));
        assert!(!is_whole(&words("deep;[stack cut: exec];do_exit_[k]")));
        assert!(!is_whole(&words("deep;f1;spin")));
    }

    #[test]
    fn reads_folded_stacks() {
        let stacks = folded("deep;_start;main 7\nno weight\n");
        assert_eq!(stacks.len(), 1);
        assert_eq!(stacks[0].frames, ["deep", "_start", "main"]);
        assert_eq!(stacks[0].weight, 7);
    }

    #[test]
    fn shares_count_only_the_workload() {
        let stack = |text: &str, weight| Stack {
            frames: words(text),
            weight,
        };
        let stacks = [
            stack(&format!("{};spin", chain(1)), 3),
            stack("deep;f1;spin", 1),
            stack("other;f1;spin", 9),
        ];
        assert_eq!(complete_share(&stacks, "deep"), Some((0.75, 4)));
        assert_eq!(complete_share(&stacks, "absent"), None);
    }

    #[test]
    fn reads_perf_script() {
        let text = "deep    12 \n\t  ffff8 irq\n\t 55 f1\n\t 56 main\n\nTime x 7 \n\t 1 g\n\n";
        let stacks = perf_script(text);
        assert_eq!(stacks.len(), 2);
        assert_eq!(stacks[0].frames, ["deep", "main", "f1", "irq"]);
        assert_eq!(stacks[1].frames, ["Time x", "g"]);
    }

    #[test]
    fn reads_bpftrace_maps() {
        let text =
            "\n@[\n    irq+1\n, \n    f1+12\n    main+3\n, deep]: 5\n@[, \n    0x12\n, x]: 1\n";
        let stacks = bpftrace(text);
        assert_eq!(stacks[0].frames, ["deep", "main", "f1"]);
        assert_eq!(stacks[0].weight, 5);
        assert_eq!(stacks[1].frames, ["x", "0x12"]);
    }

    #[test]
    fn reads_flame_graphs() {
        let bar = |name: &str, y: u32, x: u32, w: u32| {
            format!(
                r#"<g><title>{name} (1 ms, 2%)</title><rect x="0%" y="{y}" fg:x="{x}" fg:w="{w}"/></g>"#
            )
        };
        let text = [
            bar("all", 64, 0, 10),
            bar("a", 48, 0, 6),
            bar("b", 48, 6, 4),
            bar("Vec&lt;u8&gt;", 32, 6, 3),
        ];
        let stacks = svg(&text.concat());
        let found: Vec<_> = stacks
            .iter()
            .map(|s| (s.frames.join(";"), s.weight))
            .collect();
        let want = [("a", 6), ("b", 1), ("b;Vec<u8>", 3)];
        assert_eq!(found, want.map(|(s, n)| (s.to_string(), n)));
        assert!(svg("<title>broken").is_empty());
        // The root on top, as ours has it.
        let text = [bar("all", 0, 0, 10), bar("a", 18, 0, 6), bar("b", 36, 0, 4)];
        let stacks = svg(&format!("<svg class=\"frames\">{}</svg>", text.concat()));
        let found: Vec<_> = stacks
            .iter()
            .map(|s| (s.frames.join(";"), s.weight))
            .collect();
        assert_eq!(
            found,
            [(String::new(), 4), ("a".into(), 2), ("a;b".into(), 4)]
        );
    }
}
