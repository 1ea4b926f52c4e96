//! Tests of probe tables: mistakes, what functions become, the built-in ones.

use super::expr::is_name;
use super::table::{CheckedTable, Compiled, Exit, Exits, Switch, function_id};
use super::{
    CallKind, DataFormat, ProbeRole, ProbeTable, ResultKind, Tables, ValueFormat, ValueInfo, glob,
    role,
};
use aiprof_common as c;
use aiprof_common::{FetchOp, MAX_OPS, MAX_VALUES};
use std::collections::{BTreeSet, HashMap};

const HEAD: &str = "name = \"t\"\napi = \"T\"\n[[library]]\nfiles = [\"libt.so*\"]\n";

/// A table with one function `f` of these lines.
fn table(function: &str) -> CheckedTable {
    let text = format!("{HEAD}[[function]]\nsymbols = [\"f\"]\n{function}");
    CheckedTable::parse("t.toml", &text).unwrap_or_else(|errors| panic!("{errors:?}"))
}

fn compile(function: &str, exits: Exits) -> Compiled {
    let table = table(function);
    table.compile(table.function("f").unwrap(), "f", exits)
}

fn mistakes(text: &str) -> Vec<String> {
    match CheckedTable::parse("t.toml", text) {
        Ok(table) => panic!("accepted: {table:?}"),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

fn op(from: u8, index: u8, how: u8, size: u8) -> FetchOp {
    FetchOp {
        from,
        index,
        how,
        size,
        ..FetchOp::default()
    }
}

fn entry(compiled: &Compiled) -> &[FetchOp] {
    &compiled.spec.ops[..usize::from(compiled.spec.n_entry)]
}

fn exit(compiled: &Compiled) -> &[FetchOp] {
    let from = usize::from(compiled.spec.n_entry);
    &compiled.spec.ops[from..from + usize::from(compiled.spec.n_exit)]
}

#[test]
fn mistakes_have_line_and_column_and_say_what_is_allowed() {
    let function = format!("{HEAD}[[function]]\nsymbols = [\"f\"]\n");
    let f = |line: &str| format!("{function}{line}\n");
    for (text, wanted) in [
        (
            f("kind = \"lunch\""),
            "t.toml:7:8: unknown kind `lunch`; known: launch, submit, copy",
        ),
        (
            f("kind = \"launch\"\nargs = { a = \"arg9\" }"),
            "t.toml:8:15: `arg9`: arguments in registers",
        ),
        (
            f("kind = \"launch\"\nargs = { a = \"u32 [arg0+]\" }"),
            "t.toml:8:25: `` is not an offset",
        ),
        (
            f("kind = \"launch\"\nargs = { arg1 = \"arg1\" }"),
            "t.toml:8:10: `arg1` cannot name a value",
        ),
        (
            f("kind = \"launch\"\nargs = { a = \"result\" }"),
            "t.toml:8:14: the result is known only at the exit",
        ),
        (
            f("kind = \"launch\"\nout = { a = \"arg1\" }"),
            "t.toml:8:13: arguments can be read only at the entry",
        ),
        (
            f("kind = \"launch\"\nargs = { a = \"[b]\" }"),
            "t.toml:8:14: no earlier value is named `b`",
        ),
        (
            f("kind = \"launch\"\nargs = { a = \"u32 arg0\", b = \"[a]\" }"),
            "t.toml:8:30: `a` has fewer than 8 bytes",
        ),
        (
            f("kind = \"launch\"\nargs = { a = \"arg0\" }\nout = { a = \"[arg1]\" }"),
            "t.toml:9:13: value `a` is defined twice",
        ),
        (
            f("kind = \"launch\"\nout = { a = \"[arg1]\" }\nexit = \"never\""),
            "t.toml:9:8: `out` is read at the exit",
        ),
        (
            f("kind = \"launch\"\nnothrow = 1"),
            "t.toml:8:11: `nothrow` must be true or false",
        ),
        (
            f("kind = \"launch\"\nresult = \"ok\""),
            "t.toml:8:10: unknown result `ok`; known: none, zero-ok",
        ),
        (
            f("kind = \"launch\"\ncolour = 1"),
            "t.toml:8:1: unknown key `colour`; known: symbols, kind",
        ),
        (f("symbols = [\"g\"]"), "t.toml:7:1: duplicate key"),
        (f(""), "t.toml:5:1: `kind` is missing"),
        (
            f("kind = \"launch\"\n[[function]]\nsymbols = [\"g\", \"f\"]\nkind = \"copy\""),
            "t.toml:9:17: `f` is already in the function in line 5",
        ),
        (
            format!("{HEAD}[[function]]\nsymbols = [\"*\"]\nkind = \"host\""),
            "t.toml:6:12: `*` would probe every function",
        ),
        (
            format!("{HEAD}[[function]]\nsymbols = []\nkind = \"host\""),
            "t.toml:6:11: `symbols` must be a list of 1",
        ),
        (
            format!("{HEAD}[[function]]\nsymbols = [\"a b\"]\nkind = \"host\""),
            "t.toml:6:12: a name must have 1 to 1024",
        ),
        (
            "name = \"t\"".into(),
            "t.toml:1:1: a table must have at least one [[library]]",
        ),
        (
            HEAD.replace("\"t\"", "\"T x\""),
            "t.toml:1:8: `T x` is not a table name",
        ),
        (HEAD.replace("[[library]]", "[library]"), "t.toml:3:1: "),
        (
            HEAD.replace("files =", "layer = 256\nfiles ="),
            "t.toml:4:9: a layer must be a number from 0 to 255",
        ),
        (
            format!("only_with = \"magic\"\n{HEAD}"),
            "t.toml:1:13: unknown only_with `magic`; known: conditional-collection",
        ),
        ("a = ".into(), "t.toml:1:"),
    ] {
        let found = mistakes(&text);
        assert!(
            found.iter().any(|message| message.starts_with(wanted)),
            "wanted {wanted:?} of\n{text}\nfound {found:#?}"
        );
    }
}

#[test]
fn all_mistakes_are_reported_in_their_order_and_not_too_many() {
    let found = mistakes(&format!(
        "{HEAD}[[function]]\nkind = \"x\"\n[[function]]\nsymbols = [\"f\"]\nkind = 7\n"
    ));
    let places: Vec<_> = found
        .iter()
        .map(|message| message.split(':').nth(1).unwrap())
        .collect();
    assert_eq!(places, ["5", "6", "9"], "{found:#?}");
    let many = "[[function]]\nfoo = 1\n".repeat(500);
    assert_eq!(mistakes(&format!("{HEAD}{many}")).len(), 50);
}

#[test]
fn columns_count_characters_and_are_those_inside_of_expressions() {
    let text = format!(
        "{HEAD}[[function]]\nsymbols = [\"f\"]\nkind = \"host\"\nargs = {{ a = \"arg0\", b = \"[arg1+y]\" }} # ü\n"
    );
    let found = mistakes(&text);
    assert!(found[0].starts_with("t.toml:8:33: `y`"), "{found:?}");
    let found = mistakes(&text.replace("\"arg0\"", "'arg0', ü = 'arg0'"));
    assert!(found[0].starts_with("t.toml:8:"), "{found:?}");
}

#[test]
fn too_much_for_one_probe_is_a_mistake() {
    let values: Vec<_> = (0..=MAX_VALUES)
        .map(|n| format!("v{n} = \"[arg0+{n}]\""))
        .collect();
    let function = |values: &[String]| {
        format!(
            "{HEAD}[[function]]\nsymbols = [\"f\"]\nkind = \"host\"\nargs = {{ {} }}\n",
            values.join(", ")
        )
    };
    assert!(CheckedTable::parse("t", &function(&values[1..])).is_ok());
    let found = mistakes(&function(&values));
    assert!(found[0].contains("(limit: 12)"), "{found:?}");
    // Texts take no value, but an operation each.
    let mut texts = values[1..].to_vec();
    texts.extend((0..5).map(|n| format!("t{n} = \"text arg{n}\"")));
    assert!(texts.len() > MAX_OPS);
    let found = mistakes(&function(&texts));
    assert!(found[0].contains("(limit: 16)"), "{found:?}");
}

#[test]
fn registers_stack_and_by_value_structures() {
    let compiled = compile(
        "kind = \"launch\"\nargs = { kernel = \"arg0\", groups_x = \"u32 arg1.lo\", \
         groups_y = \"u32 arg1.hi\", bytes = \"u64 stack0\", half = \"hex32 stack2.hi\", \
         flag = \"u8 arg5\" }",
        Exits::Needed,
    );
    let stack = |n: i32, size| FetchOp {
        offset: 8 + 8 * n,
        ..op(c::FROM_STACK, 0, c::FETCH_READ, size)
    };
    let to = |to, op| FetchOp { to, ..op };
    assert_eq!(
        entry(&compiled),
        [
            to(0, op(c::FROM_ARGUMENT, 0, c::FETCH_VALUE, 8)),
            to(1, op(c::FROM_ARGUMENT, 1, c::FETCH_VALUE, 4)),
            FetchOp {
                shift: 32,
                ..to(2, op(c::FROM_ARGUMENT, 1, c::FETCH_VALUE, 4))
            },
            to(3, stack(0, 8)),
            FetchOp {
                offset: 8 + 16 + 4,
                ..to(4, stack(2, 4))
            },
            to(5, op(c::FROM_ARGUMENT, 5, c::FETCH_VALUE, 1)),
        ]
    );
    assert!(exit(&compiled).is_empty() && !compiled.sleepable);
    assert_eq!(compiled.spec.flags, c::SPEC_STACK | c::SPEC_WORK);
    assert_eq!(compiled.spec.n_values, 6);
    let formats: Vec<_> = compiled.probe.values.iter().map(|v| v.format).collect();
    let (hex, decimal) = (ValueFormat::Hex, ValueFormat::Decimal);
    assert_eq!(formats, [hex, decimal, decimal, decimal, hex, decimal]);
}

#[test]
fn pointers_are_followed_once_for_all_that_need_them() {
    let compiled = compile(
        "kind = \"launch\"\nargs = { a = \"u32 [[arg2+8]+16]\", b = \"u32 [[arg2+8]+20]\", \
         c = \"f64 [[stack1]-8]\" }",
        Exits::Needed,
    );
    let read = |from, index, size, offset, to| FetchOp {
        offset,
        to,
        ..op(from, index, c::FETCH_READ, size)
    };
    assert_eq!(
        entry(&compiled),
        [
            read(c::FROM_ARGUMENT, 2, 8, 8, 0),
            read(c::FROM_VALUE, 0, 4, 16, 1),
            read(c::FROM_VALUE, 0, 4, 20, 2),
            read(c::FROM_STACK, 0, 8, 16, 3),
            read(c::FROM_VALUE, 3, 8, 0, 4),
            read(c::FROM_VALUE, 4, 8, -8, 5),
        ]
    );
    let names: Vec<_> = compiled.probe.values.iter().map(|v| &v.name[..]).collect();
    assert_eq!(names, ["", "a", "b", "", "", "c"]);
    assert_eq!(compiled.probe.slot("b"), Some(2));
}

#[test]
fn texts_and_arrays() {
    let compiled = compile(
        "kind = \"module\"\nargs = { count = \"u32 arg1\", lists = \"handles(count) arg2\", \
         name = \"text [arg3+24]\", image = \"blob(u32 [arg3]) arg4+64\" }",
        Exits::Needed,
    );
    let data = |from, index, how, to| op(from, index, how, 0).to(to);
    let [count, lists, pointer, name, length, image] = entry(&compiled) else {
        panic!("{:?}", entry(&compiled));
    };
    assert_eq!((count.size, count.to), (4, 0));
    assert_eq!(
        *lists,
        FetchOp {
            unit: 8,
            count: 0,
            ..data(c::FROM_ARGUMENT, 2, c::FETCH_BYTES, 0)
        }
    );
    assert_eq!((pointer.to, pointer.offset), (1, 24));
    assert_eq!(*name, data(c::FROM_VALUE, 1, c::FETCH_TEXT, 1));
    assert_eq!((length.size, length.to), (4, 2));
    assert_eq!(
        *image,
        FetchOp {
            unit: 1,
            count: 2,
            offset: 64,
            ..data(c::FROM_ARGUMENT, 4, c::FETCH_BLOB, 2)
        }
    );
    let formats: Vec<_> = compiled.probe.data.iter().map(|d| d.format).collect();
    assert_eq!(
        formats,
        [DataFormat::Handles, DataFormat::Text, DataFormat::Blob]
    );
    assert_eq!(compiled.probe.tag("name"), Some(1));
    assert!(compiled.sleepable && !compiled.sleepable_exit);
    let launch = "kind = \"submit\"\nargs = { n = \"u32 arg1\", lists = \"handles(n) arg2\" }";
    assert!(!compile(launch, Exits::Needed).sleepable);
}

trait To {
    fn to(self, to: u8) -> Self;
}

impl To for FetchOp {
    fn to(self, to: u8) -> Self {
        Self { to, ..self }
    }
}

#[test]
fn what_is_read_at_the_exit_goes_through_the_arguments_of_the_entry() {
    let create = "kind = \"kernel\"\nresult = \"level0\"\nargs = { module = \"arg0\" }\n\
                  out = { kernel = \"[arg2]\", size = \"u32 [stack0+4]\", first = \"u8 [result]\", \
                  parent = \"[module+8]\" }";
    for exits in [Exits::Needed, Exits::All] {
        let compiled = compile(create, exits);
        let [module, kept, stack] = entry(&compiled) else {
            panic!("{:?}", entry(&compiled));
        };
        assert_eq!(*module, op(c::FROM_ARGUMENT, 0, c::FETCH_VALUE, 8));
        assert_eq!(*kept, op(c::FROM_ARGUMENT, 2, c::FETCH_VALUE, 8).to(1));
        assert_eq!((stack.from, stack.offset, stack.to), (c::FROM_STACK, 8, 3));
        let [kernel, size, first, parent] = exit(&compiled) else {
            panic!("{:?}", exit(&compiled));
        };
        assert_eq!(*kernel, op(c::FROM_VALUE, 1, c::FETCH_READ, 8).to(2));
        assert_eq!((size.index, size.offset, size.to), (3, 4, 4));
        assert_eq!(*first, op(c::FROM_RESULT, 0, c::FETCH_READ, 1).to(5));
        assert_eq!((parent.index, parent.offset), (0, 8));
        let stack = if exits == Exits::All {
            c::SPEC_STACK
        } else {
            0
        };
        assert_eq!(compiled.spec.flags, stack | c::SPEC_KEEP | c::SPEC_EXIT);
        assert!(compiled.probe.has_exit);
        assert_eq!(compiled.probe.result, ResultKind::Level0);
        let at_exit: Vec<_> = compiled.probe.values.iter().map(|v| v.at_exit).collect();
        assert_eq!(at_exit, [false, false, true, false, true, true, true]);
    }
}

#[test]
fn an_exit_that_is_useful_is_probed_when_all_are_wanted() {
    let function = "kind = \"event\"\nexit = \"useful\"\nargs = { event = \"arg0\" }\n\
                    out = { ticks = \"u64 [arg1]\" }";
    let without = compile(function, Exits::Needed);
    assert_eq!(
        (without.spec.flags, without.spec.n_values),
        (c::SPEC_WORK, 1)
    );
    assert!(!without.probe.has_exit && exit(&without).is_empty());
    let with = compile(function, Exits::All);
    assert_eq!(
        with.spec.flags,
        c::SPEC_STACK | c::SPEC_KEEP | c::SPEC_EXIT | c::SPEC_WORK
    );
    assert_eq!((with.spec.n_values, exit(&with).len()), (3, 1));
    // Without anything to read, the exit gives the end and the result.
    let plain = compile("kind = \"synchronize\"", Exits::All);
    assert_eq!(
        plain.spec.flags,
        c::SPEC_STACK | c::SPEC_EXIT | c::SPEC_WORK
    );
    let never = compile("kind = \"synchronize\"\nexit = \"never\"", Exits::All);
    assert_eq!(never.spec.flags, c::SPEC_STACK | c::SPEC_WORK);
}

#[test]
fn exact_symbols_come_before_patterns_and_patterns_in_their_order() {
    let table = CheckedTable::parse(
        "t",
        &format!(
            "{HEAD}[[function]]\nsymbols = [\"aiu*\"]\nkind = \"host\"\n\
             [[function]]\nsymbols = [\"aiuM?lloc\", \"_ZN4flex13RuntimeStream11synchronize*\"]\nkind = \"alloc\"\n\
             [[function]]\nsymbols = [\"aiuFree\"]\nkind = \"free\"\n"
        ),
    )
    .unwrap();
    let kind = |symbol| table.function(symbol).map(|f| f.kind);
    assert_eq!(kind("aiuFree"), Some(CallKind::Free));
    assert_eq!(kind("aiuMalloc"), Some(CallKind::Host));
    assert_eq!(
        kind("_ZN4flex13RuntimeStream11synchronizeEv"),
        Some(CallKind::Alloc)
    );
    assert_eq!(kind("Malloc"), None);
    assert_eq!(table.names().collect::<Vec<_>>(), ["aiuFree"]);
    assert_eq!(table.patterns().count(), 3);
    let function = table.function("_ZN4flex13RuntimeStream11synchronizeEv");
    let compiled = table.compile(
        function.unwrap(),
        "_ZN4flex13RuntimeStream11synchronizeEv",
        Exits::Needed,
    );
    assert_eq!(
        compiled.probe.function,
        "flex::RuntimeStream::synchronize()"
    );
}

#[test]
fn libraries_are_known_by_file_name_or_by_path() {
    let table = CheckedTable::parse(
        "t",
        "name = \"t\"\napi = \"T\"\nonly_with = \"conditional-collection\"\n\
         [[library]]\nfiles = [\"libt.so*\", \"*/opt/t/*\"]\nlayer = 3\n\
         [[function]]\nsymbols = [\"f\"]\nkind = \"host\"\n",
    )
    .unwrap();
    for path in ["/usr/lib/libt.so.1", "libt.so", "/x/opt/t/any"] {
        assert_eq!(table.library(path).map(|l| l.layer), Some(3), "{path}");
    }
    assert!(table.library("/usr/lib/libt.so.1/libc.so").is_none());
    let mut tables = Tables::default();
    tables.add("t", "").unwrap_err();
    let text = format!("{HEAD}[[function]]\nsymbols = [\"f\"]\nkind = \"host\"\n");
    tables.add("a.toml", &text).unwrap();
    tables
        .add(
            "b.toml",
            &text.replace("name =", "only_with = \"conditional-collection\"\nname ="),
        )
        .unwrap();
    assert_eq!(tables.iter().count(), 1, "the same name replaces");
    assert_eq!(tables.get("t").unwrap().source, "b.toml");
    assert_eq!(tables.of_file("/lib/libt.so", &[]).count(), 0);
    let switches = [Switch::ConditionalCollection];
    assert_eq!(tables.of_file("/lib/libt.so", &switches).count(), 1);
}

#[test]
fn names_of_kinds_are_those_of_the_wire() {
    for (name, kind) in CallKind::NAMED {
        assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{name}\""));
        assert_eq!(kind.name(), *name);
    }
    for (name, kind) in ResultKind::NAMED {
        assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{name}\""));
        assert_eq!(kind.name(), *name);
    }
}

/// The roles that functions' names stood for before tables had roles.
fn role_by_name(kind: CallKind, function: &str, values: &[ValueInfo]) -> Option<ProbeRole> {
    let says = |words: &[&str]| words.iter().any(|word| function.contains(word));
    let list_at_exit = values
        .iter()
        .find(|v| v.name == role::LIST)
        .map(|v| v.at_exit);
    match kind {
        CallKind::Copy if says(&["Prefetch"]) => Some(ProbeRole::Prefetch),
        CallKind::Copy => {
            let pairs = ["H", "D", "A"].map(|a| ["H", "D", "A"].map(|b| (a, b)));
            let pair = pairs
                .into_iter()
                .flatten()
                .find(|(from, to)| says(&[&format!("{from}to{to}"), &format!("{from}2{to}")]));
            match pair {
                Some(("H", "H")) => Some(ProbeRole::HostToHost),
                Some(("H", _)) => Some(ProbeRole::HostToDevice),
                Some((_, "H")) => Some(ProbeRole::DeviceToHost),
                Some(_) => Some(ProbeRole::DeviceToDevice),
                None if says(&["ReadBuffer", "BufferRead", "ReadImage", "ImageRead"]) => {
                    Some(ProbeRole::DeviceToHost)
                }
                None if says(&["WriteBuffer", "BufferWrite", "WriteImage", "ImageWrite"]) => {
                    Some(ProbeRole::HostToDevice)
                }
                None => says(&["CopyBuffer", "BufferCopy"]).then_some(ProbeRole::DeviceToDevice),
            }
        }
        CallKind::Queue if says(&["BeginGraphCapture", "BeginCapture"]) => {
            Some(ProbeRole::BeginCapture)
        }
        CallKind::Queue if says(&["EndGraphCapture", "EndCapture"]) => Some(ProbeRole::EndCapture),
        CallKind::Queue if says(&["GraphAdd"]) => Some(ProbeRole::Add),
        CallKind::Queue if list_at_exit == Some(true) && says(&["Immediate"]) => {
            Some(ProbeRole::Immediate)
        }
        CallKind::Queue if list_at_exit == Some(false) && says(&["Reset"]) => {
            Some(ProbeRole::Reset)
        }
        CallKind::Queue if list_at_exit == Some(false) && says(&["Close"]) => {
            Some(ProbeRole::Close)
        }
        CallKind::Queue | CallKind::Module | CallKind::Kernel | CallKind::Compile => {
            let releases = says(&["Destroy", "Release", "Unload", "Delete"]);
            let releases = releases.then_some(ProbeRole::Release);
            says(&["Retain"]).then_some(ProbeRole::Retain).or(releases)
        }
        CallKind::Alloc if says(&["Shared", "shared", "Managed"]) => Some(ProbeRole::Shared),
        CallKind::Alloc => says(&["Host", "host"]).then_some(ProbeRole::Host),
        CallKind::Event => says(&["QueryStatus"]).then_some(ProbeRole::Query),
        CallKind::Synchronize => says(&["ScheduleWait"]).then_some(ProbeRole::WaitAll),
        CallKind::Control => match function {
            "setenv" => Some(ProbeRole::Set),
            "putenv" => Some(ProbeRole::Assign),
            "unsetenv" => Some(ProbeRole::Unset),
            "clearenv" => Some(ProbeRole::Clear),
            name if name.starts_with("__itt_pause") => Some(ProbeRole::Pause),
            name if name.starts_with("__itt_resume") => Some(ProbeRole::Resume),
            _ => None,
        },
        CallKind::Range => [
            ("RangePush", ProbeRole::Push),
            ("RangePop", ProbeRole::Pop),
            ("RangeStart", ProbeRole::Start),
            ("RangeStop", ProbeRole::Stop),
            ("Mark", ProbeRole::Mark),
        ]
        .into_iter()
        .find_map(|(part, role)| says(&[part]).then_some(role)),
        _ => None,
    }
}

#[test]
fn built_in_functions_have_the_roles_that_their_names_said() {
    let (mut seen, mut with_role) = (0, 0);
    let mut roles = BTreeSet::new();
    for table in Tables::built_in().iter() {
        for function in &table.functions {
            for symbol in &function.symbols {
                let probe = table.compile(function, symbol, Exits::All).probe;
                let expected = role_by_name(probe.kind, &probe.function, &probe.values);
                assert_eq!(probe.role, expected, "{} {symbol}", table.name);
                seen += 1;
                with_role += usize::from(expected.is_some());
                roles.extend(expected.map(ProbeRole::name));
            }
        }
    }
    assert!(seen > 1000 && with_role > 150, "{with_role} of {seen}");
    // Nothing built in copies from host to host by name.
    assert_eq!(roles.len(), ProbeRole::NAMED.len() - 1, "{roles:?}");
}

#[test]
fn roles_are_of_kinds() {
    let table = |kind: &str, role: &str| {
        let text = format!(
            "name = \"t\"\napi = \"T\"\n[[library]]\nfiles = [\"libt.so\"]\n\
             [[function]]\nsymbols = [\"f\"]\nkind = \"{kind}\"\nrole = \"{role}\"\n"
        );
        CheckedTable::parse("t.toml", &text)
    };
    let good = table("kernel", "release").unwrap();
    assert_eq!(good.functions[0].role, Some(ProbeRole::Release));
    let bad = table("copy", "release").unwrap_err();
    assert_eq!(
        bad[0].message,
        "a function of the kind `copy` cannot have the role `release`"
    );
    assert_eq!(bad[0].line, 8);
    assert!(table("kernel", "destroy").is_err());
    for (name, role) in ProbeRole::NAMED {
        assert_eq!(serde_json::to_string(&role).unwrap(), format!("\"{name}\""));
        assert!(CallKind::NAMED.iter().any(|(_, kind)| role.is_of(*kind)));
    }
}

#[test]
fn function_ids_are_fnv_1a() {
    // Test vectors of draft-eastlake-fnv.
    for (text, hash) in [
        ("", 0x811c_9dc5),
        ("a", 0xe40c_292c),
        ("foobar", 0xbf9c_f968),
    ] {
        assert_eq!(function_id(text), hash);
    }
}

/// Names that mean something to the launch events.
fn roles() -> Vec<&'static str> {
    let mut all = vec![
        role::LIST,
        role::QUEUE,
        role::DEVICE,
        role::MODULE,
        role::KERNEL,
        role::EVENT,
        role::FENCE,
        role::LISTS,
        role::BYTES,
        role::DST,
        role::SRC,
        role::ADDRESS,
        role::NAME,
        role::NAME_INFO,
        role::DISPATCH,
        role::IMAGE,
        role::FORMAT,
        role::MODE,
        role::CORRELATION,
        role::FUNCTION,
        role::RECORD,
        role::BATCH,
        role::GRAPH,
        role::SOURCE_GRAPH,
        role::SOURCE_LIST,
        role::PROGRAM_IMAGE,
        role::DIRECTION,
        role::GLOBAL_ITEMS,
        role::LOCAL_ITEMS,
        role::RECORDS,
        role::ASSUMED_NAME,
        role::ASSUMED_NAME_LENGTH,
    ];
    all.extend(role::IMAGES.iter().chain(&role::EXTENT));
    all.extend(role::GROUPS.iter().chain(&role::LOCAL).chain(&role::GLOBAL));
    all
}

#[test]
fn roles_can_be_written_in_tables() {
    for name in roles() {
        assert!(is_name(name), "{name}");
    }
}

#[test]
fn what_is_left_out_of_tables_moves_nothing() {
    let named = |tables: &Tables, symbol: &str| {
        let mut found = tables.iter().filter_map(|table| table.function(symbol));
        found.next().map(|function| function.symbols.clone())
    };
    let left_out = ["cuKernelGetName", "cuFuncGetName"];
    let (whole, part) = (Tables::built_in(), Tables::built_in().without(&left_out));
    for table in whole.iter() {
        let symbols = table.functions.iter().flat_map(|one| &one.symbols);
        for symbol in symbols.filter(|symbol| !glob::is_pattern(symbol)) {
            let expected = match left_out.contains(&symbol.as_str()) {
                true => None,
                false => named(&whole, symbol),
            };
            assert_eq!(named(&part, symbol), expected, "{symbol}");
        }
    }
}

#[test]
fn built_in_tables_have_no_mistake_and_compile() {
    for (source, text) in CheckedTable::BUILT_IN {
        if let Err(mistakes) = CheckedTable::parse(source, text) {
            let lines: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
            panic!("{}", lines.join("\n"));
        }
    }
    let tables = Tables::built_in();
    assert_eq!(tables.iter().count(), CheckedTable::BUILT_IN.len());
    let mut ids: HashMap<u32, &str> = HashMap::new();
    for table in tables.iter() {
        for name in table.names().chain(table.patterns()) {
            let function = table.function(name).unwrap();
            for exits in [Exits::Needed, Exits::All] {
                let compiled = table.compile(function, name, exits);
                let spec = &compiled.spec;
                assert!(usize::from(spec.n_entry + spec.n_exit) <= MAX_OPS);
                assert_eq!(usize::from(spec.n_values), compiled.probe.values.len());
                assert_eq!(compiled.probe.has_exit, spec.flags & c::SPEC_EXIT != 0);
            }
            let other = ids.insert(function_id(name), name);
            assert!(other.is_none_or(|o| o == name), "{other:?} {name}: same id");
        }
    }
}

#[test]
fn built_in_launches_and_copies_say_what_the_launch_events_need() {
    for table in Tables::built_in().iter() {
        for function in &table.functions {
            let has = |name: &str| {
                let mut fields = function.args.iter().chain(&function.out);
                fields.any(|field| field.name == name)
            };
            let at = format!("{}:{} {:?}", table.source, function.line, function.symbols);
            if function.kind == CallKind::Resolve {
                let named = has(role::NAME) || function.hands_out.is_some();
                assert_eq!(
                    has(role::FUNCTION) && named,
                    function.fills.is_empty(),
                    "{at}"
                );
                assert_eq!(
                    function.exit == Exit::Needed,
                    !function.out.is_empty(),
                    "{at}"
                );
            }
            // A misspelt role would silently be an argument like any other.
            for field in function.args.iter().chain(&function.out) {
                let name = &field.name;
                let near = |role: &&str| role.trim_end_matches('s') == name.trim_end_matches('s');
                let similar = roles().into_iter().find(near);
                let plural_pairs = [
                    "lists", "list", "queues", "dsts", "srcs", "records", "events", "kernels",
                    "modules", "devices", "groups",
                ];
                assert!(
                    similar.is_none_or(|role| role == name) || plural_pairs.contains(&&name[..]),
                    "{at}: {name} for {similar:?}?"
                );
            }
        }
    }
}

#[test]
fn aiu_symbols_are_found_by_their_beginnings() {
    let tables = Tables::built_in();
    let aiu = tables.get("aiu").unwrap();
    let stream = "_ZN4flex13RuntimeStream";
    for (symbol, kind) in [
        (
            "22launchOperationComputeEPNS_13ComputeParamsE",
            CallKind::Launch,
        ),
        (
            "22launchOperationComputeEPKNS_13ComputeParamsE",
            CallKind::Launch,
        ),
        ("18launchOperationH2DEPNS_9DmaParamsE", CallKind::Copy),
        ("18launchOperationD2HEPKNS_9DmaParamsE", CallKind::Copy),
        (
            "26launchOperationP2PRdmaSendEPNS_9P2PParamsE",
            CallKind::Collective,
        ),
        (
            "34launchOperationLegacyP2PDataExchangeE",
            CallKind::Collective,
        ),
        ("26launchOperationEventSignalEv", CallKind::Barrier),
        (
            "27launchOperationHostCallbackEPNS_18HostCallbackParamsE",
            CallKind::Host,
        ),
        ("25launchOperationOfTomorrowEv", CallKind::Launch),
        ("11synchronizeEv", CallKind::Synchronize),
    ] {
        let symbol = format!("{stream}{symbol}");
        assert_eq!(
            aiu.function(&symbol).map(|f| f.kind),
            Some(kind),
            "{symbol}"
        );
    }
    for (symbol, kind) in [
        ("aiuLaunchControlBlocks", Some(CallKind::Launch)),
        ("aiuGraphExecution", Some(CallKind::Host)),
        ("aiuRDMABarrier2", Some(CallKind::Collective)),
        (
            "_Z27aiuptiActivityGetNextRecordPhmPP15AIUpti_Activity",
            Some(CallKind::Activity),
        ),
        (
            "_Z31aiuptiActivityRegisterCallbacksPFvPPhPmS1_EPFvS_mmE",
            Some(CallKind::Resolve),
        ),
        ("_ZN4flex12RuntimeEntry10toPriorityEi", None),
        ("aio_read", None),
    ] {
        assert_eq!(aiu.function(symbol).map(|f| f.kind), kind, "{symbol}");
    }
    let callbacks = aiu
        .function("_Z31aiuptiActivityRegisterCallbacksX")
        .unwrap();
    let handed_out = callbacks.hands_out.as_deref().unwrap();
    let completed = aiu.function(handed_out).unwrap();
    assert_eq!(completed.kind, CallKind::Activity);
    let compiled = aiu.compile(completed, handed_out, Exits::Needed);
    assert!(compiled.sleepable && compiled.probe.tag("records").is_some());
}

#[test]
fn what_functions_hand_out_is_described() {
    for table in Tables::built_in().iter() {
        for function in &table.functions {
            if let Some(symbol) = &function.hands_out {
                assert!(table.function(symbol).is_some(), "{symbol}");
            }
        }
    }
}

/// The header may be older than the table: what it has comes first in ours.
#[test]
fn arrays_of_functions_are_in_the_order_of_the_header() {
    let header = "/usr/include/level_zero/ze_ddi.h";
    let Ok(text) = std::fs::read_to_string(header) else {
        println!("skipped: arrays_of_functions_are_in_the_order_of_the_header: no {header}");
        return;
    };
    let tables = Tables::built_in();
    let table = tables.get("level-zero").unwrap();
    let mut compared = 0;
    for function in table.functions.iter().filter(|f| !f.fills.is_empty()) {
        // zeGetKernelProcAddrTable fills a ze_kernel_dditable_t.
        let getter = &function.symbols[0];
        let Some((_, after)) = text.split_once(&format!("{getter}(")) else {
            continue; // newer than the header
        };
        let structure = after.split_whitespace().find(|w| w.contains("_dditable_t"));
        let name = structure.unwrap().trim_end_matches('*');
        let body = text
            .split(&format!("typedef struct _{name}"))
            .nth(1)
            .unwrap();
        let body = body.split('}').next().unwrap();
        let members = body.split_whitespace().filter_map(|word| {
            let name = word.strip_prefix("ze_pfn")?.strip_suffix("_t")?;
            Some(format!("ze{name}"))
        });
        let members: Vec<_> = members.collect();
        assert!(!members.is_empty());
        assert_eq!(
            Some(members.as_slice()),
            function.fills.get(..members.len()),
            "{getter}"
        );
        compared += 1;
    }
    assert!(compared > 15, "{compared}");
}

/// So far as the header goes, which may be older than the table.
#[test]
fn opencls_functions_are_in_the_order_of_the_header() {
    let header = "/usr/include/CL/cl_icd.h";
    let Ok(text) = std::fs::read_to_string(header) else {
        println!("skipped: opencls_functions_are_in_the_order_of_the_header: no {header}");
        return;
    };
    let body = text.split("typedef struct _cl_icd_dispatch {").nth(1);
    let body = body.unwrap().split("} cl_icd_dispatch;").next().unwrap();
    let members = body.lines().filter_map(|line| {
        let declared = line.trim().strip_suffix(';')?;
        declared.split([' ', '*']).next_back()
    });
    let members: Vec<_> = members.collect();
    assert!(members.len() > 100, "{members:?}");
    let tables = Tables::built_in();
    let function = tables.get("opencl").unwrap().function("clGetDeviceIDs");
    let fills = &function.unwrap().fills;
    assert_eq!(
        Some(members.as_slice()),
        fills
            .get(..members.len())
            .map(|f| { f.iter().map(String::as_str).collect::<Vec<_>>() })
            .as_deref()
    );
}

#[test]
fn the_example_of_the_documentation_is_a_table() {
    let page = include_str!("../../../../../docs/probes.md");
    let example = page.split("```toml\n").nth(1).unwrap();
    let example = example.split("```").next().unwrap();
    let table = CheckedTable::parse("docs/probes.md", example).unwrap();
    assert_eq!((table.functions.len(), table.name.as_str()), (2, "mylib"));
    // What it lists is what there is.
    for (name, _) in CallKind::NAMED {
        assert!(page.contains(&format!("`{name}`")), "kind {name}");
    }
    for (name, _) in ProbeRole::NAMED {
        assert!(page.contains(&format!("`{name}`")), "role {name}");
    }
    for (name, _) in ResultKind::NAMED {
        assert!(page.contains(&format!("`{name}`")), "result {name}");
    }
    for (name, ..) in super::expr::SCALARS {
        assert!(page.contains(&format!("`{name}`")), "type {name}");
    }
}
