//! Names as they appear in folded stacks: one line each, no separators inside.

use aiprof_model::profile::{Frame, FrameKind, Profile};
use aiprof_model::visible;

/// Longest name in bytes, suffix included; what goes beyond is cut and marked.
/// C++ templates and generated code reach tens of kilobytes; a stack of hundreds
/// of such names would exceed any line limit.
const MAX_NAME: usize = 4096;

/// Mark at the end of a name that was cut to [`MAX_NAME`].
const CUT: &str = "[..]";

/// Name of what has none.
pub(crate) const UNKNOWN: &str = "[unknown]";

/// A name that can stand in a folded line.
///
/// `;` becomes `:`; control characters, line separators and characters that XML
/// forbids become spaces, marks of direction show as `\u{202e}`; spaces around are
/// removed. A last word of digits is
/// joined by `_`: readers would take it for a second value of the line.
pub(crate) fn clean(name: &str) -> String {
    let mut replaced = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            ';' => replaced.push(':'),
            c => visible::push(&mut replaced, c),
        }
    }
    let mut text = cut(replaced.trim());
    if let Some(space) = text.rfind(' ')
        && text[space + 1..]
            .bytes()
            .all(|b| b.is_ascii_digit() || b == b'.')
    {
        text.replace_range(space..=space, "_");
    }
    // Readers skip lines that begin with `# ` as comments.
    if text.starts_with("# ") {
        text.replace_range(1..2, "_");
    }
    if text.is_empty() {
        UNKNOWN.to_owned()
    } else {
        text
    }
}

/// `text`, shortened to less than [`MAX_NAME`] with room for a suffix.
fn cut(text: &str) -> String {
    const ROOM: usize = MAX_NAME - CUT.len() - 4;
    if text.len() <= ROOM {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(ROOM);
    format!("{}{CUT}", &text[..end])
}

/// A frame's name in folded stacks: cleaned, with the suffix of its kind.
/// A frame of unknown code is always in brackets.
pub(super) fn frame(profile: &Profile, frame: &Frame) -> String {
    suffixed(profile.str(frame.name), frame.kind)
}

/// [`frame`] with where it is in the source, where that is known: `parse (json.c:42)`,
/// without directories, as perf writes it; `(json.c)` of code that no line stands for.
/// Device frames have lines of their own.
pub(super) fn located(profile: &Profile, frame: &Frame) -> String {
    let device = matches!(
        frame.kind,
        FrameKind::DeviceSoftware | FrameKind::DeviceHardware | FrameKind::Unknown
    );
    let path = frame.file.map(|file| profile.str(file)).unwrap_or_default();
    let file = path.rsplit('/').next().unwrap_or(path);
    if device || file.is_empty() {
        return self::frame(profile, frame);
    }
    let name = profile.str(frame.name);
    let name = match FrameKind::of_suffix(name) {
        Some((plain, kind)) if kind == frame.kind => plain,
        _ => name,
    };
    let name = cut(name);
    suffixed(
        &match frame.line {
            0 => format!("{name} ({file})"),
            line => format!("{name} ({file}:{line})"),
        },
        frame.kind,
    )
}

/// [`frame`] of a name.
pub(crate) fn suffixed(name: &str, kind: FrameKind) -> String {
    let mut name = clean(name);
    let suffix = kind.suffix();
    if kind == FrameKind::Unknown {
        if !is_bracketed(&name) {
            name = format!("[{name}]");
        }
    } else if !name.ends_with(suffix) {
        name.push_str(suffix);
    }
    name
}

/// Whether a folded name marks something unknown: `[no symbols libfoo.so]`.
pub(super) fn is_bracketed(name: &str) -> bool {
    name.starts_with('[') && name.ends_with(']') && kind_of_suffix(name).is_none()
}

/// Whether a folded name is the offset of a device's instruction: `0x1b8_[g]`.
pub(super) fn is_device_offset(name: &str) -> bool {
    let offset = name
        .strip_suffix(FrameKind::DeviceHardware.suffix())
        .and_then(|name| name.strip_prefix("0x"));
    offset.is_some_and(|hex| !hex.is_empty() && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The kind that a folded name's suffix stands for, if it has one.
pub(super) fn kind_of_suffix(name: &str) -> Option<FrameKind> {
    FrameKind::of_suffix(name).map(|(_, kind)| kind)
}

/// A folded name without the suffix of its kind, for pictures whose colours show the kind.
pub(super) fn shown(name: &str) -> &str {
    match FrameKind::of_suffix(name) {
        Some((plain, _)) if !plain.is_empty() => plain,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::profile::{Meta, ProfileBuilder};

    #[test]
    fn separators_and_controls_are_replaced() {
        assert_eq!(clean("core::slice<[u8; 4]>"), "core::slice<[u8: 4]>");
        assert_eq!(clean("a\nb\r\tc\0d\u{2028}e\u{7f}f"), "a b  c d e f");
        assert_eq!(clean(" \n"), "[unknown]");
        assert_eq!(clean(""), "[unknown]");
        assert_eq!(clean("\u{1b}[31mred"), "[31mred");
        assert_eq!(clean("🔥 <a> & \"b\""), "🔥 <a> & \"b\"");
    }

    #[test]
    fn a_last_number_is_not_a_value() {
        assert_eq!(clean("Thread 12"), "Thread_12");
        assert_eq!(clean("v 1 2.5"), "v 1_2.5");
        assert_eq!(clean("operator new"), "operator new");
        assert_eq!(clean("12"), "12");
        assert_eq!(clean("# note"), "#_note");
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let name = clean(&"é".repeat(50_000));
        assert!(name.len() <= MAX_NAME && name.ends_with("é[..]"));
    }

    #[test]
    fn lines_stand_before_the_suffix() {
        let mut builder = ProfileBuilder::new(Meta::default());
        let at = |line| Some(("/src/lib/json.c", line));
        let ids = [
            builder.frame("parse", FrameKind::Native, at(42)),
            builder.frame("push", FrameKind::Inlined, at(7)),
            builder.frame("glue", FrameKind::Native, at(0)),
            builder.frame("f", FrameKind::Interpreter, Some(("a;b 1.py", 3))),
            builder.frame("main", FrameKind::Native, None),
            builder.frame("gemm", FrameKind::DeviceSoftware, at(9)),
            builder.frame("[no symbols x]", FrameKind::Unknown, at(1)),
            builder.frame(&"x".repeat(9000), FrameKind::Native, at(5)),
        ];
        let profile = builder.finish();
        let names: Vec<_> = ids
            .iter()
            .map(|id| located(&profile, &profile.frames[id.0 as usize]))
            .collect();
        let expected = [
            "parse (json.c:42)",
            "push (json.c:7)_[i]",
            "glue (json.c)",
            "f (a:b 1.py:3)_[p]",
            "main",
            "gemm_[G]",
            "[no symbols x]",
        ];
        assert_eq!(names[..7], expected);
        assert!(names[7].len() < MAX_NAME && names[7].ends_with("[..]"));
    }

    #[test]
    fn suffixes_are_applied_once() {
        let mut builder = ProfileBuilder::new(Meta::default());
        let ids = [
            builder.frame("do_exit", FrameKind::Kernel, None),
            builder.frame("do_exit_[k]", FrameKind::Kernel, None),
            builder.frame("main", FrameKind::Native, None),
            builder.frame("no symbols", FrameKind::Unknown, None),
            builder.frame("[no symbols]", FrameKind::Unknown, None),
        ];
        let profile = builder.finish();
        let names: Vec<_> = ids
            .iter()
            .map(|id| frame(&profile, &profile.frames[id.0 as usize]))
            .collect();
        let expected = [
            "do_exit_[k]",
            "do_exit_[k]",
            "main",
            "[no symbols]",
            "[no symbols]",
        ];
        assert_eq!(names, expected);
    }
}
