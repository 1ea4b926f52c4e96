//! What users call the code that perf maps and jitdump files name: the function, and the
//! file and line that V8 writes into the name.
//!
//! * V8 (node): `JS:*name /file.js:12:5`, before version 9 `LazyCompile:*name file:12`; the mark
//!   shows which compiler made it. `Builtin:Name`, `BytecodeHandler:Name` and others stay as they
//!   are: they are code of V8 itself.
//! * .NET: `void [module] Namespace.Type::Method(int32)[Tier0]`, in CIL's spelling.
//! * Everything else stays as it is.

use crate::frame::{SymFrame, script_frame};
use aiprof_model::profile::FrameKind;

/// What V8 calls code that was compiled from JavaScript.
const V8_KINDS: [&str; 6] = [
    "JS:",
    "LazyCompile:",
    "Function:",
    "Script:",
    "Eval:",
    "RegExp:",
];
/// What V8 calls code of its own.
const V8_OWN: [&str; 5] = [
    "Builtin:",
    "BytecodeHandler:",
    "Stub:",
    "Handler:",
    "Callback:",
];
/// How the names of files begin that V8 puts behind a function's name.
const FILE_BEGINS: [&str; 9] = [
    " /",
    " file://",
    " node:",
    " internal/",
    " evalmachine.",
    " http://",
    " https://",
    " wasm://",
    " [",
];

/// The frame of code that a program calls `name`.
pub(super) fn frame(name: &str) -> SymFrame {
    if let Some(script) = v8_script(name) {
        return script;
    }
    let name = dotnet(name).unwrap_or_else(|| name.to_owned());
    SymFrame::plain(name, FrameKind::Jit)
}

/// Whether V8 gave a name. Its jitdump files place line numbers behind an ELF header
/// that is not there (`kElfHeaderSize` in its `src/diagnostics/perf-jit.cc`).
pub(super) fn is_of_v8(name: &str) -> bool {
    let mut kinds = V8_KINDS.iter().chain(&V8_OWN);
    kinds.any(|kind| name.starts_with(kind))
}

/// A function of JavaScript.
fn v8_script(name: &str) -> Option<SymFrame> {
    let kind = V8_KINDS.iter().find(|kind| name.starts_with(**kind))?;
    if *kind == "RegExp:" {
        return None;
    }
    let rest = &name[kind.len()..];
    // ~ interpreted, ^ baseline, + or ' midtier, * optimized; for optimized loops %.
    let rest = rest
        .strip_prefix(['*', '~', '^', '+', '\'', '%'])
        .unwrap_or(rest);
    let (place, line) = without_position(rest)?;
    let (function, file) = match FILE_BEGINS
        .iter()
        .filter_map(|begin| place.find(begin))
        .min()
    {
        Some(at) => (&place[..at], &place[at + 1..]),
        None => place.rsplit_once(' ').unwrap_or(("", place)),
    };
    let what = if *kind == "Script:" {
        "script"
    } else {
        "anonymous"
    };
    Some(script_frame(function, what, file, line))
}

/// What is in front of `:LINE:COLUMN` or `:LINE`, and the line.
fn without_position(text: &str) -> Option<(&str, u32)> {
    let (text, last) = text.rsplit_once(':')?;
    let last = last.parse().ok()?;
    match text.rsplit_once(':') {
        Some((text, line)) if !line.is_empty() && line.bytes().all(|b| b.is_ascii_digit()) => {
            Some((text, line.parse().ok()?))
        }
        _ => Some((text, last)),
    }
}

/// `RESULT [MODULE] TYPE::METHOD(PARAMETERS)[TIER]` as `TYPE.METHOD`.
fn dotnet(name: &str) -> Option<String> {
    let parameters = name
        .find("::")
        .and_then(|at| Some(at + name[at..].find('(')?))?;
    let (front, behind) = name.split_at(parameters);
    // C++ has `::` and parameters too; what it never has is the module in front of the type.
    let (result, full) = front.split_at(front.find("::").and_then(|at| front[..at].rfind("] "))?);
    let full = full.strip_prefix("] ")?;
    let module = &result[result.rfind('[')? + 1..];
    if module.is_empty() || module.contains(' ') {
        return None;
    }
    let end = behind.rfind(')')?;
    let tier = &behind[end + 1..];
    let is_tier = tier.is_empty() || tier.starts_with('[') && tier.ends_with(']');
    let (of, method) = full.rsplit_once("::")?;
    let is_name = !of.is_empty() && !method.is_empty();
    (is_tier && is_name).then(|| format!("{of}.{method}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_of_v8() {
        for (name, function, file, line) in [
            ("JS:*fib /a b/c.js:12:5", "fib", "/a b/c.js", 12),
            (
                "JS:~Socket.get file:///m.mjs:1:2",
                "Socket.get",
                "/m.mjs",
                1,
            ),
            ("JS:^ /tmp/x.js:3:9", "(anonymous x.js:3)", "/tmp/x.js", 3),
            ("JS:+get a b /tmp/x.js:3:9", "get a b", "/tmp/x.js", 3),
            ("LazyCompile:*fib /a/c.js:12", "fib", "/a/c.js", 12),
            (
                "LazyCompile:~emit node:events:466:44",
                "emit",
                "node:events",
                466,
            ),
            (
                "Function:~x evalmachine.<anonymous>:7:1",
                "x",
                "evalmachine.<anonymous>",
                7,
            ),
            ("Script:~ /tmp/x.js:1:1", "(script x.js:1)", "/tmp/x.js", 1),
            ("Eval:~ [eval]:1:1", "(anonymous [eval]:1)", "[eval]", 1),
        ] {
            let frame = frame(name);
            assert_eq!(frame.name, function, "{name}");
            assert_eq!(frame.source, Some((file.to_owned(), line)), "{name}");
            assert_eq!(frame.kind, FrameKind::Jit);
            assert!(is_of_v8(name));
        }
    }

    #[test]
    fn methods_of_dotnet() {
        for (name, method) in [
            (
                "void [app] Demo.Program::Main(class [System.Runtime]System.String[])[Tier0]",
                "Demo.Program.Main",
            ),
            (
                "instance bool [System.Private.CoreLib] System.Collections.Generic.Dictionary`2\
                 [System.__Canon,System.Int32]::TryInsert(!0,!1,valuetype X::Y)[OptimizedTier1]",
                "System.Collections.Generic.Dictionary`2[System.__Canon,System.Int32].TryInsert",
            ),
            (
                "instance void [app] Demo.Program::.ctor()[PreJIT]",
                "Demo.Program..ctor",
            ),
            (
                "class [mscorlib]System.Func`1<int32> [app] P/Inner::Make(int32)",
                "P/Inner.Make",
            ),
        ] {
            assert_eq!(frame(name).name, method);
            assert_eq!(frame(name).source, None);
        }
    }

    #[test]
    fn others_stay_as_they_are() {
        for name in [
            "Builtin:ArrayMap",
            "BytecodeHandler:LdaZero",
            "RegExp:a:b:1",
            "JS:",
            "JS:*",
            "JS:*fib",
            "JS:*fib /x.js",
            "JS:*fib /x.js:99999999999999999999:1",
            "int Foo.bar(int)",
            "Lcom/x/Foo;::bar(I)V",
            "std::vector<int>::push_back(int const&)",
            "operator[] a::b(int)",
            "::(",
            "a] ::(",
            "stub<1> GenerateResolveStub",
            "",
            "é::] (",
        ] {
            assert_eq!(frame(name), SymFrame::plain(name, FrameKind::Jit));
        }
    }
}
